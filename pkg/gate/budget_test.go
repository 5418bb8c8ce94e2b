package gate

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// burstPool returns the pools user and aci.
func burstPool(t testing.TB, burst configv1.Burst) pool.List {
	t.Helper()
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("mode", "user")}, {Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &burst}}})
	must.NoError(t, err)
	return pools
}

// asking returns a container that requests the CPU and the memory; "" means no request.
func asking(cpu, memory string) corev1.Container {
	c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	for name, quantity := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if quantity != "" {
			c.Resources.Requests[name] = resource.MustParse(quantity)
		}
	}
	return c
}

func TestBurstLimits(t *testing.T) {
	limits := func(pods int32, cpu, memory string) configv1.Burst {
		l := configv1.BurstLimits{Pods: pods}
		if cpu != "" {
			l.CPU = ptr.To(resource.MustParse(cpu))
		}
		if memory != "" {
			l.Memory = ptr.To(resource.MustParse(memory))
		}
		return configv1.Burst{Limits: &l}
	}
	always := func(p *corev1.Pod) { p.Annotations = map[string]string{pool.BurstAnnotation: pool.BurstAlways} }
	for _, tc := range []struct {
		name   string
		burst  configv1.Burst
		used   aci.Use
		pod    corev1.Container
		change func(*corev1.Pod)
		want   string // the detail; "" is open
	}{
		{"none", configv1.Burst{}, aci.Use{Pods: 1000, MilliCPU: 1e9, Memory: 1e18}, asking("1", "1G"), nil, ""},
		{"a pod is left", limits(20, "", ""), aci.Use{Pods: 19, MilliCPU: 0, Memory: 0}, asking("1", "1G"), nil, ""},
		{"no pod is left", limits(20, "", ""), aci.Use{Pods: 20, MilliCPU: 0, Memory: 0}, asking("1", "1G"), nil, "20 of 20 pods"},
		{"the CPU fits exactly", limits(0, "100", ""), aci.Use{Pods: 99, MilliCPU: 99000, Memory: 0}, asking("1", "1G"), nil, ""},
		{"the CPU does not fit", limits(0, "100", ""), aci.Use{Pods: 99, MilliCPU: 99500, Memory: 0}, asking("1", "1G"), nil, "99.5 of 100 CPUs, the pod needs 1"},
		{"a small pod fits where a large one does not", limits(0, "100", ""), aci.Use{Pods: 99, MilliCPU: 99500, Memory: 0}, asking("250m", "1G"), nil, ""},
		{"a pod that requests nothing is billed for a CPU", limits(0, "100", ""), aci.Use{Pods: 99, MilliCPU: 99500, Memory: 0}, asking("", ""), nil, "99.5 of 100 CPUs, the pod needs 1"},
		{"the memory fits exactly", limits(0, "", "400G"), aci.Use{Pods: 9, MilliCPU: 0, Memory: 399e9}, asking("1", "1G"), nil, ""},
		{"the memory does not fit", limits(0, "", "400G"), aci.Use{Pods: 9, MilliCPU: 0, Memory: 399e9}, asking("1", ""), nil, "399 of 400 GB of memory, the pod needs 1.5"},
		{"overspent by others", limits(0, "100", ""), aci.Use{Pods: 999, MilliCPU: 120000, Memory: 0}, asking("10m", "1G"), nil, "120 of 100 CPUs, the pod needs 0.01"},
		{"a pod larger than the limit", limits(0, "100", ""), aci.Use{}, asking("101", "1G"), nil, "0 of 100 CPUs, the pod needs 101"},
		{"a pod of more than there is anywhere", limits(0, "100", ""), aci.Use{Pods: 1, MilliCPU: 1000, Memory: 0}, asking("9e15", "1G"), nil, "1 of 100 CPUs, the pod needs 9000000000000000"},
		{"Always does not override it", limits(20, "", ""), aci.Use{Pods: 20, MilliCPU: 0, Memory: 0}, asking("1", "1G"), always, "20 of 20 pods"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{tc.pod}}}
			if tc.change != nil {
				tc.change(pod)
			}
			r := &Rule{Pools: burstPool(t, tc.burst)}
			got := r.Decide(Request{Pod: pod, Burst: []aci.Use{{}, tc.used}}, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}}}, now).Burst[1]
			if tc.want == "" && !got.Open || tc.want != "" && (got.Open || got.Reason.Code != ReasonBudgetSpent.Code || got.Reason.Detail != tc.want) {
				t.Errorf("Decide() = %+v, want %q", got, tc.want)
			}
		})
	}
}

