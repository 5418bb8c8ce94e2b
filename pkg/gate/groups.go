package gate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// DelayAnnotation is the pod annotation with the age below which the cluster autoscaler ignores the pod. Source:
// cluster-autoscaler/core/podlistprocessor or, before 1.30, core/static_autoscaler.go.
const DelayAnnotation = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"

// expendable is the default of the cluster autoscaler's --expendable-pods-priority-cutoff. The autoscaler does not
// scale up for a pod with a lower priority, and such a pod does not prevent a scale-down.
const expendable = -10

// applicability has a mismatch for each node group of a pool, by the group's index. The mismatch is why no node of the
// group can run the pod. It is empty if a node might run the pod.
type applicability []mismatch

// Assessment is the part of a decision that is equal for all pods with the same alike.View and AzureFiles.
type Assessment struct {
	requests   corev1.ResourceList
	applicable []applicability // by the index of the regular pool
	asks       bool            // whether the pods' own constraints ask for a burst pool
	burst      []assessed      // by the index of the burst pool
}

// assessed has the reasons why the pods of an Assessment cannot use a burst pool.
type assessed struct {
	ineligible nodegroups.Reason // its code is empty if a virtual kubelet can run the pods
	topology   string            // a label that the pods must be spread over and that the pool's nodes lack, or ""
}

// Assess evaluates the view for all pods with the same alike.View and AzureFiles.
func (r *Rule) Assess(req Request, view *nodegroups.View) *Assessment {
	a := &Assessment{
		requests:   resource.PodRequests(req.Pod, resource.PodResourcesOptions{}),
		applicable: make([]applicability, r.Pools.Regular()), asks: r.asksForBurst(req.Pod), burst: make([]assessed, r.Pools.Len()),
	}
	for i := range a.applicable {
		groups := view.Pools[i].Groups
		a.applicable[i] = make(applicability, len(groups))
		for k := range groups {
			a.applicable[i][k] = notApplicable(req.Pod, a.requests, r.Pools.At(i), &groups[k])
		}
	}
	for i := range r.Pools.Burst() {
		a.burst[i] = assessed{ineligible: ineligible(req, r.Pools.At(i), view.Pools[i].NodeTemplates), topology: missingTopology(req.Pod, &view.Pools[i])}
	}
	return a
}

// clocks returns the time from which the pod waits for a scale-up (clock), and when a node that fits the pod last
// became usable (came). A node group declines the pod when this wait is long enough. clock is zero while the wait has
// not begun, for example while nodes that fit the pod are upcoming.
func (r *Rule) clocks(req *Request, a *Assessment, view *nodegroups.View) (clock, came time.Time) {
	growing := false
	for i := range a.applicable {
		for k := range a.applicable[i] {
			if !a.applicable[i][k].none() {
				continue
			}
			g := &view.Pools[i].Groups[k]
			clock, came = latest(clock, g.LastActivity), latest(came, g.LastReady)
			growing = growing || g.IsGrowing()
		}
	}
	if growing || req.NoRoomSince.IsZero() || isExpendable(req.Pod) {
		return time.Time{}, came
	}
	return latest(latest(clock, req.NoRoomSince), latest(req.IgnoredUntil, r.seenFrom(req.Pod))), came
}

// seenFrom returns when the autoscaler begins to consider the pod; zero if it does so at once.
func (r *Rule) seenFrom(pod *corev1.Pod) time.Time {
	delay := r.NewPodDelay
	if text, ok := pod.Annotations[DelayAnnotation]; ok {
		if own, err := time.ParseDuration(text); err == nil && own > delay {
			delay = own
		}
	}
	if delay == 0 {
		return time.Time{}
	}
	return pod.CreationTimestamp.Add(delay)
}

