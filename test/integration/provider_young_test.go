package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/azure"
	"poolpriority.dev/scheduler/test/devcluster/virtualnode"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// unreadableAnswers lists Azure's answers to the GET of a container group that is still being created. If the pod
// changes after such an answer, virtual-kubelet creates the container group a second time.
var unreadableAnswers = []struct {
	name string
	set  func(*azure.Region)
}{
	{"no view", func(a *azure.Region) { a.SetInstanceView(azure.ViewNone) }},
	{"no containers' view", func(a *azure.Region) { a.SetInstanceView(azure.ViewGroup) }},
	{"lagging", func(a *azure.Region) { a.SetGetLag(2 * time.Second) }},
	{"throttled", func(a *azure.Region) { a.SetGetThrottle(4 * time.Second) }},
}

// onVirtualNodeOnly brings up a cluster in which all our pods burst, because its only VM is cordoned and the pool never
// grows. Groups are in transition for createTime.
func onVirtualNodeOnly(t *testing.T, createTime time.Duration) *env {
	t.Helper()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.updateNode(e.nodesOf("userpool")[0].Name, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	e.VirtualNode.Azure().SetCreateTime(createTime)
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	return e
}

// TestStartingPods: our changes to pods do no harm while the container groups are in transition, whatever Azure answers
// then. Each pod's container group is created once. All pods become ready or complete, including the pods that our
// scheduler did not bind.
func TestStartingPods(t *testing.T) {
	t.Parallel()
	e := onVirtualNodeOnly(t, 3*time.Second)
	e.control("testdata/fixed.yaml")
	e.waitGated(true)
	for i, way := range unreadableAnswers {
		t.Run(way.name, func(t *testing.T) {
			e := e.of(t)
			kind := e.kind()
			way.set(e.VirtualNode.Azure())
			defer kind()
			w := startingPods(fmt.Sprintf("young-%d", i))
			e.createWorkloads(w)
			settled := e.settles(30*time.Second, w)
			lost, puts, orphans := e.damage(w.prefix)
			t.Logf("%d pods, lost: %d; PUTs of a pod: %s; groups that run orphaned: %d", len(e.podsOf(w.prefix)), len(lost), puts, len(orphans))
			if settled != "" {
				t.Error(settled)
			}
			if len(lost)+len(orphans) > 0 || puts != fmt.Sprintf("1 (%d pods)", w.pods()) {
				t.Errorf("want %d pods with one PUT each, none lost and no group orphaned; lost: %v", w.pods(), names(lost))
			}
			e.removeWorkloads(w)
		})
	}
}

// kind returns a function that makes the simulated Azure return readable answers again.
func (e *env) kind() func() {
	a := e.VirtualNode.Azure()
	return func() {
		a.SetInstanceView(azure.ViewWaiting)
		a.SetGetLag(0)
		a.SetGetThrottle(0)
	}
}

// workloads are of all kinds. The names of their pods begin with the prefix.
type workloads struct {
	prefix      string
	deployments []*appsv1.Deployment
	set         *appsv1.StatefulSet
	jobs        []*batchv1.Job
}

// startingPods returns a Deployment of 50 pods, 20 Jobs, a StatefulSet of three pods, and ten pods with a nodeName,
// five of which tolerate every taint.
func startingPods(prefix string) *workloads {
	bound := func(t *corev1.PodTemplateSpec) { t.Spec.NodeName = devcluster.VirtualNodeName }
	all := func(t *corev1.PodTemplateSpec) {
		t.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	w := &workloads{prefix: prefix, deployments: []*appsv1.Deployment{
		suite.Deployment(prefix+"-web", 50, "100m", endsFast),
		suite.Deployment(prefix+"-bound", 5, "100m", endsFast, bound),
		suite.Deployment(prefix+"-tolerant", 5, "100m", endsFast, bound, all),
	}}
	template := suite.Deployment(prefix+"-set", 0, "100m", endsFast).Spec.Template
	w.set = &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: prefix + "-set", Namespace: namespace},
		Spec:       appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3), Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}
	for i := range 20 {
		name := fmt.Sprintf("%s-job-%d", prefix, i)
		template := suite.Deployment(name, 0, "100m", endsFast, annotated(virtualnode.RunsForAnnotation, "1s")).Spec.Template
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		if i%2 == 1 {
			template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
		}
		w.jobs = append(w.jobs, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Spec: batchv1.JobSpec{Template: template}})
	}
	return w
}

