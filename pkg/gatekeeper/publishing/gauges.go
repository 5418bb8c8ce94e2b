package publishing

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/component-base/metrics"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const subsystem = "pool_priority"

// These gauges are computed at each scrape, from one view. A state or a reason therefore disappears in the same scrape
// in which its successor appears. Only the leader exports series, so that a sum over all replicas counts each pod and
// node once.
var (
	stateGauge   = gauge("pool_state", "1 for the current state of a regular pool (CanGrow, Growing, Full or Unknown), 0 for all other states.", "pool", "state")
	infoGauge    = gauge("pool_state_info", "1 for the current state of a regular pool, with the code of the state's reason.", "pool", "state", "reason")
	sinceGauge   = gauge("pool_state_since_timestamp_seconds", "When a regular pool entered its state.", "pool")
	assumedGauge = gauge("pool_assumed_full", "1 while a regular pool counts as full because its capacity has been unknown for unknownGrace, 0 otherwise.", "pool")
	nodesGauge   = gauge("pool_nodes", "Nodes of a pool, by condition: ready; starting (not ready, or with startup taints); upcoming (ordered and not created yet, "+
		"for at most provisionGrace).", "pool", "condition")
	nodesMaxGauge = gauge("pool_nodes_max", "Maximum number of nodes of a regular pool; absent if it is unlimited or unknown.", "pool")
	podsGauge     = gauge("pool_pods", "Pods of all schedulers on the nodes of a pool, without pods that have ended. For a burst pool, the pods that its budget limits.", "pool")
	cpuGauge      = gauge("pool_requests_cpu_cores", "CPU that the pods on the nodes of a pool request. For a burst pool, the CPU that its provider bills and its budget limits.", "pool")
	memoryGauge   = gauge("pool_requests_memory_bytes", "Memory that the pods on the nodes of a pool request. For a burst pool, the memory that its provider bills and its budget limits.", "pool")

	burstCPUGauge    = gauge("burst_requests_cpu_cores", "CPU that the provider of a burst pool bills for the pods of a namespace. The first 200 namespaces have series of their own, the others one: other.", "pool", "namespace")
	burstMemoryGauge = gauge("burst_requests_memory_bytes", "Memory that the provider of a burst pool bills for the pods of a namespace, as pool_priority_burst_requests_cpu_cores counts it.", "pool", "namespace")

	otherPodsGauge    = gauge("burst_other_pods", "Pods of other schedulers on the nodes of a burst pool. They passed no gate, and its budget does not count them.", "pool")
	budgetPodsGauge   = gauge("pool_budget_pods", "Maximum number of pods in a burst pool; absent if it is unlimited.", "pool")
	budgetCPUGauge    = gauge("pool_budget_cpu_cores", "Maximum CPU of the pods in a burst pool, as pool_priority_pool_requests_cpu_cores counts it. Absent if the pool has no CPU limit.", "pool")
	budgetMemoryGauge = gauge("pool_budget_memory_bytes", "Maximum memory of the pods in a burst pool, as pool_priority_pool_requests_memory_bytes counts it. Absent if the pool has no memory limit.", "pool")
	openGauge         = gauge("gate_open", "1 if the gate of a burst pool is open for a new pod without constraints, requests and tolerations, 0 if the gate is closed. "+
		"In mode Observe, it shows whether the gate would be open in mode Enforce.", "pool")
	overrideGauge = gauge("gate_override", "1 while the ConfigMap pool-priority-override sets this gate (Open or Closed), 0 otherwise.", "gate")
	refusingGauge = gauge("burst_refusing", "1 while a burst pool is refusing or half-open because its provider refused pods, 0 otherwise.", "pool")

	heldGauge   = gauge("held_pods", "Held pods, by the reason code of the first burst pool whose gate is closed for the pod, or NoRoomInBurstPool if a gate is open.", "reason")
	oldestGauge = gauge("oldest_held_pod_timestamp_seconds", "When the held pod with the longest wait became unschedulable. Pods that can never burst do not count. "+
		"0 if there is no such pod.")
	holdRatioGauge = gauge("oldest_hold_ratio", "How long the held pod with the longest wait has been unschedulable, as a fraction of holdLimit or, if holdLimit is 0, of an hour. 0 if there is no such pod.")
	problemGauge   = gauge("problem", "1 while the scheduler reports a problem with this code (docs/reasons.md). Codes that have an alert are 0 otherwise.", "code")
	changeGauge    = gauge("source_last_change_timestamp_seconds", "When the scheduler last saw a capacity source change; 0 if never.", "source")
)

var allGauges = []*metrics.Desc{
	stateGauge, infoGauge, sinceGauge, assumedGauge, nodesGauge, nodesMaxGauge, podsGauge, cpuGauge, memoryGauge, burstCPUGauge, burstMemoryGauge, otherPodsGauge, budgetPodsGauge, budgetCPUGauge, budgetMemoryGauge, openGauge, overrideGauge, refusingGauge, heldGauge,
	oldestGauge, holdRatioGauge, problemGauge, changeGauge,
}

func gauge(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(metrics.BuildFQName("", subsystem, name), help, labels, nil, metrics.ALPHA, "")
}

// Gauges returns a collector of the gauges. of returns the publisher from which the collector reads, or nil if there is
// none yet. The collector exports series only while this scheduler is the leader.
func Gauges(of func() *Publisher) metrics.StableCollector {
	return &gauges{of: of, namespaces: map[string]bool{}}
}

type gauges struct {
	metrics.BaseStableCollector
	of func() *Publisher

	mu         sync.Mutex
	namespaces map[string]bool // those with series of their own
}

