package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// saidOf finds in what the scheduler said of a pod, the message of its condition PodScheduled, the reasons that are ours, in the order in which they
// are there.
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

// asks is a pod that the gate is asked for, and what is answered.
type asks struct {
	p        *publishedState
	request  gate.Request
	decision gate.Decision
	now      time.Time
}

// ask asks the gate for the pod at the time now.
func (p *publishedState) ask(pod *corev1.Pod, f *facts, now time.Time) *asks {
	a := &asks{p: p, request: p.view.Request(pod, now), now: now}
	a.request.AzureFiles, a.request.NotSelected = f.azureFiles, f.notSelected
	a.decision = p.decide(a.request, now)
	return a
}

// taken takes over from what the scheduler said what it alone can know: that its snapshot is behind, that the pod's owner is unseen, that a rollout or
// the pod's own victims make room. Such a gate would be open by all that is published.
func (a *asks) taken(said []nodegroups.Reason) {
	for _, reason := range said {
		passing := gate.Verdict{Reason: reason}
		if !passing.Passes() {
			continue
		}
		for i := range a.decision.Burst {
			if v := &a.decision.Burst[i]; v.Open && !v.Observed {
				*v = passing
			}
		}
	}
}

// changed reports whether the gate is closed now for something else than what the scheduler said, or is open.
func (a *asks) changed(said []nodegroups.Reason) bool {
	before := map[string]bool{}
	for _, reason := range said {
		if gate.Lookup(reason.Code).Kind.Closes() {
			before[reason.Code] = true
		}
	}
	if len(before) == 0 {
		return false // what kept the pod out was no gate
	}
	after := map[string]bool{}
	for i := range a.p.pools.Burst() {
		v := &a.decision.Burst[i]
		if a.p.view.Capacity.Pools[i].Nodes == 0 || v.Observed {
			continue // nothing is said of nodes that do not exist, nor of what is only observed
		}
		if v.Open {
			return true
		}
		after[v.Reason.Code] = true
	}
	return len(after) > 0 && !maps.Equal(before, after)
}

// never returns the code of the reason for which no burst pool will take the pod as it is; "" if one may.
func (a *asks) never() string {
	code := ""
	for i := range a.p.pools.Burst() {
		v := &a.decision.Burst[i]
		if v.Open && !v.Observed || gate.Lookup(v.Reason.Code).Kind.Waits() {
			return ""
		}
		code = cmp.Or(code, v.Reason.Code)
	}
	return code
}

// holder returns the name of the first pool that holds the gate; "" if none does.
func (a *asks) holder() string {
	for i := range a.decision.Regular {
		if !a.decision.Regular[i].Open {
			return a.p.pools.At(i).Name
		}
	}
	return ""
}

// opens returns the name of the first burst pool whose gate is open for the pod; "" if none is.
func (a *asks) opens() string {
	for i := range a.p.pools.Burst() {
		if v := &a.decision.Burst[i]; v.Open && !v.Observed {
			return a.p.pools.At(i).Name
		}
	}
	return ""
}

// verdicts are what is decided of each pool.
func (a *asks) verdicts() []PoolVerdict {
	var all []PoolVerdict
	for i := range a.p.pools.Len() {
		from := &a.p.view.Capacity.Pools[i]
		v := PoolVerdict{Name: a.p.pools.At(i).Name, Rank: i, Burst: a.p.pools.IsBurst(i)}
		if v.Burst {
			d := &a.decision.Burst[i]
			v.Verdict, v.Reason, v.Until, v.Budget = verdictClosed, d.Reason, d.Until, a.budget(i)
			if d.Observed {
				v.Verdict = verdictObserved
			} else if d.Open {
				v.Verdict = verdictOpen
			}
			all = append(all, v)
			continue
		}
		if !a.p.pools.HasBurst() {
			v.Verdict, v.State, v.Reason = verdictPasses, string(from.State), from.Reason
			all = append(all, v)
			continue
		}
		d := &a.decision.Regular[i]
		v.Verdict, v.State, v.Reason = verdictPasses, string(from.State), d.Reason
		if !d.Open {
			v.Verdict = verdictHolds
		}
		for k, g := range a.p.view.Groups(a.request, a.p.pools, i, a.now) {
			v.Groups = append(v.Groups, GroupVerdict{Name: from.Groups[k].Name, Holds: !g.Open, State: string(from.Groups[k].State), Reason: g.Reason, Until: g.Until})
		}
		all = append(all, v)
	}
	return all
}

