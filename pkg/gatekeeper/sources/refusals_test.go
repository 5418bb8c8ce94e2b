package sources

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/test/must"
)

func karpenterConfig(client *fake.Clientset) (*Config, chan struct{}) {
	changed := make(chan struct{}, 100)
	args := &configv1.PoolPriorityArgs{}
	configv1.SetDefaults_PoolPriorityArgs(args)
	return &Config{Args: args, Client: client, Now: time.Now, Changed: func() { changed <- struct{}{} }}, changed
}

// watches waits until the client has a watch of the resource. Objects that change between list and watch are not
// delivered.
func watches(t *testing.T, client *fake.Clientset, resource string) {
	t.Helper()
	must.Eventually(t, "somebody watches "+resource, func() bool {
		return slices.ContainsFunc(client.Actions(), func(a clienttesting.Action) bool {
			return a.GetVerb() == "watch" && a.GetResource().Resource == resource
		})
	})
	time.Sleep(10 * time.Millisecond)
}

func pod(namespace, uid string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, UID: types.UID(uid)}}
}

// TestWatchSimulations: Karpenter's event that it cannot place a pod counts, and Changed is called. Once the right to
// list events is granted, the events are read.
func TestWatchSimulations(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	first := time.Now().Truncate(time.Second)
	event := func(name, pod, reason string, at time.Time) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: types.UID(pod)},
			Reason: reason, Source: corev1.EventSource{Component: "karpenter"}, LastTimestamp: metav1.NewTime(at)}
	}
	client := fake.NewClientset(event("a", "p", "FailedScheduling", first), event("b", "p", "Evicted", first.Add(time.Hour)), event("c", "other", "Nominated", first),
		event("e", "old", "FailedScheduling", first.Add(-maxAge)))
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
	if !s.RefusedAt(pod("default", "p")).IsZero() {
		t.Error("events are not read")
	}
	s.watchSimulations(ctx, config)
	time.Sleep(10 * time.Millisecond)
	if !s.RefusedAt(pod("default", "p")).IsZero() {
		t.Error("events are read without the right")
	}
	close(tries)
	must.Eventually(t, "the events are seen", func() bool { return s.RefusedAt(pod("default", "p")).Equal(first) })
	if !s.RefusedAt(pod("default", "old")).IsZero() {
		t.Error("an old event counts")
	}
	if !s.RefusedAt(pod("default", "other")).IsZero() || !s.RefusedAt(pod("others", "p")).IsZero() {
		t.Error("another pod is refused")
	}
	<-changed
	watches(t, client, "events")
	must.Do(t)(client.CoreV1().Events("default").Create(ctx, event("d", "p", "Nominated", first.Add(time.Minute)), metav1.CreateOptions{}))
	must.Eventually(t, "the node is seen", func() bool { return s.RefusedAt(pod("default", "p")).IsZero() })
	if len(changed) > 0 {
		t.Error("a node that was found, and another event, count as a change")
	}
}

