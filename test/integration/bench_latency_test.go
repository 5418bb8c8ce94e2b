package integration

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// BenchmarkGate measures how fast the gate opens. The time starts with the autoscaler's status that has the pool at its
// maximum. It ends when the first of 1,000 held pods is bound to the virtual node, and when the last one is bound. For
// comparison, the benchmark measures bindings alone, with pods for which the gate is open from the start.
func BenchmarkGate(b *testing.B) {
	const crowd = 1000
	e := start(b, nil, vms("userpool", "user", 1, 1, 3, 20))
	e.control("testdata/no-leader-election.yaml")
	e.waitGated(true)
	e.autoscalerSays("userpool", 1, 3)
	e.schedule("testdata/no-leader-election.yaml", suite.UserTier(0), suite.VirtualTier())
	e.Create(suite.Deployment("full", 4, "500m"))
	e.Lands(20*time.Second, "full", map[string]int{"userpool": 4})
	var first, last, one, binding []time.Duration
	for i := range b.N {
		// One held pod.
		app := fmt.Sprintf("one-%d", i)
		e.hold(app, 1)
		at := e.opens(app, 1)
		one = append(one, at[0])
		// Many held pods.
		app = fmt.Sprintf("crowd-%d", i)
		e.hold(app, crowd)
		at = e.opens(app, crowd)
		first, last = append(first, at[0]), append(last, at[crowd-1])
		// Many pods for which the gate is open: the time between the first and the last binding.
		app = fmt.Sprintf("open-%d", i)
		bound := e.bindings(app, crowd)
		e.Create(suite.Deployment(app, crowd, "100m"))
		at = <-bound
		binding = append(binding, at[crowd-1]-at[0])
		for _, app := range []string{fmt.Sprintf("one-%d", i), fmt.Sprintf("crowd-%d", i), app} {
			e.Scale(app, 0)
			// Without a grace period, the pods are deleted at once.
			must.NoError(b, e.Client.CoreV1().Pods(namespace).DeleteCollection(e.ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{LabelSelector: "app=" + app}))
		}
		e.Eventually(2*time.Minute, func() string {
			if n := len(e.Pods("")); n > 4 {
				return fmt.Sprintf("%d pods", n)
			}
			return ""
		})
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nfigure (median of %d)\tours\ttarget\t\n", b.N)
	row := func(name string, got time.Duration, limit time.Duration, how string) {
		verdict := "ok"
		if limit > 0 && got > limit {
			verdict = "MISSED"
		}
		fmt.Fprintf(w, "%s\t%v\t%s\t%s\n", name, got.Round(time.Millisecond), how, verdict)
	}
	row("status at its maximum → first burst pod bound", median(one), time.Second, "≤ 1s")
	row(fmt.Sprintf("gate opens → first of %d held pods bound", crowd), median(first), time.Second, "≤ 1s")
	row(fmt.Sprintf("gate opens → last of %d held pods bound", crowd), median(last), time.Second+median(binding), "≤ 1s + binding")
	row(fmt.Sprintf("binding of %d pods without a gate, first to last", crowd), median(binding), 0, "–")
	if err := w.Flush(); err != nil {
		b.Error(err)
	}
	b.ReportMetric(float64(median(one).Milliseconds()), "ms/first-burst")
	b.ReportMetric(float64(median(last).Milliseconds()), "ms/1000-held")
}

// hold creates pods that the gate holds, and waits until all are held.
func (e *env) hold(app string, n int32) {
	e.Helper()
	e.autoscalerSays("userpool", 1, 3)
	time.Sleep(300 * time.Millisecond) // until the scheduler has seen the status
	e.Create(suite.Deployment(app, n, "100m"))
	e.Eventually(2*time.Minute, func() string {
		held := 0
		for _, p := range e.Pods(app) {
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
				held++
			}
		}
		if held < int(n) {
			return fmt.Sprintf("%d of %d pods of %s are held", held, n, app)
		}
		return ""
	})
}

// opens sets the pool's size to its maximum. It returns the times from that moment until each of the app's pods was
// bound, in ascending order.
func (e *env) opens(app string, n int) []time.Duration {
	e.Helper()
	bound := e.bindings(app, n)
	e.autoscalerSays("userpool", 3, 3)
	return <-bound
}

// bindings waits until n of the app's pods are bound. It then sends the times from its call until each pod was bound,
// in ascending order.
func (e *env) bindings(app string, n int) <-chan []time.Duration {
	e.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(e.Client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "app=" + app }))
	informer := factory.Core().V1().Pods().Informer()
	result, stop := make(chan []time.Duration, 1), make(chan struct{})
	var started time.Time
	var at []time.Duration
	seen := map[string]bool{}
	look := func(obj any) {
		p := obj.(*corev1.Pod)
		if p.Spec.NodeName != devcluster.VirtualNodeName || seen[p.Name] {
			return
		}
		seen[p.Name] = true
		if at = append(at, time.Since(started)); len(at) == n {
			result <- at
			close(stop)
		}
	}
	must.Do(e)(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) }}))
	factory.Start(stop)
	factory.WaitForCacheSync(e.ctx.Done())
	started = time.Now()
	return result
}

func median(durations []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[len(sorted)/2]
}
