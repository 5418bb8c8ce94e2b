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

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// shippedName is the name by which pods ask for the scheduler as it is shipped.
const shippedName = "pool-priority-scheduler"

type podsOptions struct {
	all, held bool
	pool      string
}

func (o *options) newPods() *cobra.Command {
	var po podsOptions
	c := &cobra.Command{
		Use:   "pods",
		Short: "Which pods are where, which wait, what they cost to keep, and which go first",
		Long: "The pods that ask for the scheduler: those first that wait, then those that go first when their ReplicaSets shrink, by their deletion cost.\n\n" +
			"WHY is what holds a pod or, of one in a burst pool, why it was let in.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.runPods(c.Context(), po) },
	}
	c.Flags().BoolVarP(&po.all, "all-namespaces", "A", false, "of all namespaces")
	c.Flags().StringVar(&po.pool, "pool", "", "only those in the pool")
	c.Flags().BoolVar(&po.held, "held", false, "only those that the gate holds back")
	_ = c.RegisterFlagCompletionFunc("pool", o.completePools) // the flag is there
	return c
}

// asking selects the pods that ask for the scheduler.
func asking(scheduler string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.schedulerName", scheduler).String()}
}

// podsData is what pods are shown from.
type podsData struct {
	pods      []corev1.Pod
	nodes     map[string]*corev1.Node
	published *publishedState // nil if it is not shown
	notes     []string
}

func (o *options) runPods(ctx context.Context, po podsOptions) error {
	if po.pool != "" && po.held {
		return errors.New("--pool and --held exclude one another: pods that are held are in no pool")
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	namespace := c.namespace
	if po.all {
		namespace = metav1.NamespaceAll
	}
	data, scheduler := &podsData{}, shippedName
	if data.published, err = c.published(ctx); err != nil {
		data.notes = append(data.notes, "The pools are not known: "+err.Error()+".")
	} else {
		scheduler = cmp.Or(data.published.view.SchedulerName, scheduler)
		if _, ok := data.published.indexOf(po.pool); po.pool != "" && !ok {
			return fmt.Errorf("there is no pool %s: there are %s", po.pool, strings.Join(namesOf(data.published.list(c.now()).Items), ", "))
		}
	}
	if err := c.readPods(ctx, data, namespace, scheduler); err != nil {
		return err
	}
	list, now := data.list(po), c.now()
	var names []string
	for _, p := range list.Items {
		names = append(names, "pod/"+p.Name)
	}
	return o.print(list, names, func(w io.Writer) { o.printPods(w, list, po.all, now) })
}

// schedulerName is the name by which pods ask for the scheduler that leads.
func (c *cluster) schedulerName(ctx context.Context) string {
	if p, err := c.published(ctx); err == nil {
		return cmp.Or(p.view.SchedulerName, shippedName)
	}
	return shippedName
}

// readPods reads the pods, and the nodes if some pods do not say in which pool they are.
func (c *cluster) readPods(ctx context.Context, data *podsData, namespace, scheduler string) error {
	options := asking(scheduler)
	options.ResourceVersion = "0" // from the API server's memory
	list, err := c.client.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		what := "list pods in " + namespace
		if namespace == metav1.NamespaceAll {
			what = "list pods in all namespaces"
		}
		return c.plainly(what, err)
	}
	data.pods = list.Items
	unsaid := slices.ContainsFunc(data.pods, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && p.Annotations[scalein.PoolAnnotation] == "" })
	if !unsaid || data.published == nil {
		return nil
	}
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		data.notes = append(data.notes, fmt.Sprintf("In which pool some pods are is not shown: %v.", c.plainly("list nodes", err)))
		return nil
	}
	data.nodes = map[string]*corev1.Node{}
	for i := range nodes.Items {
		data.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return nil
}

