package integration

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/azure"
	"poolpriority.dev/scheduler/test/devcluster/virtualnode"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestStartingPods: our changes to pods do no harm while the container groups are in transition and Azure's answers have
// no view of them. (If a pod changed then, virtual-kubelet would create its group a second time: TestFailedStart in
// package virtualnode.) All pods become ready or complete, including the pods that our scheduler did not bind.
func TestStartingPods(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.updateNode(e.nodesOf("userpool")[0].Name, func(n *corev1.Node) { n.Spec.Unschedulable = true }) // all our pods burst
	region := e.VirtualNode.Azure()
	region.SetCreateTime(3 * time.Second)
	region.SetInstanceView(azure.ViewNone)
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	e.control("testdata/fixed.yaml")
	e.waitGated(true)
	bound := func(t *corev1.PodTemplateSpec) { t.Spec.NodeName = devcluster.VirtualNodeName }
	all := func(t *corev1.PodTemplateSpec) {
		t.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	const pods, jobs = 80, 20
	e.Create(suite.Deployment("web", 50, "100m", endsFast))
	e.Create(suite.Deployment("bound", 5, "100m", endsFast, bound))
	e.Create(suite.Deployment("tolerant", 5, "100m", endsFast, bound, all))
	for i := range jobs {
		name := fmt.Sprint("job-", i)
		template := suite.Deployment(name, 0, "100m", endsFast, annotated(virtualnode.RunsForAnnotation, "1s")).Spec.Template
		template.Spec.RestartPolicy = []corev1.RestartPolicy{corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure}[i%2]
		must.Do(t)(e.Client.BatchV1().Jobs(namespace).Create(e.ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: template}}, metav1.CreateOptions{}))
	}
	e.Eventually(60*time.Second, func() string {
		settled, found := 0, e.Pods("")
		for _, p := range found {
			if podutil.IsPodReady(&p) || p.Status.Phase == corev1.PodSucceeded {
				settled++
			}
		}
		if lost := len(virtualnode.FailedStart(found)); settled != pods || len(found) != pods {
			return fmt.Sprintf("of %d pods, %d are ready or complete, and %d are lost; want %d", len(found), settled, lost, pods)
		}
		return ""
	})
	if n := len(region.Puts()); n != pods {
		t.Errorf("%d PUTs for %d pods", n, pods)
	}
	e.nothingTwice(e.Pods(""))
}