// maxNamespaces is how many namespaces have series of their own. otherNamespaces is the label of the others' series.
const maxNamespaces, otherNamespaces = 200, "other"

// labelOf returns the namespace, or otherNamespaces if many namespaces were seen before.
func (c *gauges) labelOf(namespace string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.namespaces[namespace] && len(c.namespaces) >= maxNamespaces {
		return otherNamespaces
	}
	c.namespaces[namespace] = true
	return namespace
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
	rule := r.Rule()
	for i := range r.Pools.Regular() {
		name, p := r.Pools.At(i).Name, &r.view.Pools[i]
		r.collectState(name, p)
		r.set(assumedGauge, boolean(p.State == nodegroups.Unknown && r.now.Sub(p.Since) >= rule.UnknownGrace), name)
	}
	for i := range r.Pools.Len() {
		r.collectNodes(r.Pools.At(i).Name, &r.view.Pools[i])
	}
	if r.Synced() {
		r.collectUsage(&rule, c.labelOf)
	}
	r.collectHeld(rule.HoldLimit)
	for _, said := range []gate.OverriddenGate{gate.OverrideOpen, gate.OverrideClosed} {
		r.set(overrideGauge, boolean(rule.Override.At(r.now) == said), string(said))
	}
	if newest := p.newest.Load(); newest != nil {
		for code, value := range newest.Codes {
			r.set(problemGauge, value, code)
		}
	}
	for _, s := range r.Sources.Changes() {
		r.set(changeGauge, seconds(s.At), s.Source)
	}
}

// reading collects the gauges for one scrape.
type reading struct {
	*Config
	view *nodegroups.View
	now  time.Time
	set  func(desc *metrics.Desc, value float64, labels ...string)
}

func (r *reading) collectState(name string, p *nodegroups.Pool) {
	for _, state := range nodegroups.States {
		r.set(stateGauge, boolean(p.State == state), name, string(state))
	}
	r.set(infoGauge, 1, name, string(p.State), p.Reason.Code)
	r.set(sinceGauge, seconds(p.Since), name)
	if most := p.MaxNodes(); most != nil {
		r.set(nodesMaxGauge, float64(*most), name)
	}
}

func (r *reading) collectNodes(name string, p *nodegroups.Pool) {
	r.set(nodesGauge, float64(p.Nodes-p.Starting), name, "ready")
	r.set(nodesGauge, float64(p.Starting), name, "starting")
	r.set(nodesGauge, float64(p.Arriving()), name, "upcoming")
}

// collectUsage collects the usage of all pools. For each burst pool, it also collects the budget, whether the provider
// is refusing pods, and whether the gate is open for gate.PlainPod.
func (r *reading) collectUsage(rule *gate.Rule, labelOf func(namespace string) string) {
	pools := r.Pools
	byPool, _ := r.Nodes()
	uses, byNamespace := r.Usage.Uses(pools, byPool)
	for i := range uses {
		p := pools.At(i)
		r.set(podsGauge, float64(uses[i].Pods), p.Name)
		r.collectResources(cpuGauge, memoryGauge, p.Name, uses[i].MilliCPU, uses[i].Memory)
	}
	decision := rule.Decide(gate.Request{Pod: gate.PlainPod(), Burst: uses}, r.view, r.now)
	for i := range pools.Burst() {
		p, v, limits := pools.At(i), &decision.Burst[i], pools.At(i).Limits()
		sums := map[string]aci.Use{}
		for _, namespace := range slices.Sorted(maps.Keys(byNamespace[i])) {
			label := labelOf(namespace)
			sums[label] = sums[label].Plus(byNamespace[i][namespace])
		}
		for label, use := range sums {
			r.set(burstCPUGauge, float64(use.MilliCPU)/1000, p.Name, label)
			r.set(burstMemoryGauge, float64(use.Memory), p.Name, label)
		}
		r.set(otherPodsGauge, float64(r.Usage.Sums(byPool[i : i+1])[0].Requests.Pods-uses[i].Pods), p.Name)
		r.set(openGauge, boolean(v.Open && !v.Observed), p.Name)
		state := r.view.Pools[i].Provider.State
		r.set(refusingGauge, boolean(state == breaker.Refusing || state == breaker.HalfOpen), p.Name)
		if limits.Pods > 0 {
			r.set(budgetPodsGauge, float64(limits.Pods), p.Name)
		}
		// 0 is no limit, and collectResources leaves out -1.
		r.collectResources(budgetCPUGauge, budgetMemoryGauge, p.Name, cmp.Or(limits.MilliCPU, -1), cmp.Or(limits.Memory, -1))
	}
}

// collectResources collects milliCPU, in thousandths of a core, and memory, in bytes. It leaves out negative values.
func (r *reading) collectResources(cores, bytes *metrics.Desc, name string, milliCPU, memory int64) {
	if milliCPU >= 0 {
		r.set(cores, float64(milliCPU)/1000, name)
	}
	if memory >= 0 {
		r.set(bytes, float64(memory), name)
	}
}

func (r *reading) collectHeld(holdLimit time.Duration) {
	by, first := r.Held.ByReason()
	for _, reason := range gate.Reasons(gate.Kind.Holds) {
		r.set(heldGauge, float64(by[reason.Code]), reason.Code)
	}
	r.set(oldestGauge, seconds(first))
	r.set(holdRatioGauge, r.now.Sub(cmp.Or(first, r.now)).Seconds()/cmp.Or(holdLimit, time.Hour).Seconds())
}

// seconds returns the time in Unix seconds, or 0 for a zero time.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// boolean returns 1 for true and 0 for false.
func boolean(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
