package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/version"
)

const (
	// maxDumpedPods limits the number of dumped pods. Pending pods are dumped first, then pods in burst pools, then
	// other pods. logLines limits the number of lines of each log.
	maxDumpedPods, logLines = 5000, 20000
	// ours is the prefix of the names of this project's own objects.
	ours = "pool-priority"
)

func (o *options) newDump() *cobra.Command {
	return &cobra.Command{
		Use:   "dump [FILE.tar.gz | DIRECTORY | -]",
		Short: "Collect what a bug report needs, without secrets",
		Long: "Collect what a bug report needs: what the scheduler publishes, its configuration, the autoscaler's status, nodes, the scheduler's pods and\n" +
			"their events, and the installation's Deployments, leases and logs. It writes an archive, a new or empty directory, or YAML to standard output (-).\n\n" +
			"It leaves out addresses, the values of environment variables, commands and arguments of pods, and most annotations. It reads no Secrets.\n" +
			"It does not change names, labels and logs: check the dump before you send it. report.txt lists what could not be read.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return o.runDump(c.Context(), strings.Join(args, "")) },
	}
}

// dump collects the files of a bug report.
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
	kubernetes := "(you may not read its version)"
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
	if err := s.close(); err != nil {
		return fmt.Errorf("writing %s: %w", target, err)
	}
	if target != "-" {
		missing := ""
		if d.failed > 0 {
			missing = fmt.Sprintf("; %s not be read, see report.txt", count(d.failed, "part could", "parts could"))
		}
		fmt.Fprintf(o.Out, "Written: %s%s.\nThe dump contains names, labels and unchanged logs: check it before you send it.\n", target, missing)
	}
	return nil
}

// collect reads all parts of the dump. It records in the report which parts could not be read.
func (d *dump) collect(ctx context.Context) {
	p, err := d.published(ctx)
	d.note("status", err)
	d.configMap(ctx, d.statusNamespace, d.statusName)
	autoscaler := "kube-system/cluster-autoscaler-status"
	scheduler, karpenter := shippedName, false
	if err == nil {
		d.addStatus(p)
		scheduler = cmp.Or(p.view.SchedulerName, scheduler)
		autoscaler = p.view.Args.Capacity.ClusterAutoscalerStatus
		karpenter = slices.ContainsFunc(p.view.Args.Pools, func(pool configv1.Pool) bool { return pool.Karpenter != nil })
	}
	namespace, name, _ := strings.Cut(autoscaler, "/")
	d.configMap(ctx, namespace, name)
	d.configMap(ctx, namespace, expanderName)
	d.installation(ctx)
	if karpenter {
		d.nodePools(ctx)
	}
	nodes := &corev1.NodeList{}
	if d.read(ctx, "nodes", nodes, "", metav1.ListOptions{ResourceVersion: "0"}) {
		d.addObject("nodes.yaml", nodes)
		d.events(ctx, metav1.NamespaceDefault, "Node", nil)
	}
	d.workloads(ctx, scheduler)
}

// note records in the report whether a part could be read.
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

// addObject adds an object or a list of objects as redacted YAML, with apiVersion and kind.
func (d *dump) addObject(name string, object runtime.Object) {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		d.note(name, err)
		return
	}
	tree["apiVersion"], tree["kind"] = kindOfObject(object).ToAPIVersionAndKind()
	d.addTree(name, tree)
}

// addTree redacts an object of any type, and adds it as YAML. It keeps the command lines of Deployments, because only
// this project's own Deployments are dumped.
func (d *dump) addTree(name string, tree map[string]any) {
	redact(tree, tree["kind"] == "DeploymentList")
	data, err := yaml.Marshal(tree)
	if err != nil {
		d.note(name, err)
		return
	}
	d.add(name, data)
}

// read reads a list. It returns whether the list could be read, and records this in the report.
func (d *dump) read(ctx context.Context, part string, list runtime.Object, namespace string, options metav1.ListOptions) bool {
	err := d.list(ctx, list, namespace, options)
	d.note(part, err)
	return err == nil
}

func (d *dump) addStatus(p *publishedState) {
	now := d.now()
	wide := *d.o
	wide.output, wide.color = "wide", "never"
	var b strings.Builder
	wide.printStatus(&b, p.list(now), true, now)
	d.add("status.txt", []byte(b.String()))
}

func (d *dump) configMap(ctx context.Context, namespace, name string) {
	cm := &corev1.ConfigMap{}
	err := d.get(ctx, cm, namespace, name)
	d.note("configmap "+namespace+"/"+name, err)
	if err == nil {
		d.addObject("configmaps/"+namespace+"-"+name+".yaml", cm)
	}
}

