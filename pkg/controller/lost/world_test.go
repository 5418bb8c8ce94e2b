package lost

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

var (
	runs    = corev1.PodStatus{Phase: corev1.PodRunning}
	refused = corev1.PodStatus{Phase: corev1.PodPending, Reason: refusal.ReasonProviderFailed, Message: "no"}
)

// world is a reconciler with a fake clock and a queue of requests like controller-runtime's.
type world struct {
	*testing.T
	*Reconciler
	ctx     context.Context
	clock   *clocktesting.FakeClock
	events  *record.FakeRecorder
	began   time.Time
	again   map[types.NamespacedName]time.Time // when pods are reconciled next
	evicted map[string]time.Duration           // when, since began
	tried   map[string][]time.Duration         // when evictions were tried, since began
	answers map[string][]error                 // errors of the next evictions, by pod
	log     strings.Builder
}

// newWorld returns a world with the pods and with a burst pool "aci" that has startWithin.
func newWorld(t *testing.T, startWithin time.Duration, pods ...*corev1.Pod) *world {
	t.Helper()
	list, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "user"}}},
		{Name: "aci", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "virtual-kubelet"}}, Burst: &configv1.Burst{StartWithin: &metav1.Duration{Duration: startWithin}}},
	}})
	must.NoError(t, err)
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	w := &world{T: t, began: began, clock: clocktesting.NewFakeClock(began), events: record.NewFakeRecorder(10000),
		again: map[types.NamespacedName]time.Time{}, evicted: map[string]time.Duration{}, tried: map[string][]time.Duration{}, answers: map[string][]error{}}
	w.ctx = ctrl.LoggerInto(context.Background(), funcr.New(func(_, args string) { fmt.Fprintln(&w.log, args) }, funcr.Options{}))
	objects := []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm", Labels: map[string]string{"mode": "user"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}},
	}
	for _, p := range pods {
		objects = append(objects, p)
		w.again[client.ObjectKeyFromObject(p)] = began
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).WithInterceptorFuncs(interceptor.Funcs{SubResourceCreate: w.evict}).Build()
	w.Reconciler = &Reconciler{Client: c, Pools: list, SchedulerName: "pool-priority-scheduler", Recorder: w.events, Clock: w.clock, failures: newPodFailures(w.clock)}
	return w
}

func (w *world) evict(ctx context.Context, c client.Client, subresource string, o, body client.Object, _ ...client.SubResourceCreateOption) error {
	now, name := w.clock.Since(w.began), o.GetName()
	w.tried[name] = append(w.tried[name], now)
	stored := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), stored); err != nil {
		return err
	}
	p := body.(*policyv1.Eviction).DeleteOptions.Preconditions
	if subresource != "eviction" || *p.UID != stored.UID || *p.ResourceVersion != stored.ResourceVersion {
		w.Errorf("%s of pod %s with the preconditions %v", subresource, name, p)
	}
	if answers := w.answers[name]; len(answers) > 0 {
		w.answers[name] = answers[1:]
		return answers[0]
	}
	w.evicted[name] = now
	w.again[client.ObjectKeyFromObject(o)] = w.clock.Now() // it is gone
	return c.Delete(ctx, stored)
}

// add creates the pod and queues a request for it.
func (w *world) add(p *corev1.Pod) {
	w.Helper()
	must.NoError(w, w.Client.Create(w.ctx, p))
	w.again[client.ObjectKeyFromObject(p)] = w.clock.Now()
}

// becomes sets the pod's status and queues a request for it.
func (w *world) becomes(name string, status corev1.PodStatus) {
	w.Helper()
	key := types.NamespacedName{Namespace: "default", Name: name}
	p := &corev1.Pod{}
	must.NoError(w, w.Client.Get(w.ctx, key, p))
	p.Status = status
	must.NoError(w, w.Client.Status().Update(w.ctx, p))
	w.again[key] = w.clock.Now()
}

// goOn advances the clock by d and reconciles each pod when it is due.
func (w *world) goOn(d time.Duration) {
	w.Helper()
	for end := w.clock.Now().Add(d); ; {
		keys, next := []types.NamespacedName{}, end
		for key, at := range w.again {
			switch {
			case !at.After(w.clock.Now()):
				keys = append(keys, key)
			case at.Before(next):
				next = at
			}
		}
		slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.Name, b.Name) })
		for _, key := range keys {
			delete(w.again, key)
			result, err := w.Reconcile(w.ctx, reconcile.Request{NamespacedName: key})
			if err != nil {
				fmt.Fprintln(&w.log, err)
				result.RequeueAfter = time.Minute // controller-runtime's, more or less
			}
			if result.RequeueAfter > 0 {
				w.again[key] = w.clock.Now().Add(result.RequeueAfter)
			}
		}
		if len(keys) == 0 {
			w.clock.SetTime(next)
			if !next.Before(end) {
				return
			}
		}
	}
}

// young returns a pod of a ReplicaSet that is bound to the virtual node and has not started.
func young(name, owner string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{NodeName: "virtual", SchedulerName: "pool-priority-scheduler"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func isRefused(p *corev1.Pod) { p.Status = refused }

func ownedBy(apiVersion, kind string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind }
}
