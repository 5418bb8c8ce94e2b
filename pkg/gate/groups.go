package gate

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// DelayAnnotation is the pod annotation that has the cluster autoscaler ignore a pod until it is that old.
// Source: cluster-autoscaler/core/podlistprocessor or, before 1.30, core/static_autoscaler.go.
const DelayAnnotation = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"

// expendable is the priority below which autoscalers neither grow for a pod nor are hindered by it: --expendable-pods-priority-cutoff.
const expendable = -10

// applicability is, for a pool's groups by their index, why none of its nodes would run the pod; empty if one might.
type applicability []misfit

// Assessment is what a view says of pods of a class, whatever their clocks say.
type Assessment struct {
	requests   corev1.ResourceList
	applicable []applicability // of each regular pool
	asks       bool            // the pods ask for the burst pool themselves
	burst      []assessed      // of each burst pool, by the pool's index
}

// assessed is what keeps pods of a class out of a burst pool.
type assessed struct {
	ineligible nodegroups.Reason // an empty code: nothing of what they use
	topology   string            // a label over which they must be spread and that the pool's nodes lack
}

// Assess says what the view says of pods of the class of the one that asks (ClassOf).
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
		a.burst[i] = assessed{ineligible: ineligible(req, r.Pools.At(i), view.Pools[i].Shapes), topology: missingTopology(req.Pod, &view.Pools[i])}
	}
	return a
}

