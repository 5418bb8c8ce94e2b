package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

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

var gateTaint = corev1.Taint{Key: configv1.GateTaintKey, Effect: corev1.TaintEffectNoSchedule}

func toleratesGate(pod *corev1.Pod) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Background(), pod.Spec.Tolerations, &gateTaint, true)
}

func toleratesAll(t corev1.Toleration) bool {
	return t.Key == "" && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
}

// inBurst reports whether the pod, which has a node, is in a burst pool.
func (s *subject) inBurst() bool {
	if s.facts.known {
		return s.published.pools.IsBurst(s.facts.pool)
	}
	_, recorded := s.pod.Annotations[gate.RecordAnnotation]
	return recorded
}

// poolName is the name of the pool that the pod is in; "" for one that is in none, or where that is not known.
func (s *subject) poolName() string {
	if s.facts.known && s.facts.pool != pool.None {
		return s.published.pools.At(s.facts.pool).Name
	}
	if s.facts.known {
		return ""
	}
	return s.pod.Annotations[scalein.PoolAnnotation]
}

func (s *subject) ended(e *Explanation) {
	e.Situation = Ended
	e.Summary = fmt.Sprintf("%s has ended (%s).", e.who(), s.pod.Status.Phase)
	s.addRefusal(e)
}

// ofOthers explains a pod that another scheduler is asked for.
func (s *subject) ofOthers(e *Explanation) {
	e.Situation = OtherScheduler
	scheduler := s.pod.Spec.SchedulerName
	e.Summary = fmt.Sprintf("%s is scheduled by %s: pools have no say.", e.who(), scheduler)
	if s.pod.Spec.NodeName != "" {
		e.Pool = s.poolName()
		e.Facts = append(e.Facts, Fact{"Where", where(e)})
	} else if s.workload == nil {
		if condition := gate.ScheduledCondition(s.pod); condition != nil {
			e.Message = condition.Message
		}
	}
	if s.published == nil || !s.published.pools.HasBurst() {
		return
	}
	v := s.published.view
	if *v.Args.GateTaint && v.Args.Mode != configv1.ModeObserve && !toleratesGate(s.pod) {
		var names []string
		for i := range s.published.pools.Burst() {
			names = append(names, s.published.pools.At(i).Name)
		}
		e.Facts = append(e.Facts, Fact{"Bursting", fmt.Sprintf("no new pod of that scheduler gets to %s: it does not tolerate the gate taint %s", list(names), configv1.GateTaintKey)})
	}
	if v.SchedulerName != "" {
		e.Advice = append(e.Advice, "to have pools followed, set schedulerName: "+v.SchedulerName)
	}
	if toleratesGate(s.pod) {
		s.addLockedOut(e)
	}
}

// where says where a pod is that has a node.
func where(e *Explanation) string {
	if e.Pool == "" {
		return "node " + e.Node
	}
	return fmt.Sprintf("pool %s, node %s", e.Pool, e.Node)
}

// burst explains a pod in a burst pool.
func (s *subject) burst(e *Explanation, now time.Time) {
	e.Situation, e.Pool, e.Since = InBurst, s.poolName(), refusal.BoundAt(s.pod).UTC()
	verb := "runs"
	if !refusal.Began(s.pod) {
		verb = "is to run"
	}
	e.Summary = fmt.Sprintf("%s %s in burst pool %s, where it was put %s ago.", e.who(), verb, orNone(e.Pool), age(e.Since, now))
	if value, ok := s.pod.Annotations[gate.RecordAnnotation]; ok {
		record, err := gate.ParseRecord(value)
		if err != nil {
			e.Notes = append(e.Notes, "why it was let in cannot be read: "+oneLine(err).Error())
		} else {
			e.Record = &record
			e.Facts = append(e.Facts, Fact{"Let in because", story(&record, s.published)})
		}
	} else {
		e.Facts = append(e.Facts, Fact{"Let in because", "that was not recorded: another scheduler or a person put it there"})
	}
	s.addRefusal(e)
	s.addScaleIn(e)
	if s.published == nil || !s.facts.known {
		return
	}
	s.addReturn(e)
	s.addToday(e, now)
}

// addRefusal adds what the provider of a burst pool said, if it refused the pod.
func (s *subject) addRefusal(e *Explanation) {
	if r, refused := refusal.Of(s.pod); refused {
		text := r.Message
		if r.Code != "" {
			text = r.Code + ": " + text
		}
		e.Facts = append(e.Facts, Fact{"Refused", "its provider refused it: " + text})
		e.Advice = append(e.Advice, "the controller takes refused pods back: kubectl get events shows TakenBack on it")
	}
}

