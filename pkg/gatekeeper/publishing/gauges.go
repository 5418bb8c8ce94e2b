package publishing

import (
	"time"

	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const subsystem = "pool_priority"

// The gauges are made up when somebody asks for them, of one view: a series of a state or a reason that is over is gone
// in the same answer in which its successor is there. Only a scheduler that leads has any of them, so that plain sums
// over all replicas are right.
var (
	stateGauge = gauge("pool_state", "1 for the state that a regular pool is in, 0 for the others: CanGrow, Growing, Full or Unknown.", "pool", "state")
	infoGauge  = gauge("pool_state_info", "1 for the state that a regular pool is in, with the code of its reason.", "pool", "state", "reason")
	sinceGauge = gauge("pool_state_since_timestamp_seconds", "When a regular pool came into its state.", "pool")
	nodesGauge = gauge("pool_nodes", "Nodes of a pool: ready; starting, those that exist and are not ready or not set up, or no longer; arriving, those that were ordered and do not exist yet, "+
		"for at most provisionGrace.", "pool", "condition")
	nodesMaxGauge = gauge("pool_nodes_max", "The most nodes that a regular pool may have; absent if that is not limited, or not known.", "pool")
	podsGauge     = gauge("pool_pods", "Pods on the nodes of a pool that have not ended, whosever they are.", "pool")
	requestsGauge = gauge("pool_requests", "What the pods on the nodes of a pool request; of a burst pool, what its provider bills for them, as its budget counts it.", "pool", "resource", "unit")

	budgetPodsGauge     = gauge("pool_budget_pods", "How many pods may be in a burst pool; absent if that is not limited.", "pool")
	budgetRequestsGauge = gauge("pool_budget_requests", "How much the pods in a burst pool may request, to be compared with pool_requests; absent if that is not limited.", "pool", "resource", "unit")
	openGauge           = gauge("gate_open", "1 if the gate of a burst pool is open for a plain pod, one without constraints, requests and tolerations that has just been made; 0 if it is not. "+
		"With mode: Observe, whether it would be open.", "pool")
	overrideGauge = gauge("gate_override", "1 for what the ConfigMap pool-priority-override makes of the gate while it does, 0 for what it does not: Open or Closed.", "gate")
	refusingGauge = gauge("burst_refusing", "1 while a burst pool is closed because its provider refuses pods, or is tried with one pod because it did; 0 otherwise.", "pool")

	heldGauge   = gauge("held_pods", "Pending pods that a closed gate holds back, by the code of the reason of the first burst pool that is closed for the pod.", "reason")
	oldestGauge = gauge("oldest_held_pod_timestamp_seconds", "Since when the held pod has been unschedulable that has been for the longest, of those for which the gate may still open: "+
		"not those that can never burst. 0 if there is none.")
	changeGauge = gauge("source_last_change_timestamp_seconds", "When what pools are judged by was last seen to change, by the scheduler's clock; 0 if it never was.", "source")
)

var allGauges = []*metrics.Desc{
	stateGauge, infoGauge, sinceGauge, nodesGauge, nodesMaxGauge, podsGauge, requestsGauge, budgetPodsGauge, budgetRequestsGauge, openGauge, overrideGauge, refusingGauge, heldGauge,
	oldestGauge, changeGauge,
}

func gauge(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(metrics.BuildFQName("", subsystem, name), help, labels, nil, metrics.ALPHA, "")
}

// Gauges returns the collector of the gauges of the publisher that of returns; nil: there is none yet. It has series
// only while that scheduler leads.
func Gauges(of func() *Publisher) metrics.StableCollector { return &gauges{of: of} }

type gauges struct {
	metrics.BaseStableCollector
	of func() *Publisher
}

// DescribeWithStability implements metrics.StableCollector.
func (c *gauges) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range allGauges {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *gauges) CollectWithStability(ch chan<- metrics.Metric) {
	p := c.of()
	if p == nil || !p.config.Leads() {
		return
	}
	r := reading{Config: &p.config, view: p.config.View(), now: p.config.Clock.Now(), set: func(desc *metrics.Desc, value float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labels...)
	}}
	for i := range r.Pools.Regular() {
		r.tellState(r.Pools.At(i).Name, &r.view.Pools[i])
	}
	for i := range r.Pools.Len() {
		r.tellNodes(r.Pools.At(i).Name, &r.view.Pools[i])
	}
	rule := r.Rule()
	if r.Synced() {
		r.tellUsage(&rule)
	}
	r.tellHeld()
	for _, said := range []gate.OverriddenGate{gate.OverrideOpen, gate.OverrideClosed} {
		r.set(overrideGauge, boolean(rule.Override.At(r.now) == said), string(said))
	}
	for _, s := range r.Sources.Changes() {
		r.set(changeGauge, seconds(s.At), s.Source)
	}
}

