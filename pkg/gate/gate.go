// Package gate holds the rule that opens a burst pool for a pod. It is pure: everything it looks at is handed to it, the
// clock included. The plugin, the controller and the tools all ask it and say its sentences.
package gate

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// BurstAnnotation is the pod annotation by which a workload says whether it may burst.
	BurstAnnotation = "poolpriority.dev/burst"
	// BurstNever is the value of BurstAnnotation that opts out. So does any value that is not known.
	BurstNever = "Never"
	// burstAlways is the value of BurstAnnotation that overrides the table of what a virtual kubelet cannot run.
	burstAlways = "Always"
)

// Reasons for which the gate is closed. The sentences read on in "0/5 nodes are available: 1 …".
var (
	ReasonCanGrow = nodegroups.Reason{Code: "PoolCanGrow", Sentence: "node(s) in a burst pool, which opens when no earlier pool can grow"}
	ReasonGrowing = nodegroups.Reason{Code: "PoolGrowing", Sentence: "node(s) in a burst pool, which stays closed while nodes of an earlier pool are on their way"}
	ReasonUnknown = nodegroups.Reason{Code: "PoolUnknown", Sentence: "node(s) in a burst pool, which stays closed while it is unknown whether an earlier pool can grow"}
	ReasonUnseen  = nodegroups.Reason{Code: "NodesUnseen", Sentence: "node(s) in a burst pool, which stays closed until all nodes of the earlier pools have been looked at"}
	ReasonRoom    = nodegroups.Reason{Code: "RolloutMakesRoom", Sentence: "node(s) in a burst pool, which stays closed for a rollout while pods that it replaces make room elsewhere"}
	ReasonEarly   = nodegroups.Reason{Code: "OwnerUnseen", Sentence: "node(s) in a burst pool, which stays closed for a moment: the scheduler has not heard of the pod's ReplicaSet yet"}
	ReasonVictims = nodegroups.Reason{Code: "VictimsEnding", Sentence: "node(s) in a burst pool, which stays closed while the pods that the pod preempted end elsewhere"}
	ReasonOptOut  = nodegroups.Reason{Code: "OptedOut", Sentence: "node(s) in a burst pool that the pod's annotation poolpriority.dev/burst opts out of"}
	reasonValue   = nodegroups.Reason{Code: "UnknownBurstValue", Sentence: "node(s) in a burst pool, which the pod's annotation poolpriority.dev/burst keeps it out of: its value is neither Never nor Always"}
	reasonSpread  = nodegroups.Reason{Code: "TopologyMissing", Sentence: "node(s) in a burst pool that lack a label which the pod must be spread over: it can never burst"}
)

// Reasons for which the gate is closed because of what the burst pool's provider said (refusing.go).
var (
	ReasonRefused  = nodegroups.Reason{Code: "Refused", Sentence: "node(s) in a burst pool whose provider refuses pods"}
	ReasonProbed   = nodegroups.Reason{Code: "Probed", Sentence: "node(s) in a burst pool whose provider refused pods and is being tried with one other pod"}
	ReasonTemplate = nodegroups.Reason{Code: "TemplateRefused", Sentence: "node(s) in a burst pool whose provider refused a pod of the same template for what it is"}
)

// Reasons for which the gate is open, and for which a regular pool does not hold it.
var (
	reasonOpen          = nodegroups.Reason{Code: "Open", Sentence: "no earlier pool can grow for the pod"}
	reasonAsked         = nodegroups.Reason{Code: "Asked", Sentence: "the pod asks for the burst pool itself"}
	reasonHeldLong      = nodegroups.Reason{Code: "HoldLimit", Sentence: "the pod has been held for as long as holdLimit"}
	reasonWaited        = nodegroups.Reason{Code: "WaitLimit", Sentence: "the pod has waited for as long as waitLimit"}
	reasonNotApplicable = nodegroups.Reason{Code: "NotApplicable", Sentence: "the pool's nodes cannot run the pod"}
	reasonDeclined      = nodegroups.Reason{Code: "Declined", Sentence: "the autoscaler does not grow the pool for the pod"}
	reasonBeyondLimits  = nodegroups.Reason{Code: "BeyondLimits", Sentence: "the pod requests more than the pool's limits leave"}
	reasonUnknownLong   = nodegroups.Reason{Code: "UnknownTooLong", Sentence: "the pool's capacity has been unknown for so long that it counts as full"}
	reasonNoGroups      = nodegroups.Reason{Code: "NoGroups", Sentence: "nothing is known of the pool"}
)

