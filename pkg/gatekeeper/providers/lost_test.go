package providers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/test/must"
)

var (
	runs    = v1.PodStatus{Phase: v1.PodRunning}
	refused = v1.PodStatus{Phase: v1.PodPending, Reason: refusal.ReasonProviderFailed, Message: "no"}
)

// world has pods on the nodes vm and virtual, a fake clock, and a client that answers evictions as told.
type world struct {
	*testing.T
	*lost
	ctx     context.Context
	clock   *clocktesting.FakeClock
	began   time.Time
	pods    cache.Indexer
	events  *events.FakeRecorder
	evicted map[string]time.Duration   // when, since began
	tried   map[string][]time.Duration // when evictions were tried, since began
	answers map[string][]error         // errors of the next evictions, by pod
	failed  []string                   // the pods that were marked as failed
	log     strings.Builder
}

// newWorld returns a world with the pods, in which pods must start within startWithin.
func newWorld(t *testing.T, startWithin time.Duration, pods ...*v1.Pod) *world {
	t.Helper()
	began := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	w := &world{T: t, began: began, clock: clocktesting.NewFakeClock(began), evicted: map[string]time.Duration{}, tried: map[string][]time.Duration{}, answers: map[string][]error{},
		pods: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
	p, recorder := newProviders(t, func(c *Config) {
		c.Clock, c.Pods, c.SchedulerName = w.clock, corelisters.NewPodLister(w.pods), "pool-priority-scheduler"
		c.Rules = func(time.Duration) breaker.Rules { return breaker.NewRules(startWithin) }
	})
	recorder.Events, w.events = make(chan string, 10000), recorder
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", w.answer)
	client.PrependReactor("patch", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		patch := action.(k8stesting.PatchAction)
		if said := string(patch.GetPatch()); patch.GetSubresource() != "status" || !strings.Contains(said, `"status":{"phase":"Failed"}`) || !strings.Contains(said, `"uid":"`+patch.GetName()+`"`) {
			t.Errorf("the patch %s of %s", said, patch.GetSubresource())
		}
		w.failed = append(w.failed, patch.GetName())
		return true, nil, w.pods.Delete(w.get(patch.GetName()))
	})
	w.lost = newLost(p, client.CoreV1())
	w.ctx = klog.NewContext(context.Background(), funcr.New(func(_, args string) { fmt.Fprintln(&w.log, args) }, funcr.Options{}))
	for _, pod := range pods {
		w.add(pod)
	}
	return w
}

func (w *world) answer(action k8stesting.Action) (bool, runtime.Object, error) {
	eviction := action.(k8stesting.CreateAction).GetObject().(*policyv1.Eviction)
	now, name := w.clock.Since(w.began), eviction.Name
	w.tried[name] = append(w.tried[name], now)
	stored := w.get(name)
	if p := eviction.DeleteOptions.Preconditions; action.GetSubresource() != "eviction" || *p.UID != stored.UID || *p.ResourceVersion != stored.ResourceVersion {
		w.Errorf("%s of pod %s with the preconditions %v", action.GetSubresource(), name, p)
	}
	if answers := w.answers[name]; len(answers) > 0 {
		if w.answers[name] = answers[1:]; apierrors.IsNotFound(answers[0]) {
			w.Gone(stored.UID)
			must.NoError(w, w.pods.Delete(stored))
		}
		return true, nil, answers[0]
	}
	w.evicted[name] = now
	w.Gone(stored.UID) // the informer may be faster than the answer
	return true, nil, w.pods.Delete(stored)
}

func (w *world) get(name string) *v1.Pod {
	w.Helper()
	return must.Get(w.config.Pods.Pods("default").Get(name))(w)
}

// add adds the pod. If the pod has no time of creation, it is created and bound now.
func (w *world) add(pod *v1.Pod) {
	w.Helper()
	if pod.CreationTimestamp.IsZero() {
		pod.CreationTimestamp = metav1.NewTime(w.clock.Now())
	}
	must.NoError(w, w.pods.Add(pod))
	w.See(pod)
}

// becomes sets the pod's status.
func (w *world) becomes(name string, status v1.PodStatus) {
	w.Helper()
	pod := w.get(name).DeepCopy()
	pod.Status = status
	must.NoError(w, w.pods.Update(pod))
	w.See(pod)
}

