package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

// TestOwnNamespace: installed by kustomize in a namespace of one's own, the pods that the API server makes of it are all there is to it: they
// schedule, and their leases and what they publish are there. A replica that may not have its lease says so and is not ready.
func TestOwnNamespace(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 2, 2, 2, 20), vms("systempool", "system", 1, 1, 1, 10))
	const mine = "mine"
	text := "namespace: mine\nresources: [MANIFESTS/overlays/kind]\n"
	suite.NoError(t, e.Apply(e.ctx, kustomization(t, text, nil)))
	k := e.kubelet(mine)
	k.rolledOut("pool-priority")
	e.Create(suite.Deployment("web", 7, "900m"))
	e.Lands(30*time.Second, "web", map[string]int{"userpool": 4, "systempool": 2, "aci": 1})
	e.Eventually(30*time.Second, func() string {
		return e.differentNamespaces(map[string]string{"lease " + devcluster.SchedulerName: mine, "lease " + devcluster.ControllerName: mine, "published": mine})
	})
	k.clean()

	// A lease for which there are no rights: the new replicas do not get ready, and the old ones go on.
	config, err := os.ReadFile(root + "/manifests/overlays/kind/config.yaml")
	suite.NoError(t, err)
	other := strings.Replace(string(config), "resourceName: pool-priority-scheduler", "resourceName: another", 1)
	dir := kustomization(t, text+"components: [MANIFESTS/components/config]\nconfigMapGenerator: [{name: pool-priority-config, files: [config.yaml]}]\n", map[string]string{"config.yaml": other})
	suite.NoError(t, e.Apply(e.ctx, dir))
	k.stuck(`leases.coordination.k8s.io \"another\" is forbidden: this process may not get or update it`)
	suite.NoError(t, e.Apply(e.ctx, kustomization(t, text, nil)))
	k.rolledOut("pool-priority")

	// The right to the lease is taken away: neither the leaders nor the standbys stay ready.
	for _, binding := range []string{"pool-priority-scheduler:leader-election", "pool-priority-controller:leader-election"} {
		suite.NoError(t, e.Client.RbacV1().RoleBindings(mine).Delete(e.ctx, binding, metav1.DeleteOptions{}))
	}
	e.Eventually(100*time.Second, func() string {
		pods, err := e.Client.CoreV1().Pods(mine).List(e.ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, pod := range pods.Items {
			if c := pod.Status.ContainerStatuses; len(c) == 1 && c[0].Ready {
				return pod.Name + " is ready"
			}
		}
		return ""
	})
}

// ofScheduler returns the scheduler's pods.
func (k *kubelet) ofScheduler() []corev1.Pod {
	k.Helper()
	pods, err := k.Client.CoreV1().Pods(k.namespace).List(k.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=pool-priority-scheduler"})
	suite.NoError(k, err)
	return pods.Items
}

// differentNamespaces says which of our leases, and of what we publish, are elsewhere than wanted, or are not there.
func (e *env) differentNamespaces(want map[string]string) string {
	e.Helper()
	got := map[string]string{}
	leases, err := e.Client.CoordinationV1().Leases("").List(e.ctx, metav1.ListOptions{})
	suite.NoError(e, err)
	for _, lease := range leases.Items {
		if strings.HasPrefix(lease.Name, "pool-priority") {
			got["lease "+lease.Name] += lease.Namespace
		}
	}
	configMaps, err := e.Client.CoreV1().ConfigMaps("").List(e.ctx, metav1.ListOptions{})
	suite.NoError(e, err)
	for _, cm := range configMaps.Items {
		if strings.HasPrefix(cm.Name, "pool-priority") {
			got["published"] += cm.Namespace
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Sprintf("%v, want %v", got, want)
	}
	return ""
}