// installation reads this project's own objects: Deployments and their ConfigMaps, leases, pods, logs and events.
func (d *dump) installation(ctx context.Context) {
	namespace, all := d.statusNamespace, metav1.ListOptions{}
	deployments, leases, pods := &appsv1.DeploymentList{}, &coordinationv1.LeaseList{}, &corev1.PodList{}
	if d.read(ctx, "deployments in "+namespace, deployments, namespace, all) {
		keepOurs(deployments)
		configs := map[string]bool{}
		for i := range deployments.Items {
			for _, volume := range deployments.Items[i].Spec.Template.Spec.Volumes {
				if volume.ConfigMap != nil && !configs[volume.ConfigMap.Name] {
					configs[volume.ConfigMap.Name] = true
					d.configMap(ctx, namespace, volume.ConfigMap.Name)
				}
			}
		}
		d.addObject("deployments.yaml", deployments)
	}
	if d.read(ctx, "leases in "+namespace, leases, namespace, all) {
		keepOurs(leases)
		d.addObject("leases.yaml", leases)
	}
	if d.read(ctx, "pods in "+namespace, pods, namespace, all) {
		keepOurs(pods)
		for i := range pods.Items {
			d.logs(ctx, &pods.Items[i])
		}
		d.addObject("installation-pods.yaml", pods)
		d.events(ctx, namespace, "", nil)
	}
}

// keepOurs removes all objects except this project's own objects from the list.
func keepOurs(list runtime.Object) {
	objects, err := meta.ExtractList(list)
	utilruntime.Must(err) // it is a list
	utilruntime.Must(meta.SetList(list, slices.DeleteFunc(objects, func(object runtime.Object) bool {
		return !strings.HasPrefix(object.(metav1.Object).GetName(), ours)
	})))
}

// logs reads the logs of the pod's containers. If a container has restarted, it also reads the log of the previous
// instance.
func (d *dump) logs(ctx context.Context, pod *corev1.Pod) {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		for _, ending := range []string{".log", ".previous.log"} {
			name, previous := "logs/"+pod.Name+"-"+c.Name+ending, ending == ".previous.log"
			if previous && c.RestartCount == 0 {
				continue
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
	tree := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &tree)
	}
	d.note("nodepools", d.plainly("list nodepools.karpenter.sh", err))
	if err == nil {
		d.addTree("nodepools.yaml", tree)
	}
}

// workloads reads the pods with the given schedulerName, and the events about these pods. If the user may not list the
// pods of all namespaces, workloads reads only the selected namespace.
func (d *dump) workloads(ctx context.Context, scheduler string) {
	namespace, pods := metav1.NamespaceAll, &corev1.PodList{}
	if !d.read(ctx, "pods that name "+scheduler, pods, namespace, asking(scheduler)) {
		namespace = d.namespace
		if !d.read(ctx, "these pods in "+namespace, pods, namespace, asking(scheduler)) {
			return
		}
	}
	if n := len(pods.Items); n > maxDumpedPods {
		slices.SortStableFunc(pods.Items, func(a, b corev1.Pod) int { return dumpRank(&a) - dumpRank(&b) })
		pods.Items = pods.Items[:maxDumpedPods]
		fmt.Fprintf(&d.report, "of %d pods, %d are left out\n", n, n-maxDumpedPods)
	}
	uids := map[types.UID]bool{}
	for i := range pods.Items {
		uids[pods.Items[i].UID] = true
	}
	d.addObject("pods.yaml", pods)
	d.events(ctx, namespace, kindPod, uids)
}

// dumpRank returns 0 for a pending pod, 1 for a pod with a negative deletion cost, as pods in burst pools have, and 2
// for any other pod.
func dumpRank(p *corev1.Pod) int {
	switch {
	case p.Spec.NodeName == "":
		return 0
	case len(p.Annotations) > 0 && strings.HasPrefix(p.Annotations["controller.kubernetes.io/pod-deletion-cost"], "-"):
		return 1
	}
	return 2
}

// events reads the events of a namespace. If kind is not "", it reads only events about objects of that kind. If uids
// is not nil, it keeps only events about objects with these UIDs.
func (d *dump) events(ctx context.Context, namespace, kind string, uids map[types.UID]bool) {
	options, part := metav1.ListOptions{}, "events"
	if kind != "" {
		options.FieldSelector = fields.OneTermEqualSelector("involvedObject.kind", kind).String()
		part += " on " + strings.ToLower(kind) + "s"
	}
	part += inNamespace(namespace)
	all := &corev1.EventList{}
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page := &corev1.EventList{}
		return page, d.list(ctx, page, namespace, options)
	})
	err := pages.EachListItem(ctx, options, func(object runtime.Object) error {
		if event := object.(*corev1.Event); uids == nil || uids[event.InvolvedObject.UID] {
			all.Items = append(all.Items, *event)
		}
		return nil
	})
	d.note(part, err)
	if err == nil {
		d.addObject(strings.ReplaceAll(part, " ", "-")+".yaml", all)
	}
}