// reading is what is told at one time.
type reading struct {
	*Config
	view *nodegroups.View
	now  time.Time
	set  func(desc *metrics.Desc, value float64, labels ...string)
}

func (r *reading) tellState(name string, p *nodegroups.Pool) {
	for _, state := range nodegroups.States {
		r.set(stateGauge, boolean(p.State == state), name, string(state))
	}
	r.set(infoGauge, 1, name, string(p.State), p.Reason.Code)
	r.set(sinceGauge, seconds(p.Since), name)
	if most := p.MaxNodes(); most != nil {
		r.set(nodesMaxGauge, float64(*most), name)
	}
}

func (r *reading) tellNodes(name string, p *nodegroups.Pool) {
	r.set(nodesGauge, float64(p.Nodes-p.Starting), name, "ready")
	r.set(nodesGauge, float64(p.Starting), name, "starting")
	r.set(nodesGauge, float64(p.Arriving()), name, "arriving")
}

// tellUsage tells what pods take of the pools, of their budgets, and whether the gates are open for one more.
func (r *reading) tellUsage(rule *gate.Rule) {
	pools := r.Pools
	byPool, _ := r.Nodes()
	uses := r.Usage.Uses(pools, byPool)
	for i := range uses {
		p := pools.At(i)
		r.set(podsGauge, float64(uses[i].Pods), p.Name)
		r.tellResources(requestsGauge, p.Name, uses[i].MilliCPU, uses[i].Memory)
	}
	decision := rule.Decide(gate.Request{Pod: gate.PlainPod(), Burst: uses}, r.view, r.now)
	for i := range pools.Burst() {
		p, v, limits := pools.At(i), &decision.Burst[i], pools.At(i).Limits()
		r.set(openGauge, boolean(v.Open && !v.Observed), p.Name)
		state := r.view.Pools[i].Provider.State
		r.set(refusingGauge, boolean(state == breaker.Refusing || state == breaker.Probing), p.Name)
		if limits.Pods > 0 {
			r.set(budgetPodsGauge, float64(limits.Pods), p.Name)
		}
		r.tellResources(budgetRequestsGauge, p.Name, unlimited(limits.MilliCPU), unlimited(limits.Memory))
	}
}

// unlimited is the limit, or less than nothing for none.
func unlimited(limit int64) int64 {
	if limit == 0 {
		return -1
	}
	return limit
}

// tellResources tells of thousandths of a CPU and of bytes of memory. What is less than nothing is left out.
func (r *reading) tellResources(desc *metrics.Desc, name string, milliCPU, memory int64) {
	if milliCPU >= 0 {
		r.set(desc, float64(milliCPU)/1000, name, "cpu", "cores")
	}
	if memory >= 0 {
		r.set(desc, float64(memory), name, "memory", "bytes")
	}
}

func (r *reading) tellHeld() {
	by, first := r.Held.ByReason()
	for _, reason := range gate.Reasons(gate.Kind.Closes) {
		r.set(heldGauge, float64(by[reason.Code]), reason.Code)
	}
	r.set(oldestGauge, seconds(first))
}

// seconds is the time as Prometheus has it, 0 for a zero one.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// boolean is 1 or 0.
func boolean(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
