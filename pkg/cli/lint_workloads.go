package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacitybuffer"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/lint"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// linter collects the facts for the command lint.
type linter struct {
	*options
	lint.Facts
	skip      func(what string, err error) // records what is not checked, and why
	config    *lint.Config                 // nil if no file has a configuration
	files     []*workload                  // the workloads in the file, if it has no configuration
	published *publishedState              // nil if config is used, or without a cluster

	namespaces map[string]*corev1.Namespace
	policies   map[string][]*gate.Policy
	canPull    map[string]bool // ServiceAccounts that have pull secrets, by namespace/name; nil if that is not known
}

// parse reads the file with a configuration or with workloads.
func (l *linter) parse(data []byte) error {
	config, err := lint.FindConfig(data)
	if err != nil {
		return err
	}
	if config == nil {
		values := struct {
			Kind string
			Args map[string]any
		}{}
		if yaml.Unmarshal(data, &values) == nil && values.Kind == "" && values.Args != nil {
			return errors.New("these are values of the chart: give the output of helm template --values with this file")
		}
		o := *l.options
		o.In = bytes.NewReader(data)
		namespace, _, _ := o.kube.ToRawKubeConfigLoader().Namespace() // empty if there is no kubeconfig
		if l.files, _, err = o.read([]string{"-"}, cmp.Or(namespace, metav1.NamespaceDefault)); err == nil && len(l.files) == 0 {
			err = errors.New("it has no configuration, no pod, and nothing that creates pods")
		}
		return err
	}
	profile, args, err := configv1.Load(config.Text)
	if err != nil {
		return err
	}
	l.config = config
	l.Scheduler, l.Args = *profile.SchedulerName, args
	l.Pools, err = pool.ListOf(args)
	return err
}

// readNodes adds the nodes of burst pools, and tests by a dry run whether nodes can get the gate taint.
func (l *linter) readNodes(ctx context.Context, c *cluster) {
	nodes := &corev1.NodeList{}
	if err := c.list(ctx, nodes, "", metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		l.skip("nodes, and the gate taint", err)
		return
	}
	if l.View == nil {
		all := make([]*corev1.Node, len(nodes.Items))
		for i := range nodes.Items {
			all[i] = &nodes.Items[i]
		}
		l.View = &nodegroups.View{Pools: make([]nodegroups.Pool, l.Pools.Len())}
		byPool, _ := l.Pools.Group(all)
		for i := range byPool {
			l.View.Pools[i].Nodes = len(byPool[i])
			for _, node := range byPool[i] {
				l.View.Pools[i].NodeTemplates = append(l.View.Pools[i].NodeTemplates, nodegroups.NodeTemplate{Taints: nodegroups.LastingTaints(node.Spec.Taints)})
			}
		}
		l.Overlaps = l.Pools.Overlaps(all)
	}
	l.BurstNodes = slices.DeleteFunc(slices.Clone(nodes.Items), func(n corev1.Node) bool { return !l.Pools.IsBurstNode(&n) })
	if !*l.Args.GateTaint || !l.Pools.HasBurst() {
		return
	}
	namespace, name := c.statusNamespace, "pool-priority-controller"
	if l.config != nil {
		namespace, name = cmp.Or(l.config.Namespace, namespace), cmp.Or(l.config.ServiceAccount, name)
	}
	account := "system:serviceaccount:" + namespace + ":" + name
	const what = "whether nodes can get the gate taint"
	node, changed := l.Pools.GateTaintTrial(nodes.Items)
	if node == nil {
		l.skip(what, errors.New("there is no node of a burst pool"))
		return
	}
	asAccount, err := l.connectAs(account)
	if err == nil {
		err = asAccount.tryChange(ctx, node, changed)
	}
	who := account
	if denial.WithoutRight(err) {
		err = nil
		if l.config != nil { // else the controller's account may have another name
			err, who = c.tryChange(ctx, node, changed), "you"
		}
		if err == nil || denial.WithoutRight(err) {
			l.skip(what, fmt.Errorf("%s has no rights, or you may not impersonate it", account))
			return
		}
	}
	if denial.Is(err) {
		l.GateTaintDenied = fmt.Sprintf("by a dry run, %s may not put the gate taint on node %s: %v; %s", who, node.Name, oneLine(err), denial.Advice(err))
	} else if err != nil {
		l.skip(what, err)
	}
}

