package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// toleratesGate reports whether the pod tolerates the installation's gate taint.
func (e *explainer) toleratesGate() bool {
	taint := corev1.Taint{Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoSchedule}
	if e.published != nil {
		taint = e.published.pools.GateTaint()
	}
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), e.pod.Spec.Tolerations, &taint, true)
}

// inBurst reports whether a pod with a node is in a burst pool.
func (e *explainer) inBurst() bool {
	if e.published != nil && e.placed {
		return e.published.pools.IsBurst(e.published.indexOf(e.Pool))
	}
	_, recorded := e.pod.Annotations[gate.DecisionAnnotation]
	return recorded
}

func (e *explainer) ended() string {
	e.Situation = Ended
	e.addRefusal()
	return fmt.Sprintf(" has ended (%s).", e.pod.Status.Phase)
}

// ofOthers explains a pod whose schedulerName names another scheduler.
func (e *explainer) ofOthers() string {
	e.Situation = OtherScheduler
	if e.Node != "" {
		where := "node " + e.Node
		if e.Pool != "" {
			where = "pool " + e.Pool + ", " + where
		}
		e.fact("Where", "%s", where)
	} else if condition := gate.ScheduledCondition(e.pod); condition != nil {
		e.Message = condition.Message
	}
	e.addPoolsToOthers()
	return fmt.Sprintf(" is scheduled by %s, which does not use the pools.", e.pod.Spec.SchedulerName)
}

// addPoolsToOthers adds facts and advice about the pools for a pod of another scheduler.
func (e *explainer) addPoolsToOthers() {
	if e.published == nil {
		return
	}
	v := e.published.view
	if *v.Args.GateTaint && v.Args.Mode != configv1.ModeObserve && !e.toleratesGate() {
		burst := e.published.names()[e.published.pools.Regular():]
		e.fact("Bursting", "%s cannot run new pods like this one: they do not tolerate the gate taint %s", list(burst), configv1.GateTaintKey)
	}
	if v.SchedulerName != "" {
		e.Advice = append(e.Advice, "to use the pools, set schedulerName: "+v.SchedulerName)
	}
	e.addLockedOut()
}

// inBurstPool explains a pod in a burst pool.
func (e *explainer) inBurstPool() string {
	e.Situation, e.Since = InBurst, refusal.BoundAt(e.pod, e.now).UTC()
	verb := "runs"
	if !refusal.Began(e.pod) {
		verb = "has not started"
	}
	value, recorded := e.pod.Annotations[gate.DecisionAnnotation]
	record, err := gate.ParseRecord(value)
	switch {
	case !recorded:
		e.fact("Let in because", "not recorded: another scheduler or a user bound the pod")
	case err != nil:
		e.note("it is unknown why the pod was let in: %v", oneLine(err))
	default:
		e.Record = &record
		e.fact("Let in because", "%s", message(&record, e.published))
	}
	e.addRefusal()
	e.addScaleIn()
	if e.published != nil && e.placed {
		i := e.published.indexOf(e.Pool)
		e.addReturn(&e.published.pools.At(i).Burst.Return)
		e.addToday(i)
	}
	return fmt.Sprintf(" %s in burst pool %s, where it was bound %s ago.", verb, cmp.Or(e.Pool, none), age(e.Since, e.now))
}

// If the burst pool's provider refused the pod, addRefusal adds the provider's message.
func (e *explainer) addRefusal() {
	if r, refused := refusal.Of(e.pod); refused {
		text := r.Message
		if r.Code != "" {
			text = r.Code + ": " + text
		}
		e.fact("Refused", "its provider refused it: %s", text)
		e.Advice = append(e.Advice, "the scheduler evicts refused pods: kubectl get events shows BurstEvicted for this pod")
	}
}

// message describes why the scheduler let a pod into a burst pool.
func message(r *gate.Record, p *publishedState) string {
	said := cmp.Or(gate.Lookup(r.Reason).Sentence, r.Reason)
	if r.Observed {
		said = "mode: Observe; the gate would have been closed: " + r.Reason
	}
	var parts []string
	for _, name := range inOrder(r.Pools, p) {
		if r.Pools[name] != "" {
			parts = append(parts, name+" "+r.Pools[name])
		}
	}
	if len(parts) > 0 {
		said += ": " + strings.Join(parts, ", ")
	}
	if r.Waited != "" {
		said += ", after " + r.Waited
	}
	return said + " (recorded when it was bound)"
}

// inOrder returns the keys of byName. Names of pools come first, in the order of the pools. The other keys follow in
// alphabetical order.
func inOrder[T any](byName map[string]T, p *publishedState) []string {
	names := slices.Sorted(maps.Keys(byName))
	if p != nil {
		rank := func(name string) uint { return uint(p.indexOf(name)) } // pool.None comes last
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	}
	return names
}

