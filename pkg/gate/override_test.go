package gate

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// TestOverride: Closed closes the gate to every pod. Open overrides only the states of earlier pools and the Wait of a
// pod. With mode: Observe every gate is open, and the verdict shows whether it would be closed, and why.
func TestOverride(t *testing.T) {
	const minute = time.Minute
	full, canGrow := in(nodegroups.Full, 0), in(nodegroups.CanGrow, 0)
	asks := func(r *Request) { r.Pod.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"} }
	closed, open := Override{Gate: OverrideClosed}, Override{Gate: OverrideOpen}
	for _, tc := range []struct {
		name      string
		override  Override
		user      nodegroups.Pool
		provider  breaker.State
		change    func(*Request)
		wantOpen  bool
		wantCode  string
		wantUntil time.Duration // from now; 0: never
	}{
		{name: "closed, and else open", override: closed, user: full, wantCode: "OverriddenClosed"},
		{name: "closed, and else closed", override: closed, user: canGrow, wantCode: "OverriddenClosed"},
		{name: "closed for a pod that asks for the burst pool", override: closed, user: full, change: asks, wantCode: "OverriddenClosed"},
		{name: "closed for a pod that has waited as long as waitLimit and holdLimit", override: closed, user: canGrow,
			change: func(r *Request) { r.UnschedulableSince, r.NoRoomSince = ago(time.Hour), ago(time.Hour) }, wantCode: "OverriddenClosed"},
		{name: "closed for a while", override: Override{OverrideClosed, now.Add(minute)}, user: full, wantCode: "OverriddenClosed", wantUntil: minute},
		{name: "closed until now", override: Override{OverrideClosed, now}, user: full, wantOpen: true, wantCode: "Open"},
		{name: "closed, and the pod may not burst anyway", override: closed, user: full, change: func(r *Request) { r.Pod.Spec.HostNetwork = true }, wantCode: "HostNamespace"},
		{name: "open, and else closed", override: open, user: canGrow, wantOpen: true, wantCode: "OverriddenOpen"},
		{name: "open, and else open", override: open, user: full, wantOpen: true, wantCode: "Open"},
		{name: "open for a while", override: Override{OverrideOpen, now.Add(minute)}, user: canGrow, wantOpen: true, wantCode: "OverriddenOpen"},
		{name: "open until now", override: Override{OverrideOpen, now}, user: canGrow, wantCode: "PoolCanGrow"},
		{name: "open: a rollout's pod waits no longer", override: open, user: full, change: func(r *Request) { r.Wait = Wait{Reason: ReasonRolloutTerminating, Until: now.Add(minute)} }, wantOpen: true, wantCode: "OverriddenOpen"},
		{name: "open: nor does one that the snapshot is behind for", override: open, user: full,
			change: func(r *Request) { r.Snapshot = []Nodes{{}, {Starting: 1}, {}} }, wantOpen: true, wantCode: "OverriddenOpen"},
		{name: "open, and the pod opts out", override: open, user: canGrow, change: func(r *Request) { r.Pod.Annotations[pool.BurstAnnotation] = pool.BurstNever }, wantCode: "OptedOut"},
		{name: "open, and the provider cannot run the pod", override: open, user: canGrow, change: func(r *Request) { r.Pod.Spec.HostNetwork = true }, wantCode: "HostNamespace"},
		{name: "open, and the pool is not for the namespace", override: open, user: canGrow, change: func(r *Request) { r.NotSelected = []bool{false, false, true} }, wantCode: "NamespaceNotSelected"},
		{name: "open, and the budget is spent", override: open, user: canGrow, change: func(r *Request) { r.Burst = []aci.Use{{}, {}, {Pods: 3}} }, wantCode: "BudgetSpent"},
		{name: "open, and the provider refuses pods", override: open, user: canGrow, provider: breaker.Refusing, wantCode: "Refused", wantUntil: minute},
		{name: "it is not known yet", override: Override{Gate: OverrideUnread}, user: full, change: asks, wantCode: "OverrideUnread"},
		{name: "an unknown word says nothing", override: Override{Gate: "Ajar"}, user: full, wantOpen: true, wantCode: "Open"},
		{name: "an override that has ended, and the pool is not for the namespace of a pod that opts in", override: Override{OverrideOpen, now}, user: full,
			change: func(r *Request) {
				r.NotSelected, r.Pod.Annotations[pool.BurstAnnotation] = []bool{false, false, true}, pool.BurstAlways
			}, wantCode: "NamespaceNotSelected"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
				{Name: "user", NodeSelector: matching("mode", "user")},
				{Name: "system", NodeSelector: matching("mode", "system")},
				{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{Limits: &configv1.BurstLimits{Pods: 3}, WaitLimit: metav1.Duration{Duration: time.Second}}},
			}})
			must.NoError(t, err)
			r := Rule{Pools: pools, HoldLimit: time.Minute, Override: tc.override}
			request := Request{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}}
			if tc.change != nil {
				tc.change(&request)
			}
			view := &nodegroups.View{Built: now, Pools: []nodegroups.Pool{tc.user, full, {Provider: breaker.Status{State: tc.provider, Until: now.Add(minute)}}}}
			got := r.Decide(request, view, now).Burst[2]
			if got.Open != tc.wantOpen || got.Reason.Code != tc.wantCode || got.Observed {
				t.Errorf("Decide() = %+v, want open %v by %s", got, tc.wantOpen, tc.wantCode)
			}
			if want := now.Add(tc.wantUntil); tc.wantUntil > 0 && !got.Until.Equal(want) || tc.wantUntil == 0 && !got.Until.IsZero() {
				t.Errorf("Until = %v, want %v", got.Until, tc.wantUntil)
			}
			if want := tc.wantCode == "OverrideUnread"; got.Passes() != want {
				t.Errorf("Passes() = %v, want %v", got.Passes(), want)
			}
			r.Observe = true
			decision := r.Decide(request, view, now)
			if observed := decision.Burst[2]; !observed.Open || observed.Observed == tc.wantOpen || observed.Reason.Code != tc.wantCode || decision.Opens() != tc.wantOpen {
				t.Errorf("in mode Observe: %+v, want it open, and %s", observed, tc.wantCode)
			}
		})
	}
}

