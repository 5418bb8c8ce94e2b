package gate

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// DelayAnnotation is the pod annotation with a minimum age. The cluster autoscaler ignores a younger pod. Source:
// cluster-autoscaler/core/podlistprocessor or, before 1.30, core/static_autoscaler.go.
const DelayAnnotation = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"

// expendable is the default of the cluster autoscaler's flag --expendable-pods-priority-cutoff. Pods with a lower
// priority cause no scale-up and prevent no scale-down.
const expendable = -10

// applicability has one mismatch for each node group of a pool, by the group's index. The mismatch shows why no node of
// the group can run the pod. An empty mismatch means that a node of the group might run the pod.
type applicability []mismatch

// Assessment is the part of a decision that is equal for all pods with the same alike.View and Request.AzureFiles.
type Assessment struct {
	requests   corev1.ResourceList
	applicable []applicability // by the index of the regular pool
	// served has, by the indices of the regular pool and of the group, the services by nodes that the pods could use.
	served [][][]nodegroups.Service
	asks   bool // the result of asksForBurst
	// ownMismatch returns the result of Rule.ownMismatch, which is computed only once.
	ownMismatch func() mismatch
	burst       []assessed // by the index of the burst pool
}

// assessed has the reasons why the pods of an Assessment cannot use a burst pool.
type assessed struct {
	ineligible nodegroups.Reason // its code is empty if a virtual kubelet can run the pods
	tooLarge   string            // the result of aci.TooLarge
	topology   string            // the result of missingTopology
}

// Assess returns the Assessment of the request's pod. It is also valid for pods with the same alike.View and
// AzureFiles.
func (r *Rule) Assess(req Request, view *nodegroups.View) *Assessment {
	a := &Assessment{
		requests:   resource.PodRequests(req.Pod, resource.PodResourcesOptions{}),
		applicable: make([]applicability, r.Pools.Regular()), served: make([][][]nodegroups.Service, r.Pools.Regular()), asks: r.asksForBurst(req.Pod), burst: make([]assessed, r.Pools.Len()),
	}
	for i := range a.applicable {
		groups := view.Pools[i].Groups
		a.applicable[i], a.served[i] = make(applicability, len(groups)), make([][]nodegroups.Service, len(groups))
		for k := range groups {
			a.applicable[i][k] = notApplicable(req.Pod, a.requests, nodesOf(r.Pools.At(i), &groups[k]))
			for _, s := range groups[k].Served {
				node := newNode{labels: s.Node.Labels, taints: s.Node.Taints, allocatable: s.Node.Allocatable}
				if m := node.refuses(req.Pod, a.requests); m.none() {
					a.served[i][k] = append(a.served[i][k], s)
				}
			}
		}
	}
	pod := req.Pod
	a.ownMismatch = sync.OnceValue(func() mismatch { return r.ownMismatch(pod, a, view) })
	for i, p := range r.Pools.Burst() {
		a.burst[i] = assessed{ineligible: ineligible(req, p, view.Pools[i].NodeTemplates), tooLarge: aci.TooLarge(req.Pod, p.OnACI(), p.Burst.Largest),
			topology: missingTopology(req.Pod, &view.Pools[i])}
	}
	return a
}

// clocks returns two times. clock is when the pod began to wait for a scale-up. It is zero while the pod does not wait
// for a scale-up, for example because upcoming nodes fit the pod. When the pod has waited for long enough since clock,
// a node group counts as declining the pod.
// changed is when the Version or the templates of a node group that fits the pod last changed.
func (r *Rule) clocks(req *Request, a *Assessment, view *nodegroups.View) (clock, changed time.Time) {
	growing := false
	for i := range a.applicable {
		for k := range a.applicable[i] {
			if !a.applicable[i][k].none() {
				continue
			}
			g := &view.Pools[i].Groups[k]
			clock, changed = nodegroups.Latest(clock, g.LastActivity), nodegroups.Latest(changed, g.LastChanged)
			growing = growing || g.IsGrowing()
		}
	}
	if growing || req.NoRoomSince.IsZero() || IsExpendable(req.Pod) {
		return time.Time{}, changed
	}
	return nodegroups.Latest(clock, req.NoRoomSince, req.IgnoredUntil, r.SeenFrom(req.Pod)), changed
}