// goOn advances the clock by d and looks for lost pods each second.
func (w *world) goOn(d time.Duration) {
	for end := w.clock.Now().Add(d); ; w.clock.Step(lostInterval) {
		if w.takeBack(w.ctx); !w.clock.Now().Before(end) {
			return
		}
	}
}

// young returns a pod of a ReplicaSet that is bound to the virtual node and has not started.
func young(name, owner string, changes ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}}},
		Spec: v1.PodSpec{NodeName: "virtual", SchedulerName: "pool-priority-scheduler"}, Status: v1.PodStatus{Phase: v1.PodPending}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func isRefused(p *v1.Pod) { p.Status = refused }

func ownedBy(apiVersion, kind string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.OwnerReferences[0].APIVersion, p.OwnerReferences[0].Kind = apiVersion, kind }
}

// TestLost: which pods are evicted, and when.
func TestLost(t *testing.T) {
	const never = -1
	for _, tc := range []struct {
		name    string
		changes []func(*v1.Pod)
		want    time.Duration
	}{
		{"refused", []func(*v1.Pod){isRefused}, 0},
		{"not started", nil, 15 * time.Minute},
		{"with containers that wait", []func(*v1.Pod){func(p *v1.Pod) {
			p.Status.ContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}}}
		}}, 15 * time.Minute},
		{"bound long ago, before this process began", []func(*v1.Pod){func(p *v1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
			p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: p.CreationTimestamp}}
		}}, 15 * time.Minute},
		{"marked as refused while it ran", []func(*v1.Pod){func(p *v1.Pod) { p.Status = refused; p.Status.Phase = v1.PodRunning }}, 0},
		{"runs", []func(*v1.Pod){func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }}, never},
		{"on a VM", []func(*v1.Pod){isRefused, func(p *v1.Pod) { p.Spec.NodeName = "vm" }}, never},
		{"on a node that is gone", []func(*v1.Pod){isRefused, func(p *v1.Pod) { p.Spec.NodeName = "gone" }}, never},
		{"not bound", []func(*v1.Pod){func(p *v1.Pod) { p.Spec.NodeName = "" }}, never},
		{"of another scheduler", []func(*v1.Pod){isRefused, func(p *v1.Pod) { p.Spec.SchedulerName = "default-scheduler" }}, never},
		{"that ends", []func(*v1.Pod){isRefused, func(p *v1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{"a/b"}
		}}, never},
		{"of a Job", []func(*v1.Pod){isRefused, ownedBy("batch/v1", "Job")}, 0},
		{"of a StatefulSet", []func(*v1.Pod){isRefused, ownedBy("apps/v1", "StatefulSet")}, 0},
		{"of a ReplicationController", []func(*v1.Pod){isRefused, ownedBy("v1", "ReplicationController")}, 0},
		{"of another owner", []func(*v1.Pod){isRefused, ownedBy("tekton.dev/v1", "TaskRun")}, never},
		{"of another owner that is called alike", []func(*v1.Pod){isRefused, ownedBy("acme.dev/v1", "Job")}, never},
		{"of another owner, opted in", []func(*v1.Pod){isRefused, ownedBy("tekton.dev/v1", "TaskRun"), func(p *v1.Pod) {
			p.Annotations = map[string]string{returnplan.Annotation: returnplan.Always}
		}}, 0},
		{"of nobody", []func(*v1.Pod){isRefused, func(p *v1.Pod) {
			p.OwnerReferences, p.Annotations = nil, map[string]string{returnplan.Annotation: returnplan.Always}
		}}, never},
		{"that is not to be moved", []func(*v1.Pod){isRefused, func(p *v1.Pod) {
			p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true", returnplan.Annotation: returnplan.Never}
		}}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 15*time.Minute, young("p", "web", tc.changes...))
			w.goOn(2 * time.Hour)
			if at, ok := w.evicted["p"]; ok != (tc.want != never) || ok && at != tc.want {
				t.Errorf("taken back: %v, after %v, want after %v", ok, at, tc.want)
			}
			if n := len(w.events.Events); n < len(w.evicted) {
				t.Errorf("%d events of %d evictions", n, len(w.evicted))
			}
		})
	}
	standby := newWorld(t, 15*time.Minute, young("p", "web", isRefused))
	standby.config.Leading = func() bool { return false }
	if standby.goOn(time.Hour); len(standby.tried) > 0 {
		t.Error("a standby evicts")
	}
}

