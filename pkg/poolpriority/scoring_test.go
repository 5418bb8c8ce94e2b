package poolpriority

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

func TestPreferred(t *testing.T) {
	cfg := aks(t)
	pluginArgs(cfg).Order = "Preferred"
	addOrder(cfg)
	h := newHarness(t, cfg)
	h.addNodes(systemNode("system-1"), userNode("user-1"), st.MakeNode().Name("unlisted"), virtualNode("virtual"))
	h.setCapacity(nodegroups.CanGrow, nodegroups.Full)
	h.plugin.index.refresh(nil, false)
	for _, tc := range []struct {
		node *v1.Node
		want int64
	}{{userNode("u").Obj(), 100}, {systemNode("s").Obj(), 66}, {st.MakeNode().Name("x").Obj(), 33}, {virtualNode("v").Obj(), 0}} {
		info := framework.NewNodeInfo()
		info.SetNode(tc.node)
		if got, _ := h.plugin.Score(h.ctx, nil, pod("p").Obj(), info); got != tc.want {
			t.Errorf("score of %s = %d, want %d", tc.node.Name, got, tc.want)
		}
	}
	info := framework.NewNodeInfo()
	info.SetNode(systemNode("s").Obj())
	if got, _ := h.plugin.Score(h.ctx, nil, pod("p").Annotation(pool.OrderAnnotation, "system-first").Obj(), info); got != 100 {
		t.Errorf("score of a system node for a pod whose order begins with it = %d", got)
	}
	// The gate holds in this mode too: two pods fill the VMs, and a third waits.
	for i := range 3 {
		p := pod(fmt.Sprint("large", i)).Obj()
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *userNode("u").Obj().Status.Allocatable.Cpu()
		node, err := h.schedule(p)
		if i < 2 && err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
		if i == 2 && (err == nil || !strings.Contains(err.Error(), gate.ReasonCanGrow.Sentence)) {
			t.Errorf("the third pod is on %q (%v) while the user pool can grow", node, err)
		}
	}
}
