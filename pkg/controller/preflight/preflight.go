// Package preflight finds the workloads that conflict with the gate taint. These are workloads of other schedulers that
// the gate taint would lock out of burst nodes, and workloads that tolerate every taint, including the gate taint.
package preflight

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Workload is an object that creates pods, or a pod without a controller.
type Workload struct {
	Kind, Namespace, Name string
	Template              corev1.PodTemplateSpec
	// Pods is the number of the workload's pods, and OnBurst is the number of those on nodes of burst pools.
	Pods, OnBurst int
}

// pod returns a pod of the workload.
func (w *Workload) pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: w.Template.Labels}, Spec: w.Template.Spec}
}

func (w *Workload) String() string { return fmt.Sprintf("%s %s/%s", w.Kind, w.Namespace, w.Name) }

// Finding is a workload and the problem with it.
type Finding struct {
	Workload *Workload
	// Message describes the effect of the problem and what the user should do.
	Message string
}

// Report lists the findings of a preflight.
type Report struct {
	// LockedOut lists workloads of other schedulers that run or could run on burst nodes and do not tolerate the gate
	// taint.
	LockedOut []Finding
	// TolerateAll lists the workloads of any scheduler that tolerate every taint. It leaves out DaemonSets, because
	// autoscalers never add nodes for pods of DaemonSets.
	TolerateAll []Finding
	// Losing lists the workloads of this scheduler whose pods lose protections in a burst pool.
	Losing []Finding
	// BurstNodes lists the names of the nodes of burst pools.
	BurstNodes []string
}

// Clean reports whether no workload conflicts with the gate taint.
func (r *Report) Clean() bool { return len(r.LockedOut)+len(r.TolerateAll) == 0 }

// Check returns the report on the workloads. schedulers are the scheduler names of our own profiles. protections
// returns the protections of a pod.
func Check(pools pool.List, schedulers []string, nodes []corev1.Node, workloads []Workload, protections func(*corev1.Pod) gate.Lost) *Report {
	r, gateTaint := &Report{}, pools.GateTaint()
	var burst []*corev1.Node
	for i := range nodes {
		if pools.IsBurstNode(nodes[i].Labels) {
			burst = append(burst, &nodes[i])
			r.BurstNodes = append(r.BurstNodes, nodes[i].Name)
		}
	}
	slices.Sort(r.BurstNodes)
	for i := range workloads {
		w := &workloads[i]
		spec := &w.Template.Spec
		ours := slices.Contains(schedulers, cmp.Or(spec.SchedulerName, corev1.DefaultSchedulerName))
		if toleratesAll(spec.Tolerations) && w.Kind != "DaemonSet" {
			r.TolerateAll = append(r.TolerateAll, Finding{w, "tolerates every taint, including the gate taint: an autoscaler assumes that its pending pods fit a burst node, " +
				"and adds no node for them; tolerate the taints by their keys"})
		}
		if ours {
			for p := range pools.Burst() {
				if lost := protections(w.pod()).In(pools.At(p)); len(lost) > 0 {
					r.Losing = append(r.Losing, Finding{w, fmt.Sprintf("in pool %s, its %d pod(s) run without %s", pools.At(p).Name, w.Pods, strings.Join(lost, " and "))})
				}
			}
		}
		if ours || corev1helpers.TolerationsTolerateTaint(klog.Background(), spec.Tolerations, &gateTaint, true) {
			continue
		}
		if w.OnBurst == 0 && !slices.ContainsFunc(burst, func(n *corev1.Node) bool { return mayRunOn(w, n) }) {
			continue
		}
		message := "can run on burst nodes now, but not once they have the gate taint"
		if w.OnBurst > 0 {
			message = fmt.Sprintf("has %d pod(s) on burst nodes: these keep running, but new pods cannot run there once the nodes have the gate taint", w.OnBurst)
		}
		r.LockedOut = append(r.LockedOut, Finding{w, message + "; if the workload is meant for burst nodes, select these nodes by nodeSelector and add the toleration " +
			"{key: " + configv1.GateTaintKey + ", operator: Exists, effect: NoSchedule}, or set schedulerName to this scheduler"})
	}
	return r
}

func toleratesAll(tolerations []corev1.Toleration) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// mayRunOn reports whether the workload's pods select the node and tolerate its taints. It ignores the gate taint,
// taints with the effect PreferNoSchedule, and temporary taints (see passing).
func mayRunOn(w *Workload, node *corev1.Node) bool {
	pod := w.pod()
	if selected, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !selected {
		return false
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != configv1.GateTaintKey && !passing(t)
	}, true)
	return !untolerated
}

