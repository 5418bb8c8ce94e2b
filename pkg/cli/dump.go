package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/version"
)

const (
	// maxDumpedPods bounds how many pods are dumped: those that wait before all, then those in burst pools. logLines bounds each log.
	maxDumpedPods, logLines = 5000, 20000
	// ours is what the names of our own objects begin with.
	ours = "pool-priority"
	// pageSize is how many objects are read at a time.
	pageSize = 500
)

func (o *options) newDump() *cobra.Command {
	return &cobra.Command{
		Use:   "dump [FILE.tar.gz | DIRECTORY | -]",
		Short: "Collect what a bug report needs, without secrets",
		Long: "Collect what a bug report needs: what the scheduler publishes, its configuration, the autoscaler's status, nodes, the pods that ask for the scheduler and\n" +
			"their events, our Deployments, leases and logs. It goes into an archive, into a directory, which must be new or empty, or (-) to standard output as YAML.\n\n" +
			"Left out are values of variables, commands and arguments, all annotations that nobody here reads, and addresses; Secrets are not read. Names and labels are\n" +
			"there, and logs as they are: look through it before you send it. What could not be read is in report.txt.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.runDump(c.Context(), strings.Join(args, "")) },
	}
}

// dump collects what a bug report needs.
type dump struct {
	*cluster
	o      *options
	sink   sink
	report strings.Builder
	failed int
}

func (o *options) runDump(ctx context.Context, target string) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	kubernetes := "of which the version may not be read"
	if server, err := c.client.Discovery().ServerVersion(); err == nil {
		kubernetes = server.GitVersion
	} else if !apierrors.IsForbidden(err) {
		return c.plainly("get the API server's version", err)
	}
	now := c.now()
	if target == "" {
		target = "kubectl-pools-dump-" + now.UTC().Format("20060102T150405Z") + ".tar.gz"
	}
	s, err := o.newSink(target, now)
	if err != nil {
		return err
	}
	d := &dump{cluster: c, o: o, sink: s}
	fmt.Fprintf(&d.report, "kubectl pools dump, %s, of %s\nKubernetes %s\n\n", version.String(), now.UTC().Format(time.RFC3339), kubernetes)
	d.collect(ctx)
	d.add("report.txt", []byte(d.report.String()))
	if err := errors.Join(ctx.Err(), s.close()); err != nil {
		return fmt.Errorf("writing %s: %w", target, err)
	}
	if target != "-" {
		missing := ""
		if d.failed > 0 {
			missing = fmt.Sprintf("; %s not be read, see report.txt", count(d.failed, "part could", "parts could"))
		}
		fmt.Fprintf(o.Out, "Written: %s%s.\nIt has names and labels, and logs as they are: look through it before you send it.\n", target, missing)
	}
	return nil
}

// collect reads everything, and notes what cannot be read.
func (d *dump) collect(ctx context.Context) {
	p, err := d.published(ctx)
	d.note("status", err)
	if err == nil {
		d.addStatus(p)
	}
	d.configMap(ctx, d.statusNamespace, d.statusName)
	expander, autoscaler := "kube-system/cluster-autoscaler-priority-expander", "kube-system/cluster-autoscaler-status"
	scheduler, karpenter := shippedName, false
	if p != nil {
		if p.view.SchedulerName != "" {
			scheduler = p.view.SchedulerName
		}
		autoscaler = p.view.Args.Capacity.ClusterAutoscalerStatus
		for i := range p.view.Args.Pools {
			karpenter = karpenter || p.view.Args.Pools[i].Karpenter != nil
		}
	}
	for _, id := range []string{autoscaler, expander} {
		namespace, name, _ := strings.Cut(id, "/")
		d.configMap(ctx, namespace, name)
	}
	d.installation(ctx)
	if karpenter {
		d.nodePools(ctx)
	}
	d.nodes(ctx)
	d.workloads(ctx, scheduler)
}

