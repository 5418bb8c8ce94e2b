package gate

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// twoBurstPools returns a Rule for the pools vm, aci and eci.
func twoBurstPools(t *testing.T) *Rule {
	t.Helper()
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Capacity: declining(5 * time.Minute), Pools: []configv1.Pool{
		{Name: "vm", NodeSelector: matching("mode", "user")},
		{Name: "aci", NodeSelector: matching("provider", "aci"), Burst: &configv1.Burst{WaitLimit: metav1.Duration{Duration: time.Minute}, Limits: &configv1.BurstLimits{Pods: 1}}},
		{Name: "eci", NodeSelector: matching("provider", "eci"), Burst: &configv1.Burst{}},
	}})
	must.NoError(t, err)
	return &Rule{Pools: pools, UnknownGrace: 15 * time.Minute, HoldLimit: time.Hour}
}

// TestRefusing: a burst pool whose provider refuses pods is closed to all pods, whatever else would open it. The next
// burst pool is open.
func TestRefusing(t *testing.T) {
	r := twoBurstPools(t)
	refusing := breaker.Status{State: breaker.Refusing, Since: ago(90 * time.Second), Until: now.Add(time.Minute), Code: "ContainerGroupQuotaReached", Message: "no cores"}
	probing := func(tests ...breaker.Test) breaker.Status {
		return breaker.Status{State: breaker.HalfOpen, Since: ago(time.Minute), Code: "HTTP429", Message: "slower", Tests: tests}
	}
	young, old := breaker.Test{Namespace: "shop", Until: now.Add(time.Minute)}, breaker.Test{Namespace: "shop", Until: now}
	plain := &corev1.Pod{}
	asks := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"provider": "aci"}}}
	over := refusing
	over.Until = now
	for _, tc := range []struct {
		name     string
		provider breaker.Status
		state    nodegroups.State
		request  Request
		open     bool
		reason   string
		probe    bool
		until    time.Time
	}{
		{name: "never judged", state: nodegroups.Full, request: Request{Pod: plain}, open: true, reason: "Open"},
		{name: "open", provider: breaker.Status{State: breaker.Open}, state: nodegroups.Full, request: Request{Pod: plain}, open: true, reason: "Open"},
		{name: "refusing", provider: refusing, state: nodegroups.Full, request: Request{Pod: plain}, reason: "Refused", until: refusing.Until},
		{name: "refusing, and closed for what the pools before can do", provider: refusing, state: nodegroups.CanGrow, request: Request{Pod: plain}, reason: "PoolCanGrow"},
		{name: "refusing, to a pod that asks for it", provider: refusing, state: nodegroups.CanGrow, request: Request{Pod: asks}, reason: "Refused", until: refusing.Until},
		{name: "refusing, to a pod that has waited for waitLimit", provider: refusing, state: nodegroups.CanGrow,
			request: Request{Pod: plain, UnschedulableSince: ago(time.Hour)}, reason: "Refused", until: refusing.Until},
		{name: "refusing, to a pod that has been held for holdLimit", provider: refusing, state: nodegroups.CanGrow,
			request: Request{Pod: plain, NoRoomSince: ago(3 * time.Hour)}, reason: "Refused", until: refusing.Until},
		{name: "it is time for a probe, and nobody has looked yet", provider: over, state: nodegroups.Full, request: Request{Pod: plain}, open: true, reason: "Open", probe: true},
		{name: "probing", provider: probing(), state: nodegroups.Full, request: Request{Pod: plain}, open: true, reason: "Open", probe: true},
		{name: "probing, with a pod that starts", provider: probing(young), state: nodegroups.Full, request: Request{Pod: plain}, reason: "HalfOpen", until: young.Until},
		{name: "probing, with a pod that has not started for long", provider: probing(old), state: nodegroups.Full, request: Request{Pod: plain}, open: true, reason: "Open", probe: true},
		{name: "probing, with one of its namespace", provider: probing(breaker.Test{Until: now}), state: nodegroups.Full, request: Request{Pod: plain}, reason: "HalfOpen"},
		{name: "probing, with a pod that starts by the snapshot", provider: probing(), state: nodegroups.Full,
			request: Request{Pod: plain, Tests: func(int, breaker.Scope) breaker.Tests { return breaker.Tests{young} }}, reason: "HalfOpen"},
		{name: "probing, with a pod that started since by the snapshot", provider: probing(young), state: nodegroups.Full,
			request: Request{Pod: plain, Tests: func(int, breaker.Scope) breaker.Tests { return nil }}, open: true, reason: "Open", probe: true},
		{name: "probing, with the budget spent", provider: probing(), state: nodegroups.Full, request: Request{Pod: plain, Burst: []aci.Use{{}, {Pods: 1}, {}}}, reason: "BudgetSpent"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			view := &nodegroups.View{Pools: []nodegroups.Pool{in(tc.state, time.Hour), {Provider: tc.provider}, {}}}
			d := r.Decide(tc.request, view, now)
			v := d.Burst[1]
			if v.Open != tc.open || v.Reason.Code != tc.reason || (v.Trial != nil) != tc.probe {
				t.Errorf("%+v", v)
			}
			if !tc.until.IsZero() && !v.Until.Equal(tc.until) {
				t.Errorf("until %v, want %v", v.Until, tc.until)
			}
			if tc.reason == "Refused" && (!strings.Contains(v.Reason.Detail, "ContainerGroupQuotaReached since 2026-11-21T09:58:30Z: no cores") || !strings.Contains(v.Reason.Detail, "again at 2026-11-21T10:01:00Z")) {
				t.Errorf("detail %q", v.Reason.Detail)
			}
			if other := d.Burst[2]; tc.request.Pod == plain && tc.state == nodegroups.Full && (!other.Open || other.Trial != nil) {
				t.Errorf("the next pool: %+v", other)
			}
		})
	}
}

