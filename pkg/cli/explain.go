package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
)

func (o *options) newExplain() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:   "explain (POD | TYPE/NAME | TYPE NAME | -f FILE)",
		Short: "Why a pod waits, or is where it is, and what changes it",
		Long: "Why a pod waits, or is where it is, and what changes it: what the scheduler said, and its decision now, by the rule that it goes by itself.\n\n" +
			"Of a Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob, it says where its pods are, and what holds for a new one; of a file, what would hold.\n" +
			"It looks for no room on nodes: that is the scheduler's business.",
		ValidArgsFunction: o.completeObjects,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(files) > 0 && len(args) > 0:
				return errors.New("name an object or a file (-f), not both")
			case len(files) == 0 && (len(args) == 0 || len(args) > 2):
				return errors.New("name one object, such as web-0 or deploy/web, or a file (-f)")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(files) > 0 {
				return o.explainFiles(c.Context(), files)
			}
			return o.explainObject(c.Context(), strings.Join(args, "/"))
		},
	}
	c.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, directory or URL with what to explain, - for standard input")
	return c
}

// found is what is explained: a pod, or a workload.
type subject struct {
	reference ObjectReference
	pod       *corev1.Pod
	workload  *workload // nil for a pod
	published *publishedState
	facts     facts
	missing   []string // what could not be read, a sentence each
}

// explainObject explains an object of the cluster.
func (o *options) explainObject(ctx context.Context, argument string) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	kind, name, err := parseObject(argument)
	if err != nil {
		return err
	}
	s, err := c.subject(ctx, kind, name)
	if err != nil {
		return err
	}
	now := c.now()
	e := s.explain(now)
	return o.print(e, []string{e.Object.name()}, func(w io.Writer) { o.printExplanation(w, e, now) })
}

// name is the object as kubectl has it with -o name.
func (r ObjectReference) name() string { return strings.ToLower(r.Kind) + "/" + r.Name }

// subject reads the object, and what explains it.
func (c *cluster) subject(ctx context.Context, kind, name string) (*subject, error) {
	s := &subject{}
	published := make(chan error, 1)
	go func() {
		var err error
		s.published, err = c.published(ctx)
		published <- err
	}()
	var err error
	if kind == kindPod {
		s.reference = ObjectReference{Kind: kindPod, Namespace: c.namespace, Name: name}
		s.pod, err = c.client.CoreV1().Pods(c.namespace).Get(ctx, name, metav1.GetOptions{})
		err = c.plainly(fmt.Sprintf("get pods/%s in %s", name, c.namespace), err)
	} else if s.workload, err = c.workload(ctx, kind, name); err == nil {
		s.reference, s.pod = s.workload.reference, s.workload.newPod()
	}
	if notShown := <-published; notShown != nil {
		s.missing = append(s.missing, "The pools are not shown: "+notShown.Error()+".")
	}
	if err != nil {
		return nil, err
	}
	s.facts = c.factsOf(ctx, s.pod, s.published)
	return s, nil
}

// explain says all that there is to say at the time now.
func (s *subject) explain(now time.Time) *Explanation {
	e := &Explanation{TypeMeta: typeMeta("Explanation"), Object: s.reference}
	e.Notes = append(e.Notes, s.facts.notes...)
	if s.published != nil {
		e.Notes = append(e.Notes, s.published.notes(now)...)
	}
	e.Notes = append(e.Notes, s.missing...)
	if s.workload != nil {
		s.ofWorkload(e, now)
		return e
	}
	s.ofPod(e, now)
	return e
}

// ofPod explains a pod, by what becomes of it.
func (s *subject) ofPod(e *Explanation, now time.Time) {
	pod := s.pod
	condition := gate.ScheduledCondition(pod)
	e.Node = pod.Spec.NodeName
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		s.ended(e)
	case !s.isOurs(pod):
		s.ofOthers(e)
	case pod.Spec.NodeName != "" && s.inBurst():
		s.burst(e, now)
	case pod.Spec.NodeName != "":
		s.onVM(e, now)
	case condition != nil && condition.Reason == corev1.PodReasonSchedulingGated:
		s.gated(e, now)
	case condition == nil:
		s.notTried(e, now)
	default:
		s.waits(e, condition, now)
	}
}

// isOurs reports whether the pod asks for the scheduler that published. While that is not known, every pod does that does not ask for Kubernetes' own.
func (s *subject) isOurs(pod *corev1.Pod) bool {
	asked := cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	if s.published != nil && s.published.view.SchedulerName != "" {
		return asked == s.published.view.SchedulerName
	}
	return asked != corev1.DefaultSchedulerName
}

// who is the object, for people.
func (e *Explanation) who() string {
	name := e.Object.Namespace + "/" + e.Object.Name
	if e.Object.Kind != kindPod || e.Situation == Template {
		return e.Object.Kind + " " + name
	}
	return name
}

func (s *subject) gated(e *Explanation, now time.Time) {
	var gates []string
	for _, g := range s.pod.Spec.SchedulingGates {
		gates = append(gates, g.Name)
	}
	e.Situation, e.Since = SchedulingGated, s.pod.CreationTimestamp.UTC()
	e.Summary = fmt.Sprintf("%s has waited %s for its scheduling gates (%s): no scheduler tries it before somebody removes them.", e.who(), age(e.Since, now), list(gates))
}

