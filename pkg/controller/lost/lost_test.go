package lost

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/test/must"
)

// TestFailedPods: which pods are evicted, and when.
func TestFailedPods(t *testing.T) {
	const never = -1
	with := func(change func(p *corev1.Pod)) func(*corev1.Pod) { return change }
	for _, tc := range []struct {
		name    string
		changes []func(*corev1.Pod)
		want    time.Duration
	}{
		{"refused", []func(*corev1.Pod){isRefused}, 0},
		{"not started", nil, 15 * time.Minute},
		{"with containers that wait", []func(*corev1.Pod){with(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}
		})}, 15 * time.Minute},
		{"created and bound long ago by the API's clock", []func(*corev1.Pod){with(func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: p.CreationTimestamp}}
		})}, 15 * time.Minute},
		{"marked as refused while it ran", []func(*corev1.Pod){with(func(p *corev1.Pod) { p.Status = refused; p.Status.Phase = corev1.PodRunning })}, 0},
		{"runs", []func(*corev1.Pod){with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })}, never},
		{"on a VM", []func(*corev1.Pod){isRefused, with(func(p *corev1.Pod) { p.Spec.NodeName = "vm" })}, never},
		{"on a node that is gone", []func(*corev1.Pod){isRefused, with(func(p *corev1.Pod) { p.Spec.NodeName = "gone" })}, never},
		{"not bound", []func(*corev1.Pod){with(func(p *corev1.Pod) { p.Spec.NodeName = "" })}, never},
		{"of another scheduler", []func(*corev1.Pod){isRefused, with(func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" })}, never},
		{"that ends", []func(*corev1.Pod){isRefused, with(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.Now()), []string{"a/b"}
		})}, never},
		{"of a Job, failed already", []func(*corev1.Pod){isRefused, ownedBy("batch/v1", "Job"), with(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, never},
		{"of a Job, pending", []func(*corev1.Pod){isRefused, ownedBy("batch/v1", "Job")}, 0},
		{"of a StatefulSet", []func(*corev1.Pod){isRefused, ownedBy("apps/v1", "StatefulSet")}, 0},
		{"of a ReplicationController", []func(*corev1.Pod){isRefused, ownedBy("v1", "ReplicationController")}, 0},
		{"of another owner", []func(*corev1.Pod){isRefused, ownedBy("tekton.dev/v1", "TaskRun")}, never},
		{"of another owner that is called alike", []func(*corev1.Pod){isRefused, ownedBy("acme.dev/v1", "Job")}, never},
		{"of another owner, opted in", []func(*corev1.Pod){isRefused, ownedBy("tekton.dev/v1", "TaskRun"), with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{returnplan.Annotation: returnplan.Always}
		})}, 0},
		{"of nobody", []func(*corev1.Pod){isRefused, with(func(p *corev1.Pod) {
			p.OwnerReferences, p.Annotations = nil, map[string]string{returnplan.Annotation: returnplan.Always}
		})}, never},
		{"that is not to be moved", []func(*corev1.Pod){isRefused, with(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true", returnplan.Annotation: returnplan.Never}
		})}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 15*time.Minute, young("p", "web", tc.changes...))
			w.goOn(24 * time.Hour)
			if at, ok := w.evicted["p"]; ok != (tc.want != never) || ok && at != tc.want {
				t.Errorf("taken back: %v, after %v, want after %v", ok, at, tc.want)
			}
			if wait := len(w.events.Events); wait != len(w.evicted) {
				t.Errorf("%d events of %d evictions", wait, len(w.evicted))
			}
			if len(w.failures.notStarted) > 0 {
				t.Errorf("remembered: %v", w.failures.notStarted)
			}
		})
	}
}

