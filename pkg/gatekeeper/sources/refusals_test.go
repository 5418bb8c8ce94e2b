package sources

import (
	"errors"
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/must"
)

func karpenterConfig(client *fake.Clientset) (*Config, chan struct{}) {
	changed := make(chan struct{}, 100)
	args := &configv1.PoolPriorityArgs{}
	configv1.SetDefaults_PoolPriorityArgs(args)
	return &Config{Args: args, Client: client, Now: time.Now, Changed: func() { changed <- struct{}{} }}, changed
}

// until waits until the condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen:", what)
		}
	}
}

// watches waits until the client has a watch of the resource. Objects that change between list and watch are not
// delivered.
func watches(t *testing.T, client *fake.Clientset, resource string) {
	t.Helper()
	until(t, "a watch of "+resource, func() bool {
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
			return a.GetVerb() == "watch" && a.GetResource().Resource == resource
		})
	})
	time.Sleep(10 * time.Millisecond)
}

// TestWatchSimulations: Karpenter's event that it cannot place a pod counts, and Changed is called. Once the right to
// list events is granted, the events are read.
func TestWatchSimulations(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	first := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	event := func(name, pod, reason string, at time.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: types.UID(pod)},
			Reason: reason, Source: corev1.EventSource{Component: "karpenter"}, LastTimestamp: metav1.NewTime(at)}
	}
	client := fake.NewClientset(event("a", "p", "FailedScheduling", first), event("b", "p", "Evicted", first.Add(time.Hour)), event("c", "other", "Nominated", first))
	tries := make(chan struct{})
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case <-tries:
			return false, nil, nil
		default:
			return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no right"))
		}
	})
	config, changed := karpenterConfig(client)
	s := &Sources{}
	if !s.RefusedAt("p").IsZero() {
		t.Error("events are not read")
	}
	must.NoError(t, s.watchSimulations(ctx, config))
	time.Sleep(10 * time.Millisecond)
	if !s.RefusedAt("p").IsZero() {
		t.Error("events are read without the right")
	}
	close(tries)
	until(t, "the events", func() bool { return s.RefusedAt("p").Equal(first) })
	if !s.RefusedAt("other").IsZero() {
		t.Error("another pod is refused")
	}
	<-changed
	watches(t, client, "events")
	must.Do(t)(client.CoreV1().Events("default").Create(ctx, event("d", "p", "Nominated", first.Add(time.Minute)), metav1.CreateOptions{}))
	until(t, "the node", func() bool { return s.RefusedAt("p").IsZero() })
	if len(changed) > 0 {
		t.Error("a node that was found, and another event, count as a change")
	}
}

// TestWatchLease: a renewal of the Lease counts from when it was seen. A Lease that was left behind does not count.
func TestWatchLease(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	behind := time.Now().Add(-time.Hour).Truncate(time.Second) // Karpenter's clock is behind, or its Lease was left behind
	is := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter-leader-election", ResourceVersion: "1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: behind}}}
	client := fake.NewClientset(is)
	config, changed := karpenterConfig(client)
	l := must.Get(watchLease(ctx, config))(t)
	renew := func(version string, to time.Time) {
		is = is.DeepCopy()
		is.ResourceVersion, is.Spec.RenewTime = version, &metav1.MicroTime{Time: to}
		must.Do(t)(client.CoordinationV1().Leases("kube-system").Update(ctx, is, metav1.UpdateOptions{}))
	}
	watches(t, client, "leases")
	if !l.last().IsZero() || len(changed) > 0 || !l.settled() || !l.exists() {
		t.Errorf("an old Lease counts: %v", l.last())
	}
	began := time.Now()
	renew("2", behind.Add(2*time.Second))
	until(t, "the renewal", func() bool { return !l.last().Before(began) })
	<-changed
	seen := l.last()
	renew("3", behind.Add(2*time.Second)) // another field changed
	renew("4", behind.Add(4*time.Second))
	until(t, "the second renewal", func() bool { return l.last().After(seen) })
	if len(changed) > 0 {
		t.Error("each renewal counts as a change")
	}
	must.NoError(t, client.CoordinationV1().Leases("kube-system").Delete(ctx, is.Name, metav1.DeleteOptions{}))
	until(t, "the deletion", func() bool { return l.last().IsZero() && !l.exists() })
}