// TestNeverEnds: a pod of a Job that was deleted before it started, and that keeps the Job's finalizer, gets the phase
// Failed. Other pods are left alone.
func TestNeverEnds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*v1.Pod)
		want   bool
	}{
		{"refused", isRefused, true},
		{"not started", func(*v1.Pod) {}, true},
		{"its kubelet has not deleted it yet", func(p *v1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](30) }, false},
		{"it ran", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }, false},
		{"another holds it", func(p *v1.Pod) { p.Finalizers = []string{"a/b"} }, false},
		{"on a VM", func(p *v1.Pod) { p.Spec.NodeName = "vm" }, false},
		{"of another scheduler", func(p *v1.Pod) { p.Spec.SchedulerName = "default-scheduler" }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 15*time.Minute)
			w.add(young("p", "job", ownedBy("batch/v1", "Job"), func(p *v1.Pod) {
				p.Finalizers, p.DeletionTimestamp, p.DeletionGracePeriodSeconds = []string{batchv1.JobTrackingFinalizer}, ptr.To(metav1.NewTime(w.began)), ptr.To[int64](0)
			}, tc.change))
			if w.goOn(endsWithin - time.Second); len(w.failed) > 0 {
				t.Errorf("it fails before its Job had the time to let go of it")
			}
			if w.goOn(2 * time.Second); (len(w.failed) == 1) != tc.want || len(w.evicted) > 0 {
				t.Errorf("marked as failed %v, want %v; evicted %v; %s", w.failed, tc.want, w.evicted, w.log.String())
			}
		})
	}
}

// TestEvictionSays: the event on the pod has the reason for the eviction and the provider's message. Evictions are
// counted by reason.
func TestEvictionSays(t *testing.T) {
	metrics.NewKubeRegistry().MustRegister(Evictions)
	count := func(reason string) float64 {
		return must.Get(testutil.GetCounterMetricValue(Evictions.WithLabelValues("aci", reason)))(t)
	}
	refused, late := count(reasonRefused), count(reasonLate)
	w := newWorld(t, 15*time.Minute, young("late", "a"), young("quota", "b", isRefused, func(p *v1.Pod) {
		p.Status.Message = `{"error":{"code":"ContainerGroupQuotaReached","message":"Resource type 'Microsoft.ContainerInstance/containerGroups' container group quota reached"}}`
	}))
	w.goOn(time.Hour)
	var said []string
	for len(w.events.Events) > 0 {
		said = append(said, <-w.events.Events)
	}
	if len(said) != 2 || !strings.HasPrefix(said[0], "Warning BurstEvicted evicted from burst pool aci: the provider refused it: ") || !strings.Contains(said[0], "ContainerGroupQuotaReached") ||
		said[1] != "Warning BurstEvicted evicted from burst pool aci: it did not start within 15m0s" {
		t.Errorf("the events say %q", said)
	}
	if r, l := count(reasonRefused)-refused, count(reasonLate)-late; r != 1 || l != 1 {
		t.Errorf("%v refused and %v late are counted, want one of each", r, l)
	}
}

// TestOnlyRefused: with startWithin 0, a pod has unlimited time to start, and is evicted only while it is refused.
func TestOnlyRefused(t *testing.T) {
	w := newWorld(t, 0, young("p", "web"))
	w.goOn(2 * time.Hour)
	w.answers["p"] = []error{apierrors.NewTooManyRequests("not now", 0)}
	w.becomes("p", refused)
	w.goOn(0)
	w.becomes("p", v1.PodStatus{Phase: v1.PodPending}) // the provider tries again
	w.goOn(time.Hour)
	if len(w.evicted) > 0 || len(w.tried["p"]) != 1 {
		t.Fatalf("taken back: %v, tried %v", w.evicted, w.tried)
	}
	w.becomes("p", refused)
	w.goOn(time.Second)
	if at, ok := w.evicted["p"]; !ok || at != 3*time.Hour {
		t.Errorf("taken back: %v, after %v", ok, at)
	}
}

// TestStartsInTime: a pod that starts just in time is not evicted. Neither is a pod that starts while its eviction is
// under way.
func TestStartsInTime(t *testing.T) {
	w := newWorld(t, 15*time.Minute, young("just", "a"), young("race", "b"))
	w.answers["race"] = []error{apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "race", errors.New("the ResourceVersion in the precondition does not match"))}
	w.goOn(15*time.Minute - time.Second)
	w.becomes("just", runs)
	w.goOn(time.Second)
	w.becomes("race", runs)
	w.add(young("raced", "c", isRefused))
	started := w.get("raced").DeepCopy()
	started.Status = runs
	must.NoError(t, w.pods.Update(started)) // and the handlers of the informer have not run yet
	w.goOn(2 * time.Hour)
	if len(w.evicted) > 0 || len(w.tried["race"]) != 1 {
		t.Errorf("taken back %v, tried %v", w.evicted, w.tried)
	}
}