// pods returns the number of pods of the workloads.
func (w *workloads) pods() int {
	n := int(*w.set.Spec.Replicas) + len(w.jobs)
	for _, d := range w.deployments {
		n += int(*d.Spec.Replicas)
	}
	return n
}

func (e *env) createWorkloads(w *workloads) {
	e.Helper()
	for _, d := range w.deployments {
		e.Create(d)
	}
	must.Do(e)(e.Client.AppsV1().StatefulSets(namespace).Create(e.ctx, w.set, metav1.CreateOptions{}))
	for _, j := range w.jobs {
		must.Do(e)(e.Client.BatchV1().Jobs(namespace).Create(e.ctx, j, metav1.CreateOptions{}))
	}
}

// removeWorkloads deletes the workloads, and waits until their pods and groups are gone.
func (e *env) removeWorkloads(w *workloads) {
	e.Helper()
	background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	for _, d := range w.deployments {
		if err := e.Client.AppsV1().Deployments(namespace).Delete(e.ctx, d.Name, background); err != nil {
			e.Error(err)
		}
	}
	if err := e.Client.AppsV1().StatefulSets(namespace).Delete(e.ctx, w.set.Name, background); err != nil {
		e.Error(err)
	}
	for _, j := range w.jobs {
		if err := e.Client.BatchV1().Jobs(namespace).Delete(e.ctx, j.Name, background); err != nil {
			e.Error(err)
		}
	}
	e.Eventually(60*time.Second, func() string {
		exist := 0
		for _, g := range e.groupsOf(w.prefix) {
			if g.Deleted.IsZero() {
				exist++
			}
		}
		if pods := len(e.podsOf(w.prefix)); pods+exist > 0 {
			return fmt.Sprintf("%d pods and %d groups are left over", pods, exist)
		}
		return ""
	})
}

// settles waits until the workloads' pods are ready and their Jobs are complete. If that takes too long, it returns an
// error text.
func (e *env) settles(timeout time.Duration, w *workloads) string {
	e.Helper()
	var complaint string
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		ready, complete, failed := 0, 0, 0
		for _, p := range e.podsOf(w.prefix) {
			if podutil.IsPodReady(&p) && p.Status.Phase == corev1.PodRunning {
				ready++
			}
		}
		jobs := must.Get(e.Client.BatchV1().Jobs(namespace).List(e.ctx, metav1.ListOptions{}))(e)
		for _, j := range jobs.Items {
			if strings.HasPrefix(j.Name, w.prefix+"-") {
				complete += int(j.Status.Succeeded)
				failed += int(j.Status.Failed)
			}
		}
		if ready >= w.pods()-len(w.jobs) && complete == len(w.jobs) {
			return ""
		}
		complaint = fmt.Sprintf("%d of %d pods are ready; %d of %d Jobs complete, and %d of their pods failed", ready, w.pods()-len(w.jobs), complete, len(w.jobs), failed)
	}
	return complaint
}

// podsOf returns the pods whose names begin with the prefix.
func (e *env) podsOf(prefix string) []corev1.Pod {
	e.Helper()
	return slices.DeleteFunc(e.Pods(""), func(p corev1.Pod) bool { return !strings.HasPrefix(p.Name, prefix+"-") })
}

// groupsOf returns all container groups that were ever created for pods whose names begin with the prefix.
func (e *env) groupsOf(prefix string) []azure.Group {
	return slices.DeleteFunc(e.VirtualNode.Azure().Groups(), func(g azure.Group) bool { return !strings.HasPrefix(g.Pod, prefix+"-") })
}

// damage returns the pods that are lost, a summary of the numbers of PUTs for a pod, and the groups that run without a
// running pod.
func (e *env) damage(prefix string) (lost []corev1.Pod, puts string, orphans []azure.Group) {
	e.Helper()
	groups := e.groupsOf(prefix) // before the pods, because a pod's status follows its group
	pods := e.podsOf(prefix)
	ofPod, times := map[types.UID]int{}, map[int]int{}
	for _, p := range e.VirtualNode.Azure().Puts() {
		if strings.HasPrefix(p.Pod, prefix+"-") {
			ofPod[p.UID]++
		}
	}
	for _, n := range ofPod {
		times[n]++
	}
	var summary []string
	for _, n := range slices.Sorted(maps.Keys(times)) {
		summary = append(summary, fmt.Sprintf("%d (%d pods)", n, times[n]))
	}
	return virtualnode.FailedStart(pods), strings.Join(summary, ", "), azure.Orphans(groups, pods)
}

func names(pods []corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name)
	}
	return names
}
