package gate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// ofJob is a pod of a Job of one CPU.
func ofJob(policy corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "sums", UID: "j", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}},
	}
}

// twoPlainBurstPools is vm, which is full, then aci, then eci, without limits.
func twoPlainBurstPools(t *testing.T) *Rule {
	t.Helper()
	pools, err := pool.NewList([]configv1.Pool{
		{Name: "vm", NodeSelector: matching("mode", "user")},
		{Name: "aci", NodeSelector: matching("provider", "aci"), Burst: &configv1.Burst{}},
		{Name: "eci", NodeSelector: matching("provider", "eci"), Burst: &configv1.Burst{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Rule{Pools: pools}
}

// TestPaced: how a pod of a Job is let in to a burst pool that is open.
func TestPaced(t *testing.T) {
	size := func(pods int) refusal.Size { return refusal.Size{Pods: pods, MilliCPU: int64(pods) * 1000} }
	until, again := now.Add(7*time.Second), now.Add(time.Hour)
	for _, tc := range []struct {
		name   string
		risk   refusal.Risk
		used   *Use
		turn   int // how many are let in; 0: as many as there are
		reason string
	}{
		{"the first of all", refusal.Risk{}, nil, 2, "Open"},
		{"one is on its way", refusal.Risk{Unanswered: 1, Used: size(1)}, nil, 1, "Open"},
		{"two are on their way", refusal.Risk{Unanswered: 2, Until: until, Used: size(2)}, nil, 0, "Paced"},
		{"more than two are", refusal.Risk{Unanswered: 5, Until: until, Used: size(5)}, nil, 0, "Paced"},
		{"the provider takes pods, and has not run as many", refusal.Risk{Unanswered: 2, Until: until, Sure: true, Proven: size(8), Used: size(8)}, nil, 0, "Paced"},
		{"the provider takes pods, and has run as many", refusal.Risk{Unanswered: 5, Until: until, Sure: true, Proven: size(9), Used: size(8)}, nil, 0, "Open"},
		{"it has run as many pods, and not as many CPUs", refusal.Risk{Unanswered: 2, Until: until, Sure: true, Proven: refusal.Size{Pods: 9, MilliCPU: 8999}, Used: size(8)}, nil, 0, "Paced"},
		{"it has, and by the snapshot one more was placed", refusal.Risk{Unanswered: 2, Until: until, Sure: true, Proven: size(9), Used: size(8)}, &Use{Pods: 9, MilliCPU: 9000}, 0, "Paced"},
		{"it has, and has taken none lately", refusal.Risk{Unanswered: 2, Until: until, Proven: size(9), Used: size(8)}, nil, 0, "Paced"},
		{"none has been taken lately, and none is on its way", refusal.Risk{Proven: size(9), Used: size(8)}, nil, 2, "Open"},
		{"one was refused", refusal.Risk{Doubt: true, Lost: 1, Again: again, Proven: size(8), Used: size(8)}, nil, 1, "Open"},
		{"one was refused, and one is on its way", refusal.Risk{Doubt: true, Unanswered: 1, Until: until, Lost: 1, Again: again, Proven: size(8), Used: size(9)}, nil, 0, "Paced"},
		{"another owner's was refused", refusal.Risk{Doubt: true, Unanswered: 1, Until: until, Proven: size(8), Used: size(9)}, nil, 0, "Paced"},
		{"two were refused, long ago", refusal.Risk{Lost: 2, Again: again, Used: size(8)}, nil, 1, "Open"},
		{"three were refused", refusal.Risk{Lost: 3, Again: again, Sure: true, Proven: size(8), Used: size(8)}, nil, 0, "OwnerSpared"},
		{"three were refused, and one of those that ran has ended", refusal.Risk{Lost: 3, Again: again, Doubt: true, Proven: size(8), Used: size(7)}, nil, 1, "Open"},
		{"three were refused, and several have ended, one of which is replaced", refusal.Risk{Unanswered: 1, Until: until, Lost: 3, Again: again, Doubt: true, Proven: size(8), Used: size(6)}, nil, 0, "Paced"},
		{"three were refused, and others prove that there is room", refusal.Risk{Lost: 3, Again: again, Sure: true, Proven: size(20), Used: size(8)}, nil, 0, "Open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := twoPlainBurstPools(t)
			req := Request{Pod: ofJob(corev1.RestartPolicyNever), Risk: func(i int) refusal.Risk {
				if i == 1 {
					return tc.risk
				}
				return refusal.Risk{Sure: true, Proven: size(100)}
			}}
			if tc.used != nil {
				req.Burst = []Use{{}, *tc.used, {}}
			}
			view := &capacity.View{Pools: []capacity.Pool{in(capacity.Full, time.Hour), {}, {}}}
			d := r.Decide(req, view, now)
			v, second := d.Burst[1], d.Burst[2]
			if v.Reason.Code != tc.reason || v.Open != (tc.reason == "Open") || v.Turn != tc.turn {
				t.Fatalf("%+v", v)
			}
			switch tc.reason {
			case "Paced":
				if !v.Until.Equal(until) || !strings.Contains(v.Reason.Detail, "of Job sums are on their way") || !v.Passes() {
					t.Errorf("%+v", v)
				}
				if second.Open || second.Reason.Code != "Paced" {
					t.Errorf("the next pool, for a pod whose turn comes: %+v", second)
				}
			case "OwnerSpared":
				if !v.Until.Equal(again) || !strings.Contains(v.Reason.Detail, "3 of Job sums in a day, until 2026-11-21T11:00:00Z or until the pool has run more than 8 pods and 8 CPUs") || v.Passes() {
					t.Errorf("%+v", v)
				}
				if !second.Open {
					t.Errorf("the next pool: %+v", second)
				}
			}
		})
	}
}

// TestWhoIsPaced: pods whose owner counts no failures are let in as ever, and what else closes the gate is said first.
func TestWhoIsPaced(t *testing.T) {
	r := twoPlainBurstPools(t)
	view := &capacity.View{Pools: []capacity.Pool{in(capacity.Full, time.Hour), {}, {}}}
	risk := func(int) refusal.Risk { return refusal.Risk{Unanswered: 9, Lost: 9} }
	bare := ofJob(corev1.RestartPolicyNever)
	bare.OwnerReferences = nil
	for _, tc := range []struct {
		name    string
		request Request
		reason  string
	}{
		{"OnFailure", Request{Pod: ofJob(corev1.RestartPolicyOnFailure), Risk: risk}, "OwnerSpared"},
		{"Always", Request{Pod: ofJob(corev1.RestartPolicyAlways), Risk: risk}, "Open"},
		{"a bare pod", Request{Pod: bare, Risk: risk}, "Open"},
		{"nobody knows the risk", Request{Pod: ofJob(corev1.RestartPolicyNever)}, "Open"},
	} {
		if v := r.Decide(tc.request, view, now).Burst[1]; v.Reason.Code != tc.reason {
			t.Errorf("%s: %+v", tc.name, v)
		}
	}
	view.Pools[1].Provider = refusal.Judgement{State: refusal.Probing}
	one := Request{Pod: ofJob(corev1.RestartPolicyNever), Risk: func(int) refusal.Risk { return refusal.Risk{Doubt: true, Lost: 2} }}
	if v := r.Decide(one, view, now).Burst[1]; !v.Open || !v.Probe || v.Turn != 1 {
		t.Errorf("a probe: %+v", v)
	}
	one.Risk = risk
	if v := r.Decide(one, view, now).Burst[1]; v.Open || v.Reason.Code != "OwnerSpared" {
		t.Errorf("a probe that its owner may not bear: %+v", v)
	}
	one.Starting = func(int) int { return 1 }
	if v := r.Decide(one, view, now).Burst[1]; v.Reason.Code != "Probed" {
		t.Errorf("beside a probe: %+v", v)
	}
	view.Pools[0] = in(capacity.CanGrow, 0)
	if v := r.Decide(one, view, now).Burst[1]; v.Reason.Code != "PoolCanGrow" {
		t.Errorf("while an earlier pool can grow: %+v", v)
	}
	r.Observe = true
	view.Pools[0], view.Pools[1].Provider = in(capacity.Full, time.Hour), refusal.Judgement{}
	if v := r.Decide(one, view, now).Burst[1]; !v.Open || !v.Observed || v.Reason.Code != "OwnerSpared" {
		t.Errorf("where gates are only observed: %+v", v)
	}
}
