package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// shippedName is the schedulerName in the configuration that the project ships.
const shippedName = "pool-priority-scheduler"

type podsOptions struct {
	all, held bool
	pool      string
}

func (o *options) newPods() *cobra.Command {
	var po podsOptions
	c := &cobra.Command{
		Use:   "pods",
		Short: "List the scheduler's pods: where they are, which wait, and which are deleted first",
		Long: "List the pods whose schedulerName names the scheduler. Pending pods come first, then the other pods by deletion cost.\nIf a ReplicaSet scales in, it deletes the pods with the lowest cost first.\n\n" +
			"WHY shows why a pod is pending. For a pod in a burst pool, WHY shows why the gate was open.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.runPods(c.Context(), po) },
	}
	c.Flags().BoolVarP(&po.all, "all-namespaces", "A", false, "list the pods of all namespaces")
	c.Flags().StringVar(&po.pool, "pool", "", "list only the pods in this pool")
	c.Flags().BoolVar(&po.held, "held", false, "list only the pods that the gate holds")
	return c
}

func (o *options) runPods(ctx context.Context, po podsOptions) error {
	if po.pool != "" && po.held {
		return errors.New("use --pool or --held, not both: held pods are in no pool")
	}
	c, p, err := o.connectPublished(ctx)
	if c == nil {
		return err
	}
	l, scheduler := &PodList{TypeMeta: typeMeta("PodList"), Items: []Pod{}}, shippedName
	if err != nil {
		l.Notes = append(l.Notes, fmt.Sprintf("The pools are not known: %v.", err))
	} else {
		scheduler = cmp.Or(p.view.SchedulerName, scheduler)
		if po.pool != "" && p.indexOf(po.pool) == pool.None {
			return fmt.Errorf("there is no pool %s; the pools are %s", po.pool, strings.Join(p.names(), ", "))
		}
	}
	namespace, pods := c.namespace, &corev1.PodList{}
	if po.all {
		namespace = metav1.NamespaceAll
	}
	ours := fields.OneTermEqualSelector("spec.schedulerName", scheduler).String()
	if err := c.list(ctx, pods, namespace, metav1.ListOptions{FieldSelector: ours, ResourceVersion: "0"}); err != nil { // from the API server's cache
		return err
	}
	nodes, err := c.nodesOf(ctx, pods.Items, p, 0)
	if err != nil {
		l.Notes = append(l.Notes, fmt.Sprintf("The pools of some pods are not shown: %v.", err))
	}
	var names []string
	for i := range pods.Items {
		if pod := podOf(&pods.Items[i], p, nodes, c.now()); (pod.Held || !po.held) && (po.pool == "" || po.pool == pod.Pool) {
			l.Items = append(l.Items, pod)
		}
	}
	slices.SortFunc(l.Items, comparePods)
	for _, pod := range l.Items {
		names = append(names, "pod/"+pod.Name)
	}
	return o.print(l, names, func(w io.Writer) { o.printPods(w, l, po.all, c.now()) })
}

// comparePods orders pods. Pending pods come before pods with a node. The next criterion is the deletion cost, the
// lowest first. Among pending pods with equal costs, the pod that has waited longest comes first. The last criteria are
// namespace and name.
func comparePods(a, b Pod) int {
	placed := func(p Pod) int { return min(len(p.Node), 1) }
	cost := func(p Pod) int { return ptr.Deref(p.Cost, 0) } // 0 is the ReplicaSet controller's default
	since := 0
	if a.Node == "" {
		since = a.Since.Compare(b.Since)
	}
	return cmp.Or(cmp.Compare(placed(a), placed(b)), cmp.Compare(cost(a), cost(b)), since, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// podOf returns the pod's row.
func podOf(pod *corev1.Pod, published *publishedState, nodes map[string]*corev1.Node, now time.Time) Pod {
	p := Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase), Since: pod.CreationTimestamp.UTC()}
	if n, err := strconv.Atoi(pod.Annotations[scalein.CostAnnotation]); err == nil {
		p.Cost = &n
	}
	if condition := gate.ScheduledCondition(pod); condition != nil {
		p.Since = condition.LastTransitionTime.UTC()
	}
	if p.Node == "" {
		p.Reasons = codesOf(pod)
		p.Held = slices.ContainsFunc(p.Reasons, func(code string) bool { return gate.Lookup(code).Kind.Closes() })
		return p
	}
	p.Pool, _ = published.poolOf(pod, nodes)
	if record, err := gate.ParseRecord(pod.Annotations[gate.DecisionAnnotation]); err == nil {
		p.Since = refusal.BoundAt(pod, now).UTC()
		p.Reasons = []string{record.Reason}
	}
	if r, refused := refusal.Of(pod); refused {
		p.Reasons = append(p.Reasons, cmp.Or(r.Code, "Refused"))
	}
	return p
}

// printPods prints the pods as a table.
func (o *options) printPods(w io.Writer, l *PodList, all bool, now time.Time) {
	wide := o.wide()
	t := table{columns: []column{{name: "NAMESPACE", hidden: !all}, {name: "NAME"}, {name: "POOL"}, {name: "COST", right: true}, {name: "SINCE"},
		{name: "PHASE", hidden: !wide}, {name: "NODE", hidden: !wide}, {name: "WHY"}}}
	for i := range l.Items {
		p := &l.Items[i]
		where, cost := text(cmp.Or(p.Pool, none)), none
		if p.Node == "" {
			where = cell{"(waits)", moving}
		}
		if p.Cost != nil {
			cost = strconv.Itoa(*p.Cost)
		}
		t.add(text(p.Namespace), text(p.Name), where, text(cost), text(age(p.Since, now)), text(cmp.Or(p.Phase, none)), text(cmp.Or(p.Node, none)), text(strings.Join(p.Reasons, ", ")))
	}
	if len(l.Items) == 0 {
		fmt.Fprintln(w, "No pods.")
	} else {
		t.write(w, !o.noHeaders)
	}
	printNotes(w, l.Notes)
}