// TestRates: 100 pods whose replacements do not go to the same pool are evicted within 2 minutes. Of other pods, at most
// 20 are evicted in 5 minutes.
func TestRates(t *testing.T) {
	for _, tc := range []struct {
		name, message string
		after         time.Duration
		want          int
	}{
		{"quota", `api call: 409 {"error":{"code":"ContainerGroupQuotaReached","message":"quota"}}`, 100 * time.Second, 100},
		{"the pod's image", `api call: 400 {"error":{"code":"InaccessibleImage","message":"The image is not accessible."}}`, 100 * time.Second, 100},
		{"unknown", "no", 5*time.Minute - time.Second, 19},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 15*time.Minute)
			for i := range 100 {
				w.add(young(fmt.Sprintf("p%03d", i), "web", isRefused, func(p *v1.Pod) { p.Status.Message = tc.message }))
			}
			w.goOn(0)
			if n := len(w.evicted); n != evictionsAtOnce {
				t.Errorf("%d were taken back at once, want %d", n, evictionsAtOnce)
			}
			w.goOn(tc.after)
			if n := len(w.evicted); n != tc.want {
				t.Errorf("after %v, %d of 100 are taken back, want %d", tc.after, n, tc.want)
			}
		})
	}
}

// TestRefusedAgainAndAgain: if the replacements of a refused pod are refused, too, they are evicted after growing
// pauses, until one starts.
func TestRefusedAgainAndAgain(t *testing.T) {
	w := newWorld(t, 15*time.Minute)
	var took []time.Duration
	again := func(i int) {
		name := fmt.Sprint("p", i)
		w.add(young(name, "web"))
		w.goOn(time.Second)
		w.becomes(name, refused)
		began := w.clock.Since(w.began)
		for w.goOn(0); w.evicted[name] == 0 && w.clock.Since(w.began) < began+time.Hour; w.goOn(time.Second) {
		}
		took = append(took, w.evicted[name]-began)
		w.goOn(time.Second)
	}
	for i := range 8 {
		again(i)
	}
	w.add(young("starts", "web"))
	w.goOn(time.Second)
	w.becomes("starts", runs)
	w.goOn(time.Second)
	again(8)
	s := time.Second
	if want := []time.Duration{0, 10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 300 * s, 300 * s, 0}; !slices.Equal(took, want) {
		t.Errorf("taken back after %v, want %v", took, want)
	}
}

// TestEvictionAnswers: a refused eviction is tried again with backoff. If evictions are forbidden, that is logged once,
// with what to do.
func TestEvictionAnswers(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	budget := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	forbidden := apierrors.NewForbidden(pods, "forbidden", errors.New("no"))
	w := newWorld(t, 15*time.Minute, young("budget", "a", isRefused), young("forbidden", "b", isRefused), young("unreachable", "c", isRefused), young("gone", "d", isRefused))
	failed := errors.New("connection refused")
	w.answers = map[string][]error{
		"budget":      {budget, budget, budget},
		"forbidden":   {forbidden, forbidden, forbidden},
		"unreachable": {failed, failed},
		"gone":        {apierrors.NewNotFound(pods, "gone")},
	}
	w.goOn(time.Hour)
	s := time.Second
	for name, want := range map[string][]time.Duration{
		"budget": {0, 10 * s, 30 * s, 70 * s}, "forbidden": {0, 10 * s, 30 * s, 70 * s}, "unreachable": {0, 10 * s, 30 * s}, "gone": {0},
	} {
		if !slices.Equal(w.tried[name], want) {
			t.Errorf("%s: asked for after %v, want %v", name, w.tried[name], want)
		}
	}
	if n := strings.Count(w.log.String(), "The scheduler needs the right to create pods/eviction"); n != 1 {
		t.Errorf("that it is forbidden was said %d times, want once:\n%s", n, w.log.String())
	}
	if n := strings.Count(w.log.String(), "the API server refused the eviction"); n != 3 {
		t.Errorf("that it was refused was said %d times, want 3", n)
	}
}