// creditEnds returns when the pod has no credit left; zero while its credit does not run, because it does not want room.
// Credit bounds the time for which all the states of the node groups that fit the pod may hold it. It starts when the pod
// wants room, autoscalers see it, a scheduler knows the pools, and a group was not full. Each group's first scale-up since
// then, and each service (nodegroups.Service) of such a pod by a node that is younger than the wait, start it anew.
// Nothing else does. A group that is full now counts, too, because its turn may just have ended.
func (r *Rule) creditEnds(req *Request, a *Assessment, view *nodegroups.View, now time.Time) time.Time {
	if req.NoRoomSince.IsZero() {
		return time.Time{}
	}
	wants := nodegroups.Latest(req.NoRoomSince, req.IgnoredUntil, r.SeenFrom(req.Pod)).Add(-req.Inherited)
	var start, began time.Time
	lasts := time.Duration(0)
	for i := range a.applicable {
		graces := &r.Pools.At(i).Graces
		for k := range a.applicable[i] {
			if !a.applicable[i][k].none() {
				continue
			}
			g := &view.Pools[i].Groups[k]
			lasts = max(lasts, max(graces.Provision, r.StaleAfter+r.UnknownGrace, g.MinWait)+graces.Decline)
			began = nodegroups.Earliest(began, g.NotFullSince(wants))
			start = nodegroups.Latest(start, view.Pools[i].Known)
			if first := slices.IndexFunc(g.Orders, wants.Before); first >= 0 && now.Sub(wants) < nodegroups.Remembered { // else, it may not be the first
				start = nodegroups.Latest(start, g.Orders[first])
			}
			for _, s := range a.served[i][k] {
				if s.Made.After(wants) {
					start = nodegroups.Latest(start, s.At)
				}
			}
		}
	}
	if began.IsZero() {
		return time.Time{}
	}
	return nodegroups.Latest(start, began).Add(lasts)
}

// CreditEnds returns when the pod of the request has no credit left; zero while its credit does not run.
func (r *Rule) CreditEnds(req Request, view *nodegroups.View, now time.Time) time.Time {
	return r.creditEnds(&req, r.Assess(req, view), view, now)
}

// SeenFrom returns the time from which the autoscaler considers the pod; zero if the autoscaler ignores no new pods.
func (r *Rule) SeenFrom(pod *corev1.Pod) time.Time {
	delay := max(r.NewPodDelay, OwnDelay(pod))
	if delay == 0 {
		return time.Time{}
	}
	return pod.CreationTimestamp.Add(delay)
}

// OwnDelay returns the value of the pod's DelayAnnotation; 0 if it has none, or if the value is no duration.
func OwnDelay(pod *corev1.Pod) time.Duration {
	delay, _ := time.ParseDuration(pod.Annotations[DelayAnnotation]) // 0 if there is an error
	return delay
}

// IsExpendable reports whether the cluster autoscaler ignores the pod because of its priority.
func IsExpendable(pod *corev1.Pod) bool {
	return pod.Spec.Priority != nil && *pod.Spec.Priority < expendable
}

// IsNotApplicable reports whether the reason says that no node of a pool or node group can run the pod. Such a pool or
// node group does not keep the gate closed.
func IsNotApplicable(reason nodegroups.Reason) bool { return reason.Code == reasonNotApplicable.Code }

// Groups returns the verdict of each node group of the regular pool with index i, by the group's index in the view.
// Unlike Decide, Groups does not compare the view with the scheduling cycle's snapshot.
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