// Protections reads the NetworkPolicies and the namespaces of the cluster. It returns a function that returns the
// protections of a pod.
func Protections(ctx context.Context, c client.Reader) (func(*corev1.Pod) gate.Lost, error) {
	namespaces, policies := &corev1.NamespaceList{}, &networkingv1.NetworkPolicyList{}
	for _, list := range []client.ObjectList{namespaces, policies} {
		if err := c.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	byName, of := map[string]*corev1.Namespace{}, map[string][]*gate.Policy{}
	for i := range namespaces.Items {
		byName[namespaces.Items[i].Name] = &namespaces.Items[i]
	}
	for i := range policies.Items {
		p := &policies.Items[i]
		of[p.Namespace] = append(of[p.Namespace], gate.NewPolicy(p))
	}
	return func(pod *corev1.Pod) gate.Lost { return gate.LostBy(pod, byName[pod.Namespace], of[pod.Namespace]) }, nil
}

// passing reports whether the taint is temporary. Cordons, startup taints and the taints of node conditions are
// temporary.
func passing(t *corev1.Taint) bool { return len(nodegroups.LastingTaints([]corev1.Taint{*t})) == 0 }

// Workloads lists the workloads of the cluster. It does not list a Deployment's ReplicaSets or a CronJob's Jobs. Their
// pods count as pods of the Deployment or the CronJob.
func Workloads(ctx context.Context, c client.Reader, pools pool.List, nodes []corev1.Node) ([]Workload, error) {
	f := finder{position: map[string]int{}, owners: map[string]string{}}
	if err := f.findTemplates(ctx, c); err != nil {
		return nil, err
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods); err != nil {
		return nil, fmt.Errorf("listing %T: %w", pods, err)
	}
	onBurst := map[string]bool{}
	for i := range nodes {
		onBurst[nodes[i].Name] = pools.IsBurstNode(nodes[i].Labels)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			at := f.workloadOf(pod)
			f.found[at].Pods++
			if onBurst[pod.Spec.NodeName] {
				f.found[at].OnBurst++
			}
		}
	}
	return f.found, nil
}

// finder collects workloads.
type finder struct {
	found    []Workload
	position map[string]int    // index in found, by the workload's key
	owners   map[string]string // from an object's key to its owner's key
}

func (f *finder) add(kind string, o metav1.Object, template corev1.PodTemplateSpec) {
	f.position[key(kind, o.GetNamespace(), o.GetName())] = len(f.found)
	f.found = append(f.found, Workload{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Template: template})
}

// own returns true if the argument by lists the API version and kind of the object's controlling owner. In this case,
// own also records the owner.
func (f *finder) own(kind string, o metav1.Object, by ...string) bool {
	owner := metav1.GetControllerOf(o)
	if owner == nil || !slices.Contains(by, owner.APIVersion+" "+owner.Kind) {
		return false
	}
	f.owners[key(kind, o.GetNamespace(), o.GetName())] = key(owner.Kind, o.GetNamespace(), owner.Name)
	return true
}

// findTemplates adds all objects that have a pod template and do not belong to another workload.
func (f *finder) findTemplates(ctx context.Context, c client.Reader) error {
	lists := []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &batchv1.CronJobList{}, &appsv1.ReplicaSetList{}, &batchv1.JobList{}}
	for _, list := range lists {
		if err := c.List(ctx, list); err != nil {
			return fmt.Errorf("listing %T: %w", list, err)
		}
		if err := meta.EachListItem(list, f.addTemplate); err != nil {
			return err
		}
	}
	return nil
}

// addTemplate adds the object, unless it belongs to another workload.
func (f *finder) addTemplate(object runtime.Object) error {
	switch o := object.(type) {
	case *appsv1.Deployment:
		f.add("Deployment", o, o.Spec.Template)
	case *appsv1.StatefulSet:
		f.add("StatefulSet", o, o.Spec.Template)
	case *appsv1.DaemonSet:
		f.add("DaemonSet", o, o.Spec.Template)
	case *batchv1.CronJob:
		f.add("CronJob", o, o.Spec.JobTemplate.Spec.Template)
	case *appsv1.ReplicaSet:
		if !f.own("ReplicaSet", o, "apps/v1 Deployment") {
			f.add("ReplicaSet", o, o.Spec.Template)
		}
	case *batchv1.Job:
		if !f.own("Job", o, "batch/v1 CronJob") {
			f.add("Job", o, o.Spec.Template)
		}
	}
	return nil
}

// workloadOf returns the index of the workload that the pod belongs to. If there is no such workload, workloadOf adds
// the pod as a workload of its own.
func (f *finder) workloadOf(pod *corev1.Pod) int {
	f.own("Pod", pod, "apps/v1 ReplicaSet", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "batch/v1 Job")
	id := key("Pod", pod.Namespace, pod.Name)
	for f.owners[id] != "" {
		id = f.owners[id]
	}
	at, known := f.position[id]
	if !known {
		at = len(f.found)
		f.add("Pod", pod, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec})
	}
	return at
}

func key(kind, namespace, name string) string { return kind + " " + namespace + "/" + name }