// ClassOf returns what of the pod an Assessment depends on: equal for pods of which a view says the same, if they are alike in whether their
// volumes are Azure Files.
func ClassOf(pod *corev1.Pod) string {
	s := &pod.Spec
	var affinity *corev1.NodeSelector
	if s.Affinity != nil && s.Affinity.NodeAffinity != nil {
		affinity = s.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	var spread []string
	for i := range s.TopologySpreadConstraints {
		if c := &s.TopologySpreadConstraints[i]; c.WhenUnsatisfiable == corev1.DoNotSchedule {
			spread = append(spread, c.TopologyKey)
		}
	}
	data, err := json.Marshal([]any{
		resource.PodRequests(pod, resource.PodResourcesOptions{}), s.NodeSelector, affinity, s.Tolerations, spread, aci.Billed(pod, true), aci.Billed(pod, false), aci.FeaturesOf(pod),
	})
	if err != nil {
		return string(pod.UID) // it does not fail; a class of its own
	}
	return string(data)
}

// clock returns since when the autoscaler has had the pod before it and nothing has happened that could help it: zero if it has not, as while
// nodes that the pod could use are on their way. came is when a node last came that the pod might use.
func (r *Rule) clock(req Request, a *Assessment, view *nodegroups.View) (clock, came time.Time) {
	growing := false
	for i := range a.applicable {
		for k := range a.applicable[i] {
			if !a.applicable[i][k].fits() {
				continue
			}
			g := &view.Pools[i].Groups[k]
			clock, came = latest(clock, g.Moved), latest(came, g.LastReady)
			growing = growing || g.IsGrowing()
		}
	}
	if growing || req.NoRoomSince.IsZero() || isExpendable(req.Pod) {
		return time.Time{}, came
	}
	return latest(latest(clock, req.NoRoomSince), latest(req.IgnoredUntil, r.seenFrom(req.Pod))), came
}

// seenFrom is when the autoscaler begins to look at the pod.
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

// groupVerdict is what one node group says.
type groupVerdict struct {
	holds  bool
	reason nodegroups.Reason
	closed nodegroups.Reason // that a gate gives which is closed for it
	until  time.Time         // when that may change without any event; zero: never
	own    bool              // it declines the pod by the pod's own clock
}

// judge returns whether the regular pool with index i holds the gate for the pod, the reason that a gate closed for it
// gives, and when that may change without any event.
func (r *Rule) judge(req Request, a *Assessment, i int, p *nodegroups.Pool, clock, now time.Time) (PoolVerdict, nodegroups.Reason, time.Time) {
	verdict, closed := PoolVerdict{Holds: true, Reason: reasonNoGroups}, ReasonUnknown // no source says that
	var until time.Time
	weight, heaviest := -1, 0
	for k := range p.Groups {
		v := r.judgeGroup(req, a, i, p, k, clock, now)
		until = nodegroups.Earliest(until, v.until)
		if v.own {
			verdict.Declined = append(verdict.Declined, p.Groups[k].Name)
		}
		if w := v.weight(); w > weight {
			weight, heaviest, closed = w, k, v.closed
			verdict.Holds, verdict.Reason = v.holds, v.reason
		}
	}
	if verdict.Reason.Code == reasonNotApplicable.Code {
		verdict.Reason.Detail = a.applicable[i][heaviest].String()
	}
	return verdict, closed, until
}

// GroupVerdict says what one node group of a regular pool says of a pod, for tools.
type GroupVerdict struct {
	// Name is the group's, empty for nodes that are in none.
	Name  string
	Holds bool
	// Reason is why it holds the gate, or why it does not.
	Reason nodegroups.Reason
	// Until is when that may change without any event; zero if it does not.
	Until time.Time
}

// IsNotApplicable reports whether a pool or a group does not hold the gate because, for the reason, its nodes cannot run the pod.
func IsNotApplicable(reason nodegroups.Reason) bool { return reason.Code == reasonNotApplicable.Code }

// Groups returns what each node group of the regular pool with index i says of the pod, as Decide has it but for what a cycle's snapshot says.
func (r *Rule) Groups(req Request, view *nodegroups.View, i int, now time.Time) []GroupVerdict {
	a := r.Assess(req, view)
	clock, _ := r.clock(req, a, view)
	p := &view.Pools[i]
	verdicts := make([]GroupVerdict, len(p.Groups))
	for k := range p.Groups {
		v := r.judgeGroup(req, a, i, p, k, clock, now)
		if IsNotApplicable(v.reason) {
			v.reason.Detail = a.applicable[i][k].String()
		}
		verdicts[k] = GroupVerdict{Name: p.Groups[k].Name, Holds: v.holds, Reason: v.reason, Until: v.until}
	}
	return verdicts
}

// weight orders what is said of a pool: by the group that holds it, one with nodes on their way first, then by one that could grow and does not
// for the pod, then by any that the pod might use.
func (v *groupVerdict) weight() int {
	switch {
	case v.holds && v.closed.Code == ReasonGrowing.Code:
		return 5
	case v.holds && v.closed.Code == ReasonCanGrow.Code:
		return 4
	case v.holds:
		return 3
	case v.reason.Code == reasonDeclined.Code:
		return 2
	case v.reason.Code != reasonNotApplicable.Code:
		return 1
	}
	return 0
}

// judgeGroup says whether the group with index k of the pool with index i holds the gate for the pod.
func (r *Rule) judgeGroup(req Request, a *Assessment, i int, p *nodegroups.Pool, k int, clock, now time.Time) groupVerdict {
	g := &p.Groups[k]
	if !a.applicable[i][k].fits() {
		return groupVerdict{reason: reasonNotApplicable} // judge puts it into words, if it is what is said
	}
	switch g.State {
	case nodegroups.Full:
		// A group that is Full because of a passing back-off comes back by itself; that does not open a closed gate.
		return groupVerdict{reason: g.Reason}
	case nodegroups.Growing:
		return groupVerdict{holds: true, reason: g.Reason, closed: ReasonGrowing, until: g.Until}
	case nodegroups.CanGrow:
		return r.judgeGrowth(req, a, i, p, k, clock, now)
	default:
		if g.IsGrowing() {
			return groupVerdict{holds: true, reason: nodegroups.ReasonStarting, closed: ReasonGrowing, until: g.Until}
		}
		counts := g.Since.Add(r.UnknownGrace)
		if !now.Before(counts) {
			reason := reasonUnknownLong
			reason.Detail = g.Reason.Sentence
			return groupVerdict{reason: reason}
		}
		return groupVerdict{holds: true, reason: g.Reason, closed: ReasonUnknown, until: nodegroups.Earliest(g.Until, counts)}
	}
}

// judgeGrowth says whether a group that can grow would do so for the pod.
func (r *Rule) judgeGrowth(req Request, a *Assessment, i int, p *nodegroups.Pool, k int, clock, now time.Time) groupVerdict {
	g := &p.Groups[k]
	if detail := beyond(a.requests, g.Remaining); detail != "" {
		reason := reasonBeyondLimits
		reason.Detail = detail
		return groupVerdict{reason: reason}
	}
	holds := groupVerdict{holds: true, reason: g.Reason, closed: ReasonCanGrow, until: g.Until}
	if g.Skipped {
		return holds
	}
	declined := reasonDeclined
	declined.Detail = g.Name
	if req.Declined != nil {
		if at, ok := req.Declined()[DeclineKey(i, g.Name)]; ok && !g.Touched.After(at) && !g.Moved.After(at) {
			return groupVerdict{reason: declined}
		}
	}
	if clock.IsZero() || !p.HasLooked(clock) {
		return holds
	}
	due := p.WaitedAt(clock, max(r.Pools.At(i).DeclineGrace(r.DeclineGrace), g.Patience))
	if due.IsZero() || now.Before(due) {
		holds.until = nodegroups.Earliest(holds.until, due)
		return holds
	}
	return groupVerdict{reason: declined, own: true}
}

// DeclineKey names the group of the pool with the index among all pools' groups.
func DeclineKey(pool int, group string) string { return fmt.Sprintf("%d/%s", pool, group) }

// beyond returns which of the requests is more than what remains for the pool to order, or "".
func beyond(requests, remaining corev1.ResourceList) string {
	if len(remaining) == 0 {
		return ""
	}
	var first corev1.ResourceName // in the order of the names, so that the same is said each time
	for name, request := range requests {
		if left, limited := remaining[name]; limited && request.Cmp(left) > 0 && (first == "" || name < first) {
			first = name
		}
	}
	if first == "" {
		return ""
	}
	request, left := requests[first], remaining[first]
	return fmt.Sprintf("requests %s %s of %s that remain", request.String(), first, left.String())
}
