package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// slowEnd is a finalizer that lets a test's pods take some time to end. Without the finalizer, pods on KWOK's nodes end
// at once.
const slowEnd = "example.com/slow-end"

func replaced(t testing.TB, config, old, new string) string {
	t.Helper()
	data := must.ReadFile(t, config)
	changed := strings.Replace(string(data), old, new, 1)
	if changed == string(data) {
		t.Fatalf("%s has no %q", config, old)
	}
	file := must.WriteFile(t, "config.yaml", []byte(changed))
	return file
}

// finalize removes the finalizers of pods that have been terminating for longer than the given time.
func (e *env) finalize(after time.Duration) {
	go func() {
		for range time.Tick(200 * time.Millisecond) {
			pods, err := e.Client.CoreV1().Pods(namespace).List(e.ctx, metav1.ListOptions{})
			if e.ctx.Err() != nil {
				return
			}
			if err != nil {
				continue
			}
			for _, p := range pods.Items {
				if p.DeletionTimestamp != nil && len(p.Finalizers) > 0 && time.Since(p.DeletionTimestamp.Time) > after {
					_, _ = e.Client.CoreV1().Pods(namespace).Patch(e.ctx, p.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				}
			}
		}
	}()
}

// TestRollout updates 20 pods that fill the VMs, with a surge of 25 %. If maxUnavailable is not 0, at most one pod
// bursts. If maxUnavailable is 0, at most as many pods burst as the surge allows, and Return brings them back. (TestSurge
// in package poolpriority: without holdSurge, more burst.)
func TestRollout(t *testing.T) {
	t.Parallel()
	const replicas = 20
	for _, tc := range []struct {
		name, config, maxUnavailable string
		most                         int
	}{
		{"maxUnavailable 25%", "testdata/fixed.yaml", "25%", 1},
		{"maxUnavailable 0", "testdata/fixed.yaml", "0", 5},
		{"maxUnavailable 0, with Return", returnConfig, "0", replicas},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := start(t, nil, vms("userpool", "user", 5, 5, 5, 20))
			e.rbac = returnRBAC
			e.schedule(tc.config, suite.UserTier(5), suite.VirtualTier())
			if tc.config == returnConfig {
				e.control(tc.config)
				e.waitGated(true)
			}
			e.finalize(2 * time.Second)
			d := suite.Deployment("web", replicas, "500m", endsFast, func(t *corev1.PodTemplateSpec) { t.Finalizers = []string{slowEnd} })
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
				MaxSurge: ptr.To(intstr.FromString("25%")), MaxUnavailable: ptr.To(intstr.Parse(tc.maxUnavailable))}
			e.Create(d)
			e.Lands(30*time.Second, "web", map[string]int{"userpool": replicas})
			e.Eventually(30*time.Second, func() string { return e.notReady("web") })
			watcher := must.Get(e.Client.CoreV1().Pods(namespace).Watch(e.ctx, metav1.ListOptions{}))(t)
			counted := make(chan map[types.UID]bool)
			go func() {
				burst := map[types.UID]bool{}
				for event := range watcher.ResultChan() {
					if p, ok := event.Object.(*corev1.Pod); ok && p.Spec.NodeName == devcluster.VirtualNodeName {
						burst[p.UID] = true
					}
				}
				counted <- burst
			}()
			must.Do(t)(e.Client.AppsV1().Deployments(namespace).Patch(e.ctx, "web", types.StrategicMergePatchType,
				[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}`), metav1.PatchOptions{}))
			e.Eventually(150*time.Second, func() string {
				d, err := e.Client.AppsV1().Deployments(namespace).Get(e.ctx, "web", metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				if s := d.Status; s.ObservedGeneration < d.Generation || s.UpdatedReplicas != replicas || s.AvailableReplicas != replicas || s.Replicas != replicas {
					return fmt.Sprintf("the rollout is at %+v", s)
				}
				return ""
			})
			watcher.Stop()
			if burst := len(<-counted); burst > tc.most {
				t.Errorf("%d pods burst, want at most %d", burst, tc.most)
			}
			if tc.config == returnConfig {
				e.Lands(60*time.Second, "web", map[string]int{"userpool": replicas})
			}
		})
	}
}
