package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// workload is what makes pods.
type workload struct {
	reference ObjectReference
	version   string // the group and version of its kind
	uid       types.UID
	template  corev1.PodTemplateSpec
	claims    []corev1.PersistentVolumeClaim // of a StatefulSet
	pods      []corev1.Pod
	// nodes are those of the pods that do not say in which pool they are.
	nodes map[string]*corev1.Node
	notes []string
}

// newWorkload returns what the object of the kind makes pods from; nil if it makes none.
func newWorkload(object runtime.Object, kind, namespace string) *workload {
	template, _ := templateOf(object)
	meta, ok := object.(metav1.Object)
	if template == nil || !ok {
		return nil
	}
	w := &workload{
		reference: ObjectReference{Kind: kind, Namespace: cmp.Or(meta.GetNamespace(), namespace), Name: cmp.Or(meta.GetName(), meta.GetGenerateName())},
		version:   "apps/v1", uid: meta.GetUID(), template: *template,
	}
	if kind == kindJob || kind == kindCronJob {
		w.version = "batch/v1"
	}
	if set, ok := object.(*appsv1.StatefulSet); ok {
		w.claims = set.Spec.VolumeClaimTemplates
	}
	return w
}

// workload reads the workload and its pods.
func (c *cluster) workload(ctx context.Context, kind, name string) (*workload, error) {
	object, err := c.get(ctx, kind, name)
	if err != nil {
		return nil, c.plainly(fmt.Sprintf("get %ss/%s in %s", strings.ToLower(kind), name, c.namespace), err)
	}
	w := newWorkload(object, kind, c.namespace)
	_, selector := templateOf(object)
	if selector == nil {
		return w, nil // its pods are others'
	}
	match, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("reading the selector of %s: %w", w.reference.name(), err)
	}
	list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: match.String()})
	if err != nil {
		w.notes = append(w.notes, fmt.Sprintf("Its pods are not counted: %v.", c.plainly("list pods in "+c.namespace, err)))
		return w, nil
	}
	w.pods = list.Items
	c.findNodes(ctx, w)
	return w, nil
}

// findNodes reads the nodes of pods that do not say in which pool they are.
func (c *cluster) findNodes(ctx context.Context, w *workload) {
	const most = 20 // nodes that are read one by one
	names := map[string]bool{}
	for i := range w.pods {
		if p := &w.pods[i]; p.Spec.NodeName != "" && p.Annotations[scalein.PoolAnnotation] == "" {
			names[p.Spec.NodeName] = true
		}
	}
	if len(names) == 0 {
		return
	}
	w.nodes = map[string]*corev1.Node{}
	if len(names) > most {
		list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			w.notes = append(w.notes, fmt.Sprintf("Where %d of its pods are is not shown: %v.", len(names), c.plainly("list nodes", err)))
			return
		}
		for i := range list.Items {
			w.nodes[list.Items[i].Name] = &list.Items[i]
		}
		return
	}
	for name := range names {
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			w.notes = append(w.notes, fmt.Sprintf("Where some of its pods are is not shown: %v.", c.plainly("get nodes/"+name, err)))
			return
		}
		w.nodes[name] = node
	}
}

// newPod is a pod as the workload would make one now.
func (w *workload) newPod() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = w.reference.Namespace, w.reference.Name
	for i := range w.claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: w.claims[i].Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.claims[i].Name + "-" + w.reference.Name + "-0"}}})
	}
	owner := metav1.NewControllerRef(&metav1.ObjectMeta{Name: w.reference.Name, UID: w.uid}, schema.FromAPIVersionAndKind(w.version, w.reference.Kind))
	switch w.reference.Kind {
	case kindPod:
		return pod
	case kindDeployment, kindCronJob: // what makes their pods is that which made the last one
		owner.Kind = map[string]string{kindDeployment: kindReplicaSet, kindCronJob: kindJob}[w.reference.Kind]
		if last := w.last(); last != nil {
			owner = last
		}
	}
	pod.OwnerReferences = []metav1.OwnerReference{*owner}
	return pod
}

// last is what controls the youngest pod that was made from the template; nil if there is none.
func (w *workload) last() *metav1.OwnerReference {
	var youngest *corev1.Pod
	for i := range w.pods {
		p := &w.pods[i]
		if metav1.GetControllerOf(p) != nil && (youngest == nil || youngest.CreationTimestamp.Before(&p.CreationTimestamp)) {
			youngest = p
		}
	}
	if youngest == nil {
		return nil
	}
	return metav1.GetControllerOf(youngest)
}

