package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// saidOf returns the gate's reasons in the message of a pod's condition PodScheduled, in the order in which the message
// has them.
func saidOf(message string) []nodegroups.Reason {
	message, _, _ = strings.Cut(message, " preemption: ")
	var said []nodegroups.Reason
	for _, reason := range gate.Reasons(gate.Kind.InCondition) {
		if strings.Contains(message, reason.Sentence) {
			said = append(said, reason.Reason)
		}
	}
	slices.SortStableFunc(said, func(a, b nodegroups.Reason) int {
		return cmp.Compare(strings.Index(message, a.Sentence), strings.Index(message, b.Sentence))
	})
	return said
}

// ask computes the gate's decision for the pod, and sets Pools to the decision on each pool.
func (e *explainer) ask(pod *corev1.Pod) {
	p, request := e.published, e.published.view.Request(pod, e.now)
	request.AzureFiles, request.NotSelected, request.Tenant = e.request.AzureFiles, e.request.NotSelected, e.request.Tenant
	request.RefusedAt, request.NoScaleUp = e.request.RefusedAt, e.request.NoScaleUp
	inGang := func(p corev1.Pod) bool { return slices.Contains(codesOf(&p), gate.ReasonGroupNotHeld.Code) }
	if inGang(*e.pod) || e.workload != nil && slices.ContainsFunc(e.workload.pods, inGang) { // only the scheduler knows the gangs
		request.Gang = "of the pod"
	}
	holds := slices.ContainsFunc(e.Said, func(r nodegroups.Reason) bool { return gate.Lookup(r.Code).OfEarlierPool() })
	request.LeftOut = make([]bool, p.pools.Len())
	for i := range request.LeftOut { // only the scheduler knows of which pods the bindings were denied
		request.LeftOut[i] = p.view.Capacity.Pools[i].Denied != nil && slices.Contains(codesOf(e.pod), gate.ReasonBindingsDenied.Code) && (p.pools.IsBurst(i) || !holds)
	}
	e.request = request
	decision := p.view.Decide(request, p.pools, e.now)
	e.takeSaid(&decision)
	e.Pools = nil
	order, _ := p.pools.OrderOf(pod.Annotations)
	for i := range p.pools.Len() {
		v := PoolVerdict{Name: p.pools.At(i).Name, Rank: i, Burst: p.pools.IsBurst(i)}
		if v.Burst {
			d := &decision.Burst[i]
			v.Verdict, v.Reason, v.Until, v.Budget = verdictClosed, d.Reason, d.Until, p.budget(i, pod.Namespace)
			if d.Observed {
				v.Verdict = verdictObserved
			} else if d.Open {
				v.Verdict = verdictOpen
			}
		} else {
			v.Rank = int(order.PlaceOf(pool.Rank(i)))
			e.addRegular(&v, i, &decision)
		}
		e.Pools = append(e.Pools, v)
	}
}

// addRegular sets v to the decision on the regular pool with index i.
func (e *explainer) addRegular(v *PoolVerdict, i int, decision *gate.Decision) {
	p, from := e.published, &e.published.view.Capacity.Pools[i]
	v.Verdict, v.State, v.Reason = verdictPasses, string(from.State), decision.Regular[i].Reason
	if decision.Regular[i].Holds() {
		v.Verdict = verdictHolds
	}
	for k, g := range p.view.Groups(e.request, p.pools, i, e.now) {
		v.Groups = append(v.Groups, GroupVerdict{Name: from.Groups[k].Name, Holds: g.Holds(), State: string(from.Groups[k].State), Reason: g.Reason, Until: g.Until})
	}
}

// takeSaid closes gates for those reasons of the scheduler's last try that are not in the published state. These
// reasons are a stale snapshot, an unknown ReplicaSet, a rollout, and terminating victims of the pod. The published
// state alone would show these gates as open. It would also show that a pod which overflows waits for an earlier pool.
func (e *explainer) takeSaid(decision *gate.Decision) {
	for _, reason := range e.Said {
		for i := range decision.Burst {
			said, v := gate.Verdict{Reason: reason}, &decision.Burst[i]
			overflowed := v.Reason.Code == gate.ReasonGrowing.Code && e.mayOverflow(i) && (said.Passes() || gate.Lookup(reason.Code).Kind == gate.Waiting)
			if overflowed || v.Open && !v.Observed && (said.Passes() || said.Reason.Code == gate.ReasonMakesRoom.Code) {
				*v = said
			}
		}
	}
}

// mayOverflow reports whether the burst pool with index i has whileGrowing: Overflow.
func (e *explainer) mayOverflow(i int) bool {
	burst := e.published.pools.At(i).Burst
	return burst != nil && burst.WhileGrowing == configv1.Overflow
}

