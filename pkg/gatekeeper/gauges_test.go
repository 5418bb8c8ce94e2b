package gatekeeper

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/publishing"
	"poolpriority.dev/scheduler/pkg/gatekeeper/sources"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// gauges returns the series of a scrape, by name{values of the labels, in the order of the labels' names}. The names
// have no prefix.
func (w *world) gauges() map[string]float64 {
	w.Helper()
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(publishing.Gauges(func() *publishing.Publisher { return w.publisher }))
	families, err := registry.Gather()
	if err != nil {
		w.Error(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			var values []string
			for _, l := range m.Label {
				values = append(values, l.GetValue())
			}
			series[strings.TrimPrefix(family.GetName(), "pool_priority_")+"{"+strings.Join(values, ",")+"}"] = m.GetGauge().GetValue()
		}
	}
	return series
}

// are waits until the gauges have these values. -1 means that the series must not exist.
func (w *world) are(want map[string]float64) {
	w.Helper()
	w.eventually(func() string {
		got := w.gauges()
		for name, value := range want {
			if is, ok := got[name]; ok != (value != -1) || ok && is != value {
				var all []string
				prefix, _, _ := strings.Cut(name, "{")
				for series := range maps.Keys(got) {
					if strings.HasPrefix(series, prefix) {
						all = append(all, series)
					}
				}
				return name + " is not right, of " + strings.Join(all, " ")
			}
		}
		return ""
	})
}

// TestGauges: the gauges are right while a pool fills up and pods wait. No series remain after the lease has ended.
func TestGauges(t *testing.T) {
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) {
		args.Pools[2].Burst.Limits = &configv1.BurstLimits{Pods: 2}
	}, burstNode("virtual"))
	over := false
	w.EndsWith(func(time.Time) bool { return over })
	if got := w.gauges(); len(got) != 0 {
		t.Errorf("a scheduler that does not lead has %v", got)
	}
	w.run()
	w.setStatus(1, 1)
	w.Lead()
	w.are(map[string]float64{
		"pool_state{user,CanGrow}": 1, "pool_state{user,Growing}": 0, "pool_state{user,Full}": 0, "pool_state{user,Unknown}": 0, "pool_assumed_full{user}": 0, "pool_assumed_full{aci}": -1, "oldest_hold_ratio{}": 0,
		"pool_state{system,Full}": 1, "pool_state{aci,Full}": -1,
		"pool_state_info{user,BelowMaxSize,CanGrow}": 1, "pool_state_info{system,Fixed,Full}": 1,
		"pool_nodes_max{user}": 3, "pool_nodes_max{system}": 0, "pool_nodes_max{aci}": -1,
		"pool_nodes{ready,aci}": 0, "pool_nodes{starting,aci}": 1,
		"gate_open{aci}": 0, "gate_open{user}": -1, "pool_pods{aci}": 0, "pool_budget_pods{aci}": 2, "pool_budget_cpu_cores{aci}": -1,
		"held_pods{PoolCanGrow}": 0, "held_pods{OptedOut}": 0, "oldest_held_pod_timestamp_seconds{}": 0, "burst_refusing{aci}": 0,
	})

	// One pod waits. Another pod, which never bursts, has waited longer.
	began := w.clock.Now().Truncate(time.Second)
	w.hold("waits", nil, began)
	w.hold("never", map[string]string{pool.BurstAnnotation: pool.BurstNever}, began.Add(-time.Hour))
	w.are(map[string]float64{"held_pods{PoolCanGrow}": 1, "held_pods{OptedOut}": 1, "oldest_held_pod_timestamp_seconds{}": float64(began.Unix())})

	// Nodes are ordered. The series of the old reason disappear.
	w.setStatus(1, 3)
	w.are(map[string]float64{
		"pool_state{user,CanGrow}": 0, "pool_state{user,Growing}": 1, "pool_state_info{user,BelowMaxSize,CanGrow}": -1, "pool_state_info{user,Provisioning,Growing}": 1,
		"pool_nodes{upcoming,user}": 2, "held_pods{PoolCanGrow}": 0, "held_pods{PoolGrowing}": 1,
	})
	if since := w.gauges()["pool_state_since_timestamp_seconds{user}"]; since < float64(began.Unix()) || since > float64(w.clock.Now().UnixMilli())/1000 {
		t.Errorf("Growing since %v, want a time after %v", since, began.Unix())
	}

	// The pool is full. Two pods use up the budget; they request nothing, but ACI bills them.
	w.setStatus(3, 3)
	w.are(map[string]float64{"pool_state{user,Full}": 1, "gate_open{aci}": 1})
	if changed := w.gauges()["source_last_change_timestamp_seconds{cluster-autoscaler}"]; changed < float64(began.Unix()) {
		t.Errorf("the status last changed at %v", changed)
	}
	for _, name := range []string{"a", "b"} {
		p := w.onBurst(name)
		p.Spec.Containers = []v1.Container{{Name: "c"}}
		w.addPod(p)
	}
	w.are(map[string]float64{"gate_open{aci}": 0, "pool_pods{aci}": 2, "pool_requests_cpu_cores{aci}": 2, "pool_requests_memory_bytes{aci}": 3e9, "pool_pods{user}": 0,
		"burst_requests_cpu_cores{default,aci}": 2, "burst_requests_memory_bytes{default,aci}": 3e9, "burst_requests_cpu_cores{default,user}": -1})

	over = true
	if got := w.gauges(); len(got) != 0 {
		t.Errorf("a scheduler whose lease is over has %v", got)
	}
}