// addScaleIn adds whether scale-in of the workload deletes the pod before other pods.
func (e *explainer) addScaleIn() {
	owner := metav1.GetControllerOfNoCopy(e.pod)
	cost, own := e.pod.Annotations[scalein.CostAnnotation], e.pod.Annotations[scalein.OwnCostAnnotation]
	n, err := strconv.Atoi(cost)
	switch {
	case owner == nil:
		e.fact("Scale-in", "pools have no effect: the pod has no controller")
	case owner.Kind != "ReplicaSet" && owner.Kind != "ReplicationController":
		e.fact("Scale-in", "pools have no effect: the pod's controller is a %s, and only ReplicaSets use deletion costs", owner.Kind)
	case cost == "":
		e.fact("Scale-in", "the pod has no deletion cost")
	case err != nil || cost != own:
		e.fact("Scale-in", "by the deletion cost %s, which another client set", cost)
	case n < 0:
		e.fact("Scale-in", "deleted before its ReplicaSet's pods on VMs: deletion cost %s", cost)
	default:
		e.fact("Scale-in", "deleted after its ReplicaSet's pods with a lower deletion cost, such as those in burst pools: deletion cost %s", cost)
	}
}

// addReturn adds whether the scheduler may return the pod to a VM.
func (e *explainer) addReturn(r *configv1.Return) {
	switch stays := returnplan.Stays(e.pod); {
	case !r.Enabled:
		e.fact("Return", "off: the pod stays until it is deleted")
	case stays != "":
		e.fact("Return", "not for this pod: %s", stays)
	default:
		e.fact("Return", "on: the scheduler evicts the pod after a node of a better pool has had room for it for %s; it evicts at most %d pods a minute, and %d of a workload at a time", r.StableFor.Duration, r.EvictionsPerMinute, r.PerWorkload)
	}
}

// addToday adds the decision that the gate would make now. i is the index of the burst pool that the pod is in.
func (e *explainer) addToday(i int) {
	before := *e.pod // without the tolerations that the controller added after the pod was bound
	given := e.published.pools.At(i).Tolerations()
	before.Spec.Tolerations = slices.DeleteFunc(slices.Clone(e.pod.Spec.Tolerations), func(t corev1.Toleration) bool { return slices.Contains(given, t) })
	e.ask(&before)
	var parts []string
	for _, v := range e.Pools {
		if !v.Burst {
			parts = append(parts, v.Name+" "+v.Reason.Code)
		}
	}
	now := ""
	switch v := &e.Pools[i]; {
	case v.Verdict == verdictObserved:
		now = "mode: Observe; the gate would be closed for the pod (" + v.Reason.Code + ")"
	case v.Verdict == verdictOpen:
		now = "the gate would be open for the pod"
	case v.Reason.Code == gate.ReasonBudgetSpent.Code:
		now = "the gate would be open for the pod if the budget had room"
	default:
		now = "the gate would be closed for the pod (" + v.Reason.Code + ")"
	}
	e.fact("Today", "%s: %s", strings.Join(parts, ", "), now)
}

// onVM explains a pod on a node of a regular pool, or on a node in no pool.
func (e *explainer) onVM() string {
	e.Situation, e.Since = OnVM, e.pod.CreationTimestamp.UTC()
	if condition := gate.ScheduledCondition(e.pod); condition != nil && condition.Status == corev1.ConditionTrue {
		e.Since = condition.LastTransitionTime.UTC()
	}
	if e.published != nil && e.placed {
		e.addBetter()
	}
	e.addScaleIn()
	if e.published != nil && e.published.indexOf(e.Pool) != pool.None {
		if r := e.published.pools.At(e.published.indexOf(e.Pool)).Return(); r != nil {
			e.addReturn(r)
		}
	}
	switch ago := age(e.Since, e.now); {
	case e.Pool != "":
		return fmt.Sprintf(" runs in pool %s, on node %s, where it was bound %s ago.", e.Pool, e.Node, ago)
	case e.placed:
		return fmt.Sprintf(" runs on node %s, which is in no pool; it was bound %s ago.", e.Node, ago)
	default:
		return fmt.Sprintf(" runs on node %s, where it was bound %s ago.", e.Node, ago)
	}
}

// addBetter adds the pools that are preferred to the pod's pool, and why the pod is not there.
func (e *explainer) addBetter() {
	order, _ := e.published.pools.OrderOf(e.pod.Annotations)
	var better []string
	for place := range e.published.pools.Regular() {
		p := e.published.pools.At(int(order.RankAt(place))) // a regular pool's rank is its index
		if p.Name == e.Pool {
			break
		}
		better = append(better, p.Name)
	}
	switch {
	case len(better) == 0:
		e.fact("Better pools", "there are none")
		return
	case e.published.view.Args.Order == configv1.OrderPreferred:
		e.fact("Better pools", "%s: with order: Preferred, other scores can outweigh the order of the pools", list(better))
	default:
		e.fact("Better pools", "%s: no node there was feasible when the pod was bound (order: Strict); the reasons are not recorded", list(better))
	}
	if i := e.published.indexOf(e.Pool); i == pool.None || e.published.pools.At(i).Return() == nil {
		e.fact("Moving", "the pod stays: Return is off in its pool")
	}
}
