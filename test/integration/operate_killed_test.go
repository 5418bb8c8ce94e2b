package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const noPending = "a pending pod must not tolerate the gate taint"

// autoscalerSays writes a status of a cluster autoscaler in which the pool has the target and the maximum.
func (e *env) autoscalerSays(pool string, target, maximum int) {
	e.Helper()
	e.groupSays(e.pool(pool).Group(), target, target, maximum)
}

// groupSays writes the autoscaler's status for one node group.
func (e *env) groupSays(group string, ready, target, maximum int) {
	e.Helper()
	e.groupsSay(groupStatus(group, ready, target, maximum))
}

func groupStatus(group string, ready, target, maximum int) string {
	return fmt.Sprintf("- {name: %s, health: {status: Healthy, cloudProviderTarget: %d, maxSize: %d, nodeCounts: {registered: {ready: %d}}}}\n", group, target, maximum, ready)
}

// groupsSay writes the autoscaler's status for the groups.
func (e *env) groupsSay(groups ...string) {
	e.Helper()
	status := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status", Annotations: map[string]string{
			"cluster-autoscaler.kubernetes.io/last-updated": time.Now().String()}},
		Data: map[string]string{"status": "autoscalerStatus: Running\nnodeGroups:\n" + strings.Join(groups, "")},
	}
	e.Eventually(20*time.Second, func() string {
		_, err := e.Client.CoreV1().ConfigMaps("kube-system").Update(e.ctx, status, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			_, err = e.Client.CoreV1().ConfigMaps("kube-system").Create(e.ctx, status, metav1.CreateOptions{})
		}
		if err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestKilledAtEveryStep kills the scheduler, the controller and the API server at each step of a pod's way to the
// virtual node. The pod is still bound to the virtual node, and has the gate toleration. An admission policy rejects
// pending pods with this toleration. It must not reject any pod during the test.
func TestKilledAtEveryStep(t *testing.T) {
	const config = "testdata/no-leader-election.yaml"
	e := start(t, nil, vms("userpool", "user", 1, 1, 3, 20))
	must.NoError(t, e.ApplyFile(e.ctx, "testdata/no-pending-gate-toleration.yaml"))
	controller := must.Get(e.StartController(e.ctx, filepath.Join(*bin, devcluster.ControllerName), config, e.rbac, "--leader-elect=false"))(t)
	t.Cleanup(func() { controller.Stop() })
	e.autoscalerSays("userpool", 1, 3)
	e.schedule(config, suite.UserTier(0), suite.VirtualTier())
	e.waitGated(true)
	e.Create(suite.Deployment("full", 4, "500m"))
	e.Lands(20*time.Second, "full", map[string]int{"userpool": 4})
	e.policyWorks()

	killed := map[string]func() error{
		"scheduler":  func() error { e.scheduler.Kill(); return e.scheduler.Restart() },
		"controller": func() error { controller.Kill(); return controller.Restart() },
		"API server": func() error { return e.RestartAPIServer(e.ctx) },
	}
	isBound := func(p *corev1.Pod) bool { return p.Spec.NodeName != "" }
	isHeld := func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable })
	}
	after := func(d time.Duration) func(string) { return func(string) { time.Sleep(d) } }
	type step struct {
		name string
		slow bool // also kill the API server; after its restart, the watches take a while to come back
		open bool // the gate has opened
		wait func(pod string)
	}
	steps := []step{
		{"created", true, false, after(0)},
		{"held", false, false, func(pod string) { e.waitPod(pod, isHeld) }},
		{"the gate opens", true, true, after(0)},
		{"20 ms later", false, true, after(20 * time.Millisecond)},
		{"50 ms later", true, true, after(50 * time.Millisecond)},
		{"60 ms later", false, true, after(60 * time.Millisecond)},
		{"80 ms later", false, true, after(80 * time.Millisecond)},
		{"bound", true, true, func(pod string) { e.waitPod(pod, isBound) }},
		{"tolerates", false, true, func(pod string) { e.waitPod(pod, toleratesGate) }},
	}
	e.refused = true // while the API server starts, it forbids all requests for a moment
	n := 0
	for _, part := range []string{"scheduler", "controller", "API server"} {
		kill := killed[part]
		for _, s := range steps {
			if part == "API server" && !s.slow {
				continue
			}
			n++
			name := fmt.Sprintf("pod-%d", n)
			e.autoscalerSays("userpool", 1, 3)
			time.Sleep(500 * time.Millisecond) // the published state may be from before the last kill
			e.Eventually(20*time.Second, func() string {
				if status, err := e.published(); err != nil || status.View.Capacity.Pools[0].State != nodegroups.CanGrow {
					return fmt.Sprintf("published: %+v, %v", status, err)
				}
				return ""
			})
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: suite.Deployment("x", 1, "100m").Spec.Template.Spec}
			must.Do(t)(e.Client.CoreV1().Pods(namespace).Create(e.ctx, pod, metav1.CreateOptions{}))
			if s.open {
				e.waitPod(name, isHeld)
				e.autoscalerSays("userpool", 3, 3)
			}
			s.wait(name)
			if err := kill(); err != nil {
				t.Fatalf("%s killed, step %q: %v", part, s.name, err)
			}
			if !s.open {
				e.autoscalerSays("userpool", 3, 3)
			}
			e.Eventually(90*time.Second, func() string {
				p, err := e.Client.CoreV1().Pods(namespace).Get(e.ctx, name, metav1.GetOptions{})
				if err != nil {
					return err.Error()
				}
				if p.Spec.NodeName != devcluster.VirtualNodeName || !toleratesGate(p) {
					return fmt.Sprintf("%s killed, step %q: the pod is on %q and tolerates the gate taint: %v; %s", part, s.name, p.Spec.NodeName, toleratesGate(p), e.Said(name))
				}
				return ""
			})
			if !e.isGated() {
				t.Errorf("%s killed, step %q: the virtual node lost the gate taint", part, s.name)
			}
		}
	}
	for _, file := range []string{e.scheduler.Log(), controller.Log()} {
		log := must.ReadFile(t, file)
		if strings.Contains(string(log), noPending) {
			t.Errorf("%s: the API server had to refuse a gate toleration of a pending pod", filepath.Base(file))
		}
	}
	t.Logf("%d kills", n)
}

func toleratesGate(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.Key == configv1.GateTaintKey })
}

// waitPod waits until want returns true for the pod.
func (e *env) waitPod(name string, want func(*corev1.Pod) bool) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		if p, err := e.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil && want(p) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
	e.Fatalf("pod %s did not come so far; %s", name, e.Said(name))
}

// policyWorks waits until the admission policy rejects a pending pod with the gate toleration.
func (e *env) policyWorks() {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: suite.Deployment("x", 1, "100m").Spec.Template.Spec}
		pod.Spec.Tolerations = []corev1.Toleration{{Key: configv1.GateTaintKey, Operator: corev1.TolerationOpExists}}
		_, err := e.Client.CoreV1().Pods(namespace).Create(e.ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), noPending) {
			return fmt.Sprintf("a pending pod with the gate toleration: %v", err)
		}
		return ""
	})
}
