package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

// ofJob returns a pod of a Job that requests one CPU.
func ofJob(policy corev1.RestartPolicy) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "sums", UID: "j", Controller: ptr.To(true)}}},
		Spec: corev1.PodSpec{RestartPolicy: policy, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}},
	}
}

// twoPlainBurstPools returns a Rule for the pools vm, aci and eci, without limits.
func twoPlainBurstPools(t *testing.T) *Rule {
	t.Helper()
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "vm", NodeSelector: matching("mode", "user")},
		{Name: "aci", NodeSelector: matching("provider", "aci"), Burst: &configv1.Burst{}},
		{Name: "eci", NodeSelector: matching("provider", "eci"), Burst: &configv1.Burst{}},
	}})
	must.NoError(t, err)
	return &Rule{Pools: pools}
}

// startsOf returns p with the given numbers of starting and refused pods of ofJob's owner.
func startsOf(starting, refused int, p breaker.Pacing) *breaker.Pacing {
	var known breaker.OwnerPacing
	for i := range starting {
		known.Starting = append(known.Starting, now.Add(time.Duration(7+i)*time.Second))
	}
	for i := range refused {
		known.Refused = append(known.Refused, now.Add(time.Duration(1+i)*time.Hour))
	}
	p.Owners = map[types.UID]breaker.OwnerPacing{"/j": known}
	return &p
}

