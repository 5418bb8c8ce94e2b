package held

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
)

// ofJob makes the Job the pod's controller, and sets restartPolicy Never.
func ofJob(p *v1.Pod, job string) *v1.Pod {
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: job, UID: types.UID("uid-of-" + job), Controller: ptr.To(true)}}
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	return p
}

// TestTrialsAreFew: few of the held pods are requeued to test whether a provider accepts pods again. After
// quotaInterval, the next few follow. Once the provider accepts pods, all others are requeued.
func TestTrialsAreFew(t *testing.T) {
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed := &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonProviderRefusing}}}
	for i := range 8 {
		h.Add(pod(fmt.Sprint("p", i)), "", closed, nil, now.Add(time.Duration(i)*time.Second))
	}
	for i := range 4 {
		p := pod(fmt.Sprint("q", i))
		p.Namespace = "other"
		h.Add(p, "", closed, nil, now.Add(time.Duration(i)*time.Second))
	}
	open := func(probe bool) func(*Candidate) gate.Decision {
		return func(c *Candidate) gate.Decision {
			v := gate.Verdict{Open: true}
			if probe {
				v.Trial = &breaker.Scope{}
			}
			if c.Pod.Namespace == "other" { // a Closing of this namespace is half-open, too
				v.Trial = &breaker.Scope{Namespace: "other"}
			}
			return gate.Decision{Burst: []gate.Verdict{v}}
		}
	}
	now = now.Add(time.Minute)
	for i, tc := range []struct {
		after time.Duration
		probe bool
		want  []string
	}{
		{0, true, []string{"default/p0", "default/p1", "default/p2", "other/q0", "other/q1", "other/q2"}},
		{500 * time.Millisecond, true, nil},
		{time.Second, true, []string{"default/p3", "default/p4", "default/p5", "other/q3"}},
		{1500 * time.Millisecond, false, []string{"default/p6", "default/p7"}},
	} {
		got, next := h.lookFor(false, now.Add(tc.after), open(tc.probe))
		if !slices.Equal(got, tc.want) {
			t.Errorf("look %d requeues %v, want %v", i, got, tc.want)
		}
		if tc.probe && (!next.After(now.Add(tc.after)) || next.After(now.Add(tc.after+time.Second))) {
			t.Errorf("look %d: the next is at %v", i, next)
		}
	}
}

// TestQuotaOfAnOwner: of a Job's held pods, the oldest are requeued, as many as the quota allows. Each Job has its own
// quota. For the trial of a half-open pool, pods whose owners do not count failures come first.
func TestQuotaOfAnOwner(t *testing.T) {
	h, now := New(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	closed := &gate.Decision{Burst: []gate.Verdict{{Reason: gate.ReasonRateLimited}}}
	for i, p := range []*v1.Pod{ofJob(pod("a0"), "a"), ofJob(pod("b0"), "b"), ofJob(pod("a1"), "a"), ofJob(pod("a2"), "a"), pod("web0"), pod("web1")} {
		h.Add(p, "", closed, nil, now.Add(time.Duration(i)*time.Second))
	}
	now = now.Add(time.Minute)
	look := func(after time.Duration, decide func(*Candidate) gate.Decision) string {
		names, _ := h.lookFor(false, now.Add(after), decide)
		return strings.ReplaceAll(strings.Join(names, " "), "default/", "")
	}
	turn := func(c *Candidate) gate.Decision {
		if strings.HasPrefix(c.Pod.Name, "web") {
			return *closed
		}
		return gate.Decision{Burst: []gate.Verdict{{Open: true, Quota: 2}}}
	}
	probe := func(*Candidate) gate.Decision {
		return gate.Decision{Burst: []gate.Verdict{{Open: true, Trial: &breaker.Scope{}, Quota: 1}}}
	}
	none := func(*Candidate) gate.Decision { return *closed }
	for _, tc := range []struct {
		after  time.Duration
		decide func(*Candidate) gate.Decision
		want   string
	}{
		{0, turn, "a0 a1 b0"},
		{500 * time.Millisecond, turn, ""},
		{time.Second, turn, "a2"},
		{2 * time.Second, none, ""},
		{3 * time.Second, probe, "a0 web0 web1"},
	} {
		if got := look(tc.after, tc.decide); got != tc.want {
			t.Errorf("after %v: requeued are %q, want %q", tc.after, got, tc.want)
		}
	}
}
