package gate

import (
	"fmt"
	"time"

	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"poolpriority.dev/scheduler/pkg/alike"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Decide returns the gate's decision for the request at the time now. The view holds the states of the pools and their
// node groups.
func (r *Rule) Decide(req Request, view *nodegroups.View, now time.Time) Decision {
	return r.DecideFor(req, r.Assess(req, view), view, now)
}

// DecideFor is like Decide, but the caller passes the Assessment of the pod. All pods with the same alike.View and
// AzureFiles can share one Assessment.
func (r *Rule) DecideFor(req Request, a *Assessment, view *nodegroups.View, now time.Time) Decision {
	d := Decision{Regular: make([]Verdict, r.Pools.Regular()), Burst: make([]Verdict, r.Pools.Len())}
	e := newEvaluation(r, &req, a, view, now)
	e.earlier = Verdict{Open: true, Reason: reasonOpen}
	for i := range d.Regular {
		v := e.regular(i)
		d.Regular[i] = v
		if !v.Holds() {
			continue
		}
		if e.earlier.Open {
			detail := "pool " + r.Pools.At(i).Name + ": " + v.Reason.Sentence
			if v.Reason.Detail != "" {
				detail += " (" + v.Reason.Detail + ")"
			}
			e.earlier = closed(*v.Closes, detail)
		}
		e.earlier.Until = nodegroups.Earliest(e.earlier.Until, v.Until)
	}
	if e.earlier.Open && now.Before(req.Wait.Until) {
		e.earlier = Verdict{Reason: req.Wait.Reason, Until: req.Wait.Until}
	}
	var wait Verdict // the verdict of an earlier burst pool whose gate is closed by ReasonRateLimited
	for i := range r.Pools.Burst() {
		v := e.burst(i)
		if v.Open && wait.Reason.Code != "" {
			v = wait
		} else if v.Reason.Code == ReasonRateLimited.Code {
			wait = v
		}
		if r.Observe && !v.Open {
			v.Open, v.Observed = true, true
		}
		d.Burst[i] = v
	}
	return d
}

// evaluation has the inputs and intermediate results of one decision.
type evaluation struct {
	*Rule
	req  *Request
	a    *Assessment
	view *nodegroups.View
	now  time.Time
	// clock is when the pod began to wait for a scale-up. changed is when a node group that fits the pod last changed. The
	// method clocks computes them.
	clock, changed time.Time
	// credit is when the pod has no credit left (Rule.creditEnds).
	credit time.Time
	// earlier combines the verdicts of all regular pools with the verdict of the pod's Wait.
	earlier Verdict
}

func newEvaluation(r *Rule, req *Request, a *Assessment, view *nodegroups.View, now time.Time) *evaluation {
	e := &evaluation{Rule: r, req: req, a: a, view: view, now: now}
	e.clock, e.changed = r.clocks(req, a, view)
	e.credit = r.creditEnds(req, a, view, now)
	return e
}

// steps are the checks for a burst pool. They run in this order until a step closes the gate. Each step gets the burst
// pool's index and the open verdict of the step before, and returns a verdict.
var steps = []func(e *evaluation, i int, v Verdict) Verdict{
	(*evaluation).namespace,
	(*evaluation).annotation,
	(*evaluation).priority,
	(*evaluation).order,
	(*evaluation).gang,
	(*evaluation).losses,
	(*evaluation).onlyWhenFull,
	(*evaluation).template,
	(*evaluation).spread,
	(*evaluation).earlierPools,
	(*evaluation).closings,
	(*evaluation).provider,
	(*evaluation).budget,
	(*evaluation).pacing,
}

// burst returns the verdict for the burst pool with index i.
func (e *evaluation) burst(i int) Verdict {
	v := Verdict{Open: true}
	for _, step := range steps {
		if v = step(e, i, v); !v.Open {
			break
		}
	}
	return v
}

// namespace closes the gate if the pool's namespaceSelector excludes the pod's namespace, and while the pod leaves out the
// pool because bindings were denied.
func (e *evaluation) namespace(i int, v Verdict) Verdict {
	if e.req.NotSelected != nil && e.req.NotSelected[i] {
		return closed(reasonNamespaceNotSelected, "")
	}
	if d := e.view.Pools[i].Denied; d != nil && (d.All || e.req.leavesOut(i)) && e.now.Before(d.Until) {
		return Verdict{Reason: ReasonBindingsDenied.With("%s", d.Message), Until: d.Until}
	}
	return v
}

// annotation closes the gate if the pod's annotation poolpriority.dev/burst is Never or has an unknown value. If the
// pod has no such annotation, annotation closes the gate if the virtual kubelet cannot run the pod. The value Always
// skips that check, but not the operator's limit on the size of pods.
func (e *evaluation) annotation(i int, v Verdict) Verdict {
	switch value := pool.BurstValue(e.req.Pod); value {
	case pool.BurstNever:
		return closed(ReasonOptedOut, "")
	case pool.BurstAlways:
	case "", pool.BurstBelowPriority:
		if reason := e.a.burst[i].ineligible; reason.Code != "" {
			return Verdict{Reason: reason}
		}
	default:
		return closed(reasonUnknownBurstValue, fmt.Sprintf("the value is %q", value))
	}
	if detail := e.a.burst[i].tooLarge; detail != "" {
		return closed(reasonTooLarge, detail)
	}
	return v
}

// priority closes the gate to pods that others preempt before they burst, such as placeholders.
func (e *evaluation) priority(i int, v Verdict) Verdict {
	if corev1helpers.PodPriority(e.req.Pod) < e.Pools.At(i).BelowPriority() && pool.BurstValue(e.req.Pod) != pool.BurstBelowPriority {
		return closed(ReasonBelowPriority, "")
	}
	return v
}

// order closes the gate if the pod's order leaves out the pool, or is unknown.
func (e *evaluation) order(i int, v Verdict) Verdict {
	order, known := e.Pools.OrderOf(e.req.Pod.Annotations)
	switch {
	case !known:
		return closed(ReasonUnknownOrder, fmt.Sprintf("the value is %.63q", e.req.Pod.Annotations[pool.OrderAnnotation]))
	case order.LeavesOut(i):
		return closed(reasonNotInOrder, "")
	}
	return v
}

// gang closes the gate to the pods of a gang. The scheduler places pods one by one, and might place a part of the gang on
// VMs and a part on burst nodes.
func (e *evaluation) gang(_ int, v Verdict) Verdict {
	if e.req.Gang != "" {
		return closed(ReasonGroupNotHeld, "group "+e.req.Gang)
	}
	return v
}

// template closes the gate if the provider has refused a pod with the same template. The annotation
// poolpriority.dev/burst: Always does not skip this check. Always skips only the check whether a virtual kubelet can
// run the pod.
func (e *evaluation) template(i int, v Verdict) Verdict {
	if templates := e.view.Pools[i].Provider.Templates; len(templates) > 0 {
		if refused := templates[alike.Template(e.req.Pod)]; e.now.Before(refused.Until) {
			return Verdict{Reason: ReasonTemplateRefused.With("%s: %s", refused.Code, refused.Message), Until: refused.Until}
		}
	}
	return v
}

// spread closes the gate if the pool's nodes lack the topologyKey of one of the pod's DoNotSchedule spread constraints.
func (e *evaluation) spread(i int, v Verdict) Verdict {
	if key := e.a.burst[i].topology; key != "" {
		return closed(reasonTopologyMissing, "label "+key)
	}
	return v
}

// earlierPools closes the gate while an earlier pool or the pod's Wait keeps it closed. An operator's override has
// precedence. Without an override, the gate opens after waitLimit or holdLimit. It also opens if only burst nodes
// satisfy the pod's node selector and required affinity.
func (e *evaluation) earlierPools(i int, _ Verdict) Verdict {
	v, overridden := e.overridden(e.earlier, e.now)
	if v.Open || overridden {
		return v
	}
	if e.a.asks {
		return Verdict{Open: true, Reason: reasonAsked}
	}
	if e.req.Overflow && e.Pools.At(i).Burst.WhileGrowing == configv1.Overflow {
		if v = e.overflow(); v.Open {
			return v
		}
	}
	limits := []struct {
		reason nodegroups.Reason
		end    time.Time
	}{{reasonWaitLimit, e.waitEnds(i)}, {reasonHoldLimit, e.holdEnds()}}
	for _, limit := range limits {
		if !limit.end.IsZero() && !e.now.Before(limit.end) {
			return Verdict{Open: true, Reason: limit.reason}
		}
		v.Until = nodegroups.Earliest(v.Until, limit.end)
	}
	return v
}

// overflow returns the verdict for a pod that overflows. Instead of earlier pools, only what a full pool leaves keeps the
// gate closed: nodes that the snapshot lacks, and the pod's Wait.
func (e *evaluation) overflow() Verdict {
	for i := range e.Pools.Regular() {
		if e.req.behind(i, &e.view.Pools[i]) {
			return Verdict{Reason: ReasonSnapshotStale}
		}
	}
	if e.now.Before(e.req.Wait.Until) {
		return Verdict{Reason: e.req.Wait.Reason, Until: e.req.Wait.Until}
	}
	return Verdict{Open: true, Reason: reasonOverflow}
}

// waitEnds returns when the burst pool's WaitLimit opens the gate for the pod; zero means never.
func (e *evaluation) waitEnds(i int) time.Time {
	limit := e.Pools.At(i).Burst.WaitLimit.Duration
	if limit <= 0 || e.req.UnschedulableSince.IsZero() {
		return time.Time{}
	}
	return e.req.UnschedulableSince.Add(limit)
}

// holdEnds returns when HoldLimit opens the gate for the pod; zero means never.
func (e *evaluation) holdEnds() time.Time {
	since := e.req.NoRoomSince
	if e.HoldLimit == 0 || since.IsZero() {
		return time.Time{}
	}
	return since.Add(e.HoldLimit - e.req.Inherited)
}

// closings closes the gate while the provider refuses pods like this one (breaker.Closing). Afterwards, the gate is
// open for one of these pods, which tests the provider.
func (e *evaluation) closings(i int, v Verdict) Verdict {
	all := e.view.Pools[i].Provider.Closings
	if len(all) == 0 {
		return v
	}
	scope := breaker.ScopeOf(e.req.Pod, e.Pools.At(i).OnACI())
	for k := range all {
		c := &all[k]
		if !c.Selects(scope) {
			continue
		}
		said := fmt.Sprintf("pods like this one: %s: %s", c.Code, c.Message)
		if e.now.Before(c.Until) {
			return refusing(said, c.Until)
		}
		if v, busy := e.tested(i, c.Scope, c.Tests, said); busy {
			return v
		}
		v.Trial = &c.Scope
	}
	return v
}

// tested closes the gate while other pods test the provider of the burst pool with index i for the scope. inView are
// these pods by the view.
func (e *evaluation) tested(i int, scope breaker.Scope, inView breaker.Tests, said string) (v Verdict, busy bool) {
	tests := inView
	if e.req.Tests != nil {
		tests = e.req.Tests(i, scope)
	}
	until, busy := tests.Busy(e.req.Pod.Namespace, e.now)
	return Verdict{Reason: ReasonHalfOpen.With("%s", said), Until: until}, busy
}

// refusing returns the verdict while a provider refuses pods, until it is tried again.
func refusing(said string, until time.Time) Verdict {
	return Verdict{Reason: ReasonProviderRefusing.With("%s, tried again at %s", said, until.UTC().Format(time.RFC3339)), Until: until}
}

// provider closes the gate while the provider refuses pods. While the provider is half-open, the gate is open for one
// pod, and for pods of other namespaces if it does not start. waitLimit, holdLimit and an override do not skip this
// check, because the pod would probably not start.
func (e *evaluation) provider(i int, v Verdict) Verdict {
	provider := &e.view.Pools[i].Provider
	if provider.State != breaker.Refusing && provider.State != breaker.HalfOpen {
		return v
	}
	said := fmt.Sprintf("%s since %s: %s", provider.Code, provider.Since.UTC().Format(time.RFC3339), provider.Message)
	if provider.State == breaker.Refusing && e.now.Before(provider.Until) {
		return refusing(said, provider.Until)
	}
	if v, busy := e.tested(i, breaker.Scope{}, provider.Tests, said); busy {
		return v
	}
	v.Trial = &breaker.Scope{}
	return v
}

// budget closes the gate to pods that exceed the remaining budget of the pool or its rates, or those of their namespace
// in the pool.
func (e *evaluation) budget(i int, v Verdict) Verdict {
	p := e.Pools.At(i)
	if e.req.Burst != nil {
		if detail := overBudget(e.req.Pod, p, p.Limits(), e.req.Burst[i]); detail != "" {
			return closed(ReasonBudgetSpent, detail)
		}
	}
	if e.req.Share != nil && p.PerNamespace() != (pool.Limits{}) {
		if detail := overBudget(e.req.Pod, p, p.PerNamespace(), e.req.Share(i)); detail != "" {
			return closed(ReasonBudgetSpent, "namespace "+e.req.Pod.Namespace+": "+detail)
		}
	}
	rates, _ := p.Creates()
	if e.req.Burst != nil && rates != (pool.Rates{}) {
		creates := e.view.Pools[i].Provider.Creates
		if e.req.Creates != nil {
			creates = e.req.Creates(i)
		}
		if until, spent := CreatesUntil(e.req.Pod.Namespace, p, creates, e.now); !until.IsZero() {
			return Verdict{Reason: ReasonCreateRate.With("%s", spent), Until: until}
		}
	}
	v.Limited = p.Limits() != (pool.Limits{}) || p.PerNamespace() != (pool.Limits{}) || rates != (pool.Rates{})
	return v
}
