package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gate"
)

const kindPod = "Pod"

// kinds has the kinds that the command `explain` accepts, by kubectl's short names.
var kinds = map[string]schema.GroupVersionKind{
	"po":     corev1.SchemeGroupVersion.WithKind(kindPod),
	"deploy": appsv1.SchemeGroupVersion.WithKind("Deployment"),
	"rs":     appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	"sts":    appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
	"ds":     appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	"job":    batchv1.SchemeGroupVersion.WithKind("Job"),
	"cj":     batchv1.SchemeGroupVersion.WithKind("CronJob"),
}

// endOfName is, by kind, an end that is as long as what controllers usually append to the names of pods.
var endOfName = map[string]string{"Deployment": "-0123456789-01234", "ReplicaSet": "-01234", "StatefulSet": "-0", "DaemonSet": "-01234", "Job": "-01234", "CronJob": "-01234567-01234"}

// kindOf returns the kind that has the short, singular or plural name, and whether one of the kinds has that name.
func kindOf(name string) (schema.GroupVersionKind, bool) {
	name, _, _ = strings.Cut(strings.ToLower(name), ".") // deployment.apps
	for short, kind := range kinds {
		if singular := strings.ToLower(kind.Kind); name == short || strings.TrimSuffix(name, "s") == singular {
			return kind, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// parseObject parses an argument of the form POD or TYPE/NAME.
func parseObject(argument string) (kind schema.GroupVersionKind, name string, err error) {
	called, name, typed := strings.Cut(argument, "/")
	if !typed {
		return kinds["po"], argument, nil
	}
	kind, ok := kindOf(called)
	if !ok || name == "" || strings.Contains(name, "/") {
		return kind, "", fmt.Errorf("%s: name a pod, or one of deployment, replicaset, statefulset, daemonset, job and cronjob, such as deploy/web", argument)
	}
	return kind, name, nil
}

// workload is a pod, or an object whose controller creates pods.
type workload struct {
	reference corev1.ObjectReference
	kind      schema.GroupVersionKind
	uid       types.UID
	template  *corev1.PodTemplateSpec
	selector  *metav1.LabelSelector          // nil for a pod and for a CronJob
	claims    []corev1.PersistentVolumeClaim // the volumeClaimTemplates of a StatefulSet
	finishes  bool                           // the pods end, and no time is set after which they are deleted
	pods      []corev1.Pod
	nodes     map[string]*corev1.Node // by name; see nodesOf
	sample    *corev1.Pod             // a new pod as the API server makes it; nil if only the template is known
	judgedBy  string                  // what a new pod is taken from; empty for a pod, a DaemonSet, and without a cluster
}

// newWorkload converts an object of one of the kinds to a workload. For any other kind, it returns nil.
func newWorkload(object runtime.Object, namespace string) *workload {
	w := &workload{}
	switch x := object.(type) {
	case *corev1.Pod:
		w.template = &corev1.PodTemplateSpec{ObjectMeta: x.ObjectMeta, Spec: x.Spec}
	case *appsv1.Deployment:
		w.template, w.selector = &x.Spec.Template, x.Spec.Selector
	case *appsv1.ReplicaSet:
		w.template, w.selector = &x.Spec.Template, x.Spec.Selector
	case *appsv1.StatefulSet:
		w.template, w.selector, w.claims = &x.Spec.Template, x.Spec.Selector, x.Spec.VolumeClaimTemplates
	case *appsv1.DaemonSet:
		w.template, w.selector = &x.Spec.Template, x.Spec.Selector
	case *batchv1.Job:
		w.template, w.selector, w.finishes = &x.Spec.Template, x.Spec.Selector, x.Spec.TTLSecondsAfterFinished == nil
	case *batchv1.CronJob:
		w.template = &x.Spec.JobTemplate.Spec.Template // it keeps few Jobs
	default:
		return nil
	}
	w.kind = kindOfObject(object)
	meta := object.(metav1.Object)
	w.uid = meta.GetUID()
	w.reference = corev1.ObjectReference{Kind: w.kind.Kind, Namespace: cmp.Or(meta.GetNamespace(), namespace), Name: cmp.Or(meta.GetName(), meta.GetGenerateName())}
	return w
}

// readPods reads the workload's pods, and the nodes that determine the pools of these pods.
func (e *explainer) readPods(ctx context.Context, c *cluster) {
	w, list := e.workload, &corev1.PodList{}
	if w.selector == nil {
		return
	}
	match, err := metav1.LabelSelectorAsSelector(w.selector)
	if err == nil {
		err = c.list(ctx, list, c.namespace, metav1.ListOptions{LabelSelector: match.String()})
	}
	if err != nil {
		e.note("Its pods are not counted: %v.", err)
		return
	}
	w.pods = list.Items
	if w.nodes, err = c.nodesOf(ctx, w.pods, e.published, 20); err != nil {
		e.note("The pools of some of its pods are not shown: %v.", err)
	}
}

// newPod returns the pod that the workload would create now: the sample or, without one, a pod of the template.
func (w *workload) newPod() *corev1.Pod {
	if w.sample != nil {
		return w.sample.DeepCopy()
	}
	pod := &corev1.Pod{ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = w.reference.Namespace, w.reference.Name+endOfName[w.reference.Kind]
	for i := range w.claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: w.claims[i].Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.claims[i].Name + "-" + w.reference.Name + "-0"}}})
	}
	if w.reference.Kind == kindPod {
		return pod
	}
	owner := metav1.NewControllerRef(&metav1.ObjectMeta{Name: w.reference.Name, UID: w.uid}, w.kind)
	owner.Kind = cmp.Or(map[string]string{"Deployment": "ReplicaSet", "CronJob": "Job"}[w.reference.Kind], owner.Kind)
	pod.OwnerReferences = []metav1.OwnerReference{*owner}
	return pod
}

