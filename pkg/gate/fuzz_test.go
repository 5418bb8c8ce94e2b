package gate

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// FuzzEligibility looks for pods for which the table of features, the budget or the warnings panic or contradict one
// another.
func FuzzEligibility(f *testing.F) {
	files, err := filepath.Glob("testdata/pods/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no pods", err)
	}
	for _, file := range files {
		data := must.ReadFile(f, file)
		f.Add(data)
	}
	burst := configv1.Burst{Largest: asking("4", "16Gi").Resources.Requests,
		Limits: &configv1.BurstLimits{Pods: 10, CPU: ptr.To(resource.MustParse("100")), Memory: ptr.To(resource.MustParse("400Gi"))}}
	other := burst
	other.Platform = configv1.PlatformOther
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("mode", "user")},
		{Name: "v1", NodeSelector: matching("type", "virtual-kubelet"), Burst: &burst},
		{Name: "v2", NodeSelector: matching("virtualization", "virtualnode2"), Burst: &burst},
		{Name: "other", NodeSelector: matching("type", "other"), Burst: &other},
	}})
	must.NoError(f, err)
	r := &Rule{Pools: pools}
	view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}, {}, {}}}
	used := []aci.Use{{}, {Pods: 9, MilliCPU: 90_000}, {Pods: 9, MilliCPU: 90_000}, {Pods: 9, MilliCPU: 90_000}}
	f.Fuzz(func(t *testing.T, data []byte) {
		pod := &corev1.Pod{}
		if json.Unmarshal(data, pod) != nil {
			return
		}
		request := Request{Pod: pod, Burst: used}
		decision := r.Decide(request, view, now)
		for i := range pools.Burst() {
			v := decision.Burst[i]
			if !v.Open && (v.Reason.Code == "" || !strings.HasPrefix(v.Reason.Sentence, "node(s) in a burst pool")) {
				t.Errorf("%s is closed for the reason %+v", pools.At(i).Name, v.Reason)
			}
			use := aci.UseOf(pod, pools.At(i).OnACI())
			if use.MilliCPU < 0 || use.Memory < 0 {
				t.Errorf("the pod takes %+v", use)
			}
			if v.Open && pod.Status.Phase == "" && (used[i].MilliCPU+use.MilliCPU > 100_000 || use.MilliCPU > 4000 && pod.Annotations[pool.BurstAnnotation] == "") {
				t.Errorf("%s is open for a pod that takes %+v", pools.At(i).Name, use)
			}
			aci.Differences(pod, aci.V1)
		}
		if pod.Annotations[pool.BurstAnnotation] == "" && decision.Burst[1].Open && !decision.Burst[2].Open {
			t.Errorf("v1 runs what v2 does not: %+v", decision.Burst[2].Reason)
		}
		request.AutoscalerKey()
	})
}