// TestPaced checks when the gate of an open burst pool lets in a pod of a Job.
func TestPaced(t *testing.T) {
	size := func(pods int) breaker.Size { return breaker.Size{Pods: pods, MilliCPU: int64(pods) * 1000} }
	type pacing = breaker.Pacing
	trusted := now.Add(time.Minute)
	for _, tc := range []struct {
		name   string
		pacing *breaker.Pacing
		used   *aci.Use
		turn   int // how many are let in; 0: as many as there are
		reason string
	}{
		{"the first of all", startsOf(0, 0, pacing{}), nil, 1, "Open"},
		{"one is starting", startsOf(1, 0, pacing{Used: size(1)}), nil, 0, "RateLimited"},
		{"one has started", startsOf(0, 0, pacing{TrustedUntil: trusted, Peak: size(1), Recent: size(1), Used: size(1)}), nil, 2, "Open"},
		{"one has started, and one is starting", startsOf(1, 0, pacing{TrustedUntil: trusted, Peak: size(1), Recent: size(1), Used: size(2)}), nil, 1, "Open"},
		{"one has started, and two are starting", startsOf(2, 0, pacing{TrustedUntil: trusted, Peak: size(1), Recent: size(1), Used: size(3)}), nil, 0, "RateLimited"},
		{"below both", startsOf(5, 0, pacing{TrustedUntil: trusted, Peak: size(9), Recent: size(9), Used: size(8)}), nil, 0, "Open"},
		{"below both in pods, not in CPUs", startsOf(2, 0, pacing{TrustedUntil: trusted, Peak: breaker.Size{Pods: 9, MilliCPU: 8999}, Recent: breaker.Size{Pods: 9, MilliCPU: 8999}, Used: size(8)}), nil, 0, "RateLimited"},
		{"below both, but one more was placed by the snapshot", startsOf(2, 0, pacing{TrustedUntil: trusted, Peak: size(9), Recent: size(9), Used: size(8)}), &aci.Use{Pods: 9, MilliCPU: 9000}, 0, "RateLimited"},
		{"below a peak that is not trusted, and none is starting", startsOf(0, 0, pacing{Peak: size(9), Used: size(8)}), nil, 1, "Open"},
		{"below a peak that is not trusted, and one is starting", startsOf(1, 0, pacing{Peak: size(9), Used: size(8)}), nil, 0, "RateLimited"},
		{"below the peak, not below what ran recently", startsOf(1, 0, pacing{TrustedUntil: trusted, Peak: size(9), Recent: size(4), Used: size(4)}), nil, 1, "Open"},
		{"the same, after three were refused", startsOf(0, 3, pacing{TrustedUntil: trusted, Peak: size(9), Recent: size(4), Used: size(4)}), nil, 1, "Open"},
		{"a pod started long ago", startsOf(0, 0, pacing{TrustedUntil: now, Peak: size(9), Used: size(9)}), nil, 1, "Open"},
		{"two were refused", startsOf(0, 2, pacing{TrustedUntil: trusted, Used: size(8)}), nil, 1, "Open"},
		{"two were refused, and one is starting", startsOf(1, 2, pacing{TrustedUntil: trusted, Used: size(8)}), nil, 0, "RateLimited"},
		{"three were refused", startsOf(0, 3, pacing{TrustedUntil: trusted, Peak: size(8), Recent: size(8), Used: size(8)}), nil, 0, "FailureLimit"},
		{"five were refused: two more must be forgotten", startsOf(0, 5, pacing{Peak: size(8), Used: size(8)}), nil, 0, "FailureLimit"},
		{"three were refused, and one of those that ran has ended", startsOf(0, 3, pacing{Peak: size(8), Used: size(7)}), nil, 1, "Open"},
		{"three were refused, and one that ended is being replaced", startsOf(1, 3, pacing{Peak: size(8), Used: size(6)}), nil, 0, "RateLimited"},
		{"three were refused, and others have run more since", startsOf(0, 3, pacing{TrustedUntil: trusted, Peak: size(20), Recent: size(20), Used: size(8)}), nil, 0, "Open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := twoPlainBurstPools(t)
			req := Request{Pod: ofJob(corev1.RestartPolicyNever), Pacing: func(i int) *breaker.Pacing {
				if i == 1 {
					return tc.pacing
				}
				return &breaker.Pacing{TrustedUntil: trusted, Recent: size(100)}
			}}
			if tc.used != nil {
				req.Burst = []aci.Use{{}, *tc.used, {}}
			}
			view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, time.Hour), {}, {}}}
			d := r.Decide(req, view, now)
			v, second := d.Burst[1], d.Burst[2]
			if v.Reason.Code != tc.reason || v.Open != (tc.reason == "Open") || v.Quota != tc.turn {
				t.Fatalf("%+v", v)
			}
			switch tc.reason {
			case "RateLimited":
				if !v.Until.Equal(now.Add(7*time.Second)) || !strings.Contains(v.Reason.Detail, "of Job sums are starting") || !v.Passes() {
					t.Errorf("%+v", v)
				}
				if second.Open || second.Reason.Code != "RateLimited" {
					t.Errorf("the next pool, for a pod whose turn comes: %+v", second)
				}
			case "FailureLimit":
				n := len(tc.pacing.Owners["/j"].Refused)
				until := now.Add(time.Duration(n-2) * time.Hour)
				if !v.Until.Equal(until) || !strings.Contains(v.Reason.Detail, fmt.Sprint("within a day, ", n, " pods of Job sums were refused or did not start in time; the gate stays closed until ", until.UTC().Format(time.RFC3339), ", or until the pool has run more than 8 pods and 8 CPUs")) || v.Passes() {
					t.Errorf("%+v", v)
				}
				if !second.Open {
					t.Errorf("the next pool: %+v", second)
				}
			}
		})
	}
}