// tryChange changes the node's taints by a dry run, which changes nothing.
func (c *cluster) tryChange(ctx context.Context, node, changed *corev1.Node) error {
	// Without the resourceVersion, the patch could drop a taint that another component added meanwhile. A policy that
	// forbids such a removal would then deny the dry run.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": changed.Spec.Taints}}) // does not fail
	_, err := c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// readWorkloads adds the workloads of the file or, if it has none, of the cluster.
func (l *linter) readWorkloads(ctx context.Context, c *cluster) {
	f := &finder{found: l.files, positions: map[string]int{}, owners: map[string]string{}}
	if l.files == nil {
		if err := f.read(ctx, c); err != nil {
			l.skip("workloads", err)
			return
		}
	}
	if err := l.readProtections(ctx, c); err != nil {
		l.skip("the labels and NetworkPolicies of namespaces", err)
	}
	accounts := &corev1.ServiceAccountList{}
	if err := c.list(ctx, accounts, "", metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		l.skip("whether images can be pulled", err)
	} else {
		l.canPull = map[string]bool{}
		for i := range accounts.Items {
			l.canPull[accounts.Items[i].Namespace+"/"+accounts.Items[i].Name] = len(accounts.Items[i].ImagePullSecrets) > 0
		}
	}
	buffers, err := capacitybuffer.List(ctx, c.client.CoreV1().RESTClient())
	if err != nil {
		l.skip("CapacityBuffers", err)
	}
	failed := map[string][]string{}
	for _, w := range f.found {
		asked, namespace := c, l.namespaces[w.reference.Namespace]
		if w.template.Spec.SchedulerName != l.Scheduler && (namespace == nil || namespace.Labels[lint.SchedulerLabel] != l.Scheduler) {
			asked = nil // no dry runs for others
		}
		if err := w.readSample(ctx, asked); err != nil {
			failed[err.Error()] = append(failed[err.Error()], w.reference.Kind+" "+w.reference.Namespace+"/"+w.reference.Name)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(failed)) {
		l.skip(fmt.Sprintf("what admission changes in new pods of %s, such as %s (judged by the template)", count(len(failed[why]), "workload", "workloads"), failed[why][0]), errors.New(why))
	}
	l.addWorkloads(f.found)
	for i := range l.Workloads {
		w := &l.Workloads[i]
		for k := range buffers {
			if of := buffers[k].Spec.ScalableRef; of != nil && of.Kind == w.Kind && of.Name == w.Name && buffers[k].Namespace == w.Namespace {
				w.Buffer = buffers[k].Name
			}
		}
		for k := range f.found[i].pods {
			l.count(w, &f.found[i].pods[k], c.now())
		}
		if !w.Ours {
			continue
		}
		e := newExplainer(f.found[i].reference)
		e.pod, e.workload, e.published, e.now = f.found[i].newPod(), f.found[i], l.published, c.now()
		e.pod.Spec.SchedulerName = l.Scheduler
		if l.published == nil {
			w.CannotBurst = l.unsupported(e.pod)
			continue
		}
		namespace := l.namespaces[w.Namespace]
		if l.namespaces != nil {
			e.request.NotSelected = l.Pools.NotSelecting(namespace)
		}
		if l.Args.Tenants && namespace != nil {
			e.request.Tenant = gate.TenantOf(namespace, w.Lost)
		}
		if gate.LooksAtVolumes(l.Pools, l.View) {
			e.request.AzureFiles, _ = c.azureFiles(ctx, e.pod) // without the right, the volumes do not count as Azure Files
		}
		e.ask(e.pod)
		if e.fitsNoPool() {
			l.FitNoPool = append(l.FitNoPool, w.String())
		}
		if code := e.never(); code != "" && code != gate.ReasonBelowPriority.Code && code != gate.ReasonUnknownOrder.Code {
			w.CannotBurst = code + ", " + gate.Lookup(code).Sentence
		}
	}
}

// addWorkloads adds the workloads, with what was read of their namespaces and ServiceAccounts.
func (l *linter) addWorkloads(found []*workload) {
	for _, from := range found {
		pod := from.newPod()
		w := lint.Workload{Kind: from.reference.Kind, Namespace: pod.Namespace, Name: from.reference.Name, Finishes: from.finishes, JudgedBy: from.judgedBy,
			Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}}
		namespace := l.namespaces[w.Namespace]
		ofDefault := cmp.Or(from.template.Spec.SchedulerName, corev1.DefaultSchedulerName) == corev1.DefaultSchedulerName
		w.ByNamespace = namespace != nil && namespace.Labels[lint.SchedulerLabel] == l.Scheduler && ofDefault && w.Kind != "DaemonSet" && l.Scheduler != ""
		w.Ours = l.Scheduler != "" && (pod.Spec.SchedulerName == l.Scheduler || from.template.Spec.SchedulerName == l.Scheduler) || w.ByNamespace
		w.Lost = gate.LostBy(pod, namespace, l.policies[w.Namespace])
		account := w.Namespace + "/" + cmp.Or(pod.Spec.ServiceAccountName, "default")
		if l.canPull != nil && len(pod.Spec.ImagePullSecrets) == 0 && !l.canPull[account] {
			w.Unauthorized = registryImage(&pod.Spec)
		}
		l.Workloads = append(l.Workloads, w)
	}
}

// registryImage returns an image of Azure Container Registry that the pod uses; empty if it uses none.
func registryImage(spec *corev1.PodSpec) string {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if host, _, _ := strings.Cut(c.Image, "/"); strings.HasSuffix(host, ".azurecr.io") {
			return c.Image
		}
	}
	return ""
}

