package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestOptIn: in a namespace with the label, pods that name no scheduler get ours, and other pods keep the scheduler
// that they name. Without the label, new pods get the default scheduler again, and running pods stay.
func TestOptIn(t *testing.T) {
	t.Parallel()
	e := startWith(t, devcluster.Options{
		Pools:         []devcluster.Pool{vms("userpool", "user", 1, 1, 1, 20)},
		APIServerArgs: []string{"--feature-gates=MutatingAdmissionPolicy=true", "--runtime-config=admissionregistration.k8s.io/v1beta1=true"},
	})
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	// This is the shipped component, and a patch adds the name of a second scheduler. kustomize also sets the namespace
	// on cluster-scoped objects of kinds that it does not know. This does no harm.
	dir := kustomization(t, `namespace: mine
components: [MANIFESTS/components/opt-in]
patches:
- target: {kind: MutatingAdmissionPolicyBinding}
  patch: |
    - {op: add, path: /spec/matchResources/namespaceSelector/matchExpressions/0/values/-, value: team-a}
`, nil)
	must.NoError(t, e.Apply(e.ctx, dir))
	labelled := func(namespace, value string) {
		t.Helper()
		must.Do(t)(e.Client.CoreV1().Namespaces().Patch(e.ctx, namespace, types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"poolpriority.dev/scheduler":`+value+`}}}`), metav1.PatchOptions{}))
	}
	label := func(value string) { t.Helper(); labelled(namespace, value) }
	// namedIn and named create a pod that names the scheduler, and return the scheduler that the pod gets.
	n := 0
	labels := map[string]string{"app": "probe"}
	restricted := &corev1.SecurityContext{RunAsNonRoot: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	namedIn := func(namespace, scheduler string, owners ...metav1.OwnerReference) string {
		t.Helper()
		n++
		pod, err := e.Client.CoreV1().Pods(namespace).Create(e.ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("probe-%d", n), Labels: labels, OwnerReferences: owners},
			Spec: corev1.PodSpec{SchedulerName: scheduler, Containers: []corev1.Container{{Name: "web", Image: "web", SecurityContext: restricted}},
				SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}},
		}, metav1.CreateOptions{})
		must.NoError(t, err)
		return pod.Spec.SchedulerName
	}
	named := func(scheduler string, owners ...metav1.OwnerReference) string {
		t.Helper()
		return namedIn(namespace, scheduler, owners...)
	}
	// gets waits until new pods get the scheduler: the API server sees policies and labels after a while.
	gets := func(want string) {
		t.Helper()
		e.Eventually(30*time.Second, func() string {
			if got := named(""); got != want {
				return fmt.Sprintf("a pod is given to %s, want %s", got, want)
			}
			return ""
		})
	}
	label(`"pool-priority-scheduler"`)
	gets(devcluster.SchedulerName)
	if got := named("another"); got != "another" {
		t.Errorf("a pod that names another scheduler is given to %s", got)
	}
	if got := named("", metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d"}); got != corev1.DefaultSchedulerName {
		t.Errorf("a DaemonSet's pod is given to %s", got)
	}
	excepted := []string{metav1.NamespaceSystem, devcluster.SchedulerNamespace}
	for _, namespace := range excepted {
		labelled(namespace, `"pool-priority-scheduler"`)
	}
	last := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "last", Labels: map[string]string{"poolpriority.dev/scheduler": "pool-priority-scheduler"}}}
	must.Do(t)(e.Client.CoreV1().Namespaces().Create(e.ctx, last, metav1.CreateOptions{}))
	e.Eventually(30*time.Second, func() string { // once this holds, the API server has also seen the other labels
		if _, err := e.Client.CoreV1().ServiceAccounts(last.Name).Get(e.ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if got := namedIn(last.Name, ""); got != devcluster.SchedulerName {
			return "a pod is given to " + got
		}
		return ""
	})
	for _, namespace := range excepted {
		if got := namedIn(namespace, ""); got != corev1.DefaultSchedulerName {
			t.Errorf("a pod in %s is given to %s", namespace, got)
		}
	}
	labels = map[string]string{"app.kubernetes.io/part-of": "pool-priority"}
	if got := named(""); got != corev1.DefaultSchedulerName {
		t.Errorf("a pod of ours is given to %s", got)
	}
	labels = nil
	for value, want := range map[string]string{"team-a": "team-a", "mistyped": corev1.DefaultSchedulerName, "pool-priority-scheduler": devcluster.SchedulerName} {
		label(`"` + value + `"`)
		gets(want)
	}
	label(`"pool-priority-scheduler"`)
	gets(devcluster.SchedulerName)
	d := suite.Deployment("web", 2, "100m")
	d.Spec.Template.Spec.SchedulerName = ""
	e.Create(d)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 2})

	// The opt-in is removed: running pods stay where they are, and new pods get the default scheduler.
	label("null")
	gets(corev1.DefaultSchedulerName)
	before := e.Pods("web")
	e.Scale("web", 3)
	e.Eventually(20*time.Second, func() string {
		ours, others := 0, 0
		for _, p := range e.Pods("web") {
			switch {
			case p.Spec.SchedulerName == devcluster.SchedulerName && p.Spec.NodeName != "":
				ours++
			case p.Spec.SchedulerName == corev1.DefaultSchedulerName && p.Spec.NodeName == "": // no default scheduler runs here
				others++
			}
		}
		if ours != len(before) || others != 1 {
			return fmt.Sprintf("%d pods of ours run, and %d of the default scheduler's wait", ours, others)
		}
		return ""
	})
}