// TestWhoIsPaced: pacing does not apply to pods whose owner counts no failures. Other reasons for a closed gate have
// precedence over it.
func TestWhoIsPaced(t *testing.T) {
	r := twoPlainBurstPools(t)
	view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, time.Hour), {}, {}}}
	pacing := func(int) *breaker.Pacing { return startsOf(9, 9, breaker.Pacing{}) }
	bare := ofJob(corev1.RestartPolicyNever)
	bare.OwnerReferences = nil
	for _, tc := range []struct {
		name    string
		request Request
		reason  string
	}{
		{"OnFailure", Request{Pod: ofJob(corev1.RestartPolicyOnFailure), Pacing: pacing}, "FailureLimit"},
		{"Always", Request{Pod: ofJob(corev1.RestartPolicyAlways), Pacing: pacing}, "Open"},
		{"a bare pod", Request{Pod: bare, Pacing: pacing}, "Open"},
		{"no pacing is known", Request{Pod: ofJob(corev1.RestartPolicyNever)}, "Open"},
	} {
		if v := r.Decide(tc.request, view, now).Burst[1]; v.Reason.Code != tc.reason {
			t.Errorf("%s: %+v", tc.name, v)
		}
	}
	view.Pools[1].Provider = breaker.Status{State: breaker.HalfOpen}
	one := Request{Pod: ofJob(corev1.RestartPolicyNever), Pacing: func(int) *breaker.Pacing { return startsOf(0, 2, breaker.Pacing{}) }}
	if v := r.Decide(one, view, now).Burst[1]; !v.Open || v.Trial == nil || v.Quota != 1 {
		t.Errorf("a probe: %+v", v)
	}
	one.Pacing = pacing
	if v := r.Decide(one, view, now).Burst[1]; v.Open || v.Reason.Code != "FailureLimit" {
		t.Errorf("a probe of an owner at its failure limit: %+v", v)
	}
	one.Tests = func(int, breaker.Scope) breaker.Tests { return breaker.Tests{{Until: now}} }
	if v := r.Decide(one, view, now).Burst[1]; v.Reason.Code != "HalfOpen" {
		t.Errorf("beside a probe: %+v", v)
	}
	view.Pools[0] = in(nodegroups.CanGrow, 0)
	if v := r.Decide(one, view, now).Burst[1]; v.Reason.Code != "PoolCanGrow" {
		t.Errorf("while an earlier pool can grow: %+v", v)
	}
	r.Observe = true
	view.Pools[0], view.Pools[1].Provider = in(nodegroups.Full, time.Hour), breaker.Status{}
	if v := r.Decide(one, view, now).Burst[1]; !v.Open || !v.Observed || v.Reason.Code != "FailureLimit" {
		t.Errorf("where gates are only observed: %+v", v)
	}
}

// TestJobsAgainstQuotas simulates Jobs of 100 pods and a provider with a quota of pods that answers after two seconds.
// The gate decides, and a Breaker sees the pods. A refused pod fails, and the Job replaces it. No Job may fail.
func TestJobsAgainstQuotas(t *testing.T) {
	const backoffLimit = 6 // the default of Jobs
	for _, tc := range []struct {
		name   string
		quotas []int         // one for each Job; the Jobs run one after the other, 30 minutes apart
		runs   time.Duration // how long each pod runs
	}{
		{"no Job reaches it", []int{200}, time.Minute},
		{"40", []int{40}, time.Minute},
		{"41", []int{41}, time.Minute},
		{"1", []int{1}, time.Minute},
		{"falls from 40 to 10 while nothing runs", []int{40, 10}, time.Minute},
		{"rises from 10 to 40 while nothing runs", []int{10, 40}, time.Minute},
		{"10, for a Job of 10 hours", []int{10}, time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &provider{T: t, tracker: breaker.New(breaker.NewRules(15 * time.Minute)), rule: twoPlainBurstPools(t), now: now}
			for i, quota := range tc.quotas {
				began := p.now
				failed := p.runJob(fmt.Sprint("job-", i), 100, quota, tc.runs)
				t.Logf("quota %d: %d pods failed, complete after %v", quota, failed, p.now.Sub(began))
				if failed > backoffLimit/2 {
					t.Errorf("quota %d: %d pods failed", quota, failed)
				}
				p.now = p.now.Add(30 * time.Minute)
			}
		})
	}
}

