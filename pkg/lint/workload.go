package lint

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// SchedulerLabel is the label of namespaces whose pods get the scheduler in its value, by the component opt-in.
const SchedulerLabel = "poolpriority.dev/scheduler"

// Workload is an object that creates pods, or a pod without a controller.
type Workload struct {
	Kind, Namespace, Name string
	// Template is what new pods look like, and JudgedBy is what it was taken from; empty if that is plain.
	Template corev1.PodTemplateSpec
	JudgedBy string
	// Pods is the number of the workload's pods, OnBurst of those on nodes of burst pools, OtherScheduler of those with
	// another schedulerName than this scheduler's, and Ignored of those for which no scheduler has written a condition
	// for a minute. Expendable is the number of pods for which the cluster autoscaler adds no VM, because of their priority.
	Pods, OnBurst, OtherScheduler, Ignored, Expendable int
	// Ours is set if this scheduler schedules new pods of the workload. ByNamespace is set if the reason is a label of the
	// namespace.
	Ours, ByNamespace bool
	// CannotBurst is why no burst pool can run the workload's pods: a code and a sentence. It is empty if one can, or if
	// that is not known.
	CannotBurst string
	// Lost has the protections that the pods have on VMs.
	Lost gate.Lost
	// Unauthorized is an image of Azure Container Registry that the pods have no pull secret for; empty if there is none.
	Unauthorized string
	// Finishes is set if the pods end, and nothing deletes them soon afterwards.
	Finishes bool
	// Buffer is the name of a CapacityBuffer that names the workload by scalableRef; empty if there is none.
	Buffer string
}

func (w *Workload) String() string { return fmt.Sprintf("%s %s/%s", w.Kind, w.Namespace, w.Name) }

// checkWorkload checks the workload.
func (f *Facts) checkWorkload(w *Workload, add adder) {
	if plain := add; w.JudgedBy != "" {
		add = func(code string, severity Severity, object, see, remedy, format string, a ...any) {
			if slices.Contains([]string{"CannotBurst", "RunsDifferently", "NoPullSecret"}, code) {
				format, a = format+" (judged by %s)", append(a, w.JudgedBy)
			}
			plain(code, severity, object, see, remedy, format, a...)
		}
	}
	object := w.String()
	gateTaint := f.Pools.GateTaint()
	tolerations := w.Template.Spec.Tolerations
	selects := w.OnBurst > 0 || slices.ContainsFunc(f.BurstNodes, func(n corev1.Node) bool { return w.mayRunOn(&n) })
	switch {
	case w.Ignored > 0 && !w.Ours:
		add("UnknownScheduler", Error, object, "docs/troubleshooting.md", "correct schedulerName; this scheduler's is "+f.Scheduler,
			"it has %d pod(s) that no scheduler has looked at: nobody seems to run a scheduler %s", w.Ignored, w.Template.Spec.SchedulerName)
	case w.ByNamespace && w.OtherScheduler > 0:
		add("NotOptedIn", Info, object, "docs/migration.md", "kubectl rollout restart, or wait until its pods are replaced; if new pods are the same, the policy of the component opt-in is not installed",
			"its namespace has the label %s, but %d of its pod(s) have another scheduler", SchedulerLabel, w.OtherScheduler)
	case !w.Ours && f.Scheduler != "" && w.Template.Annotations[pool.BurstAnnotation] != "":
		add("NotOptedIn", Warning, object, "docs/migration.md", "set schedulerName: "+f.Scheduler, "it has the annotation %s, but another schedulerName", pool.BurstAnnotation)
	}
	if _, known := f.Pools.OrderOf(w.Template.Annotations); !known && w.Ours && f.Pools.Len() > 0 {
		add("UnknownOrder", Warning, object, "docs/configuration.md#orders", "correct the annotation "+pool.OrderAnnotation, "its pods do not burst: the configuration has no order %.63q", w.Template.Annotations[pool.OrderAnnotation])
	}
	if w.Ours && w.Expendable > 0 && f.Pools.Autoscaled() {
		add("ExpendablePriority", Warning, object, "docs/costs.md#headroom", "give the pods a priority from -10 to -1",
			"%d of its pod(s) have a priority below -10, so the cluster autoscaler adds no VM for them: if they are placeholders, it does not replace the room that others took", w.Expendable)
	}
	severity := Error
	if f.BurstNodes == nil { // it is not known whether the pods select one
		severity = Warning
	}
	if f.Pools.HasBurst() && ToleratesAll(tolerations) && w.Kind != "DaemonSet" && (selects || len(f.BurstNodes) == 0) { // autoscalers add no node for a DaemonSet
		add("ToleratesEverything", severity, object, "docs/security.md", "tolerate the taints by their keys",
			"it tolerates every taint, including the gate taint: an autoscaler computes that its pending pods fit a burst node, and adds no node for them")
	}
	if w.Ours {
		f.checkOurs(w, add)
		return
	}
	if f.Args != nil && *f.Args.GateTaint && selects && !corev1helpers.TolerationsTolerateTaint(klog.Background(), tolerations, &gateTaint, true) {
		message := "it can run on burst nodes now, but not once they have the gate taint"
		if w.OnBurst > 0 {
			message = fmt.Sprintf("it has %d pod(s) on burst nodes: these keep running, but new pods cannot run there once the nodes have the gate taint", w.OnBurst)
		}
		add("LockedOut", Error, object, "docs/migration.md", "if it is meant for burst nodes, select them by nodeSelector and tolerate {key: "+configv1.GateTaintKey+
			", operator: Exists, effect: NoSchedule}, or set schedulerName: "+f.Scheduler, "%s", message)
	}
}

