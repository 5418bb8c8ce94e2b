package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// buffer creates a CapacityBuffer, and a PodTemplate for it. Without a template, it is for the pods of the Deployment web.
func (e *env) buffer(replicas int, template *corev1.PodTemplateSpec) {
	e.Helper()
	spec := map[string]any{"replicas": int64(replicas), "scalableRef": map[string]any{"apiGroup": "apps", "kind": "Deployment", "name": "web"}}
	if template != nil {
		must.Do(e)(e.Client.CoreV1().PodTemplates(namespace).Create(e.ctx, &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "spare"}, Template: *template}, metav1.CreateOptions{}))
		delete(spec, "scalableRef")
		spec["podTemplateRef"] = map[string]any{"name": "spare"}
	}
	buffer := &unstructured.Unstructured{Object: map[string]any{"apiVersion": devcluster.CapacityBuffers.GroupVersion().String(), "kind": "CapacityBuffer",
		"metadata": map[string]any{"name": "spare"}, "spec": spec}}
	e.Eventually(10*time.Second, func() string { // the CRD may be new
		if _, err := e.dynamic().Resource(devcluster.CapacityBuffers).Namespace(namespace).Create(e.ctx, buffer, metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
}

func (e *env) resizeBuffer(replicas int) {
	e.Helper()
	patch := fmt.Sprintf(`{"spec": {"replicas": %d}}`, replicas)
	must.Do(e)(e.dynamic().Resource(devcluster.CapacityBuffers).Namespace(namespace).Patch(e.ctx, "spare", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))
}

// hasVMs waits until the pool has as many VMs.
func (e *env) hasVMs(timeout time.Duration, pool string, want int) {
	e.Helper()
	e.Eventually(timeout, func() string {
		if n := len(e.nodesOf(pool)); n != want {
			return fmt.Sprintf("%d VMs, want %d", n, want)
		}
		return ""
	})
}

// keeps checks that the pods of web stay where they are, and that the pool gets no VM.
func (e *env) keeps(duration time.Duration, pool string, vms int, want map[string]int) {
	e.Helper()
	e.Stays(duration, func() string {
		if got, n := e.Placed("web"), len(e.nodesOf(pool)); n != vms || !suite.Equal(got, want) {
			return fmt.Sprintf("%v, and %d VMs; want %v and %d", got, n, want, vms)
		}
		return ""
	})
}

const bufferCRD = "tools/karpenter-crds/autoscaling.x-k8s.io_capacitybuffers.yaml"

// startBuffers brings up a pool of one VM, which the simulated autoscaler grows up to most, also for CapacityBuffers.
func startBuffers(t *testing.T, config string, most int) *env {
	t.Helper()
	options := fast()
	options.Buffers, options.UnneededTime = true, 2*time.Second
	e := start(t, options, vms("userpool", "user", 1, 1, most, 20))
	e.rbac = returnRBAC
	must.NoError(t, e.ApplyFile(e.ctx, filepath.Join(*bin, bufferCRD)))
	e.schedule(config, suite.UserTier(most), suite.VirtualTier())
	e.control(config)
	e.waitGated(true)
	return e
}

// raise restarts the autoscaler with a higher maximum of the pool.
func (e *env) raise(most int) {
	e.Helper()
	e.Autoscaler.Kill()
	e.pool("userpool").Max = most
	must.NoError(e, e.Autoscaler.Start(e.ctx))
}

// TestBuffers: the autoscaler keeps a VM for a CapacityBuffer whose pods tolerate the virtual node. New pods take its room
// at once. Return leaves the room, although the pool can grow then, and takes what the buffer gives back.
func TestBuffers(t *testing.T) {
	t.Parallel()
	e := startBuffers(t, "testdata/buffers.yaml", 3)
	e.Create(suite.Deployment("other", 4, "500m", endsFast))
	e.Lands(20*time.Second, "other", map[string]int{"userpool": 4})
	e.buffer(4, &suite.Deployment("spare", 1, "500m", suite.ToleratesVirtualNode).Spec.Template)
	e.hasVMs(20*time.Second, "userpool", 2)
	e.Create(suite.Deployment("web", 4, "500m", endsFast))
	e.Lands(3*time.Second, "web", map[string]int{"userpool": 4})
	e.hasVMs(20*time.Second, "userpool", 3)
	e.keeps(6*time.Second, "userpool", 3, map[string]int{"userpool": 4}) // longer than UnneededTime
	e.Scale("web", 10)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 8, "aci": 2})
	e.Scale("other", 0)
	e.Remain(20*time.Second, "other", 0)
	e.raise(5)
	e.keeps(10*time.Second, "userpool", 3, map[string]int{"userpool": 8, "aci": 2})
	if said := e.eventOn(namespace, "Pod", "", "NotReturned"); !strings.Contains(said, "CapacityBuffer") {
		t.Error(said)
	}
	e.resizeBuffer(2)
	e.Lands(30*time.Second, "web", map[string]int{"userpool": 10})
	e.keeps(4*time.Second, "userpool", 3, map[string]int{"userpool": 10})
}

