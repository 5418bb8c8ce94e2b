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

// withLine returns the path of a copy of the configuration that has one more line in the plugin's arguments.
func withLine(t *testing.T, config, line string) string {
	t.Helper()
	return replaced(t, config, "      pools:", "      "+line+"\n      pools:")
}

// without returns the path of a copy of the configuration without the text.
func without(t *testing.T, config, text string) string {
	t.Helper()
	return replaced(t, config, text, "")
}

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

// rolled is the result of a rollout: the number of pods that burst, and its duration.
type rolled struct {
	burst int
	took  time.Duration
}

// TestRollout updates 20 pods that fill the VMs, with a surge of 25 %. If maxUnavailable is not 0, at most one pod
// bursts. If maxUnavailable is 0, at most as many pods burst as the surge allows, and Return brings them back. For
// comparison, each case also runs with holdSurge: false.
func TestRollout(t *testing.T) {
	t.Parallel()
	roll := func(t *testing.T, config, maxUnavailable string, comesHome bool, apps ...string) rolled {
		e := start(t, nil, vms("userpool", "user", 5, 5, 5, 20))
		e.rbac = returnRBAC
		e.schedule(config, suite.UserTier(5), suite.VirtualTier())
		if comesHome {
			e.control(config)
			e.waitGated(true)
		}
		e.finalize(2 * time.Second)
		replicas := 20 / len(apps)
		for _, app := range apps {
			d := suite.Deployment(app, int32(replicas), "500m", endsFast, func(t *corev1.PodTemplateSpec) { t.Finalizers = []string{slowEnd} })
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
				MaxSurge: ptr.To(intstr.FromString("25%")), MaxUnavailable: ptr.To(intstr.Parse(maxUnavailable))}
			e.Create(d)
		}
		for _, app := range apps {
			e.Lands(30*time.Second, app, map[string]int{"userpool": replicas})
			e.Eventually(30*time.Second, func() string { return e.notReady(app) })
		}
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
		started := time.Now()
		for _, app := range apps {
			must.Do(t)(e.Client.AppsV1().Deployments(namespace).Patch(e.ctx, app, types.StrategicMergePatchType,
				[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"web:2"}]}}}}`), metav1.PatchOptions{}))
		}
		for _, app := range apps {
			e.Eventually(150*time.Second, func() string {
				d, err := e.Client.AppsV1().Deployments(namespace).Get(e.ctx, app, metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				if s, n := d.Status, int32(replicas); s.ObservedGeneration < d.Generation || s.UpdatedReplicas != n || s.AvailableReplicas != n || s.Replicas != n {
					return fmt.Sprintf("the rollout is at %+v", s)
				}
				return ""
			})
		}
		took := time.Since(started)
		watcher.Stop()
		burst := len(<-counted)
		if comesHome {
			done := time.Now()
			e.Lands(60*time.Second, apps[0], map[string]int{"userpool": replicas})
			t.Logf("%d pods came home within %v of the rollout's end", burst, time.Since(done).Round(time.Second))
		}
		return rolled{burst, took.Round(time.Second)}
	}
	const fixed = "testdata/fixed.yaml"
	for _, tc := range []struct {
		name, maxUnavailable string
		apps                 []string
		most                 int
	}{
		{"maxUnavailable 25%", "25%", []string{"web"}, 1},
		{"maxUnavailable 25%, two at a time", "25%", []string{"web", "api"}, 6}, // at most both surges: one Deployment may take the capacity that the other has freed
		{"maxUnavailable 0", "0", []string{"web"}, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var held, free rolled
			t.Run("both", func(t *testing.T) { // in parallel, each in its own cluster
				t.Run("held", func(t *testing.T) {
					t.Parallel()
					held = roll(t, fixed, tc.maxUnavailable, false, tc.apps...)
				})
				t.Run("not held", func(t *testing.T) {
					t.Parallel()
					free = roll(t, withLine(t, fixed, "scaleIn: {holdSurge: false}"), tc.maxUnavailable, false, tc.apps...)
				})
			})
			t.Logf("pods that burst in a rollout of 20: %d in %v; %d in %v if the surge is not held", held.burst, held.took, free.burst, free.took)
			if held.burst > tc.most {
				t.Errorf("%d pods burst, want at most %d", held.burst, tc.most)
			}
			if free.burst <= tc.most {
				t.Errorf("only %d pods burst if the surge is not held: the test shows nothing", free.burst)
			}
		})
	}
	t.Run("maxUnavailable 0, with Return", func(t *testing.T) {
		t.Parallel()
		roll(t, returnConfig, "0", true, "web")
	})
}