// budget is how much of the burst pool's is used.
func (a *asks) budget(i int) string {
	if a.p.view.Burst == nil {
		return ""
	}
	use, limits := &a.p.view.Burst[i], a.p.pools.At(i).Limits()
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

// changes are what changes the decision: what must happen, and then what time alone does, the earliest first.
func (a *asks) changes(verdicts []PoolVerdict) []Change {
	h := a.ofHolders(verdicts)
	for i := range verdicts {
		if v := &verdicts[i]; v.Burst && v.Verdict == verdictClosed && !slices.ContainsFunc(h.times, func(c Change) bool { return c.At.Equal(v.Until) }) {
			h.add(a.ofBurst(i, v)...)
		}
	}
	return h.all()
}

// ofBurstOnly is what changes that burst pools do not take the pod as it is.
func (a *asks) ofBurstOnly(verdicts []PoolVerdict) []Change {
	var h changesOf
	for i := range verdicts {
		if v := &verdicts[i]; v.Burst && v.Reason.Code == gate.ReasonTemplate.Code {
			h.add(a.ofBurst(i, v)...)
		}
	}
	return h.all()
}

// changesOf collects what changes a decision, each thing once: what must happen, and what time does.
type changesOf struct{ events, times []Change }

func (h *changesOf) add(changes ...Change) {
	for _, c := range changes {
		to := &h.events
		if c.When == "" {
			to = &h.times
		}
		if !slices.Contains(*to, c) {
			*to = append(*to, c)
		}
	}
}

func (h *changesOf) all() []Change {
	slices.SortStableFunc(h.times, func(a, b Change) int { return a.At.Compare(b.At) })
	return append(h.events, h.times...)
}

// ofHolders is what changes that regular pools hold the gate.
func (a *asks) ofHolders(verdicts []PoolVerdict) changesOf {
	var h changesOf
	var grow, unknown []string
	idle := false
	for i := range verdicts {
		v := &verdicts[i]
		if v.Verdict != verdictHolds {
			continue
		}
		if isUnknown := v.State == string(nodegroups.Unknown); isUnknown {
			unknown = append(unknown, v.Name)
		} else {
			grow = append(grow, v.Name)
		}
		for k := range v.Groups {
			g := &v.Groups[k]
			grace := a.graceOf(i, k, g)
			switch {
			case !g.Holds:
			case !g.Until.IsZero():
				h.add(Change{At: g.Until, By: grace})
			case grace == declineGrace:
				idle = true
			}
		}
	}
	var first changesOf
	if len(grow) > 0 {
		first.add(Change{When: "a node of " + choice(grow) + " is ready"})
	}
	if len(unknown) > 0 {
		first.add(Change{When: "it is known whether " + list(unknown) + " can grow"})
	}
	if idle {
		first.add(Change{When: "the autoscaler has looked at the pod for long enough and added none", By: declineGrace})
	}
	h.events = append(first.events, h.events...)
	return h
}

const declineGrace = "declineGrace"

// graceOf names the setting by which a group no longer holds the gate: that with index k of the pool with index i.
func (a *asks) graceOf(i, k int, g *GroupVerdict) string {
	switch {
	case g.State == string(nodegroups.Unknown):
		return "unknownGrace"
	case g.State == string(nodegroups.Growing):
		return "provisionGrace"
	case a.p.view.Capacity.Pools[i].Groups[k].Skipped:
		return "backoffGrace"
	}
	return declineGrace
}

// ofBurst is what changes that a burst pool is closed, beside what regular pools say.
func (a *asks) ofBurst(i int, v *PoolVerdict) []Change {
	switch v.Reason.Code {
	case gate.ReasonBudget.Code:
		return []Change{{When: "a pod of " + v.Name + " ends"}, {When: "its limits are raised"}}
	case gate.ReasonRefused.Code:
		return []Change{{When: v.Name + " is tried with one pod", At: v.Until}}
	case gate.ReasonProbed.Code:
		return []Change{{When: "the pod with which " + v.Name + " is tried starts or is refused"}}
	case gate.ReasonTemplate.Code:
		return []Change{{When: "the workload's template changes"}, {At: v.Until}}
	case gate.ReasonRoom.Code:
		return []Change{{When: "the pods that the rollout replaces have made room"}}
	case gate.ReasonVictims.Code:
		return []Change{{When: "the pods that it preempted have ended"}}
	case gate.ReasonEarly.Code, gate.ReasonUnseen.Code:
		return []Change{{When: "the scheduler has caught up, in a moment"}}
	}
	if v.Until.IsZero() {
		return nil
	}
	by := "holdLimit"
	if limit := a.p.pools.At(i).Burst.WaitLimit.Duration; limit > 0 && a.request.UnschedulableSince.Add(limit).Equal(v.Until) {
		by = "waitLimit"
	}
	return []Change{{At: v.Until, By: by}}
}
