package usage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
)

func node(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func podOn(node, uid, cpu, memory string, phase v1.PodPhase) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{}}}, Status: v1.PodStatus{Phase: phase}}
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{}
	for name, value := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
		if value != "" {
			p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(value)
		}
	}
	return p
}

func TestUsage(t *testing.T) {
	byPool := [][]*v1.Node{{node("a"), node("b"), node("d")}, {node("virtual")}}
	for _, tc := range []struct {
		name string
		see  []*v1.Pod
		gone []types.UID
		want []Load
	}{
		{"nothing", nil, nil, make([]Load, 2)},
		{"pods on nodes of a pool", []*v1.Pod{podOn("a", "1", "1", "1G", v1.PodRunning), podOn("b", "2", "500m", "", v1.PodPending)}, nil,
			[]Load{{aci.Use{Pods: 2, MilliCPU: 1500, Memory: 1e9}, aci.Use{Pods: 2, MilliCPU: 1500, Memory: 25e8}}, {}}},
		{"one that requests nothing is billed", []*v1.Pod{podOn("virtual", "1", "", "", v1.PodRunning)}, nil,
			[]Load{{}, {aci.Use{Pods: 1}, aci.Use{Pods: 1, MilliCPU: 1000, Memory: 15e8}}}},
		{"pending, on a node that is not known, and ended", []*v1.Pod{podOn("", "1", "1", "", v1.PodPending), podOn("c", "2", "1", "", v1.PodRunning), podOn("a", "3", "1", "", v1.PodSucceeded)}, nil, make([]Load, 2)},
		{"bound, changed and ended", []*v1.Pod{podOn("", "1", "1", "1G", v1.PodPending), podOn("a", "1", "1", "1G", v1.PodPending), podOn("a", "1", "2", "1G", v1.PodRunning)}, nil,
			[]Load{{aci.Use{Pods: 1, MilliCPU: 2000, Memory: 1e9}, aci.Use{Pods: 1, MilliCPU: 2000, Memory: 1e9}}, {}}},
		{"gone", []*v1.Pod{podOn("a", "1", "1", "1G", v1.PodRunning), podOn("a", "2", "1", "1G", v1.PodRunning)}, []types.UID{"1", "never seen"},
			[]Load{{aci.Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}, aci.Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}}, {}}},
		{"more than there is anywhere", []*v1.Pod{podOn("a", "1", "1", "8E", v1.PodRunning), podOn("a", "2", "1", "8E", v1.PodRunning), podOn("a", "3", "1", "1G", v1.PodRunning)}, []types.UID{"1", "2"},
			[]Load{{aci.Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}, aci.Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}}, {}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := New()
			for _, p := range tc.see {
				u.See(p)
				u.See(p) // the second call must not change anything
			}
			for _, uid := range tc.gone {
				u.Gone(uid)
			}
			if diff := cmp.Diff(tc.want, u.Sums(byPool)); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
		})
	}
}

// TestUsageDoesNotDrift: after random changes, the sums equal those of a new count. Nothing remains of deleted pods.
func TestUsageDoesNotDrift(t *testing.T) {
	u, random, now := New(), rand.New(rand.NewPCG(1, 2)), map[types.UID]*v1.Pod{}
	byPool := make([][]*v1.Node, 3)
	for i := range 10 {
		byPool[i%3] = append(byPool[i%3], node(fmt.Sprint("n", i)))
	}
	for range 20000 {
		uid := types.UID(fmt.Sprint(random.IntN(200)))
		if random.IntN(4) == 0 {
			delete(now, uid)
			u.Gone(uid)
			continue
		}
		phase := []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodRunning, v1.PodFailed}[random.IntN(4)]
		now[uid] = podOn([]string{"", fmt.Sprint("n", random.IntN(12))}[random.IntN(2)], string(uid), fmt.Sprintf("%dm", random.IntN(4000)), fmt.Sprintf("%dMi", random.IntN(4000)), phase)
		u.See(now[uid])
	}
	anew := New()
	for _, pod := range now {
		anew.See(pod)
	}
	if diff := cmp.Diff(anew.Sums(byPool), u.Sums(byPool)); diff != "" || u.Sums(byPool)[0].Requests.Pods == 0 {
		t.Errorf("(-anew,+kept):\n%s", diff)
	}
	for uid := range now {
		u.Gone(uid)
	}
	if len(u.pods)+len(u.nodes) != 0 {
		t.Errorf("%d pods and %d nodes are left", len(u.pods), len(u.nodes))
	}
	for _, uid := range []string{"huge", "huge too"} {
		u.See(podOn("n0", uid, "9e15", "9e18", v1.PodRunning))
	}
	if sum := u.Sums(byPool)[0].Requests; sum.MilliCPU <= 0 || sum.Memory <= 0 {
		t.Errorf("two pods of more than there is anywhere take %+v", sum)
	}
}

// BenchmarkUsage measures the cost of a scrape and of a pod update in a large cluster.
func BenchmarkUsage(b *testing.B) {
	const nodes, each = 5000, 10
	u, byPool := New(), make([][]*v1.Node, 3)
	for i := range nodes {
		name := fmt.Sprint("n", i)
		byPool[i%3] = append(byPool[i%3], node(name))
		for k := range each {
			u.See(podOn(name, fmt.Sprintf("%s-%d", name, k), "100m", "100Mi", v1.PodRunning))
		}
	}
	pod := podOn("n1", "n1-1", "100m", "100Mi", v1.PodRunning)
	b.Run("sums", func(b *testing.B) {
		for b.Loop() {
			u.Sums(byPool)
		}
	})
	b.Run("update", func(b *testing.B) {
		for b.Loop() {
			u.See(pod)
		}
	})
}

// TestResizedPod: while the node cannot resize a pod, NodeInfo and Usage count what the node has allocated to the pod.
func TestResizedPod(t *testing.T) {
	of := func(cpu string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
	}
	allocated := of("1")
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Spec: v1.PodSpec{NodeName: "n", Containers: []v1.Container{{Name: "c", Resources: of("64")}}}}
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonInfeasible}}
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", Resources: &allocated, AllocatedResources: allocated.Requests}}
	u := New()
	u.See(pod)
	if got := u.Of("n").From(math.MinInt32).MilliCPU; got != 1000 {
		t.Errorf("%d milli CPU are used, want 1000", got)
	}
}