// TestCreateRates simulates 400 pods at once, a provider that creates at most 100 container groups in 5 min and 300 in an
// hour, within 25 s after the bindings, and a fail-over after each hundred. The provider never refuses a pod, and no pod
// waits longer than it must.
func TestCreateRates(t *testing.T) {
	for _, tc := range []struct {
		tenants bool
		want    []time.Duration // when the last pod of each 50 is bound
	}{
		{false, []time.Duration{0, 0, 330, 330, 660, 660, 3630, 3630}},
		{true, []time.Duration{0, 0, 330, 330, 660, 660, 3630, 3630}},
	} {
		args := &configv1.PoolPriorityArgs{Tenants: tc.tenants, Pools: []configv1.Pool{{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}}}}
		configv1.SetDefaults_PoolPriorityArgs(args)
		p := must.Get(pool.ListOf(args))(t).At(0)
		rules := breaker.NewRules(15 * time.Minute)
		rules.Creates = 300
		tracker, started, at := breaker.New(rules), now, now
		var bound []breaker.Pod
		var groups []time.Time
		of := map[string]int{}
		for ; len(bound) < 400; at = at.Add(time.Second) {
			for _, namespace := range []string{"a", "b"} {
				for of[namespace] < 200 {
					if until, _ := CreatesUntil(namespace, p, tracker.Status(at).Creates, at); !until.IsZero() {
						break
					}
					pod := breaker.Pod{UID: types.UID(fmt.Sprint("p", len(bound))), Namespace: namespace, Bound: at}
					tracker.See(pod, at)
					bound, groups = append(bound, pod), append(groups, at.Add(time.Duration(len(bound)%26)*time.Second))
					of[namespace]++
					if len(bound)%50 == 0 && at.Sub(started) != tc.want[len(bound)/50-1]*time.Second {
						t.Errorf("tenants %v: %d pods are bound after %v", tc.tenants, len(bound), at.Sub(started))
					}
					if len(bound)%100 == 0 && tc.tenants && of["a"] != of["b"] {
						t.Errorf("with tenants, %v of %d pods are bound", of, len(bound))
					}
					if len(bound)%100 == 0 { // half of the pods have gone by then
						next := breaker.New(rules)
						next.RestoreCreates(tracker.Status(at).Creates, at)
						for _, pod := range bound[:len(bound)/2] {
							next.See(pod, at)
						}
						tracker = next
					}
				}
			}
		}
		slices.SortFunc(groups, time.Time.Compare)
		for i := range groups {
			if i >= 100 && groups[i].Sub(groups[i-100]) < 5*time.Minute || i >= 300 && groups[i].Sub(groups[i-300]) < time.Hour {
				t.Errorf("tenants %v: the provider refuses group %d", tc.tenants, i)
			}
		}
	}
}

// provider simulates the quota of Azure Container Instances.
type provider struct {
	*testing.T
	tracker *breaker.Breaker
	rule    *Rule
	now     time.Time
	made    int
}

// runJob runs a Job until the given number of its pods are complete. It returns how many of its pods failed.
func (p *provider) runJob(name string, pods, quota int, runs time.Duration) (failed int) {
	job := ofJob(corev1.RestartPolicyNever)
	job.OwnerReferences[0].UID = types.UID(name)
	bound := map[types.UID]*breaker.Pod{}
	for complete, deadline := 0, p.now.Add(24*time.Hour); complete < pods; p.now = p.now.Add(time.Second) {
		if p.now.After(deadline) {
			p.Fatalf("%d of %d pods are complete after a day, %d failed", complete, pods, failed)
		}
		running := 0
		for uid, pod := range bound {
			if pod.Refusal != nil || pod.Started && p.now.Sub(pod.Bound) >= runs {
				if pod.Refusal == nil {
					complete++
				}
				p.tracker.Gone(uid)
				delete(bound, uid)
			} else if pod.Started {
				running++
			}
		}
		for _, pod := range bound {
			if pod.Started || p.now.Sub(pod.Bound) < 2*time.Second {
				continue
			}
			if running < quota {
				running++
				pod.Started = true
			} else {
				failed++
				pod.Refusal = &refusal.Refusal{Code: "ContainerGroupQuotaReached", Cause: refusal.PoolError}
			}
			p.tracker.See(*pod, p.now)
		}
		for complete+len(bound) < pods && p.isOpen(job) {
			p.made++
			pod := breaker.PodOf(job, p.now)
			pod.UID, pod.Namespace, pod.MilliCPU, pod.Bound = types.UID(fmt.Sprint(p.made)), "default", 1000, p.now
			bound[pod.UID] = &pod
			p.tracker.See(pod, p.now)
		}
	}
	return failed
}

// isOpen reports whether the gate is open for a pod of the Job.
func (p *provider) isOpen(job *corev1.Pod) bool {
	judged := p.tracker.Status(p.now)
	view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, time.Hour), {Provider: judged}, {Provider: breaker.Status{State: breaker.Refusing}}}}
	return p.rule.Decide(Request{Pod: job}, view, p.now).Burst[1].Open
}