// regular returns the verdict for the regular pool with index i. The pool gets the verdict of the node group with the
// highest weight. Until is the earliest Until of all groups, and Declined combines the lists of all groups.
func (e *evaluation) regular(i int) Verdict {
	if e.req.leavesOut(i) {
		return Verdict{Open: true, Reason: reasonNoBindings}
	}
	p := &e.view.Pools[i]
	answer := Verdict{Reason: reasonNoGroups, Closes: &ReasonUnknown} // for a pool without groups, which no source reports
	var until time.Time
	declined := map[string]time.Time{}
	most, saidBy := -1, 0
	for k := range p.Groups {
		v := e.group(i, k)
		until = nodegroups.Earliest(until, v.Until)
		maps.Copy(declined, v.Declined)
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

// weight ranks the verdicts of a pool's node groups. Groups that keep the gate closed have the highest weights. Among
// these, groups with upcoming nodes rank first, and groups that can grow rank second. Groups that declined the pod have
// a lower weight. Groups whose nodes cannot run the pod have the lowest weight.
func (v *Verdict) weight() int {
	switch {
	case v.Closes == &ReasonGrowing:
		return 5
	case v.Closes == &ReasonCanGrow:
		return 4
	case v.Holds():
		return 3
	case v.Reason.Code == reasonDeclined.Code, v.Reason.Code == reasonNoCredit.Code:
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
		return Verdict{Open: true, Reason: reasonNotApplicable} // if the pool gets this verdict, regular adds the detail
	}
	switch {
	case g.State == nodegroups.Full:
		// If a group is Full because of a backoff, it can grow again after the backoff. Until does not include that
		// time, because the change cannot open a gate.
		return Verdict{Open: true, Reason: g.Reason}
	case !e.credit.IsZero() && !e.now.Before(e.credit):
		v := opened(reasonNoCredit, g.Name)
		if !IsExpendable(e.req.Pod) && e.now.Sub(e.credit) < creditMemory {
			v.Declined = map[string]time.Time{creditKey(e.Pools.At(i).Name, g.Name): e.credit}
		}
		return v
	case e.learntNoCredit(i, k):
		return opened(reasonNoCredit, g.Name)
	}
	v := e.holds(i, k)
	if v.Holds() {
		v.Until = nodegroups.Earliest(v.Until, e.credit)
	}
	return v
}

// holds returns the verdict for a group that is not full and for which the pod has credit.
func (e *evaluation) holds(i, k int) Verdict {
	g := &e.view.Pools[i].Groups[k]
	switch {
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

// learntNoCredit reports whether another pod with the pod's AutoscalerKey has run out of credit for the group, less than
// creditMemory ago. Since then, the group has not served such a pod, and its limits are the same.
func (e *evaluation) learntNoCredit(i, k int) bool {
	g := &e.view.Pools[i].Groups[k]
	if e.req.Declined == nil {
		return false
	}
	at := e.req.Declined(creditKey(e.Pools.At(i).Name, g.Name))
	return lacksCredit(g, at, e.now) && !servedSince(e.a.served[i][k], at)
}

// lacksCredit reports whether a pod's lack of credit for the group at the time at counts for others at the time now,
// unless the group has served such a pod since. at may be zero.
func lacksCredit(g *nodegroups.Group, at, now time.Time) bool {
	return now.Sub(at) < creditMemory && !g.LimitsChanged.After(at)
}

func servedSince(services []nodegroups.Service, at time.Time) bool {
	return slices.ContainsFunc(services, func(s nodegroups.Service) bool { return s.At.After(at) })
}

// growth returns the verdict for a group in state CanGrow. The verdict is open if the pod exceeds the group's remaining
// limits, or if the group declined the pod. Otherwise, the group keeps the gate closed. The cluster autoscaler adds no
// node for a pod with a ProvisioningRequest, but for the request. The group therefore declines such a pod only after
// provisionGrace.
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
	if g.Foreign {
		p = &nodegroups.Pool{Scans: nodegroups.Scans{Uncounted: true}} // the pool's loops are another autoscaler's
	}
	// Only the cluster autoscaler reads ProvisioningRequests. It is the only source with loops.
	requested := !p.Uncounted && alike.HasProvisioningRequest(e.req.Pod)
	if requested {
		holds.Closes = &reasonRequest
	}
	if e.req.Declined != nil && !g.ByEvent && !g.Foreign {
		if at := e.req.Declined(DeclineKey(i, g.Name)); !at.IsZero() && !g.LastChanged.After(at) && !g.LastActivity.After(at) {
			return opened(reasonDeclined, g.Name)
		}
	}
	if e.clock.IsZero() {
		return holds
	}
	// If the group's nodes are known and fit the pod, only a passing cause, such as a taint, can keep the autoscaler from
	// adding one.
	if e.req.NoScaleUp != nil && len(g.NodeTemplates) == 0 && p.LastStatus.Confirms(e.req.NoScaleUp(e.req.Pod), nodegroups.Latest(e.clock, e.changed)) {
		return opened(reasonDeclined, g.Name) // this pod only: Declined stays empty
	}
	if !p.HasScanned(e.clock) {
		return holds
	}
	wait := e.Pools.At(i).Graces.Decline
	if !g.ByEvent || !e.refused() {
		wait = max(wait, g.MinWait)
	}
	if requested {
		wait = max(wait, e.Pools.At(i).Graces.Provision)
	}
	due := p.WaitedAt(e.clock, wait)
	if due.IsZero() || e.now.Before(due) {
		holds.Until = nodegroups.Earliest(holds.Until, due)
		return holds
	}
	v := opened(reasonDeclined, g.Name)
	if !g.ByEvent && !g.Foreign {
		v.Declined = map[string]time.Time{DeclineKey(i, g.Name): e.now}
	}
	return v
}

// refused reports whether Karpenter has written that it cannot place the pod, since the pod began to wait. Events have
// whole seconds.
func (e *evaluation) refused() bool {
	return e.req.RefusedAt != nil && !e.req.RefusedAt(e.req.Pod).Before(e.clock.Truncate(time.Second))
}

// opened returns an open verdict with the reason and the detail.
func opened(reason nodegroups.Reason, detail string) Verdict {
	return Verdict{Open: true, Reason: reason.With("%s", detail)}
}

// DeclineKey returns a key for a node group: the index of the group's pool and the name of the group.
func DeclineKey(pool int, group string) string { return fmt.Sprintf("%d/%s", pool, group) }

// creditKey returns a key for the credit that pods have for a node group. Unlike a DeclineKey, it has the pool's name, so
// that it stays valid for the next leader.
func creditKey(pool, group string) string { return creditPrefix + pool + "/" + group }

const creditPrefix = "credit:"

// beyond describes the first request, sorted by resource name, that exceeds the group's remaining limits. It returns ""
// if there is none.
func beyond(requests, remaining corev1.ResourceList) string {
	for _, name := range slices.Sorted(maps.Keys(remaining)) {
		request, asked := requests[name]
		if left := remaining[name]; asked && request.Cmp(left) > 0 {
			return fmt.Sprintf("requests %s %s, and only %s remain", request.String(), name, left.String())
		}
	}
	return ""
}