// isChanged reports whether the gate's decision has changed since the scheduler's last try. If no gate was closed at
// that try, isChanged returns false.
func (e *explainer) isChanged() bool {
	before, after := map[string]bool{}, map[string]bool{}
	for _, reason := range e.Said {
		if gate.Lookup(reason.Code).Kind.Closes() && reason.Code != gate.ReasonBindingsDenied.Code { // which a regular pool may have, too
			before[reason.Code] = true
		}
	}
	if len(before) == 0 {
		return false // no gate was closed at the last try
	}
	for i, v := range e.Pools {
		if !v.Burst || e.published.view.Capacity.Pools[i].Nodes == 0 || v.Verdict == verdictObserved {
			continue // in these cases the scheduler writes no reason
		}
		if v.Verdict == verdictOpen {
			return true
		}
		after[v.Reason.Code] = true
	}
	delete(after, gate.ReasonBindingsDenied.Code)
	return len(after) > 0 && !maps.Equal(before, after)
}

// never returns the code of the reason why no burst pool can run the pod as it is. If a burst pool is open for the pod
// or may open, never returns "".
func (e *Explanation) never() string {
	code := ""
	for _, v := range e.Pools {
		switch {
		case v.Verdict == verdictOpen, v.Burst && gate.Lookup(v.Reason.Code).Kind.MayOpen():
			return ""
		case v.Burst:
			code = cmp.Or(code, v.Reason.Code)
		}
	}
	return code
}

// fitsNoPool reports whether the pod fits no regular pool, and a toleration may change that.
func (e *Explanation) fitsNoPool() bool {
	fits := func(v PoolVerdict) bool { return !v.Burst && !gate.IsNotApplicable(v.Reason) }
	untolerated := func(v PoolVerdict) bool { return strings.HasPrefix(v.Reason.Detail, gate.Untolerated) }
	return !slices.ContainsFunc(e.Pools, fits) && slices.ContainsFunc(e.Pools, untolerated)
}

// named returns the names of the pools with the given verdict.
func (e *Explanation) named(verdict string) []string {
	var names []string
	for _, v := range e.Pools {
		if v.Verdict == verdict {
			names = append(names, v.Name)
		}
	}
	return names
}

// budget formats the used part of the budgets of the burst pool with index i and of the namespace there.
func (p *publishedState) budget(i int, namespace string) string {
	text := ""
	if p.view.Burst != nil {
		text = budgetText(p.view.Burst[i], p.pools.At(i).Limits())
	}
	if limits := p.pools.At(i).PerNamespace(); p.view.Shares != nil && limits != (pool.Limits{}) {
		text = strings.TrimPrefix(text+"; namespace "+namespace+": "+budgetText(p.view.Shares[i][namespace], limits), "; ")
	}
	return text
}

func budgetText(use aci.Use, limits pool.Limits) string {
	var parts []string
	if limits.Pods > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d pods", use.Pods, limits.Pods))
	}
	if limits.MilliCPU > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s CPUs", decimal(float64(use.MilliCPU)/1000), decimal(float64(limits.MilliCPU)/1000)))
	}
	if limits.Memory > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s GB", decimal(float64(use.Memory)/gigabytes), decimal(float64(limits.Memory)/gigabytes)))
	}
	return strings.Join(parts, ", ")
}

// change appends each change that Changes does not contain yet.
func (e *explainer) change(changes ...Change) {
	for _, c := range changes {
		if !slices.Contains(e.Changes, c) {
			e.Changes = append(e.Changes, c)
		}
	}
}

// addChanges adds the events and times that may change the decision. Events come first. Times follow, the earliest
// first.
func (e *explainer) addChanges() {
	if e.CannotBurst != "" {
		e.change(Change{When: "a node of " + choice(e.published.names()[:e.published.pools.Regular()]) + " has room for the pod"})
	} else {
		e.addHolderChanges()
	}
	for i := range e.Pools {
		v := &e.Pools[i]
		isThen := func(c Change) bool { return c.When == "" && c.At.Equal(v.Until) }
		matters := e.CannotBurst == "" || v.Reason.Code == gate.ReasonTemplateRefused.Code
		if v.Verdict == verdictClosed && matters && !slices.ContainsFunc(e.Changes, isThen) {
			e.change(e.burstChanges(i, v)...)
		}
	}
	at := func(c Change) time.Time {
		if c.When != "" {
			return time.Time{}
		}
		return c.At
	}
	slices.SortStableFunc(e.Changes, func(a, b Change) int { return at(a).Compare(at(b)) })
}