// unseenLimit is for how long after a view was made the nodes in it are waited for.
const unseenLimit = 30 * time.Second

// Rule is what the gate goes by. It must not be changed.
type Rule struct {
	Pools pool.List
	// UnknownGrace is how long an Unknown node group keeps the gate closed; DeclineGrace is how long one that can grow may
	// leave a pod unschedulable.
	UnknownGrace, DeclineGrace time.Duration
	// NewPodDelay is how old a pod must be for the autoscaler to look at it; DelayAnnotation on the pod says more.
	NewPodDelay time.Duration
	// HoldLimit is the longest time for which a pod is held, from when it became unschedulable or a node came that it might use, and at most
	// twice as long in all; 0 is no limit.
	HoldLimit time.Duration
	// Override is what an operator says of all gates.
	Override Override
	// Observe opens all gates, and has verdicts say which would be closed.
	Observe bool
}

// NewRule returns the rule that the (valid and defaulted) configuration states for its pools.
func NewRule(args *configv1.PoolPriorityArgs, pools pool.List) Rule {
	c := &args.Capacity
	return Rule{
		Pools: pools, UnknownGrace: c.UnknownGrace.Duration, DeclineGrace: c.DeclineGrace.Duration, NewPodDelay: c.NewPodDelay.Duration,
		HoldLimit: c.HoldLimit.Duration, Observe: args.Mode == configv1.ModeObserve,
	}
}

// UnschedulableSince is since when the API has said that the pod is unschedulable; zero if it does not. A pod that waits for scheduling gates is
// not unschedulable yet.
func UnschedulableSince(pod *corev1.Pod) time.Time {
	if c := ScheduledCondition(pod); c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// ScheduledCondition returns the pod's condition PodScheduled, or nil.
func ScheduledCondition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c
		}
	}
	return nil
}

// Request is the pod that asks.
type Request struct {
	Pod *corev1.Pod
	// UnschedulableSince is since when the pod has been known to be unschedulable; zero if it is not known to be.
	UnschedulableSince time.Time
	// NoRoomSince is since when it has been so for want of room, and not for a gang or a missing claim; zero if it is not known to be.
	NoRoomSince time.Time
	// IgnoredUntil is when autoscalers last had a reason to ignore the pod, as while it was nominated; zero if never.
	IgnoredUntil time.Time
	// Declined returns the node groups that have declined pods of the pod's kind, and when, by DeclineKey. It is asked only where a group that
	// can grow is all that would hold the pod; nil: none is known to have.
	Declined func() map[string]time.Time
	// AzureFiles says that all persistent volumes that the pod claims are Azure Files.
	AzureFiles bool
	// NotSelected says of each pool, by its index, that it is a burst pool which is not for the pods of the pod's namespace. Without it, that is not
	// looked at.
	NotSelected []bool
	// Snapshot is the nodes of each regular pool that the pod can be put on now, by the pool's index: those of the scheduling
	// cycle's snapshot, which may be behind the view. Without it, that is not looked at.
	Snapshot []Nodes
	// Wait is what the pod waits for, if it is a new one of a rollout.
	Wait Wait
	// Burst is what is on the nodes of each burst pool, by the pool's index. Without it, budgets are not looked at.
	Burst []aci.Use
	// Starting returns how many pods on the nodes of the burst pool with index i may still start, those among them that were placed a moment ago.
	// It is asked only of a pool that is not Open; nil: as many as the view says.
	Starting func(i int) int
	// Pacing returns the pacing of the pod's owner in the burst pool with index i. It is asked only if the owner counts failures; nil: the view's.
	Pacing func(i int) *refusal.Pacing
}

// Wait keeps the gate closed for one pod that will, or may, find a place in an earlier pool once other pods have ended.
type Wait struct {
	// Reason is ReasonRoom or ReasonVictims, with the place, or ReasonEarly.
	Reason nodegroups.Reason
	// Until is when the wait is over; zero if the pod waits for nothing.
	Until time.Time
}

