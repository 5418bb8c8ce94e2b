package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/seed"
	"poolpriority.dev/scheduler/test/suite"
)

var podCount = flag.Int("pods", 1000, "pods that TestRandomCluster has placed before it ends")

// TestRandomCluster scales workloads of many kinds up and down, cordons, drains and taints nodes, and lets the
// autoscaler grow and shrink the pools. The referee judges each placement. In the end no pod is pending.
func TestRandomCluster(t *testing.T) {
	t.Parallel()
	r := seed.New(t, 1)
	user, system := vms("userpool", "user", 2, 2, 8, 20), vms("systempool", "system", 1, 1, 4, 10)
	user.CPU, system.CPU = resource.MustParse("4"), resource.MustParse("4")
	e := start(t, &devcluster.AutoscalerOptions{Interval: 500 * time.Millisecond, UnneededTime: 3 * time.Second}, user, system)
	e.schedule(replaced(t, aksConfig, `limits: {pods: 100, cpu: "100", memory: 400G}`, "creates: {per5Minutes: 0, perHour: 0}"), suite.UserTier(8), suite.SystemTier(4), suite.VirtualTier())

	const workloads = 14
	changed := map[string]bool{} // nodes that were cordoned or tainted
	for i := range workloads {
		e.Create(randomWorkload(r, i))
	}
	total := func() int {
		byTier, _ := e.Referee.Judge()
		n := 0
		for _, placed := range byTier {
			n += placed
		}
		return n
	}
	begin := time.Now()
	limit := time.Duration(*podCount) * 480 * time.Millisecond // eight minutes for 1,000
	for total() < *podCount && time.Since(begin) < limit {
		switch n := r.IntN(20); {
		case n < 12:
			e.Scale(fmt.Sprintf("w%d", r.IntN(workloads)), int32(r.IntN(16)))
		case n < 14: // many workloads are scaled to zero, and the pools shrink
			for i := range workloads {
				if r.IntN(3) > 0 {
					e.Scale(fmt.Sprintf("w%d", i), 0)
				}
			}
		default:
			e.changeRandomNode(r, changed)
		}
		time.Sleep(time.Duration(50+r.IntN(300)) * time.Millisecond)
		if stuck := e.Referee.Stuck(); len(stuck) > 0 {
			t.Fatal(stuck)
		}
	}
	for name := range changed {
		e.heal(name)
	}
	// All pods can run somewhere now.
	e.Eventually(60*time.Second, func() string {
		pending := 0
		for _, p := range e.Pods("") {
			if p.Spec.NodeName == "" {
				pending++
			}
		}
		if pending > 0 {
			return fmt.Sprintf("%d pods are pending; %s", pending, e.Said(""))
		}
		return ""
	})
	byTier := e.RightOrder(*podCount)
	t.Logf("%d pods placed in %v, by tier %v", total(), time.Since(begin).Round(time.Second), byTier)
	for tier, n := range byTier {
		if n == 0 {
			t.Errorf("no pod was ever placed in tier %d: the test does not cover it", tier)
		}
	}
}

// randomWorkload returns a Deployment whose pods can run somewhere in the end. The virtual node has room for all pods
// that may burst. The pods that may not burst are few and small.
func randomWorkload(r *rand.Rand, i int) *appsv1.Deployment {
	changes := []func(*corev1.PodTemplateSpec){}
	cpu := 100 + r.IntN(1900)
	switch i % 7 {
	case 1: // either of two pools
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			t.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: devcluster.ModeLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{"system"}}}},
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "type", Operator: corev1.NodeSelectorOpIn, Values: []string{"virtual-kubelet"}}}},
				}}}}
		})
	case 2: // one pool and no other
		cpu = 20
		changes = append(changes, suite.Selects(devcluster.ModeLabel, "user"))
	case 3:
		cpu = 20
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			t.Annotations = map[string]string{"poolpriority.dev/burst": "Never"}
		})
	case 4: // spread as evenly as possible
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			t.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: corev1.LabelHostname,
				WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: t.Labels}}}
		})
	case 5:
		changes = append(changes, func(t *corev1.PodTemplateSpec) {
			t.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
		})
	}
	return suite.Deployment(fmt.Sprintf("w%d", i), int32(r.IntN(6)), fmt.Sprintf("%dm", cpu), changes...)
}

// changeRandomNode cordons, drains or taints a VM, or heals one.
func (e *env) changeRandomNode(r *rand.Rand, changed map[string]bool) {
	e.Helper()
	nodes := append(e.nodesOf("userpool"), e.nodesOf("systempool")...)
	name := nodes[r.IntN(len(nodes))].Name
	if changed[name] {
		e.heal(name)
		delete(changed, name)
		return
	}
	if len(changed) > 2 {
		return
	}
	changed[name] = true
	kind := r.IntN(3)
	e.tryUpdate(name, func(n *corev1.Node) {
		if kind == 2 {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "special", Effect: corev1.TaintEffectNoSchedule})
		} else {
			n.Spec.Unschedulable = true
		}
	})
	if kind == 1 {
		for _, p := range e.Pods("") {
			if p.Spec.NodeName != name {
				continue
			}
			err := e.Client.PolicyV1().Evictions(namespace).Evict(e.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: namespace}})
			if err != nil && !apierrors.IsNotFound(err) {
				e.Fatal(err)
			}
		}
	}
}

func (e *env) heal(name string) {
	e.tryUpdate(name, func(n *corev1.Node) {
		n.Spec.Unschedulable = false
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "dedicated" })
	})
}

// tryUpdate changes a node, unless the autoscaler has deleted it meanwhile.
func (e *env) tryUpdate(name string, change func(*corev1.Node)) {
	for range 20 {
		node, err := e.Client.CoreV1().Nodes().Get(e.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		} else if err != nil {
			e.Fatal(err)
		}
		change(node)
		if _, err = e.Client.CoreV1().Nodes().Update(e.ctx, node, metav1.UpdateOptions{}); err == nil || apierrors.IsNotFound(err) {
			return
		} else if !apierrors.IsConflict(err) {
			e.Fatal(err)
		}
	}
	e.Fatalf("node %s changes too often", name)
}