// hold adds a pod with these annotations, which has been unschedulable since then, and holds it.
func (w *world) hold(name string, annotations map[string]string, since time.Time) {
	w.Helper()
	p := withCondition(pod(name), v1.ConditionFalse, v1.PodReasonUnschedulable, since)
	p.Annotations = annotations
	w.addPod(p)
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	w.Gatekeeper.Failed(p, true)
	w.Hold(klog.Background(), p, &d, nil, false)
}

// TestUntoleratedTaint: the taint of a virtual node is a problem while a pod waits that may burst and does not tolerate it.
func TestUntoleratedTaint(t *testing.T) {
	node := burstNode("virtual")
	node.Spec.Taints = []v1.Taint{{Key: "team", Effect: v1.TaintEffectNoSchedule}}
	w := newWorld(t, node)
	w.run()
	w.Lead()
	w.hold("never", map[string]string{pool.BurstAnnotation: pool.BurstNever}, w.clock.Now())
	w.setStatus(3, 3)
	w.are(map[string]float64{"held_pods{OptedOut}": 1, "gate_open{aci}": 1, "problem{UntoleratedTaint}": -1})
	w.hold("waits", nil, w.clock.Now())
	w.setStatus(1, 1)
	w.are(map[string]float64{"problem{UntoleratedTaint}": 1})
}

// TestGaugesOfNamespaces: the first 200 namespaces in a burst pool have series of their own, until their pods are gone.
func TestGaugesOfNamespaces(t *testing.T) {
	w := newWorldWith(t, func(*configv1.PoolPriorityArgs) {}, burstNode("virtual"))
	w.run()
	w.Lead()
	add := func(i int) *v1.Pod {
		p := w.onBurst(fmt.Sprintf("p-%d", i))
		p.Namespace = fmt.Sprintf("namespace-%03d", i)
		p.Spec.Containers = []v1.Container{{Name: "c"}}
		w.addPod(p)
		return p
	}
	first := add(0)
	w.are(map[string]float64{"burst_requests_cpu_cores{namespace-000,aci}": 1, "burst_requests_cpu_cores{other,aci}": -1})
	for i := 1; i < 203; i++ {
		add(i)
	}
	w.are(map[string]float64{"burst_requests_cpu_cores{namespace-000,aci}": 1, "burst_requests_cpu_cores{namespace-201,aci}": -1,
		"burst_requests_cpu_cores{other,aci}": 3, "burst_requests_memory_bytes{other,aci}": 45e8})
	must.NoError(t, w.client.CoreV1().Pods(first.Namespace).Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	w.are(map[string]float64{"burst_requests_cpu_cores{namespace-000,aci}": -1})
}

// TestGaugesWhileObserving: in mode Observe, gate_open shows whether the gate would be open.
func TestGaugesWhileObserving(t *testing.T) {
	w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) { args.Mode = configv1.ModeObserve }, burstNode("virtual"))
	w.run()
	w.setStatus(1, 1)
	w.Lead()
	w.are(map[string]float64{"gate_open{aci}": 0})
	w.setStatus(3, 3)
	w.are(map[string]float64{"gate_open{aci}": 1})
}

// TestSourceErrors: each unreadable version of a source is counted once. Each source has its counter from the start.
func TestSourceErrors(t *testing.T) {
	RegisterMetrics()
	w := newWorld(t)
	count := func() float64 {
		n := must.Get(testutil.GetCounterMetricValue(sources.Errors.WithLabelValues("cluster-autoscaler")))(t)
		return n
	}
	before := count()
	w.run()
	w.Lead()
	w.setStatus(1, 1)
	w.are(map[string]float64{"pool_state{user,CanGrow}": 1})
	if got := count(); got != before {
		t.Errorf("%v errors with a status that is right", got-before)
	}
	cm := must.Get(w.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "cluster-autoscaler-status", metav1.GetOptions{}))(t)
	cm.Data["status"] = "Cluster-autoscaler status at 2020"
	must.Do(t)(w.client.CoreV1().ConfigMaps("kube-system").Update(t.Context(), cm, metav1.UpdateOptions{}))
	w.are(map[string]float64{"pool_state_info{user,StatusUnreadable,Unknown}": 1})
	poke(w.changed) // the same status is evaluated again
	w.addPod(pod("p"))
	w.hold("q", nil, w.clock.Now())
	w.are(map[string]float64{"held_pods{PoolUnknown}": 1})
	if got := count(); got != before+1 {
		t.Errorf("%v errors are counted, want 1", got-before)
	}
}
