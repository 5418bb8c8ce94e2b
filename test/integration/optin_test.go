package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

// TestOptIn: in a namespace with the label, pods that name no scheduler are ours; others keep what they name. Without the label, and
// once a workload is switched back, its pods are the default scheduler's again, and those that run stay.
func TestOptIn(t *testing.T) {
	t.Parallel()
	e := startWith(t, devcluster.Options{
		Pools:         []devcluster.Pool{vms("userpool", "user", 1, 1, 1, 20)},
		APIServerArgs: []string{"--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/v1beta1=true"},
	})
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	if err := e.ApplyFile(e.ctx, root+"/manifests/components/opt-in/policy.yaml"); err != nil {
		t.Fatal(err)
	}
	label := func(value string) {
		t.Helper()
		if _, err := e.Client.CoreV1().Namespaces().Patch(e.ctx, namespace, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"poolpriority.dev/scheduler":`+value+`}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// named creates a pod that names the scheduler and returns the one that it gets.
	n := 0
	named := func(scheduler string, owners ...metav1.OwnerReference) string {
		t.Helper()
		n++
		pod, err := e.Client.CoreV1().Pods(namespace).Create(e.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("probe-%d", n), OwnerReferences: owners},
			Spec:       corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod.Spec.SchedulerName
	}
	label(`"pool-priority-scheduler"`)
	e.Eventually(30*time.Second, func() string { // the API server reads its policies now and then
		if got := named(""); got != devcluster.SchedulerName {
			return "a pod is given to " + got
		}
		return ""
	})
	if got := named("another"); got != "another" {
		t.Errorf("a pod that names another scheduler is given to %s", got)
	}
	if got := named("", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d"}); got != corev1.DefaultSchedulerName {
		t.Errorf("a DaemonSet's pod is given to %s", got)
	}
	d := suite.Deployment("web", 2, "100m")
	d.Spec.Template.Spec.SchedulerName = ""
	e.Create(d)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 2})

	// Back: pods that run stay where they are, new ones are the default scheduler's.
	label("null")
	e.Eventually(30*time.Second, func() string {
		if got := named(""); got != corev1.DefaultSchedulerName {
			return "a pod is given to " + got
		}
		return ""
	})
	before := e.Pods("web")
	e.Scale("web", 3)
	e.Eventually(20*time.Second, func() string {
		ours, others := 0, 0
		for _, p := range e.Pods("web") {
			switch {
			case p.Spec.SchedulerName == devcluster.SchedulerName && p.Spec.NodeName != "":
				ours++
			case p.Spec.SchedulerName == corev1.DefaultSchedulerName && p.Spec.NodeName == "": // none runs here
				others++
			}
		}
		if ours != len(before) || others != 1 {
			return fmt.Sprintf("%d pods of ours run, and %d of the default scheduler's wait", ours, others)
		}
		return ""
	})
}
