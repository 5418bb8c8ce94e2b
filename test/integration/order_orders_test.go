package integration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/suite"
)

// TestOrders: a workload with an order that reverses two pools fills the second first, makes the first grow, and bursts
// last. Pods go in the reverse order at scale-in. One whose order leaves out the burst pool, and one with a misspelt
// order, use the VMs and do not burst.
func TestOrders(t *testing.T) {
	t.Parallel()
	e := start(t, fast(), vms("userpool", "user", 1, 1, 2, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.schedule(replaced(t, aksConfig, "      pools: ", "      orders: [{name: reversed, pools: [system, user, aci]}, {name: vms, pools: [user]}]\n      pools: "))
	with := func(order string) func(*corev1.PodTemplateSpec) { return annotated(pool.OrderAnnotation, order) }
	e.Create(suite.Deployment("web", 3, "500m", with("reversed"), endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"systempool": 3})
	e.Scale("web", 14)
	e.Lands(60*time.Second, "web", map[string]int{"systempool": 4, "userpool": 8, "aci": 2})
	want := map[string]string{"system": "2000", "user": "1000", "aci": "-1000"}
	for _, p := range e.Pods("web") {
		if in := p.Annotations[scalein.PoolAnnotation]; p.Annotations[scalein.CostAnnotation] != want[in] {
			t.Errorf("%s in %s has the deletion cost %s, want %s", p.Name, in, p.Annotations[scalein.CostAnnotation], want[in])
		}
	}
	e.Scale("web", 5)
	e.Lands(30*time.Second, "web", map[string]int{"systempool": 4, "userpool": 1})
	for order, says := range map[string]string{"vms": "leaves out", "typo": gate.ReasonUnknownOrder.Sentence} {
		e.Create(suite.Deployment(order, 4, "500m", with(order), endsFast))
		e.Lands(20*time.Second, order, map[string]int{"userpool": 4})
		e.Scale(order, 8)
		e.Lands(20*time.Second, order, map[string]int{"userpool": 7, "": 1})
		e.Keeps(3*time.Second, order, map[string]int{"userpool": 7, "": 1})
		e.Told(order, says)
		e.Scale(order, 0)
		e.Lands(30*time.Second, order, map[string]int{})
	}
}