func TestParseOverride(t *testing.T) {
	for _, tc := range []struct {
		name   string
		data   map[string]string
		binary map[string][]byte
		want   Override
		err    string
	}{
		{name: "closed", data: map[string]string{"gate": "Closed"}, want: Override{Gate: OverrideClosed}},
		{name: "open, from a file with a line's end", data: map[string]string{"gate": "Open\n"}, want: Override{Gate: OverrideOpen}},
		{name: "for a while", data: map[string]string{"gate": "Closed", "until": "2026-11-21T11:00:00+01:00"}, want: Override{OverrideClosed, now}},
		{name: "empty", err: `gate: the value is ""; set Closed or Open`},
		{name: "another word", data: map[string]string{"gate": "closed"}, err: `gate: the value is "closed"; set Closed or Open`},
		{name: "our own word", data: map[string]string{"gate": "Unread"}, err: `gate: the value is "Unread"; set Closed or Open`},
		{name: "not a time", data: map[string]string{"gate": "Open", "until": "2h"}, err: `until: the value is "2h"; write a time such as 2026-11-21T10:00:00Z, or remove the key`},
		{name: "an empty time", data: map[string]string{"gate": "Open", "until": ""}, err: `until: the value is ""`},
		{name: "no time at all", data: map[string]string{"gate": "Open", "until": "0001-01-01T00:00:00Z"}, err: `until: the value is "0001-01-01T00:00:00Z"`},
		{name: "a misspelt key", data: map[string]string{"gate": "Closed", "untli": "2026-11-21T10:00:00Z"}, err: "untli: unknown key; the keys are gate and until"},
		{name: "a key of bytes", data: map[string]string{"gate": "Closed"}, binary: map[string][]byte{"pool": {1}}, err: "pool: unknown key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseOverride(&corev1.ConfigMap{Data: tc.data, BinaryData: tc.binary})
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || got.Gate != tc.want.Gate || !got.Until.Equal(tc.want.Until) {
				t.Errorf("ParseOverride() = %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}