// TestBufferOfBurstPods: for a CapacityBuffer with a scalableRef, the autoscaler copies the newest pod, which runs on the
// virtual node. With the tolerations that the controller adds, the copies fit there, no VM is kept, and the pod returns.
// (Without the toleration of the gate taint, a VM is kept: TestBuffers.)
func TestBufferOfBurstPods(t *testing.T) {
	t.Parallel()
	e := startBuffers(t, "testdata/buffers.yaml", 1)
	e.Create(suite.Deployment("web", 4, "500m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4})
	time.Sleep(time.Second) // the next pod is newer, in whole seconds
	e.Scale("web", 5)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "aci": 1})
	e.Eventually(20*time.Second, func() string { return e.notReady("web") })
	e.Stays(time.Second, func() string { return "" }) // the controller adds tolerations to pods that run
	e.buffer(4, nil)
	e.raise(3)
	e.hasVMs(20*time.Second, "userpool", 1)
	e.keeps(6*time.Second, "userpool", 1, map[string]int{"userpool": 4, "aci": 1})
	if out := e.pools("lint"); !strings.Contains(out, "BufferCopiesBurstPods") {
		t.Error(out)
	}
	e.Create(suite.Deployment("other", 3, "500m", endsFast)) // Return leaves nothing for such a buffer
	e.Lands(30*time.Second, "web", map[string]int{"userpool": 5})
}

// TestKarpenterBuffer: Return leaves the room that the real Karpenter keeps for a CapacityBuffer, so Karpenter buys no node
// to refill it.
func TestKarpenterBuffer(t *testing.T) {
	t.Parallel()
	e := startKarpenterWith(t, "testdata/karpenter-buffers.yaml", "testdata/karpenter-return", "testdata/nodepool.yaml", instanceType("s-1", 1))
	e.refused = false
	e.waitGated(true)
	e.Create(suite.Deployment("filler", 4, "500m", suite.Selects("kubernetes.azure.com/mode", "system")))
	e.Lands(20*time.Second, "filler", map[string]int{"systempool": 4})
	e.Create(suite.Deployment("other", 9, "100m", endsFast))
	e.Lands(60*time.Second, "other", map[string]int{"agentpool": 9})
	e.Create(suite.Deployment("web", 11, "100m", endsFast))
	e.Lands(60*time.Second, "web", map[string]int{"agentpool": 9, "aci": 2})
	e.buffer(9, &suite.Deployment("spare", 1, "100m").Spec.Template)
	e.Eventually(20*time.Second, func() string {
		got, err := e.dynamic().Resource(devcluster.CapacityBuffers).Namespace(namespace).Get(e.ctx, "spare", metav1.GetOptions{})
		if n, _, _ := unstructured.NestedInt64(got.Object, "status", "replicas"); err != nil || n != 9 {
			return fmt.Sprintf("Karpenter has not seen the buffer: %v, %v", got, err)
		}
		return ""
	})
	e.patchNodePool(`{"spec":{"disruption":{"consolidateAfter":"Never"}}}`) // else Karpenter may replace the empty VM that it keeps for the buffer
	e.Scale("other", 0)
	e.Remain(20*time.Second, "other", 0)
	e.patchNodePool(`{"spec":{"limits":{"cpu":"5"}}}`)
	e.keeps(20*time.Second, "agentpool", 2, map[string]int{"agentpool": 9, "aci": 2})
	e.resizeBuffer(7)
	e.Lands(60*time.Second, "web", map[string]int{"agentpool": 11})
	e.keeps(10*time.Second, "agentpool", 2, map[string]int{"agentpool": 11})
}