// TestClosings: while the provider refuses pods of a scope, the pool is closed for these pods only. Afterwards, one of
// them tests the provider.
func TestClosings(t *testing.T) {
	r := twoBurstPools(t)
	during := breaker.Closing{Scope: breaker.Scope{Namespace: "shop"}, Code: "Late", Message: "not started", Until: now.Add(time.Minute)}
	half := during
	half.Until = now
	testing1 := half
	testing1.Tests = breaker.Tests{{Namespace: "shop", Until: now}}
	large := breaker.Closing{Scope: breaker.Scope{MilliCPU: 2000}, Code: "ServiceUnavailable", Message: "no capacity", Until: now.Add(time.Minute)}
	starting := func(tests ...breaker.Test) func(int, breaker.Scope) breaker.Tests {
		return func(i int, scope breaker.Scope) breaker.Tests {
			if i != 1 || scope != half.Scope {
				t.Errorf("it counts pods of %+v in pool %d", scope, i)
			}
			return tests
		}
	}
	for _, tc := range []struct {
		name     string
		closing  breaker.Closing
		starting func(int, breaker.Scope) breaker.Tests
		want     string // of a plain pod in namespace shop
		trial    *breaker.Scope
	}{
		{"closed", during, nil, "Refused", nil},
		{"half-open", half, nil, "Open", &half.Scope},
		{"half-open, while a pod starts", testing1, nil, "HalfOpen", nil},
		{"half-open, while a pod starts by the snapshot", half, starting(testing1.Tests...), "HalfOpen", nil},
		{"half-open, and the pod has started by the snapshot", testing1, starting(), "Open", &half.Scope},
		{"closed for larger pods", large, nil, "Open", nil},
	} {
		view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, time.Hour), {Provider: breaker.Status{State: breaker.Open, Closings: []breaker.Closing{tc.closing}}}, {}}}
		shop, other := PlainPod(), PlainPod()
		shop.Namespace = "shop"
		if v := r.Decide(Request{Pod: shop, Tests: tc.starting}, view, now).Burst[1]; v.Reason.Code != tc.want || !cmp.Equal(v.Trial, tc.trial) || v.Open && !v.Until.IsZero() {
			t.Errorf("%s: %+v, want %s", tc.name, v, tc.want)
		}
		if v := r.Decide(Request{Pod: other}, view, now).Burst[1]; !v.Open || v.Trial != nil {
			t.Errorf("%s: for another namespace %+v", tc.name, v)
		}
	}
}

// TestTemplateRefused: a template is ineligible for the pool whose provider refused it, until the template changes or
// is tried again. The annotation's value Always does not change that.
func TestTemplateRefused(t *testing.T) {
	r := twoBurstPools(t)
	owned := func(uid, revision, burst string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"controller-revision-hash": revision},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", UID: "db", Controller: ptr.To(true)}}}}
		if burst != "" {
			p.Annotations = map[string]string{pool.BurstAnnotation: burst}
		}
		return p
	}
	until := now.Add(time.Hour)
	provider := breaker.Status{State: breaker.Open, Templates: map[string]breaker.Template{
		"/db/1": {Code: "InaccessibleImage", Message: "not there", Until: until}, "/db/3": {Until: now}}}
	view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, time.Hour), {Provider: provider}, {}}}
	for _, tc := range []struct {
		name, revision, burst string
		reason                string
	}{
		{"refused", "1", "", "TemplateRefused"},
		{"refused, and told to burst", "1", "Always", "TemplateRefused"},
		{"refused, and opted out", "1", "Never", "OptedOut"},
		{"changed", "2", "", "Open"},
		{"tried again", "3", "", "Open"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := r.Decide(Request{Pod: owned("db", tc.revision, tc.burst)}, view, now)
			v := d.Burst[1]
			if v.Reason.Code != tc.reason || v.Open != (tc.reason == "Open") {
				t.Errorf("%+v", v)
			}
			if tc.reason == "TemplateRefused" && (v.Reason.Detail != "InaccessibleImage: not there" || !v.Until.Equal(until)) {
				t.Errorf("%+v", v)
			}
			if tc.burst == "" && !d.Burst[2].Open {
				t.Errorf("the next pool: %+v", d.Burst[2])
			}
		})
	}
}
