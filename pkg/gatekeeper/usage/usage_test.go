package usage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
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
		{"more than there is anywhere", []*v1.Pod{podOn("a", "1", "1", "8E", v1.PodRunning), podOn("a", "2", "1", "8E", v1.PodRunning), podOn("a", "3", "1", "1G", v1.PodRunning)}, []types.UID{"1", "2"},
			[]Load{{aci.Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}, aci.Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}}, {}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := New("ours")
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
	u, random, now := New("ours"), rand.New(rand.NewPCG(1, 2)), map[types.UID]*v1.Pod{}
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
		namespace := fmt.Sprint("namespace-", random.IntN(3))
		phase := []v1.PodPhase{v1.PodPending, v1.PodRunning, v1.PodRunning, v1.PodFailed}[random.IntN(4)]
		now[uid] = podOn([]string{"", fmt.Sprint("n", random.IntN(12))}[random.IntN(2)], string(uid), fmt.Sprintf("%dm", random.IntN(4000)), fmt.Sprintf("%dMi", random.IntN(4000)), phase)
		now[uid].Namespace, now[uid].Spec.SchedulerName = namespace, []string{"ours", "other"}[random.IntN(2)]
		if random.IntN(3) == 0 {
			now[uid].OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: ptr.To(true)}}
		}
		u.See(now[uid])
	}
	anew := New("ours")
	for _, pod := range now {
		anew.See(pod)
	}
	if diff := cmp.Diff(anew.Sums(byPool), u.Sums(byPool)); diff != "" || u.Sums(byPool)[0].Requests.Pods == 0 {
		t.Errorf("(-anew,+kept):\n%s", diff)
	}
	if diff := cmp.Diff(anew.shares, u.shares); diff != "" {
		t.Errorf("(-anew,+kept):\n%s", diff)
	}
	for uid := range now {
		u.Gone(uid)
	}
	if len(u.pods)+len(u.nodes)+len(u.shares)+len(u.served)+len(u.daemons) != 0 {
		t.Errorf("%d pods, %d nodes and %d nodes with shares are left", len(u.pods), len(u.nodes), len(u.shares))
	}
	for _, uid := range []string{"huge", "huge too"} {
		u.See(podOn("n0", uid, "9e15", "9e18", v1.PodRunning))
	}
	if sum := u.Sums(byPool)[0].Requests; sum.MilliCPU <= 0 || sum.Memory <= 0 {
		t.Errorf("two pods of more than there is anywhere take %+v", sum)
	}
}

// TestServed: a node serves if a pod is bound to it that is older than the node, and no daemon. Daemons take room.
func TestServed(t *testing.T) {
	began := metav1.NewTime(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	vm := node("vm")
	vm.UID, vm.CreationTimestamp = "1", began
	vm.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("8Gi"), "gpu": resource.MustParse("1")}
	u := New("ours")
	place := func(uid, owner string, age, bound time.Duration) {
		p := podOn("vm", uid, "250m", "1Gi", v1.PodRunning)
		p.CreationTimestamp = metav1.NewTime(began.Add(-age))
		p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Controller: ptr.To(true)}}
		u.See(p)
		u.Place(p, vm, began.Add(bound))
	}
	place("agent", "DaemonSet", time.Hour, time.Minute)
	place("static", "Node", time.Hour, time.Minute)
	place("younger", "ReplicaSet", -time.Minute, time.Minute)
	place("as old", "ReplicaSet", 0, time.Minute)
	place("on an earlier node", "ReplicaSet", time.Hour, -time.Minute)
	if room, _ := u.Served(vm); room != nil {
		t.Errorf("it has served, with room for %v", room)
	}
	place("older", "ReplicaSet", time.Second, time.Minute)
	place("bound before", "ReplicaSet", time.Second, 0)
	u.Gone("bound before")
	want := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m"), v1.ResourceMemory: resource.MustParse("6Gi"), "gpu": resource.MustParse("1")}
	if room, at := u.Served(vm); !equality.Semantic.DeepEqual(room, want) || !at.Equal(began.Add(time.Minute)) {
		t.Errorf("at %v it has room for %v, want %v", at, room, want)
	}
	u.Gone("older") // what it has served stays known
	if room, _ := u.Served(vm); room == nil || vm.Status.Allocatable.Cpu().Value() != 2 {
		t.Errorf("it has not served, or the node has changed: %v", vm.Status.Allocatable)
	}
	vm.UID = "2"
	if room, _ := u.Served(vm); room != nil {
		t.Error("another node with the name has served")
	}
}

// TestUses: a pod of another scheduler uses only the budget of its namespace, and one that was deleted before it started uses none. A pod of this scheduler uses
// the budget of all namespaces, too, whatever owner it names.
func TestUses(t *testing.T) {
	burst := func(name string, perNamespace *configv1.BurstLimits) configv1.Pool {
		return configv1.Pool{Name: name, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": name}}, Burst: &configv1.Burst{PerNamespace: perNamespace}}
	}
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: &metav1.LabelSelector{}, Fixed: &configv1.FixedSource{}}, burst("aci", &configv1.BurstLimits{Pods: 1}), burst("other", nil)}}))(t)
	u := New("ours")
	for i, tc := range []struct{ node, namespace, scheduler, owner string }{
		{"vm", "a", "other", "DaemonSet"}, {"virtual", "a", "ours", "ReplicaSet"}, {"virtual", "a", "other", "DaemonSet"}, {"virtual", "a", "ours", "DaemonSet"},
		{"virtual-2", "a", "other", "ReplicaSet"}, {"virtual-2", "b", "other", "DaemonSet"}, {"third", "b", "other", "DaemonSet"}, {"third", "b", "ours", "ReplicaSet"},
	} {
		p := podOn(tc.node, fmt.Sprint(i), "", "", v1.PodRunning)
		p.Namespace, p.Spec.SchedulerName = tc.namespace, tc.scheduler
		p.OwnerReferences = []metav1.OwnerReference{{Kind: tc.owner, Controller: ptr.To(true)}}
		u.See(p)
	}
	deleted := podOn("virtual", "deleted", "", "", v1.PodPending) // a finalizer may keep it
	deleted.Namespace, deleted.Spec.SchedulerName, deleted.DeletionTimestamp = "a", "ours", &metav1.Time{Time: time.Now()}
	u.See(deleted)
	uses, shares := u.Uses(pools, [][]*v1.Node{{node("vm")}, {node("virtual"), node("virtual-2")}, {node("third")}})
	billed := func(pods int) aci.Use {
		return aci.Use{Pods: pods, MilliCPU: int64(pods) * 1000, Memory: int64(pods) * 15e8}
	}
	if diff := cmp.Diff([]aci.Use{{Pods: 1}, billed(2), billed(1)}, uses); diff != "" {
		t.Errorf("of pools (-want,+got):\n%s", diff)
	}
	if diff := cmp.Diff([]map[string]aci.Use{{}, {"a": billed(4), "b": billed(1)}, {"b": billed(2)}}, shares); diff != "" {
		t.Errorf("of namespaces (-want,+got):\n%s", diff)
	}
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
	u := New("ours")
	u.See(pod)
	if got := u.Of("n").From(math.MinInt32).MilliCPU; got != 1000 {
		t.Errorf("%d milli CPU are used, want 1000", got)
	}
}