// checkOurs checks a workload of this scheduler.
func (f *Facts) checkOurs(w *Workload, add adder) {
	if !f.Pools.HasBurst() {
		return
	}
	if w.CannotBurst != "" {
		add("CannotBurst", Info, w.String(), "docs/reasons.md", "", "its pods always wait for a VM: %s", w.CannotBurst)
		return
	}
	for i, p := range f.Pools.Burst() {
		var lost []string
		if f.Args == nil || !f.Args.Tenants {
			lost = w.Lost.In(p)
		}
		lost = append(lost, aci.Differences(&corev1.Pod{Spec: w.Template.Spec}, aci.PlatformOf(p.OnACI(), f.IsV2(i)))...)
		if len(lost) > 0 {
			pods := "its pods"
			if w.Pods > 0 {
				pods = fmt.Sprintf("its %d pod(s)", w.Pods)
			}
			add("RunsDifferently", Info, w.String(), "docs/aci.md#what-is-different-there-and-not-said", "", "in pool %s, %s run without %s", p.Name, pods, strings.Join(lost, "; without "))
		}
		if w.Buffer != "" && f.Pools.Autoscaled() && ptr.Deref(p.Burst.AddTolerations, true) {
			add("BufferCopiesBurstPods", Warning, w.String(), "docs/costs.md#headroom", "name a PodTemplate in the CapacityBuffer by podTemplateRef, or set burst.addTolerations: false in pool "+p.Name,
				"CapacityBuffer %s names it by scalableRef. When its newest pod runs in pool %s, the cluster autoscaler copies that pod's tolerations, and keeps no VM for the buffer", w.Buffer, p.Name)
		}
		if p.OnACI() && p.Burst.Tolerations == nil && f.Args.Mode != configv1.ModeObserve && !corev1helpers.TolerationsTolerateTaint(klog.Background(), w.Template.Spec.Tolerations, &corev1.Taint{Key: configv1.ProviderTaintKey, Value: "azure", Effect: corev1.TaintEffectNoSchedule}, true) {
			add("BeginsToBurst", Info, w.String(), "CHANGELOG.md", "to keep them on VMs, set burst.tolerations: [] in pool "+p.Name,
				"in pool %s, its pods burst from this version on: the pool has no tolerations, and %s is then tolerated for them", p.Name, configv1.ProviderTaintKey)
		}
		if p.OnACI() && w.Finishes {
			add("FinishedPodsStay", Info, w.String(), "docs/aci.md#jobs", "set ttlSecondsAfterFinished, such as 300, in the Job",
				"in pool %s, its finished pods may keep their container groups until the Job is deleted, and these may count towards Azure's quota", p.Name)
		}
		if p.OnACI() && w.Unauthorized != "" && !f.IsV2(i) { // virtual nodes v2 may pull by a managed identity
			add("NoPullSecret", Warning, w.String(), "docs/aci.md", "add an imagePullSecret to the pod template or the ServiceAccount",
				"in pool %s, its image %s may not be pulled: Container Instances do not use the kubelet's identity, and there is no imagePullSecret", p.Name, w.Unauthorized)
		}
	}
}

// IsV2 reports whether the burst pool with index i has virtual nodes v2.
func (f *Facts) IsV2(i int) bool {
	return slices.ContainsFunc(f.BurstNodes, func(n corev1.Node) bool { return f.Pools.Of(&n) == i && aci.IsV2(n.Labels) })
}

// ToleratesAll reports whether the tolerations tolerate every taint with the effect NoSchedule.
func ToleratesAll(tolerations []corev1.Toleration) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		return t.Key == "" && t.Operator == corev1.TolerationOpExists && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// mayRunOn reports whether the workload's pods select the node and tolerate its taints. It ignores the gate taint,
// taints with the effect PreferNoSchedule, and temporary taints (nodegroups.LastingTaints).
func (w *Workload) mayRunOn(node *corev1.Node) bool {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Labels: w.Template.Labels}, Spec: w.Template.Spec}
	if selected, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !selected {
		return false
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), nodegroups.LastingTaints(node.Spec.Taints), pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Key != configv1.GateTaintKey }, true)
	return !untolerated
}
