//go:build kubernetes_1_36 || kubernetes_1_37

package integration

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const device = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  extendedResourceName: example.com/gpu
  selectors: [{cel: {expression: "device.driver == 'gpu.example.com'"}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus}
spec:
  driver: gpu.example.com
  nodeName: %[1]s
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0}]
`

// TestDRA: a pod that requests an extended resource gets the device that a ResourceSlice offers. Since Kubernetes 1.36,
// the API server enables this feature by default. A second pod waits, because there is no second device.
func TestDRA(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("appsnodepool", "user", 2, 2, 2, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.schedule(aksConfig, suite.UserTier(2), suite.SystemTier(1), suite.VirtualTier())
	node := e.nodesOf("systempool")[0].Name
	if out, err := e.kubectl("", fmt.Sprintf(device, node), "apply", "-f", "-"); err != nil {
		t.Fatal(out)
	}
	for _, name := range []string{"first", "second"} {
		pod := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s}\nspec:\n  schedulerName: pool-priority-scheduler\n  containers:\n"+
			"  - {name: c, image: pause, resources: {requests: {cpu: 1m}, limits: {example.com/gpu: 1}}}\n", name, namespace)
		if out, err := e.kubectl("", pod, "apply", "-f", "-"); err != nil {
			t.Fatal(out)
		}
		if name == "first" {
			e.Eventually(30*time.Second, func() string {
				pod := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, name, metav1.GetOptions{}))(e)
				if pod.Spec.NodeName != node {
					return fmt.Sprintf("the pod is on %q: %+v", pod.Spec.NodeName, pod.Status.Conditions)
				}
				return ""
			})
		}
	}
	e.staysFor(3, func() string {
		if pod := must.Get(e.Client.CoreV1().Pods(namespace).Get(e.ctx, "second", metav1.GetOptions{}))(e); pod.Spec.NodeName != "" {
			return "the second pod is on " + pod.Spec.NodeName
		}
		return ""
	})
}
