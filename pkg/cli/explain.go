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
	"k8s.io/client-go/kubernetes/scheme"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lint"
)

func (o *options) newExplain() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use:   "explain (POD | TYPE/NAME | TYPE NAME | -f FILE)",
		Short: "Explain why a pod waits or is where it is, and what would change that",
		Long: "Explain why a pod waits or is where it is, and what would change that. The command shows the scheduler's last message, and the decision that the scheduler would make now.\n\n" +
			"For a Deployment, ReplicaSet, StatefulSet, DaemonSet, Job or CronJob, it shows where the pods are, and the decision for a new pod. For a file, it shows only the decision for a new pod.\n" +
			"It does not check whether a node has room for the pod.",
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
	c.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, directory or URL with the objects to explain; - is standard input")
	return c
}

// explainer explains a pod or a workload. For a workload, it explains a pod as the workload would create it now.
type explainer struct {
	*Explanation
	now       time.Time
	pod       *corev1.Pod
	workload  *workload       // nil for a pod
	published *publishedState // nil if the published ConfigMap could not be read
	placed    bool            // the pod's pool is known; if the pod is in no pool, Pool is empty
	request   gate.Request    // the input for the gate's decision
}

func newExplainer(reference corev1.ObjectReference) *explainer {
	return &explainer{Explanation: &Explanation{TypeMeta: typeMeta("Explanation"), Object: reference}}
}