// TestNeverEnds: a pod of a Job that was deleted before it started, and that keeps the Job's finalizer, gets the phase
// Failed. Other pods are left alone.
func TestNeverEnds(t *testing.T) {
	deleted := func(change func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			ownedBy("batch/v1", "Job")(p)
			p.Finalizers = []string{batchv1.JobTrackingFinalizer}
			p.DeletionTimestamp = ptr.To(metav1.NewTime(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)))
			p.DeletionGracePeriodSeconds = ptr.To[int64](0)
			change(p)
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod)
		want   corev1.PodPhase
	}{
		{"refused", isRefused, corev1.PodFailed},
		{"not started", func(*corev1.Pod) {}, corev1.PodFailed},
		{"its kubelet has not deleted it yet", func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = ptr.To[int64](30) }, corev1.PodPending},
		{"it ran", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, corev1.PodRunning},
		{"another holds it", func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} }, corev1.PodPending},
		{"on a VM", func(p *corev1.Pod) { p.Spec.NodeName = "vm" }, corev1.PodPending},
		{"of another scheduler", func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" }, corev1.PodPending},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, 15*time.Minute, young("p", "job", deleted(tc.change)))
			phase := func() corev1.PodPhase {
				t.Helper()
				p := &corev1.Pod{}
				must.NoError(t, w.Client.Get(w.ctx, types.NamespacedName{Namespace: "default", Name: "p"}, p))
				return p.Status.Phase
			}
			w.goOn(endsWithin - time.Second)
			if got := phase(); got == corev1.PodFailed {
				t.Errorf("it fails before its Job had the time to let go of it")
			}
			w.goOn(time.Hour)
			if got := phase(); got != tc.want {
				t.Errorf("it is %s, want %s; %s", got, tc.want, w.log.String())
			}
			if len(w.evicted) > 0 || len(w.failures.notStarted) > 0 {
				t.Errorf("evicted %v, remembered %v", w.evicted, w.failures.notStarted)
			}
		})
	}
}

// TestEvictionSays: the event on the pod has the reason for the eviction and the provider's message. Evictions are
// counted by reason.
func TestEvictionSays(t *testing.T) {
	metrics.NewKubeRegistry().MustRegister(Metrics()...)
	count := func(reason string) float64 {
		n := must.Get(testutil.GetCounterMetricValue(evictedPods.WithLabelValues("aci", reason)))(t)
		return n
	}
	refused, late := count(reasonRefused), count(reasonLate)
	w := newWorld(t, 15*time.Minute, young("late", "a"), young("quota", "b", isRefused, func(p *corev1.Pod) {
		p.Status.Message = `{"error":{"code":"ContainerGroupQuotaReached","message":"Resource type 'Microsoft.ContainerInstance/containerGroups' container group quota reached"}}`
	}))
	w.goOn(time.Second)
	if event := <-w.events.Events; !strings.HasPrefix(event, "Warning BurstEvicted evicted from burst pool aci: the provider refused it: ") || !strings.Contains(event, "ContainerGroupQuotaReached") {
		t.Errorf("the event says %q", event)
	}
	w.goOn(time.Hour)
	if event, want := <-w.events.Events, "Warning BurstEvicted evicted from burst pool aci: it did not start within 15m0s"; event != want {
		t.Errorf("the event says %q, want %q", event, want)
	}
	if r, l := count(reasonRefused)-refused, count(reasonLate)-late; r != 1 || l != 1 {
		t.Errorf("%v refused and %v late are counted, want one of each", r, l)
	}
}

// TestOnlyRefused: with startWithin 0, a pod has unlimited time to start, and is evicted only when it is refused.
func TestOnlyRefused(t *testing.T) {
	w := newWorld(t, 0, young("p", "web"))
	w.goOn(48 * time.Hour)
	if len(w.evicted) > 0 {
		t.Fatalf("taken back: %v", w.evicted)
	}
	w.becomes("p", refused)
	w.goOn(time.Second)
	if at, ok := w.evicted["p"]; !ok || at != 48*time.Hour {
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
	w.goOn(time.Second + controller.ConflictRetry/2)
	w.becomes("race", runs)
	w.goOn(24 * time.Hour)
	if len(w.evicted) > 0 || len(w.tried["race"]) != 1 || len(w.failures.notStarted) > 0 {
		t.Errorf("taken back %v, tried %v, remembered %v", w.evicted, w.tried, w.failures.notStarted)
	}
}

// TestDoubling: each late pod of an owner doubles the time of the owner's next pod, up to 16 times startWithin. Pods of
// other owners keep their time.
func TestDoubling(t *testing.T) {
	w := newWorld(t, time.Minute)
	var took []time.Duration
	for i := range 7 {
		name := fmt.Sprint("p", i)
		w.add(young(name, "web"))
		began := w.clock.Since(w.began)
		for w.goOn(time.Second); w.evicted[name] == 0 && w.clock.Since(w.began) < began+time.Hour; {
			w.goOn(time.Second)
		}
		took = append(took, w.evicted[name]-began)
	}
	want := []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 16 * time.Minute, 16 * time.Minute}
	if !slices.Equal(took, want) {
		t.Errorf("the pods of an owner had %v, want %v", took, want)
	}
	w.add(young("other", "other"))
	began := w.clock.Since(w.began)
	w.goOn(time.Hour)
	if got := w.evicted["other"] - began; got != time.Minute {
		t.Errorf("the pod of another owner had %v", got)
	}
}