// ofWorkload explains what makes pods: where they are, and what holds for a new one.
func (s *subject) ofWorkload(e *Explanation, now time.Time) {
	e.Situation = Template
	w := s.workload
	e.Notes = append(e.Notes, w.notes...)
	if !s.isOurs(s.pod) {
		s.ofOthers(e)
		return
	}
	waiting := s.count(e)
	e.Summary = e.who()
	if text := e.podsText(s.published); text != "" {
		e.Summary += ": " + text
	}
	if waiting != "" {
		e.Facts = append(e.Facts, Fact{"Those that wait", waiting})
	}
	s.addLockedOut(e)
	if s.published == nil {
		return
	}
	a := s.published.ask(s.pod, &s.facts, now)
	e.Pools, e.CannotBurst = a.verdicts(), a.never()
	switch open := a.opens(); {
	case !s.published.pools.HasBurst():
	case e.CannotBurst != "":
		e.Facts = append(e.Facts, Fact{"A new pod", "cannot burst: " + e.CannotBurst})
		e.Advice = append(e.Advice, hints(e.Pools)...)
	case open != "":
		e.Facts = append(e.Facts, Fact{"A new pod", "would be let into " + open})
	case a.holder() != "":
		e.Facts = append(e.Facts, Fact{"A new pod", "would wait for " + a.holder()})
	default:
		e.Facts = append(e.Facts, Fact{"A new pod", "would wait"})
	}
	e.Facts = append(e.Facts, Fact{"Room", "not looked for: this is what holds if no node has room for the pod"})
}

// count counts the workload's pods by where they are, and returns what those wait for that wait.
func (s *subject) count(e *Explanation) string {
	w := s.workload
	if w.pods == nil {
		return ""
	}
	e.Pods = map[string]int{}
	reasons := map[string]int{}
	for i := range w.pods {
		p := &w.pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if p.Spec.NodeName == "" {
			e.Pods[""]++
			for _, code := range codesOf(p) {
				reasons[code]++
			}
			continue
		}
		e.Pods[s.poolOf(p)]++
	}
	codes := make([]string, 0, len(reasons))
	for code := range reasons {
		codes = append(codes, code)
	}
	slices.SortFunc(codes, func(a, b string) int { return cmp.Or(reasons[b]-reasons[a], cmp.Compare(a, b)) })
	for i, code := range codes {
		codes[i] = fmt.Sprintf("%d %s", reasons[code], code)
	}
	return strings.Join(codes, ", ")
}

// elsewhere counts pods on nodes that are in no pool, and unknown those of which it is not known where they are.
const elsewhere, unknown = "(no pool)", "(not known)"

// poolOf is the name of the pool that a pod with a node is in.
func (s *subject) poolOf(p *corev1.Pod) string {
	if name := p.Annotations[scalein.PoolAnnotation]; name != "" {
		return name
	}
	node := s.workload.nodes[p.Spec.NodeName]
	if node == nil || s.published == nil {
		return unknown
	}
	if i := s.published.pools.Of(node.Labels); i != pool.None {
		return s.published.pools.At(i).Name
	}
	return elsewhere
}

// codesOf are the codes of what the scheduler said of a pod that waits.
func codesOf(p *corev1.Pod) []string {
	condition := gate.ScheduledCondition(p)
	if condition == nil {
		return []string{string(NotTried)}
	}
	if condition.Reason == corev1.PodReasonSchedulingGated {
		return []string{string(SchedulingGated)}
	}
	var codes []string
	for _, reason := range saidOf(condition.Message) {
		codes = append(codes, reason.Code)
	}
	if len(codes) == 0 {
		return []string{condition.Reason}
	}
	return codes
}

// podsText is the pods by pool, in the order of the pools: "9 user · 3 system · 4 aci · 2 wait".
func (e *Explanation) podsText(p *publishedState) string {
	if e.Pods == nil {
		return ""
	}
	var names []string
	if p != nil {
		for i := range p.pools.Len() {
			names = append(names, p.pools.At(i).Name)
		}
	}
	var others []string
	for name := range e.Pods {
		if name != "" && !slices.Contains(names, name) {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	var parts []string
	for _, name := range append(names, others...) {
		if n := e.Pods[name]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	if n := e.Pods[""]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d wait", n))
	}
	if len(parts) == 0 {
		return "no pods"
	}
	return strings.Join(parts, " · ")
}