func (e *explainer) note(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

func (e *explainer) fact(name, format string, args ...any) {
	e.Facts = append(e.Facts, Fact{name, fmt.Sprintf(format, args...)})
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
	object, err := scheme.Scheme.New(kind)
	if err == nil {
		err = c.get(ctx, object, c.namespace, name)
	}
	if err != nil {
		return err
	}
	e := newExplainer(corev1.ObjectReference{Kind: kind.Kind, Namespace: c.namespace, Name: name})
	p, notShown := c.published(ctx)
	e.published = p
	if pod, ok := object.(*corev1.Pod); ok {
		e.pod = pod
	} else {
		e.workload = newWorkload(object, c.namespace)
		e.readPods(ctx, c)
		_ = e.workload.readSample(ctx, c) // judgedBy has the error
		e.pod = e.workload.newPod()
	}
	e.read(ctx, c)
	if notShown != nil {
		e.note("The pools are not shown: %v.", notShown)
	}
	e.explain()
	if e.workload != nil && e.workload.judgedBy != "" {
		e.fact("Judged by", "%s", e.workload.judgedBy)
	}
	return o.print(e.Explanation, []string{nameOfObject(e.Object)}, func(w io.Writer) { o.printExplanation(w, e.Explanation, e.now) })
}

// nameOfObject returns the object's KIND/NAME, as -o name prints it.
func nameOfObject(r corev1.ObjectReference) string { return strings.ToLower(r.Kind) + "/" + r.Name }

// explain sets the summary and all other fields that depend on the object's Situation.
func (e *explainer) explain() {
	predicate := e.situation()()
	name := e.Object.Namespace + "/" + e.Object.Name
	if e.Object.Kind != kindPod || e.Situation == Template {
		name = e.Object.Kind + " " + name
	}
	e.Summary = name + predicate
}

// situation returns the function that explains the object. The returned function adds facts. It returns the predicate
// of the summary, a sentence whose subject is the object's name.
func (e *explainer) situation() func() string {
	pod := e.pod
	condition := gate.ScheduledCondition(pod)
	e.Node = pod.Spec.NodeName
	switch {
	case e.workload != nil:
		return e.ofWorkload
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return e.ended
	case !e.isOurs():
		return e.ofOthers
	case pod.Spec.NodeName != "" && e.inBurst():
		return e.inBurstPool
	case pod.Spec.NodeName != "":
		return e.onVM
	case condition != nil && condition.Reason == corev1.PodReasonSchedulingGated:
		return e.schedulingGated
	case pod.Status.NominatedNodeName != "":
		return e.nominated
	case condition == nil:
		return e.notTried
	}
	return e.waits
}

// isOurs reports whether the pod's schedulerName is the name of the scheduler that published the state. If the
// scheduler's name is unknown, isOurs accepts any schedulerName except Kubernetes' default.
func (e *explainer) isOurs() bool {
	asked := cmp.Or(e.pod.Spec.SchedulerName, corev1.DefaultSchedulerName)
	if e.published != nil && e.published.view.SchedulerName != "" {
		return asked == e.published.view.SchedulerName
	}
	return asked != corev1.DefaultSchedulerName
}

func (e *explainer) schedulingGated() string {
	var gates []string
	for _, g := range e.pod.Spec.SchedulingGates {
		gates = append(gates, g.Name)
	}
	e.Situation, e.Since = SchedulingGated, e.pod.CreationTimestamp.UTC()
	return fmt.Sprintf(" has waited %s for the removal of its scheduling gates (%s).", age(e.Since, e.now), list(gates))
}

func (e *explainer) notTried() string {
	e.Situation, e.Since = NotTried, e.pod.CreationTimestamp.UTC()
	if e.now.Sub(e.Since) > staleStatus/3 {
		e.Advice = append(e.Advice, "check that the scheduler runs: kubectl pools version shows the leader")
	}
	return fmt.Sprintf(" was created %s ago, and %s has not tried to schedule it yet.", age(e.Since, e.now), e.pod.Spec.SchedulerName)
}

// nominated explains a pod with a nominatedNodeName. If the scheduler found a node without preemption at its first try,
// the pod has no condition PodScheduled.
func (e *explainer) nominated() string {
	e.Situation, e.Since = Nominated, e.pod.CreationTimestamp.UTC()
	if condition := gate.ScheduledCondition(e.pod); condition != nil {
		e.Message, e.Said, e.Since = condition.Message, saidOf(condition.Message), condition.LastTransitionTime.UTC()
	}
	const text = " has waited %s, and is nominated to node %s. The pods that it preempted there are terminating, or it is about to be bound."
	return fmt.Sprintf(text, age(e.Since, e.now), e.pod.Status.NominatedNodeName)
}

// waits explains a pending pod that the scheduler has tried to schedule.
func (e *explainer) waits() string {
	condition := gate.ScheduledCondition(e.pod)
	e.Situation, e.Message, e.Said = Waits, condition.Message, saidOf(condition.Message)
	e.Since = condition.LastTransitionTime.UTC()
	rest := "."
	e.addLockedOut()
	if e.published != nil {
		rest = e.waitsFor(condition.Reason)
	}
	return " has waited " + age(e.Since, e.now) + rest
}

// waitsFor computes the gate's decision for a pending pod. It returns the end of the summary, which says what the pod
// waits for. The argument reason is the reason of the pod's condition PodScheduled.
func (e *explainer) waitsFor(reason string) string {
	e.ask(e.pod)
	if since := e.request.UnschedulableSince; !since.IsZero() {
		e.Since = since.UTC()
	}
	switch {
	case reason != corev1.PodReasonUnschedulable:
		return fmt.Sprintf(": the scheduler failed (%s), and will try the pod again. Until then, autoscalers ignore the pod.", reason)
	case e.published.view.Args.Mode == configv1.ModeObserve:
		return ". The gate only observes (mode: Observe): the scheduler's message shows what keeps the pod off burst nodes."
	}
	e.Changed, e.CannotBurst = e.isChanged(), e.never()
	e.addChanges()
	open := cmp.Or(e.named(verdictOpen)...)
	switch {
	case e.CannotBurst != "":
		e.addHints()
		return fmt.Sprintf(", and cannot burst: %s.", e.CannotBurst)
	case open != "" && e.Changed:
		return fmt.Sprintf(", and the gate of %s is open now: the scheduler tries the pod again in a moment if a node there has room.", open)
	case open != "":
		if strings.Contains(e.Message, "anti-affinity rules") || strings.Contains(e.Message, "topology spread constraints") {
			e.Advice = append(e.Advice, "one virtual node is one host, and in no zone: make the anti-affinity preferred, or the spread constraint ScheduleAnyway")
		}
		return fmt.Sprintf(", and the gate of %s is open, but no node there takes the pod (%s): the scheduler's message shows why the pod does not fit.", open, gate.ReasonNoRoom.Code)
	}
	for _, closed := range []struct{ code, text string }{ // the first that closes a burst pool
		{gate.ReasonBudgetSpent.Code, " for room in the budget of %s."},
		{gate.ReasonCreateRate.Code, " for the rate of creates of %s."},
		{gate.ReasonProviderRefusing.Code, ": the provider of %s refuses pods."},
		{gate.ReasonHalfOpen.Code, ": the provider of %s refused pods, and the scheduler tests it now with other pods."},
		{gate.ReasonOverridden.Code, ": the ConfigMap " + gate.OverrideConfigMap + " keeps the gate of %s closed."},
		{gate.ReasonBindingsDenied.Code, ": an admission rule denied bindings to %s."},
	} {
		if i := slices.IndexFunc(e.Pools, func(v PoolVerdict) bool { return v.Burst && v.Reason.Code == closed.code }); i >= 0 {
			return fmt.Sprintf(closed.text, e.Pools[i].Name)
		}
	}
	if holder := cmp.Or(e.named(verdictHolds)...); holder != "" {
		return " for pool " + holder + "."
	}
	return "."
}

// addHints adds advice for a pod that cannot burst.
func (e *explainer) addHints() {
	for _, v := range e.Pools {
		if hint := gate.Hint(v.Reason.Code, e.published.pools.At(v.Rank), e.pod.Namespace); v.Verdict == verdictClosed && hint != "" && !slices.Contains(e.Advice, hint) {
			e.Advice = append(e.Advice, hint)
		}
	}
}

// addLockedOut adds advice if the pod tolerates the gate taint. Autoscalers compute that such a pod fits burst nodes,
// and add no node for the pod.
func (e *explainer) addLockedOut() {
	p := e.published
	if p != nil && !*p.view.Args.GateTaint || !e.toleratesGate() {
		return
	}
	advice := "the pod tolerates the gate taint. The cluster autoscaler computes that such a pod fits a burst node, and adds no VM. Remove the toleration: the controller adds it to pods on burst nodes"
	if lint.ToleratesAll(e.pod.Spec.Tolerations) {
		advice = "the pod tolerates every taint. The cluster autoscaler computes that such a pod fits a burst node, and adds no VM. " +
			"Replace the toleration {operator: Exists}, which has no key, by tolerations with the keys that the pod needs"
	}
	e.Advice = append(e.Advice, advice)
}