// note notes whether a part could be read.
func (d *dump) note(part string, err error) {
	if err == nil {
		fmt.Fprintf(&d.report, "%-60s read\n", part)
		return
	}
	d.failed++
	fmt.Fprintf(&d.report, "%-60s NOT READ: %v\n", part, oneLine(err))
}

func (d *dump) add(name string, data []byte) {
	if err := d.sink.add(name, data); err != nil {
		fmt.Fprintf(&d.report, "%-60s NOT WRITTEN: %v\n", name, err)
	}
}

// addObject adds an object as YAML, with its kind.
func (d *dump) addObject(name string, object runtime.Object) {
	if kinds, _, err := scheme.Scheme.ObjectKinds(object); err == nil {
		object.GetObjectKind().SetGroupVersionKind(kinds[0])
	}
	data, err := yaml.Marshal(object)
	if err != nil {
		d.note(name, err)
		return
	}
	d.add(name, data)
}

func (d *dump) addStatus(p *publishedState) {
	now := d.now()
	list := p.list(now)
	wide := *d.o
	wide.output, wide.color = "wide", "never"
	var b strings.Builder
	wide.printStatus(&b, list, true, now)
	d.add("status.txt", []byte(b.String()))
}

func (d *dump) configMap(ctx context.Context, namespace, name string) {
	cm, err := d.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	d.note("configmap "+namespace+"/"+name, d.plainly(fmt.Sprintf("get configmaps/%s in %s", name, namespace), err))
	if err == nil {
		redactMeta(&cm.ObjectMeta)
		d.addObject("configmaps/"+namespace+"-"+name+".yaml", cm)
	}
}

// installation reads our own objects.
func (d *dump) installation(ctx context.Context) {
	namespace := d.statusNamespace
	isOurs := func(name string) bool { return strings.HasPrefix(name, ours) }
	deployments, err := d.client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	d.note("deployments in "+namespace, d.plainly("list deployments in "+namespace, err))
	if err == nil {
		deployments.Items = slices.DeleteFunc(deployments.Items, func(x appsv1.Deployment) bool { return !isOurs(x.Name) })
		configs := map[string]bool{}
		for i := range deployments.Items {
			x := &deployments.Items[i]
			for _, volume := range x.Spec.Template.Spec.Volumes {
				if volume.ConfigMap != nil && !configs[volume.ConfigMap.Name] {
					configs[volume.ConfigMap.Name] = true
					d.configMap(ctx, namespace, volume.ConfigMap.Name)
				}
			}
			redactDeployment(x)
		}
		d.addObject("deployments.yaml", deployments)
	}
	leases, err := d.client.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
	d.note("leases in "+namespace, d.plainly("list leases in "+namespace, err))
	if err == nil {
		leases.Items = slices.DeleteFunc(leases.Items, func(x coordinationv1.Lease) bool { return !isOurs(x.Name) })
		for i := range leases.Items {
			redactMeta(&leases.Items[i].ObjectMeta)
		}
		d.addObject("leases.yaml", leases)
	}
	pods, err := d.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	d.note("pods in "+namespace, d.plainly("list pods in "+namespace, err))
	if err != nil {
		return
	}
	pods.Items = slices.DeleteFunc(pods.Items, func(x corev1.Pod) bool { return !isOurs(x.Name) })
	for i := range pods.Items {
		d.logs(ctx, &pods.Items[i])
		redactPod(&pods.Items[i])
	}
	d.addObject("installation-pods.yaml", pods)
	d.events(ctx, namespace, "", nil)
}

// logs reads the logs of a pod of ours, and those from before its containers were started anew.
func (d *dump) logs(ctx context.Context, pod *corev1.Pod) {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		for _, previous := range []bool{false, true} {
			if previous && c.RestartCount == 0 {
				continue
			}
			name := "logs/" + pod.Name + "-" + c.Name + ".log"
			if previous {
				name = "logs/" + pod.Name + "-" + c.Name + ".previous.log"
			}
			data, err := d.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{Container: c.Name, Previous: previous, TailLines: ptr.To[int64](logLines)}).DoRaw(ctx)
			d.note(name, d.plainly("get pods/log in "+pod.Namespace, err))
			if err == nil {
				d.add(name, data)
			}
		}
	}
}