// list are the pods that are asked for, in the order in which they are printed.
func (d *podsData) list(po podsOptions) *PodList {
	l := &PodList{TypeMeta: typeMeta("PodList"), Items: []Pod{}, Notes: d.notes}
	for i := range d.pods {
		p := d.podOf(&d.pods[i])
		if po.held && !p.Held || po.pool != "" && p.Pool != po.pool {
			continue
		}
		l.Items = append(l.Items, p)
	}
	waiting := func(p Pod) int {
		if p.Node == "" {
			return 0
		}
		return 1
	}
	cost := func(p Pod) int {
		if p.Cost == nil {
			return 0 // as the ReplicaSet controller has it
		}
		return *p.Cost
	}
	slices.SortFunc(l.Items, func(a, b Pod) int {
		if order := cmp.Or(cmp.Compare(waiting(a), waiting(b)), cmp.Compare(cost(a), cost(b))); order != 0 {
			return order
		}
		if a.Node == "" {
			if order := a.Since.Compare(b.Since); order != 0 {
				return order
			}
		}
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return l
}

// podOf is what is printed of the pod.
func (d *podsData) podOf(pod *corev1.Pod) Pod {
	p := Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase), Since: pod.CreationTimestamp.UTC()}
	if n, err := strconv.Atoi(pod.Annotations[scalein.CostAnnotation]); err == nil {
		p.Cost = &n
	}
	condition := gate.ScheduledCondition(pod)
	if condition != nil {
		p.Since = condition.LastTransitionTime.UTC()
	}
	if p.Node == "" {
		p.Reasons = codesOf(pod)
		p.Held = condition != nil && isHeld(condition.Message)
		return p
	}
	p.Pool = d.poolOf(pod)
	if record, err := gate.ParseRecord(pod.Annotations[gate.RecordAnnotation]); err == nil {
		p.Since = refusal.BoundAt(pod).UTC()
		p.Reasons = []string{record.Reason}
	}
	if r, refused := refusal.Of(pod); refused {
		p.Reasons = append(p.Reasons, cmp.Or(r.Code, "Refused"))
	}
	return p
}

// isHeld reports whether the gate is among what the scheduler said of a pod.
func isHeld(message string) bool {
	return slices.ContainsFunc(saidOf(message), func(r nodegroups.Reason) bool { return gate.Lookup(r.Code).Kind.Closes() })
}

// poolOf is the name of the pool that the pod, which has a node, is in: "" if that is not known, or it is in none.
func (d *podsData) poolOf(pod *corev1.Pod) string {
	if name := pod.Annotations[scalein.PoolAnnotation]; name != "" {
		return name
	}
	if node := d.nodes[pod.Spec.NodeName]; node != nil {
		if i := d.published.pools.Of(node.Labels); i != pool.None {
			return d.published.pools.At(i).Name
		}
	}
	return ""
}

// printPods prints the pods for people.
func (o *options) printPods(w io.Writer, l *PodList, all bool, now time.Time) {
	paint := painter(o.colored())
	if len(l.Items) == 0 {
		fmt.Fprintln(w, "No pods.")
	} else {
		header := []string{"NAME", "POOL", "COST", "SINCE", "WHY"}
		right := 2
		if all {
			header, right = append([]string{"NAMESPACE"}, header...), 3
		}
		if o.wide() {
			header = append(header[:len(header)-1:len(header)-1], "PHASE", "NODE", "WHY")
		}
		t := table{header: header, right: map[int]bool{right: true}}
		for i := range l.Items {
			t.add(o.podRow(&l.Items[i], all, now)...)
		}
		t.write(w, !o.noHeaders, paint)
	}
	o.printNotes(w, l.Notes, paint)
}

func (o *options) podRow(p *Pod, all bool, now time.Time) []cell {
	var row []cell
	if all {
		row = append(row, text(p.Namespace))
	}
	where, cost := text(orNone(p.Pool)), none
	if p.Node == "" {
		where = cell{"(waits)", moving}
	}
	if p.Cost != nil {
		cost = strconv.Itoa(*p.Cost)
	}
	row = append(row, text(p.Name), where, text(cost), text(age(p.Since, now)))
	if o.wide() {
		row = append(row, text(orNone(p.Phase)), text(orNone(p.Node)))
	}
	return append(row, text(strings.Join(p.Reasons, ", ")))
}