// Nodes counts nodes: all of them, those that are starting, those that are being taken away, and those with a lasting taint.
type Nodes struct{ All, Starting, Leaving, Tainted int }

// Decision is the gate's answer for one pod.
type Decision struct {
	// Regular has a verdict for each regular pool, by the pool's index.
	Regular []PoolVerdict
	// Burst has a verdict for each burst pool, by the pool's index; those of regular pools are empty.
	Burst []Verdict
}

// PoolVerdict says whether a regular pool holds the gate for the pod: one of its node groups does.
type PoolVerdict struct {
	Holds  bool
	Reason nodegroups.Reason
	// Declined are the names of the node groups that decline the pod by its own clock.
	Declined []string
}

// Verdict says whether the gate of a burst pool is open for the pod.
type Verdict struct {
	Open   bool
	Reason nodegroups.Reason
	// Until is when a closed gate may open without any event; zero if it does not.
	Until time.Time
	// Probe says that it is open for one pod only: to see whether the pool's provider takes pods again.
	Probe bool
	// Turn is for how many pods of the pod's owner it is open; 0: for all.
	Turn int
	// Observed says that the gate would be closed, for the Reason, if it were not only observed.
	Observed bool
}

// Passes reports whether the gate is closed for a moment only: until the scheduler has seen what there is to see, or until pods that are
// about to go have left. Nobody should be killed for what such a verdict says.
func (v *Verdict) Passes() bool {
	if v.Open {
		return false
	}
	switch v.Reason.Code {
	case ReasonUnseen.Code, ReasonEarly.Code, ReasonRoom.Code, ReasonVictims.Code, ReasonRateLimited.Code, reasonOverrideUnread.Code:
		return true
	}
	return false
}

// Until is the earliest time at which a closed gate may open without any event; zero if none does.
func (d *Decision) Until() time.Time {
	var until time.Time
	for i := range d.Burst {
		until = nodegroups.Earliest(until, d.Burst[i].Until)
	}
	return until
}

// Opens reports whether the gate of a burst pool is open for the pod, and not only because it is observed.
func (d *Decision) Opens() bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return v.Open && !v.Observed })
}

// Closes reports whether a gate is closed for the reason.
func (d *Decision) Closes(reason nodegroups.Reason) bool {
	return slices.ContainsFunc(d.Burst, func(v Verdict) bool { return !v.Open && v.Reason.Code == reason.Code })
}

// Decide answers for the request at the time now, by the view of the pools' capacity.
func (r *Rule) Decide(req Request, view *nodegroups.View, now time.Time) Decision {
	if !r.Pools.HasBurst() {
		return Decision{Regular: make([]PoolVerdict, r.Pools.Regular())}
	}
	return r.DecideFor(req, r.Assess(req, view), view, now)
}