func (d *dump) nodePools(ctx context.Context) {
	data, err := d.client.Discovery().RESTClient().Get().AbsPath("/apis/karpenter.sh/v1/nodepools").SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	d.note("nodepools", d.plainly("list nodepools.karpenter.sh", err))
	if err != nil {
		return
	}
	if data, err = yaml.JSONToYAML(data); err == nil {
		d.add("nodepools.yaml", data)
	}
}

func (d *dump) nodes(ctx context.Context) {
	nodes, err := d.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	d.note("nodes", d.plainly("list nodes", err))
	if err != nil {
		return
	}
	for i := range nodes.Items {
		redactNode(&nodes.Items[i])
	}
	d.addObject("nodes.yaml", nodes)
	d.events(ctx, metav1.NamespaceDefault, "Node", nil)
}

// workloads reads the pods that ask for the scheduler, of all namespaces or, if not all may be read, of that of the flags, with their events.
func (d *dump) workloads(ctx context.Context, scheduler string) {
	namespace := metav1.NamespaceAll
	pods, err := d.client.CoreV1().Pods(namespace).List(ctx, asking(scheduler))
	d.note("pods that ask for "+scheduler, d.plainly("list pods in all namespaces", err))
	if err != nil {
		namespace = d.namespace
		pods, err = d.client.CoreV1().Pods(namespace).List(ctx, asking(scheduler))
		d.note("those in "+namespace, d.plainly("list pods in "+namespace, err))
	}
	if err != nil {
		return
	}
	if n := len(pods.Items); n > maxDumpedPods {
		slices.SortStableFunc(pods.Items, func(a, b corev1.Pod) int { return dumpRank(&a) - dumpRank(&b) })
		pods.Items = pods.Items[:maxDumpedPods]
		fmt.Fprintf(&d.report, "of %d pods, %d are left out\n", n, n-maxDumpedPods)
	}
	uids := map[types.UID]bool{}
	for i := range pods.Items {
		uids[pods.Items[i].UID] = true
		redactPod(&pods.Items[i])
	}
	d.addObject("pods.yaml", pods)
	d.events(ctx, namespace, kindPod, uids)
}

// dumpRank orders pods by how much they tell.
func dumpRank(p *corev1.Pod) int {
	switch {
	case p.Spec.NodeName == "":
		return 0
	case len(p.Annotations) > 0 && strings.HasPrefix(p.Annotations["controller.kubernetes.io/pod-deletion-cost"], "-"):
		return 1
	}
	return 2
}

// events reads the events of a namespace: those on the kind (any if it is ""), and of objects with the UIDs (any if there are none).
func (d *dump) events(ctx context.Context, namespace, kind string, uids map[types.UID]bool) {
	options := metav1.ListOptions{Limit: pageSize}
	name := "events"
	if kind != "" {
		options.FieldSelector = fields.OneTermEqualSelector("involvedObject.kind", kind).String()
		name += " on " + strings.ToLower(kind) + "s"
	}
	in := "in " + namespace
	if namespace == metav1.NamespaceAll {
		in = "in all namespaces"
	}
	all := &corev1.EventList{}
	for {
		page, err := d.client.CoreV1().Events(namespace).List(ctx, options)
		if err != nil {
			d.note(name+" "+in, d.plainly("list events "+in, err))
			return
		}
		for i := range page.Items {
			if event := &page.Items[i]; uids == nil || uids[event.InvolvedObject.UID] {
				redactMeta(&event.ObjectMeta)
				all.Items = append(all.Items, *event)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	d.note(name+" "+in, nil)
	d.addObject(strings.ReplaceAll(name, " ", "-")+"-"+strings.ReplaceAll(in, " ", "-")+".yaml", all)
}