// addHolderChanges adds the changes after which a regular pool may stop holding the gate closed.
func (e *explainer) addHolderChanges() {
	var grow, unknown []string
	for _, v := range e.Pools {
		switch {
		case v.Verdict != verdictHolds:
		case v.State == string(nodegroups.Unknown):
			unknown = append(unknown, v.Name)
		default:
			grow = append(grow, v.Name)
		}
	}
	if len(grow) > 0 {
		e.change(Change{When: "a node of " + choice(grow) + " is ready"})
	}
	for i, v := range e.Pools {
		if v.Verdict == verdictClosed && v.Reason.Code == gate.ReasonGrowing.Code && e.mayOverflow(i) {
			e.change(Change{When: "pods before it need all room of the nodes on their way (whileGrowing: Overflow)"})
		}
	}
	if len(unknown) > 0 {
		e.change(Change{When: "it becomes known whether " + list(unknown) + " can grow"})
	}
	creditEnds := e.published.view.CreditEnds(e.request, e.published.pools, e.now)
	for i, v := range e.Pools {
		for k := range v.Groups {
			g := &v.Groups[k]
			by, byCredit := e.graceOf(i, k, g), g.Until.Equal(creditEnds)
			switch {
			case v.Verdict != verdictHolds || !g.Holds:
				continue
			case by == declineGrace && e.published.view.Capacity.Pools[i].Groups[k].ByEvent:
				e.change(Change{When: "Karpenter writes that it cannot place the pod", By: by})
				by = ""
			case by == declineGrace && (byCredit || g.Until.IsZero()):
				e.change(Change{When: "the autoscaler has had time to add a node for the pod, and added none", By: by})
			}
			if byCredit {
				by = "credit"
			}
			if !g.Until.IsZero() {
				e.change(Change{At: g.Until, By: by})
			}
		}
	}
}

const declineGrace = "declineGrace"

// graceOf returns the name of the setting that limits how long the group holds the gate closed. i is the index of the
// pool, and k is the index of the group in the pool.
func (e *explainer) graceOf(i, k int, g *GroupVerdict) string {
	switch {
	case g.State == string(nodegroups.Unknown):
		return "unknownGrace"
	case g.State == string(nodegroups.Growing):
		return "provisionGrace"
	case e.published.view.Capacity.Pools[i].Groups[k].BackingOff:
		return "backoffGrace"
	}
	return declineGrace
}

// burstChanges returns the changes after which a closed burst pool may open. It leaves out the changes of regular
// pools, which addHolderChanges adds.
func (e *explainer) burstChanges(i int, v *PoolVerdict) []Change {
	switch v.Reason.Code {
	case gate.ReasonBudgetSpent.Code:
		if strings.HasPrefix(v.Reason.Detail, "namespace ") {
			return []Change{{When: "a pod of the namespace in " + v.Name + " ends"}, {When: "perNamespace of " + v.Name + " is raised"}}
		}
		return []Change{{When: "a pod of " + v.Name + " ends"}, {When: "the limits of " + v.Name + " are raised"}}
	case gate.ReasonCreateRate.Code:
		return []Change{{When: v.Name + " gets the next pod", At: v.Until}}
	case gate.ReasonProviderRefusing.Code:
		return []Change{{When: v.Name + " is tested with one pod", At: v.Until}}
	case gate.ReasonHalfOpen.Code:
		changes := []Change{{When: "a pod that tests " + v.Name + " has started, or the provider has refused it"}}
		if !v.Until.IsZero() {
			changes = append(changes, Change{When: "this namespace may test " + v.Name + ", too", At: v.Until})
		}
		return changes
	case gate.ReasonTemplateRefused.Code:
		return []Change{{When: "the workload's template changes"}, {At: v.Until}}
	case gate.ReasonRolloutTerminating.Code:
		return []Change{{When: "the pods that the rollout replaces have terminated"}}
	case gate.ReasonVictimsTerminating.Code:
		return []Change{{When: "the pods that the pod preempted have terminated"}}
	case gate.ReasonMakesRoom.Code:
		return []Change{{When: "the pod has preempted pods of low priority, or could not"}}
	case gate.ReasonReplicaSetUnknown.Code, gate.ReasonSnapshotStale.Code:
		return []Change{{When: "the scheduler's cache is up to date, in a moment"}}
	}
	if v.Until.IsZero() {
		return nil
	}
	by := map[bool]string{true: "holdLimit"}[gate.Lookup(v.Reason.Code).OfEarlierPool()]
	if limit := e.published.pools.At(i).Burst.WaitLimit.Duration; limit > 0 && e.request.UnschedulableSince.Add(limit).Equal(v.Until) {
		by = "waitLimit"
	}
	return []Change{{At: v.Until, By: by}}
}