// DecideFor is Decide for a pod of whose class it is known what the view says.
func (r *Rule) DecideFor(req Request, a *Assessment, view *nodegroups.View, now time.Time) Decision {
	d := Decision{Regular: make([]PoolVerdict, r.Pools.Regular()), Burst: make([]Verdict, r.Pools.Len())}
	earlier := Verdict{Open: true, Reason: reasonOpen}
	clock, came := r.clock(req, a, view)
	for i := range d.Regular {
		verdict, closed, until := r.judge(req, a, i, &view.Pools[i], clock, now)
		if !verdict.Holds && verdict.Reason.Code != reasonNotApplicable.Code && req.behind(i, &view.Pools[i]) && now.Sub(view.Built) < unseenLimit {
			verdict, closed, until = PoolVerdict{Holds: true, Reason: ReasonUnseen}, ReasonUnseen, time.Time{}
		}
		d.Regular[i] = verdict
		if !verdict.Holds {
			continue
		}
		if earlier.Open {
			earlier = Verdict{Reason: closed}
			earlier.Reason.Detail = "pool " + r.Pools.At(i).Name + ": " + verdict.Reason.Sentence
			if verdict.Reason.Detail != "" {
				earlier.Reason.Detail += " (" + verdict.Reason.Detail + ")"
			}
		}
		earlier.Until = nodegroups.Earliest(earlier.Until, until)
	}
	if earlier.Open && now.Before(req.Wait.Until) {
		earlier = Verdict{Reason: req.Wait.Reason, Until: req.Wait.Until}
	}
	var wait Verdict // for a turn in an earlier burst pool
	for i := range r.Pools.Burst() {
		v := r.burst(req, a, i, earlier, r.holdEnds(req, came), view, now)
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

// behind reports whether the snapshot and what is known of the pool with index i are not of the same time: the snapshot lacks nodes that
// are known to be there, or to be ready, or it knows of nodes that are being taken away where the pool has not been judged with that.
func (req *Request) behind(i int, p *nodegroups.Pool) bool {
	if req.Snapshot == nil {
		return false
	}
	s := &req.Snapshot[i]
	return s.All < p.Nodes || s.Starting > p.Starting || s.Leaving > p.Leaving || s.Tainted > p.Tainted
}

// holdEnds is when the pod has been held for HoldLimit, if the last node that it might use came at the time given; zero means never.
func (r *Rule) holdEnds(req Request, came time.Time) time.Time {
	if r.HoldLimit == 0 || req.NoRoomSince.IsZero() {
		return time.Time{}
	}
	return nodegroups.Earliest(latest(came, req.NoRoomSince).Add(r.HoldLimit), req.NoRoomSince.Add(2*r.HoldLimit))
}

// burst answers for the burst pool with index i. earlier is what the earlier pools say, and from heldUntil on (zero: never) they have said
// so for too long.
func (r *Rule) burst(req Request, a *Assessment, i int, earlier Verdict, heldUntil time.Time, view *nodegroups.View, now time.Time) Verdict {
	p := r.Pools.At(i)
	if req.NotSelected != nil && req.NotSelected[i] {
		return Verdict{Reason: reasonNamespace}
	}
	switch value := req.Pod.Annotations[BurstAnnotation]; value {
	case BurstNever:
		return Verdict{Reason: ReasonOptOut}
	case burstAlways:
	case "":
		if reason := a.burst[i].ineligible; reason.Code != "" {
			return Verdict{Reason: reason}
		}
	default:
		v := Verdict{Reason: reasonValue}
		v.Reason.Detail = fmt.Sprintf("the value is %q", value)
		return v
	}
	if v, refused := ofTemplate(req.Pod, &view.Pools[i], now); refused {
		return v
	}
	if key := a.burst[i].topology; key != "" {
		v := Verdict{Reason: reasonSpread}
		v.Reason.Detail = "label " + key
		return v
	}
	v, overridden := r.overridden(earlier, now)
	if !overridden {
		v = againstTheOdds(v, req, a, p, heldUntil, now)
	}
	if v.Open {
		v = ofProvider(v, req, i, &view.Pools[i].Provider, now)
	}
	if v.Open && req.Burst != nil {
		if detail := overBudget(req.Pod, p, req.Burst[i]); detail != "" {
			v = Verdict{Reason: ReasonBudget}
			v.Reason.Detail = detail
		}
	}
	if v.Open {
		v = paced(v, req, p, i, &view.Pools[i].Provider, now)
	}
	return v
}

// againstTheOdds answers for the burst pool by what opens a gate that the earlier pools, as v says, keep closed.
func againstTheOdds(v Verdict, req Request, a *Assessment, p *pool.Pool, heldUntil, now time.Time) Verdict {
	if v.Open {
		return v
	}
	if a.asks {
		return Verdict{Open: true, Reason: reasonAsked}
	}
	if limit := p.Burst.WaitLimit.Duration; limit > 0 && !req.UnschedulableSince.IsZero() {
		due := req.UnschedulableSince.Add(limit)
		if !now.Before(due) {
			return Verdict{Open: true, Reason: reasonWaited}
		}
		v.Until = nodegroups.Earliest(v.Until, due)
	}
	if !heldUntil.IsZero() {
		if !now.Before(heldUntil) {
			return Verdict{Open: true, Reason: reasonHeldLong}
		}
		v.Until = nodegroups.Earliest(v.Until, heldUntil)
	}
	return v
}