// TestSiblings: pods that were bound together are evicted together. Their replacements have twice the time, until one
// of them starts in time.
func TestSiblings(t *testing.T) {
	w := newWorld(t, time.Minute, young("a", "web"), young("b", "web"), young("c", "web"))
	w.goOn(30 * time.Second)
	w.becomes("c", runs)
	w.goOn(time.Minute)
	if len(w.evicted) != 2 || w.evicted["a"] != time.Minute || w.evicted["b"] != time.Minute {
		t.Errorf("taken back: %v, want a and b after a minute", w.evicted)
	}
	began := w.clock.Since(w.began)
	w.add(young("d", "web"))
	w.goOn(time.Hour)
	if got := w.evicted["d"] - began; got != 2*time.Minute {
		t.Errorf("what replaces them had %v", got)
	}
	w.add(young("e", "web"))
	w.goOn(10 * time.Second)
	w.becomes("e", runs)
	began = w.clock.Since(w.began)
	w.add(young("f", "web"))
	w.goOn(time.Hour)
	if got := w.evicted["f"] - began; got != time.Minute {
		t.Errorf("after one that started in time it had %v", got)
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
				w.add(young(fmt.Sprintf("p%03d", i), "web", isRefused, func(p *corev1.Pod) { p.Status.Message = tc.message }))
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
// backoffs, until one starts.
func TestRefusedAgainAndAgain(t *testing.T) {
	w := newWorld(t, 15*time.Minute)
	var took []time.Duration
	again := func(i int) {
		name := fmt.Sprint("p", i)
		w.add(young(name, "web"))
		w.goOn(time.Second)
		w.becomes(name, refused)
		began := w.clock.Since(w.began)
		for w.goOn(0); w.evicted[name] == 0; w.goOn(time.Second) {
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
	w := newWorld(t, 15*time.Minute, young("budget", "a", isRefused), young("forbidden", "b", isRefused), young("failing", "c", isRefused), young("gone", "d", isRefused))
	w.answers = map[string][]error{
		"budget":    {budget, budget, budget},
		"forbidden": {forbidden, forbidden, forbidden},
		"failing":   {errors.New("connection refused")},
		"gone":      {apierrors.NewNotFound(pods, "gone")},
	}
	w.goOn(time.Hour)
	s := time.Second
	for name, want := range map[string][]time.Duration{
		"budget": {0, 10 * s, 30 * s, 70 * s}, "forbidden": {0, 10 * s, 30 * s, 70 * s}, "failing": {0, 60 * s}, "gone": {0},
	} {
		if !slices.Equal(w.tried[name], want) {
			t.Errorf("%s: asked for after %v, want %v", name, w.tried[name], want)
		}
	}
	if n := strings.Count(w.log.String(), "The controller needs the right to create pods/eviction"); n != 1 {
		t.Errorf("that it is forbidden was said %d times, want once:\n%s", n, w.log.String())
	}
	if n := strings.Count(w.log.String(), "the API server refused the eviction"); n != 3 {
		t.Errorf("that it was refused was said %d times, want 3", n)
	}
}

// TestPodFailuresAreBounded: at most a thousand owners are remembered, each for at most a day.
func TestPodFailuresAreBounded(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC))
	l := newPodFailures(clock)
	last := types.UID(fmt.Sprint(3*maxOwners - 1))
	for i := range 3 * maxOwners {
		l.evicted(&notStartedPod{}, types.UID(fmt.Sprint(i)), clock.Now())
		clock.SetTime(clock.Now().Add(time.Second))
	}
	if n := len(l.owners.Keys()); n != maxOwners || l.owner(last).slowness != 1 {
		t.Errorf("%d owners are remembered, want the last %d", n, maxOwners)
	}
	clock.SetTime(clock.Now().Add(ownerMemory))
	if l.owner(last).slowness != 0 {
		t.Error("the last owner is remembered after a day")
	}
}