func isExpendable(pod *corev1.Pod) bool {
	return pod.Spec.Priority != nil && *pod.Spec.Priority < expendable
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// IsNotApplicable reports whether the reason is that the nodes of a pool or a node group cannot run the pod. Such a
// pool or group does not hold the gate.
func IsNotApplicable(reason nodegroups.Reason) bool { return reason.Code == reasonNotApplicable.Code }

// Groups returns the verdict of each node group of the regular pool with index i, by the group's index in the view.
// Unlike Decide, it does not check the cycle's snapshot.
func (r *Rule) Groups(req Request, view *nodegroups.View, i int, now time.Time) []Verdict {
	e := newEvaluation(r, &req, r.Assess(req, view), view, now)
	verdicts := make([]Verdict, len(view.Pools[i].Groups))
	for k := range verdicts {
		verdicts[k] = e.group(i, k)
		if IsNotApplicable(verdicts[k].Reason) {
			verdicts[k].Reason.Detail = e.a.applicable[i][k].String()
		}
	}
	return verdicts
}

// regular returns the verdict for the regular pool with index i. It is the verdict of the node group with the highest
// weight, with the earliest Until and the Declined of all groups.
func (e *evaluation) regular(i int) Verdict {
	p := &e.view.Pools[i]
	answer := Verdict{Reason: reasonNoGroups, Closes: &ReasonUnknown} // for a pool without groups, which no source reports
	var until time.Time
	var declined []string
	most, saidBy := -1, 0
	for k := range p.Groups {
		v := e.group(i, k)
		until = nodegroups.Earliest(until, v.Until)
		declined = append(declined, v.Declined...)
		if w := v.weight(); w > most {
			most, saidBy, answer = w, k, v
		}
	}
	answer.Until, answer.Declined = until, declined
	switch {
	case IsNotApplicable(answer.Reason):
		answer.Reason.Detail = e.a.applicable[i][saidBy].String()
	case answer.Open && e.req.behind(i, p) && e.now.Sub(e.view.Built) < staleSnapshotLimit:
		answer = Verdict{Reason: ReasonSnapshotStale, Closes: &ReasonSnapshotStale}
	}
	return answer
}

// weight orders the verdicts of a pool's groups. Groups that hold the gate come first: groups with upcoming nodes, then
// groups that can grow, then the rest. After them come groups that declined the pod, then other groups that the pod
// fits, then groups that it does not fit.
func (v *Verdict) weight() int {
	switch {
	case v.Closes == &ReasonGrowing:
		return 5
	case v.Closes == &ReasonCanGrow:
		return 4
	case v.Holds():
		return 3
	case v.Reason.Code == reasonDeclined.Code:
		return 2
	case !IsNotApplicable(v.Reason):
		return 1
	}
	return 0
}

// group returns the verdict for the group with index k of the pool with index i.
func (e *evaluation) group(i, k int) Verdict {
	g := &e.view.Pools[i].Groups[k]
	if !e.a.applicable[i][k].none() {
		return Verdict{Open: true, Reason: reasonNotApplicable} // regular adds the detail if this verdict is shown
	}
	switch {
	case g.State == nodegroups.Full:
		// A group that is Full because of a backoff can grow again when the backoff ends. Until is not set for that
		// change, because the change opens no closed gate.
		return Verdict{Open: true, Reason: g.Reason}
	case g.State == nodegroups.Growing:
		return Verdict{Reason: g.Reason, Closes: &ReasonGrowing, Until: g.Until}
	case g.State == nodegroups.CanGrow:
		return e.growth(i, k)
	case g.IsGrowing():
		return Verdict{Reason: nodegroups.ReasonStarting, Closes: &ReasonGrowing, Until: g.Until}
	}
	counts := g.Since.Add(e.UnknownGrace)
	if !e.now.Before(counts) {
		return opened(reasonUnknownLong, g.Reason.Sentence)
	}
	return Verdict{Reason: g.Reason, Closes: &ReasonUnknown, Until: nodegroups.Earliest(g.Until, counts)}
}

// growth returns the verdict for a group that can grow. The group holds the gate unless it cannot, or does not, grow
// for the pod.
func (e *evaluation) growth(i, k int) Verdict {
	p := &e.view.Pools[i]
	g := &p.Groups[k]
	if detail := beyond(e.a.requests, g.Remaining); detail != "" {
		return opened(reasonBeyondLimits, detail)
	}
	holds := Verdict{Reason: g.Reason, Closes: &ReasonCanGrow, Until: g.Until}
	if g.BackingOff {
		return holds
	}
	if e.req.Declined != nil {
		if at, ok := e.req.Declined()[DeclineKey(i, g.Name)]; ok && !g.LastChanged.After(at) && !g.LastActivity.After(at) {
			return opened(reasonDeclined, g.Name)
		}
	}
	if e.clock.IsZero() || !p.HasScanned(e.clock) {
		return holds
	}
	due := p.WaitedAt(e.clock, max(e.Pools.At(i).Graces.Decline, g.MinWait))
	if due.IsZero() || e.now.Before(due) {
		holds.Until = nodegroups.Earliest(holds.Until, due)
		return holds
	}
	v := opened(reasonDeclined, g.Name)
	v.Declined = []string{g.Name}
	return v
}

// opened returns the verdict of a group that does not hold the gate, for the reason with the detail.
func opened(reason nodegroups.Reason, detail string) Verdict {
	return Verdict{Open: true, Reason: reason.With("%s", detail)}
}

// DeclineKey identifies a node group by the index of its pool and its own name.
func DeclineKey(pool int, group string) string { return fmt.Sprintf("%d/%s", pool, group) }

// beyond returns the first request, in the order of the names, that exceeds what the group may still order, or "".
func beyond(requests, remaining corev1.ResourceList) string {
	if len(remaining) == 0 {
		return ""
	}
	var first corev1.ResourceName // the first name in sorted order, so that the message does not change
	for name, request := range requests {
		if left, limited := remaining[name]; limited && request.Cmp(left) > 0 && (first == "" || name < first) {
			first = name
		}
	}
	if first == "" {
		return ""
	}
	request, left := requests[first], remaining[first]
	return fmt.Sprintf("requests %s %s, and only %s remain", request.String(), first, left.String())
}
