package sources

import (
	"errors"
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

func answersConfig(client *fake.Clientset) (*Config, chan struct{}) {
	changed := make(chan struct{}, 100)
	args := &configv1.PoolPriorityArgs{}
	configv1.SetDefaults_PoolPriorityArgs(args)
	return &Config{Args: args, Client: client, Now: time.Now, Changed: func() { changed <- struct{}{} }}, changed
}

// until waits until the condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not seen:", what)
		}
	}
}

// TestWatchAnswers: the latest of Karpenter's events on a pod counts. Without the right to list events, none counts.
func TestWatchAnswers(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	first := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	event := func(name, pod, reason string, at time.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: types.UID(pod)},
			Reason: reason, Source: corev1.EventSource{Component: "karpenter"}, LastTimestamp: metav1.NewTime(at)}
	}
	client := fake.NewClientset(event("a", "p", "FailedScheduling", first), event("b", "p", "Nominated", first.Add(time.Minute)), event("c", "p", "Evicted", first.Add(time.Hour)))
	config, changed := answersConfig(client)
	s := &Sources{}
	if !s.Answered("p").IsZero() {
		t.Error("events are not read")
	}
	must.NoError(t, s.watchAnswers(ctx, config))
	until(t, "the events", func() bool { return s.Answered("p").Equal(first.Add(time.Minute)) })
	if !s.Answered("other").IsZero() {
		t.Error("another pod has an event")
	}
	<-changed

	client = fake.NewClientset(event("a", "p", "FailedScheduling", first))
	tried := make(chan struct{}, 100)
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		tried <- struct{}{}
		return true, nil, apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no right"))
	})
	config, _ = answersConfig(client)
	s = &Sources{}
	must.NoError(t, s.watchAnswers(ctx, config))
	<-tried
	if !s.Answered("p").IsZero() {
		t.Error("events are read without the right")
	}
}

// TestWatchLease: a renewal of the Lease counts from when it was seen, and an old Lease counts from its own time.
func TestWatchLease(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	is := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter-leader-election", ResourceVersion: "1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: old}}}
	client := fake.NewClientset(is)
	config, changed := answersConfig(client)
	l := must.Get(watchLease(ctx, config))(t)
	if !l.last().IsZero() && !l.last().Equal(old) {
		t.Errorf("renewed at %v", l.last())
	}
	until(t, "the Lease", func() bool { return l.last().Equal(old) })
	<-changed
	renew := func(version string, to time.Time) {
		is = is.DeepCopy()
		is.ResourceVersion, is.Spec.RenewTime = version, &metav1.MicroTime{Time: to}
		must.Do(t)(client.CoordinationV1().Leases("kube-system").Update(ctx, is, metav1.UpdateOptions{}))
	}
	began := time.Now()
	renew("2", began.Add(-time.Minute)) // Karpenter's clock is behind
	until(t, "the renewal", func() bool { return !l.last().Before(began) })
	<-changed
	seen := l.last()
	renew("3", began.Add(-time.Minute)) // another field changed
	must.NoError(t, client.CoordinationV1().Leases("kube-system").Delete(ctx, is.Name, metav1.DeleteOptions{}))
	until(t, "the deletion", func() bool { return l.last().IsZero() })
	if len(changed) > 1 {
		t.Errorf("%d changes, although the Lease was seen at %v", len(changed), seen)
	}
}