// ignoredFor is the age at which a pod that no scheduler has looked at counts as ignored.
const ignoredFor = time.Minute

// count adds the pod to the workload's numbers.
func (l *linter) count(w *lint.Workload, pod *corev1.Pod, now time.Time) {
	w.Pods++
	if gate.IsExpendable(pod) {
		w.Expendable++
	}
	if slices.ContainsFunc(l.BurstNodes, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName }) {
		w.OnBurst++
	}
	if pod.Spec.SchedulerName != l.Scheduler {
		w.OtherScheduler++
		if pod.Spec.SchedulerName != corev1.DefaultSchedulerName && pod.Spec.NodeName == "" && gate.ScheduledCondition(pod) == nil && now.Sub(pod.CreationTimestamp.Time) > ignoredFor {
			w.Ignored++
		}
	}
}

// unsupported returns why no burst pool can run the pod, as far as this is known without a running scheduler.
func (l *linter) unsupported(pod *corev1.Pod) (why string) {
	for i, p := range l.Pools.Burst() {
		feature, cannot := aci.Unsupported(pod, aci.PlatformOf(p.OnACI(), l.IsV2(i)), false)
		if !cannot {
			return ""
		}
		why = feature.Code + ", " + gate.Lookup(feature.Code).Sentence
	}
	return why
}

// readProtections reads the namespaces and the NetworkPolicies.
func (l *linter) readProtections(ctx context.Context, c *cluster) error {
	namespaces, policies := &corev1.NamespaceList{}, &networkingv1.NetworkPolicyList{}
	for _, list := range []runtime.Object{namespaces, policies} {
		if err := c.list(ctx, list, "", metav1.ListOptions{ResourceVersion: "0"}); err != nil {
			return err
		}
	}
	l.namespaces, l.policies = map[string]*corev1.Namespace{}, map[string][]*gate.Policy{}
	for i := range namespaces.Items {
		l.namespaces[namespaces.Items[i].Name] = &namespaces.Items[i]
	}
	for i := range policies.Items {
		p := &policies.Items[i]
		l.policies[p.Namespace] = append(l.policies[p.Namespace], gate.NewPolicy(p))
	}
	return nil
}

// finder collects the workloads of the cluster. A Deployment's ReplicaSets and a CronJob's Jobs are no workloads of their
// own. Their pods count as pods of the Deployment or the CronJob.
type finder struct {
	found     []*workload
	positions map[string]int    // index in found, by the workload's key
	owners    map[string]string // from an object's key to its owner's key
}

func (f *finder) read(ctx context.Context, c *cluster) error {
	for _, list := range []runtime.Object{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &batchv1.CronJobList{}, &appsv1.ReplicaSetList{}, &batchv1.JobList{}} {
		if err := c.list(ctx, list, "", metav1.ListOptions{ResourceVersion: "0"}); err != nil {
			return err
		}
		if err := meta.EachListItem(list, func(object runtime.Object) error {
			if w := newWorkload(object, ""); !f.own(w, object.(metav1.Object), "apps/v1 Deployment", "batch/v1 CronJob") {
				f.add(w)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	pods := &corev1.PodList{}
	if err := c.list(ctx, pods, "", metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		w := newWorkload(pod, "")
		f.own(w, pod, "apps/v1 ReplicaSet", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "batch/v1 Job")
		id := key(w.reference.Kind, pod.Namespace, pod.Name)
		for f.owners[id] != "" {
			id = f.owners[id]
		}
		at, known := f.positions[id]
		if !known {
			at = f.add(w)
		}
		f.found[at].pods = append(f.found[at].pods, *pod)
	}
	return nil
}

func (f *finder) add(w *workload) int {
	f.positions[key(w.reference.Kind, w.reference.Namespace, w.reference.Name)] = len(f.found)
	f.found = append(f.found, w)
	return len(f.found) - 1
}

// own records the object's controlling owner if by has its API version and kind, and reports whether it does.
func (f *finder) own(w *workload, o metav1.Object, by ...string) bool {
	owner := metav1.GetControllerOf(o)
	if owner == nil || !slices.Contains(by, owner.APIVersion+" "+owner.Kind) {
		return false
	}
	f.owners[key(w.reference.Kind, o.GetNamespace(), o.GetName())] = key(owner.Kind, o.GetNamespace(), owner.Name)
	return true
}

func key(kind, namespace, name string) string { return kind + " " + namespace + "/" + name }