// readSample sets the sample, because admission, such as a LimitRange or a webhook that injects a sidecar, changes the pods
// of a template. The sample is the workload's newest pod. For a workload without pods, it is a new pod that the API server
// makes by a dry run, unless c is nil. A DaemonSet makes each pod for its node, so it has no sample.
func (w *workload) readSample(ctx context.Context, c *cluster) (err error) {
	if w.reference.Kind == kindPod || w.reference.Kind == "DaemonSet" {
		return nil
	}
	var made *corev1.Pod
	name := w.newPod().Name
	for i := range w.pods {
		if p := &w.pods[i]; metav1.GetControllerOfNoCopy(p) != nil && (made == nil || made.CreationTimestamp.Before(&p.CreationTimestamp)) {
			made, name, w.judgedBy = p, p.Name, "its newest pod, "+p.Name
		}
	}
	if made == nil && c == nil {
		return nil
	} else if made == nil {
		w.judgedBy = "a dry run of a new pod"
		if made, err = c.dryRun(ctx, w.newPod()); err != nil {
			w.judgedBy = "its template: " + err.Error()
			return err
		}
	}
	w.sample = &corev1.Pod{Spec: *made.Spec.DeepCopy(), ObjectMeta: metav1.ObjectMeta{
		Namespace: w.reference.Namespace, Name: name, Labels: made.Labels, Annotations: made.Annotations, OwnerReferences: made.OwnerReferences}}
	if made.Spec.NodeName != "" && slices.ContainsFunc(made.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == configv1.GateTaintKey }) {
		w.sample.Spec.Tolerations = w.template.Spec.Tolerations // the controller added those of a burst pool
	}
	w.sample.Spec.NodeName, w.sample.Spec.EphemeralContainers = "", nil
	return nil
}

// dryRun returns the pod as the API server would create it, and creates nothing.
func (c *cluster) dryRun(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	owner := &pod.OwnerReferences[0]
	pod.Name, pod.GenerateName = "", owner.Name+"-"
	owner.UID, owner.BlockOwnerDeletion = cmp.Or(owner.UID, "new"), nil // the owner in a file has no UID
	made, err := c.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case denial.WithoutRight(err):
		err = errors.New("you may not create pods in its namespace")
	case err != nil: // the API server names the pod
		err = fmt.Errorf("a dry run of a new pod fails: %s", strings.ReplaceAll(oneLine(err).Error(), pod.GenerateName, ""))
	}
	return made, err
}

// ofWorkload explains a workload. It shows the number of pods in each pool, and the gate's decision for a new pod.
func (e *explainer) ofWorkload() string {
	e.Situation = Template
	if !e.isOurs() {
		return e.ofOthers()
	}
	predicate, waiting := "", ""
	if e.workload.pods != nil {
		waiting = e.count()
		predicate = ": " + byPoolText(e.Pods, e.published)
	}
	if waiting != "" {
		e.fact("Pending pods", "%s", waiting)
	}
	e.addLockedOut()
	if e.published != nil {
		e.addNewPod()
	}
	return predicate
}

// addNewPod adds the gate's decision for a new pod of the workload.
func (e *explainer) addNewPod() {
	e.ask(e.pod)
	e.CannotBurst = e.never()
	open, holder := cmp.Or(e.named(verdictOpen)...), cmp.Or(e.named(verdictHolds)...)
	switch {
	case e.CannotBurst != "":
		e.fact("A new pod", "cannot burst: %s", e.CannotBurst)
		e.addHints()
	case open != "":
		e.fact("A new pod", "would be let into %s", open)
	case holder != "":
		e.fact("A new pod", "would wait for %s", holder)
	default:
		e.fact("A new pod", "would wait")
	}
	e.fact("Room", "not checked: the decision above applies if no VM has room for the pod")
}

// count counts the workload's pods by pool. It returns the reasons why pods are pending, with the number of pods for
// each reason.
func (e *explainer) count() string {
	e.Pods = map[string]int{}
	reasons := map[string]int{}
	for i := range e.workload.pods {
		p := &e.workload.pods[i]
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		where := ""
		if p.Spec.NodeName == "" {
			for _, code := range codesOf(p) {
				reasons[code]++
			}
		} else if name, known := e.published.poolOf(p, e.workload.nodes); known {
			where = cmp.Or(name, "(no pool)")
		} else {
			where = "(not known)"
		}
		e.Pods[where]++
	}
	codes := slices.SortedFunc(maps.Keys(reasons), func(a, b string) int { return cmp.Or(reasons[b]-reasons[a], cmp.Compare(a, b)) })
	for i, code := range codes {
		codes[i] = fmt.Sprintf("%d %s", reasons[code], code)
	}
	return strings.Join(codes, ", ")
}

// codesOf returns the codes of the reasons in a pending pod's condition PodScheduled.
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

// byPoolText formats the number of pods in each pool, in the order of the pools, such as "9 user · 3 system · 4 aci · 2
// wait".
func byPoolText(pods map[string]int, p *publishedState) string {
	var parts []string
	for _, name := range inOrder(pods, p) {
		if name != "" {
			parts = append(parts, fmt.Sprintf("%d %s", pods[name], name))
		}
	}
	if n := pods[""]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d wait", n))
	}
	return cmp.Or(strings.Join(parts, " · "), "no pods")
}