// TestPerNamespace: a namespace that has spent its budget in a burst pool gets no more of the pool, whatever is left of
// the pool's own budget.
func TestPerNamespace(t *testing.T) {
	limits := func(pods int32, cpu string) *configv1.BurstLimits {
		return &configv1.BurstLimits{Pods: pods, CPU: ptr.To(resource.MustParse(cpu))}
	}
	both := configv1.Burst{Limits: limits(20, "20"), PerNamespace: limits(5, "4")}
	share := func(pods int, milliCPU int64) func(int) aci.Use {
		return func(i int) aci.Use {
			if i != 1 {
				t.Errorf("asked about pool %d", i)
			}
			return aci.Use{Pods: pods, MilliCPU: milliCPU}
		}
	}
	for _, tc := range []struct {
		name  string
		burst configv1.Burst
		used  aci.Use
		share func(int) aci.Use
		pod   corev1.Container
		want  string // the detail; "" is open
	}{
		{"both have room", both, aci.Use{Pods: 19, MilliCPU: 19_000}, share(4, 3000), asking("1", "1G"), ""},
		{"the pool has no room", both, aci.Use{Pods: 20, MilliCPU: 10_000}, share(1, 1000), asking("1", "1G"), "20 of 20 pods"},
		{"the namespace has no pod left", both, aci.Use{Pods: 6, MilliCPU: 6000}, share(5, 1000), asking("1", "1G"), "namespace team-a: 5 of 5 pods"},
		{"the namespace has no CPU left", both, aci.Use{Pods: 6, MilliCPU: 6000}, share(4, 3500), asking("1", "1G"), "namespace team-a: 3.5 of 4 CPUs, the pod needs 1"},
		{"what is billed counts", both, aci.Use{}, share(4, 3500), asking("", ""), "namespace team-a: 3.5 of 4 CPUs, the pod needs 1"},
		{"neither has room", both, aci.Use{Pods: 20}, share(5, 0), asking("1", "1G"), "20 of 20 pods"},
		{"only namespaces have a budget", configv1.Burst{PerNamespace: limits(5, "4")}, aci.Use{Pods: 900, MilliCPU: 900_000}, share(5, 0), asking("1", "1G"), "namespace team-a: 5 of 5 pods"},
		{"only the pool has a budget", configv1.Burst{Limits: limits(20, "20")}, aci.Use{Pods: 10}, func(int) aci.Use { return aci.Use{Pods: 10} }, asking("1", "1G"), ""},
		{"nobody knows the usage", both, aci.Use{}, nil, asking("64", "1G"), "0 of 20 CPUs, the pod needs 64"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{tc.pod}}}
			r := &Rule{Pools: burstPool(t, tc.burst)}
			got := r.Decide(Request{Pod: pod, Burst: []aci.Use{{}, tc.used}, Share: tc.share}, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}}}, now).Burst[1]
			if tc.want == "" && !got.Open || tc.want != "" && (got.Open || got.Reason.Code != ReasonBudgetSpent.Code || got.Reason.Detail != tc.want) {
				t.Errorf("Decide() = %+v, want %q", got, tc.want)
			}
			if got.Open && !got.Limited {
				t.Error("the pod bursts as if the pool had no budget")
			}
			if tc.share != nil && HasRoom(pod, r.Pools.At(1), tc.used, tc.share(1)) != (tc.want == "") {
				t.Error("HasRoom() differs from the decision")
			}
		})
	}
	r := &Rule{Pools: burstPool(t, configv1.Burst{PerNamespace: limits(5, "4")})}
	if v := r.Decide(Request{Pod: PlainPod()}, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}}}, now).Burst[1]; !v.Open || !v.Limited {
		t.Errorf("held pods are decided for without usage, and requeued within budgets: %+v", v)
	}
}

func TestLargest(t *testing.T) {
	for _, tc := range []struct {
		name    string
		largest corev1.ResourceList
		pod     corev1.Container
		want    string
	}{
		{"not judged", nil, asking("64", "1T"), ""},
		{"as large as that", asking("4", "16Gi").Resources.Requests, asking("4", "16Gi"), ""},
		{"more CPU", asking("4", "16Gi").Resources.Requests, asking("4500m", "1Gi"), "the pod needs 4.5 CPUs, the pool allows at most 4"},
		{"more memory", asking("4", "16G").Resources.Requests, asking("1", "16.1G"), "the pod needs 16.1 GB of memory, the pool allows at most 16"},
		{"memory is not judged", asking("4", "").Resources.Requests, asking("1", "1T"), ""},
		{"as billed", asking("500m", "").Resources.Requests, asking("", ""), "the pod needs 1 CPUs, the pool allows at most 0.5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{tc.pod}}}
			r := &Rule{Pools: burstPool(t, configv1.Burst{Largest: tc.largest})}
			decide := func() Verdict {
				return r.Decide(Request{Pod: pod}, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}}}, now).Burst[1]
			}
			for _, value := range []string{"", pool.BurstAlways} { // the limit is the operator's, so no annotation skips it
				pod.Annotations = map[string]string{pool.BurstAnnotation: value}
				if got := decide(); tc.want == "" && !got.Open || tc.want != "" && (got.Open || got.Reason.Code != "TooLarge" || got.Reason.Detail != tc.want) {
					t.Errorf("with %q: Decide() = %+v, want %q", value, got, tc.want)
				}
			}
		})
	}
}
