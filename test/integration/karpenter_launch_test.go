package integration

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// orderNode makes a NodeClaim of the NodePool "default" with the instance type and the node class, as Karpenter's
// provisioner does.
func (e *env) orderNode(name, instanceType, nodeClass string) {
	e.Helper()
	claim := &unstructured.Unstructured{}
	must.NoError(e, yaml.Unmarshal(fmt.Appendf(nil, `
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: %s, labels: {karpenter.sh/nodepool: default, agentpool: agentpool, kubernetes.azure.com/agentpool: agentpool}}
spec:
  nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: %s}
  resources: {requests: {cpu: 1, memory: 8Gi, pods: 110}}
  requirements: [{key: node.kubernetes.io/instance-type, operator: In, values: [%s]}, {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
`, name, nodeClass, instanceType), &claim.Object))
	must.Do(e)(e.dynamic().Resource(nodeClaims).Create(e.ctx, claim, metav1.CreateOptions{}))
}

// becomes waits until the pool "user" is published with the state, the code, and a detail that contains the text.
func (e *env) becomes(state, code, detail string) {
	e.Helper()
	e.Eventually(30*time.Second, func() string {
		s, err := e.published()
		if err != nil {
			return err.Error()
		}
		p := &s.View.Capacity.Pools[slices.IndexFunc(s.View.Args.Pools, func(p configv1.Pool) bool { return p.Name == "user" })]
		if string(p.State) == state && p.Reason.Code == code && strings.Contains(p.Reason.Detail, detail) {
			return ""
		}
		return fmt.Sprintf("%s %+v, want %s %s with %q", p.State, p.Reason, state, code, detail)
	})
}

// TestKarpenterLaunchFails: the real Karpenter cannot launch nodes. If there is no capacity, Karpenter deletes a
// NodeClaim at once. After other errors, it retries the NodeClaim, and orders no other node meanwhile. The NodePool is
// Full when its launches have failed for the pool's backoffGrace, 5 s, even if its status still counts a node that is
// gone.
func TestKarpenterLaunchFails(t *testing.T) {
	t.Parallel()
	e := startKarpenter(t, "testdata/karpenter-launch-fails.yaml")
	e.becomes("CanGrow", "BelowLimits", "")

	e.orderNode("no-capacity", "s-1", "missing")
	e.becomes("Full", "LaunchFailed", "NodeClaim no-capacity: deleted before it was launched")

	e.orderNode("launched", "s-1", "default")
	e.becomes("CanGrow", "BelowLimits", "cpu: 1 of")
	e.orderNode("tried-again", "s-none", "default")
	e.becomes("CanGrow", "LaunchFailing", "")
	// Karpenter does not write the NodePool's status now. It counts the node "launched" for as long.
	if err := e.dynamic().Resource(nodeClaims).Delete(e.ctx, "launched", metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
	began := time.Now()
	e.Create(suite.Load(t, "testdata/burst-required.yaml"))
	e.Scale("burst-required", 3)
	e.Lands(30*time.Second, "burst-required", map[string]int{"aci": 3})
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("burst %s after the launch failed, want 5 s", took)
	}
	e.becomes("Full", "LaunchFailed", "NodeClaim tried-again: LaunchFailed: ")
}

// TestKarpenterWithoutNodeClaims: a scheduler that may not read NodeClaims logs this once, and still opens the gate
// when the limits allow no other node.
func TestKarpenterWithoutNodeClaims(t *testing.T) {
	t.Parallel()
	e := startKarpenterWith(t, karpenterConfig, "testdata/karpenter-nodepools-only", "testdata/nodepool.yaml", instanceType("s-1", 1))
	e.waitGated(true)
	e.becomes("CanGrow", "BelowLimits", "")
	e.Create(suite.Load(t, "testdata/burst-required.yaml"))
	e.Scale("burst-required", 20)
	e.Lands(90*time.Second, "burst-required", map[string]int{"agentpool": 18, "aci": 2})
	const said = "The scheduler may not list and watch NodeClaims"
	e.logs(said)
	log, err := os.ReadFile(e.scheduler.Log())
	if n := strings.Count(string(log), said); err != nil || n != 1 {
		t.Errorf("said %d times, want once: %v", n, err)
	}
}