func (s *subject) notTried(e *Explanation, now time.Time) {
	e.Situation, e.Since = NotTried, s.pod.CreationTimestamp.UTC()
	e.Summary = fmt.Sprintf("%s was made %s ago, and %s has not tried it yet.", e.who(), age(e.Since, now), s.pod.Spec.SchedulerName)
	if now.Sub(e.Since) > silence/3 {
		e.Advice = append(e.Advice, "does the scheduler run? kubectl pools version says who leads")
	}
}

// waits explains a pod that was tried, by its condition.
func (s *subject) waits(e *Explanation, condition *corev1.PodCondition, now time.Time) {
	e.Situation, e.Message, e.Said = Waits, condition.Message, saidOf(condition.Message)
	e.Since = condition.LastTransitionTime.UTC()
	waited := e.who() + " has waited " + age(e.Since, now)
	if nominated := s.pod.Status.NominatedNodeName; nominated != "" {
		e.Situation = Nominated
		e.Summary = fmt.Sprintf("%s, and is to run on node %s, when the pods that it preempted there have ended.", waited, nominated)
		return
	}
	s.addLockedOut(e)
	if s.published == nil {
		e.Summary = waited + "."
		return
	}
	a := s.published.ask(s.pod, &s.facts, now)
	if !a.request.UnschedulableSince.IsZero() {
		e.Since = a.request.UnschedulableSince.UTC()
		waited = e.who() + " has waited " + age(e.Since, now)
	}
	a.taken(e.Said)
	e.Pools = a.verdicts()
	switch {
	case condition.Reason != corev1.PodReasonUnschedulable:
		e.Summary = fmt.Sprintf("%s: the scheduler failed (%s), and will try it again. Autoscalers do not look at it meanwhile.", waited, condition.Reason)
	case s.published.view.Args.Mode == configv1.ModeObserve:
		e.Summary = waited + ". The gate only observes (mode: Observe): what keeps the pod from burst nodes is in what the scheduler said."
	default:
		e.Changed, e.Changes, e.CannotBurst = a.changed(e.Said), a.changes(e.Pools), a.never()
		s.summarize(e, a, waited)
	}
}

// summarize says in a line why the pod waits.
func (s *subject) summarize(e *Explanation, a *asks, waited string) {
	holder, open := a.holder(), a.opens()
	closed := func(code string) string {
		for _, v := range e.Pools {
			if v.Burst && v.Reason.Code == code {
				return v.Name
			}
		}
		return ""
	}
	switch {
	case !s.published.pools.HasBurst():
		e.Summary = waited + "."
	case e.CannotBurst != "":
		e.Summary = fmt.Sprintf("%s, and cannot burst: %s.", waited, e.CannotBurst)
		e.Advice = append(e.Advice, hints(e.Pools)...)
		e.Changes = append([]Change{{When: "a node of " + choice(s.regular()) + " has room for it"}}, a.ofBurstOnly(e.Pools)...)
	case open != "" && e.Changed:
		e.Summary = fmt.Sprintf("%s, and %s is open for it now: the scheduler will try it again by itself, in a moment.", waited, open)
	case open != "":
		e.Summary = fmt.Sprintf("%s, and %s is open for it: what keeps it from there is in what the scheduler said.", waited, open)
	case closed(gate.ReasonBudget.Code) != "":
		e.Summary = fmt.Sprintf("%s for room in the budget of %s.", waited, closed(gate.ReasonBudget.Code))
	case closed(gate.ReasonRefused.Code) != "":
		e.Summary = fmt.Sprintf("%s: the provider of %s refuses pods.", waited, closed(gate.ReasonRefused.Code))
	case closed(gate.ReasonProbed.Code) != "":
		e.Summary = fmt.Sprintf("%s: the provider of %s refused pods, and is tried with another one.", waited, closed(gate.ReasonProbed.Code))
	case holder != "":
		e.Summary = fmt.Sprintf("%s for pool %s.", waited, holder)
	default:
		e.Summary = waited + "."
	}
}

// regular are the names of the regular pools.
func (s *subject) regular() []string {
	var names []string
	for i := range s.published.pools.Regular() {
		names = append(names, s.published.pools.At(i).Name)
	}
	return names
}

// hints are what helps a pod that cannot burst.
func hints(verdicts []PoolVerdict) []string {
	var hints []string
	for _, v := range verdicts {
		if hint := gate.Lookup(v.Reason.Code).Hint; v.Burst && v.Verdict == verdictClosed && hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return hints
}

// addLockedOut adds that a pod tolerates the gate taint before it has a node, if it does: autoscalers believe that it fits burst nodes.
func (s *subject) addLockedOut(e *Explanation) {
	if s.published != nil && (!*s.published.view.Args.GateTaint || !s.published.pools.HasBurst()) || !toleratesGate(s.pod) {
		return
	}
	if slices.ContainsFunc(s.pod.Spec.Tolerations, toleratesAll) {
		e.Advice = append(e.Advice, "it tolerates every taint: the cluster autoscaler believes that it fits a burst node, and adds no VM for it. "+
			"Remove the toleration {operator: Exists} without a key, or give it the keys it needs")
		return
	}
	e.Advice = append(e.Advice, "it tolerates the gate taint: the cluster autoscaler believes that it fits a burst node, and adds no VM for it. Remove the toleration: pods that may burst are given it")
}