// TestWatchAutoscaler: the cluster autoscaler's events on pods and on its status are read. An event counts from when it
// arrived, also if it is listed again. An event in one namespace says nothing about pods of another namespace. With
// tenants, only events on the status are read.
func TestWatchAutoscaler(t *testing.T) {
	for name, tenants := range map[string]bool{"one team": false, "tenants": true} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			at := time.Now().Truncate(time.Second)
			event := func(namespace, name, version, uid, reason, message string) *corev1.Event {
				return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: version}, InvolvedObject: corev1.ObjectReference{UID: types.UID(uid)},
					Reason: reason, Message: message, Source: corev1.EventSource{Component: "cluster-autoscaler"}, LastTimestamp: metav1.NewTime(at)}
			}
			const atMax, refused = "pod didn't trigger scale-up: 2 max node group size reached", "pod didn't trigger scale-up: 2 max node group size reached, 1 node(s) had untolerated taint(s)"
			old, again := event("default", "old", "1", "old", "NotTriggerScaleUp", refused), event("default", "a", "2", "p", "NotTriggerScaleUp", refused)
			client := fake.NewClientset()
			lists := atomic.Int32{}
			client.PrependReactor("list", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
				want := metav1.NamespaceAll
				if tenants {
					want = "kube-system"
				}
				if got := action.GetNamespace(); got != want {
					t.Errorf("events of namespace %q are listed", got)
				}
				list := &corev1.EventList{Items: []corev1.Event{*old}}
				if lists.Add(1) > 1 {
					list.Items = append(list.Items, *again)
				}
				return true, list, nil
			})
			watchers := make(chan *apiwatch.FakeWatcher, 10)
			client.PrependWatchReactor("events", func(clienttesting.Action) (bool, apiwatch.Interface, error) {
				w := apiwatch.NewFake()
				watchers <- w
				return true, w, nil
			})
			config, changed := karpenterConfig(client)
			config.Args.Tenants = tenants
			s := &Sources{}
			if got := s.NoScaleUp(pod("default", "p")); got != (nodegroups.NoScaleUp{}) {
				t.Errorf("%+v, but events are not read", got)
			}
			s.watchAutoscaler(ctx, config, "kube-system")
			watcher := <-watchers
			watcher.Add(again)
			watcher.Add(event("others", "b", "3", "p", "NotTriggerScaleUp", atMax))
			watcher.Add(event("default", "c", "4", "p", "TriggeredScaleUp", "pod triggered scale-up"))
			watcher.Add(event("kube-system", "d", "5", "status", "GracefulDegradationStarted", "unable"))
			degraded := func(namespace string) time.Time {
				return clusterautoscaler.DegradedSince(s.events.on(namespace, "status"))
			}
			must.Eventually(t, "the degradation is seen", func() bool { return degraded("kube-system").Equal(at) })
			<-changed
			if !degraded("others").IsZero() || len(changed) > 0 {
				t.Errorf("an event elsewhere degrades the autoscaler at %v, or %d changes more", degraded("others"), len(changed))
			}
			first := s.NoScaleUp(pod("default", "p"))
			if tenants {
				if first != (nodegroups.NoScaleUp{}) {
					t.Errorf("with tenants: %+v", first)
				}
				return
			}
			if first.Groups != 3 || first.AtMax != 2 || !first.At.Equal(at) || first.Seen.Before(at) {
				t.Errorf("%+v", first)
			}
			if got := s.NoScaleUp(pod("others", "p")); got.Groups != 2 {
				t.Errorf("the pod of the other namespace has %+v", got)
			}
			watcher.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
			watcher = <-watchers // events were listed again
			watcher.Add(event("default", "e", "6", "q", "NotTriggerScaleUp", atMax))
			must.Eventually(t, "an event after the second list is seen", func() bool { return s.NoScaleUp(pod("default", "q")).Groups == 2 })
			if got := s.NoScaleUp(pod("default", "p")); got != first {
				t.Errorf("an event that is listed again arrived at %v, and at %v before", got.Seen, first.Seen)
			}
			watcher.Modify(event("default", "a", "7", "p", "NotTriggerScaleUp", refused)) // the autoscaler counted it again
			must.Eventually(t, "the event's repetition is seen", func() bool { return s.NoScaleUp(pod("default", "p")).Seen.After(first.Seen) })
			// Only the last event on a pod is kept, until it expires.
			last, next := event("default", "f", "8", "p", "NotTriggerScaleUp", atMax), event("default", "g", "9", "r", "NotTriggerScaleUp", atMax)
			watcher.Add(last)
			watcher.Delete(event("default", "a", "10", "p", "NotTriggerScaleUp", refused))
			watcher.Add(next)
			must.Eventually(t, "the next pod's event is seen", func() bool { return s.NoScaleUp(pod("default", "r")).Groups == 2 })
			if got := s.NoScaleUp(pod("default", "p")); got.Groups != 2 {
				t.Errorf("after an older event expired: %+v", got)
			}
			watcher.Delete(last)
			must.Eventually(t, "the last event's end is seen", func() bool { return s.NoScaleUp(pod("default", "p")) == (nodegroups.NoScaleUp{}) })
		})
	}
}

// TestWatchLease: a renewal of the Lease counts from when it was seen. A Lease that was left behind does not count.
func TestWatchLease(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	behind := time.Now().Add(-time.Hour).Truncate(time.Second) // Karpenter's clock is behind, or its Lease was left behind
	is := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "karpenter-leader-election", ResourceVersion: "1"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: behind}}}
	client := fake.NewClientset(is)
	config, changed := karpenterConfig(client)
	l := watchLease(ctx, config)
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
	must.Eventually(t, "the renewal is seen", func() bool { return !l.last().Before(began) })
	<-changed
	seen := l.last()
	renew("3", behind.Add(2*time.Second)) // another field changed
	renew("4", behind.Add(4*time.Second))
	must.Eventually(t, "the second renewal is seen", func() bool { return l.last().After(seen) })
	if len(changed) > 0 {
		t.Error("each renewal counts as a change")
	}
	must.NoError(t, client.CoordinationV1().Leases("kube-system").Delete(ctx, is.Name, metav1.DeleteOptions{}))
	must.Eventually(t, "the deletion is seen", func() bool { return l.last().IsZero() && !l.exists() })
}