// story is why a pod was let into a burst pool, in words.
func story(r *gate.Record, p *publishedState) string {
	said := cmp.Or(gate.Lookup(r.Reason).Sentence, r.Reason)
	if r.Observed {
		said = "the gate was only observed; it would have been closed: " + r.Reason
	}
	var parts []string
	add := func(name string) {
		if code := r.Pools[name]; code != "" {
			parts = append(parts, name+" "+code)
		}
	}
	named := map[string]bool{}
	if p != nil { // in the order of the list
		for i := range p.pools.Len() {
			named[p.pools.At(i).Name] = true
			add(p.pools.At(i).Name)
		}
	}
	var others []string
	for name := range r.Pools {
		if !named[name] {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	for _, name := range others {
		add(name)
	}
	if len(parts) > 0 {
		said += ": " + strings.Join(parts, ", ")
	}
	if r.Waited != "" {
		said += ", after " + r.Waited
	}
	return said + " (recorded when it was bound)"
}

// addScaleIn adds when the pod goes if its workload shrinks.
func (s *subject) addScaleIn(e *Explanation) {
	owner := metav1.GetControllerOfNoCopy(s.pod)
	if owner == nil || owner.Kind != "ReplicaSet" && owner.Kind != "ReplicationController" {
		kind := "nothing"
		if owner != nil {
			kind = "a " + owner.Kind
		}
		e.Facts = append(e.Facts, Fact{"Scale-in", fmt.Sprintf("not by pools: it is of %s, and only ReplicaSets go by deletion costs", kind)})
		return
	}
	cost, own := s.pod.Annotations[scalein.CostAnnotation], s.pod.Annotations[scalein.OwnCostAnnotation]
	n, err := strconv.Atoi(cost)
	switch {
	case cost == "":
		e.Facts = append(e.Facts, Fact{"Scale-in", "it has no deletion cost"})
	case err != nil || cost != own:
		e.Facts = append(e.Facts, Fact{"Scale-in", fmt.Sprintf("by the cost %s, which somebody else gave it", cost)})
	case n < 0:
		e.Facts = append(e.Facts, Fact{"Scale-in", fmt.Sprintf("it goes before the pods of its ReplicaSet on VMs: cost %s", cost)})
	default:
		e.Facts = append(e.Facts, Fact{"Scale-in", fmt.Sprintf("it goes after the pods of its ReplicaSet with a lower cost, those in burst pools first: cost %s", cost)})
	}
}

// addReturn adds whether the pod comes back to a VM.
func (s *subject) addReturn(e *Explanation) {
	r := &s.published.pools.At(s.facts.pool).Burst.Return
	text := "off: the pod stays until it is deleted"
	if r.Enabled {
		text = fmt.Sprintf("on: when a VM has had room for %s, %d a minute, %d of a workload at a time", r.StableFor.Duration, r.EvictionsPerMinute, r.PerWorkload)
		if stays := returnplan.Stays(s.pod); stays != "" {
			text = "not this pod: " + stays
		}
	}
	e.Facts = append(e.Facts, Fact{"Return", text})
}

// addToday adds what the gate would say of the pod now.
func (s *subject) addToday(e *Explanation, now time.Time) {
	before := *s.pod // without the tolerations that it was given once it ran
	given := s.published.pools.At(s.facts.pool).Tolerations()
	before.Spec.Tolerations = slices.DeleteFunc(slices.Clone(s.pod.Spec.Tolerations), func(t corev1.Toleration) bool { return slices.Contains(given, t) })
	a := s.published.ask(&before, &s.facts, now)
	v := &a.decision.Burst[s.facts.pool]
	e.Pools = a.verdicts()
	var parts []string
	for i := range a.decision.Regular {
		d := &a.decision.Regular[i]
		parts = append(parts, s.published.pools.At(i).Name+" "+d.Reason.Code)
	}
	text := strings.Join(parts, ", ")
	switch {
	case v.Observed:
		text += ": the gate would be closed for it (" + v.Reason.Code + "), and is only observed"
	case v.Open:
		text += ": it would be let in again"
	case v.Reason.Code == gate.ReasonBudget.Code:
		text += ": it would be let in again, if it were not for the budget"
	default:
		text += ": it would wait (" + v.Reason.Code + ")"
	}
	e.Facts = append(e.Facts, Fact{"Today", text})
}

// onVM explains a pod on a node of a regular pool, or of none.
func (s *subject) onVM(e *Explanation, now time.Time) {
	e.Situation, e.Pool = OnVM, s.poolName()
	condition := gate.ScheduledCondition(s.pod)
	e.Since = s.pod.CreationTimestamp.UTC()
	if condition != nil && condition.Status == corev1.ConditionTrue {
		e.Since = condition.LastTransitionTime.UTC()
	}
	switch {
	case e.Pool != "":
		e.Summary = fmt.Sprintf("%s runs in pool %s, on node %s, where it was put %s ago.", e.who(), e.Pool, e.Node, age(e.Since, now))
	case s.facts.known:
		e.Summary = fmt.Sprintf("%s runs on node %s, which is in no pool; it was put there %s ago.", e.who(), e.Node, age(e.Since, now))
	default:
		e.Summary = fmt.Sprintf("%s runs on node %s, where it was put %s ago.", e.who(), e.Node, age(e.Since, now))
	}
	s.addBetter(e)
	s.addScaleIn(e)
}

// addBetter adds why the pod is in no better pool, as far as that is known.
func (s *subject) addBetter(e *Explanation) {
	if s.published == nil || !s.facts.known {
		return
	}
	var better []string
	for i := range s.published.pools.Regular() {
		if i == s.facts.pool {
			break
		}
		better = append(better, s.published.pools.At(i).Name)
	}
	text := ""
	switch {
	case len(better) == 0:
		text = "there are none"
	case s.published.view.Args.Order == configv1.OrderPreferred:
		text = fmt.Sprintf("%s: the order is only preferred, and was weighed against other scores", list(better))
	default:
		text = fmt.Sprintf("%s: no node there could take it when it was placed (order: Strict); what each lacked is not recorded", list(better))
	}
	e.Facts = append(e.Facts, Fact{"Better pools", text})
	if len(better) > 0 {
		e.Facts = append(e.Facts, Fact{"Moving", "it stays: pods are not moved between VMs"})
	}
}
