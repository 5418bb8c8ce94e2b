package publishing

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

// crowded returns a Publisher and a Report of a cluster with 10,000 held pods that had scheduling gates, 50 node groups
// and a provider that has refused many pods. Pod i became unschedulable i milliseconds after start.
func crowded(t *testing.T, start time.Time) (*Publisher, *Report, []*v1.Pod) {
	t.Helper()
	config := configOf(t)
	uid := func(kind, i int) types.UID { return types.UID(fmt.Sprintf("5b8f3c0a-%04d-4d6e-9f5e-%012d", kind, i)) }
	var pods []*v1.Pod
	for i := range 10_000 {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i), Namespace: "default", UID: uid(0, i)}}
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonSchedulingGated, LastTransitionTime: metav1.NewTime(start.Add(-time.Hour))}}
		at := start.Add(time.Duration(i) * time.Millisecond)
		config.Held.Failed(p, true, at)
		config.Held.Add(p, "", &gate.Decision{Regular: make([]gate.Verdict, 2), Burst: []gate.Verdict{{}, {}, {Reason: gate.ReasonCanGrow}}}, nil, at)
		now := p.DeepCopy()
		now.Status.Conditions[0].Reason = v1.PodReasonUnschedulable // the condition keeps its time
		config.Held.Update(p, now, at)
		pods = append(pods, now)
	}
	labels := map[string]string{}
	for i := range 40 {
		labels[fmt.Sprintf("kubernetes.azure.com/a-label-of-the-node-%d", i)] = "a-value-of-usual-length"
	}
	template := nodegroups.NodeTemplate{Labels: labels, Allocatable: v1.ResourceList{"cpu": resource.MustParse("3860m"), "memory": resource.MustParse("12Gi"), "pods": resource.MustParse("110")}}
	view := &nodegroups.View{Pools: make([]nodegroups.Pool, 3)}
	autoscaler := clusterautoscaler.Memory{UID: "u", Groups: map[string]clusterautoscaler.Group{}}
	for i := range 50 {
		name := fmt.Sprintf("aks-userpool-%d-vmss", i)
		autoscaler.Groups[name] = clusterautoscaler.Group{Target: 3, Present: 3, LastScaleUp: start, Pool: "user", Seen: []nodegroups.NodeTemplate{template}}
		view.Pools[0].Groups = append(view.Pools[0].Groups, nodegroups.Group{
			GroupStatus:   nodegroups.GroupStatus{Name: name, State: nodegroups.Full, Reason: nodegroups.Reason{Code: "AtMaxSize", Sentence: "the node group is at its maximum size", Detail: "3 of 3"}},
			NodeTemplates: []nodegroups.NodeTemplate{template}})
	}
	refused := breaker.Memory{State: breaker.Refusing, Since: start, Until: start.Add(time.Hour), Slow: map[types.UID]breaker.Lateness{}, Templates: map[string]breaker.Template{}}
	message := strings.Repeat("x", 256)
	for i := range 500 {
		at := start.Add(time.Duration(i) * time.Second)
		if i < 100 {
			refused.Failures = append(refused.Failures, breaker.Failure{UID: uid(1, i), Namespace: "default", Cause: refusal.PoolError, Code: "HTTP429", Message: message, Bound: at, At: at})
		}
		if i < 200 {
			refused.Templates[string(uid(2, i))] = breaker.Template{Code: "InaccessibleImage", Message: message, At: at}
		}
		refused.Counted = append(refused.Counted, uid(1, i))
		refused.Slow[uid(3, i)] = breaker.Lateness{Times: 1, At: at}
	}
	view.Pools[2].Provider = breaker.Status{State: breaker.Refusing, Templates: refused.Templates}
	memory := published.Memory{ClusterAutoscaler: autoscaler, BurstPools: map[string]breaker.Memory{"aci": refused}}
	return New(config), &Report{View: view, Memory: memory}, pods
}

// TestSize: what is published stays under 700 KiB, and a successor starts from it.
func TestSize(t *testing.T) {
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	p, report, pods := crowded(t, start)
	must.NoError(t, p.write(t.Context(), p.status(report)))
	cm := must.Get(p.config.Client.ConfigMaps(p.namespace).Get(t.Context(), p.name, metav1.GetOptions{}))(t)
	if got := len(must.Get(json.Marshal(cm))(t)); got >= 700<<10 { // more than what etcd stores
		t.Errorf("%d bytes, want less than 700 KiB", got)
	}
	last := must.Get(p.Load(t.Context()))(t)
	successor := held.New()
	for uid, since := range last.Memory.Unschedulable {
		successor.Restore(uid, since, time.Time{}, 0)
	}
	successor.Trust(start.Add(time.Minute))
	known := 0
	for i, pod := range pods {
		w := successor.Since(pod, start.Add(time.Minute))
		if late := w.NoRoom.Sub(start.Add(time.Duration(i) * time.Millisecond)); late >= 0 && late < time.Second {
			known++
		} else if i < 7000 {
			t.Fatalf("the successor takes pod %d, one of the oldest, as waiting since %v", i, w.NoRoom)
		}
	}
	if left := fmt.Sprintf("%d clocks", len(pods)-known); !slices.Contains(last.View.LeftOut, left) {
		t.Errorf("left out: %q, want %s among them", last.View.LeftOut, left)
	}
	if groups := last.Memory.ClusterAutoscaler.Groups; len(groups) != 50 || len(groups["aks-userpool-7-vmss"].Seen) != 1 {
		t.Errorf("%d node groups, want all with their nodes' templates", len(groups))
	}
	b := breaker.New(breaker.NewRules(time.Minute))
	b.Restore(last.Memory.BurstPools["aci"], start)
	if got := b.Status(start.Add(time.Minute)).State; got != breaker.Refusing {
		t.Errorf("the successor takes the provider as %s", got)
	}
}
