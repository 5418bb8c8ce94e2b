package gate

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// TestCredit: a group that does not serve pods holds no pod beyond its credit, here 23 min: staleAfter, unknownGrace and
// declineGrace.
func TestCredit(t *testing.T) {
	const minute = time.Minute
	requests := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	served := func(made, at time.Duration, cpu string) []nodegroups.Service {
		return []nodegroups.Service{{Made: ago(made), At: ago(at), Node: nodegroups.NodeTemplate{Allocatable: requests(cpu)}}}
	}
	for _, tc := range []struct {
		name     string
		wants    time.Duration // for how long the pod has wanted room; 0: it does not
		change   func(user, system *nodegroups.Group, request *Request)
		wantOpen bool
		until    time.Duration // from now, if the gate is closed; 0: never
	}{
		{"it lasts", 22 * minute, nil, false, minute},
		{"it has ended", 23 * minute, nil, true, 0},
		{"the pod does not want room", 0, nil, false, 0},
		{"a group that could grow", 23 * minute, func(user, _ *nodegroups.Group, _ *Request) { user.State = nodegroups.CanGrow }, true, 0},
		{"a group of which nothing is known", 23 * minute, func(user, _ *nodegroups.Group, _ *Request) { user.State, user.Since = nodegroups.Unknown, now }, true, 0},
		{"the first order starts it anew", 40 * minute, func(user, _ *nodegroups.Group, _ *Request) {
			user.Orders = []time.Time{ago(41 * minute), ago(20 * minute)}
		}, false, 3 * minute},
		{"later ones do not", 40 * minute, func(user, _ *nodegroups.Group, _ *Request) {
			user.Orders = []time.Time{ago(39 * minute), ago(20 * minute)}
		}, true, 0},
		{"the first one may be forgotten", 61 * minute, func(user, _ *nodegroups.Group, _ *Request) { user.Orders = []time.Time{ago(20 * minute)} }, true, 0},
		{"the first order of another group does, too", 40 * minute, func(user, system *nodegroups.Group, _ *Request) {
			user.Orders, system.Orders = []time.Time{ago(39 * minute)}, []time.Time{ago(20 * minute)}
		}, false, 3 * minute},
		{"a service starts it anew", 3 * time.Hour, func(user, _ *nodegroups.Group, _ *Request) { user.Served = served(22*minute, 21*minute, "2") }, false, 2 * minute},
		{"of another group, too", 3 * time.Hour, func(_, system *nodegroups.Group, _ *Request) { system.Served = served(22*minute, 21*minute, "2") }, false, 2 * minute},
		{"not by a node that is older than the wait", 25 * minute, func(user, _ *nodegroups.Group, _ *Request) { user.Served = served(26*minute, minute, "2") }, true, 0},
		{"not by a node that is too small for the pod", 25 * minute, func(user, _ *nodegroups.Group, _ *Request) { user.Served = served(20*minute, minute, "1900m") }, true, 0},
		{"not by a node that the pod does not tolerate", 25 * minute, func(user, _ *nodegroups.Group, _ *Request) {
			user.Served = served(20*minute, minute, "2")
			user.Served[0].Node.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
		}, true, 0},
		{"a later service of smaller pods changes nothing", 25 * minute, func(user, _ *nodegroups.Group, _ *Request) {
			user.Served = append(served(20*minute, 19*minute, "2"), served(2*minute, minute, "1")...)
		}, false, 4 * minute},
		{"all groups were full", 40 * minute, func(user, _ *nodegroups.Group, _ *Request) { user.Spells = []nodegroups.Spell{{To: ago(20 * minute)}} }, false, 3 * minute},
		{"and once more", 40 * minute, func(user, _ *nodegroups.Group, _ *Request) {
			user.Spells = []nodegroups.Spell{{To: ago(30 * minute)}, {From: ago(25 * minute), To: ago(minute)}}
		}, true, 0},
		{"only one group was full", 40 * minute, func(user, system *nodegroups.Group, _ *Request) {
			user.Spells, system.Spells = []nodegroups.Spell{{From: ago(time.Hour), To: ago(minute)}}, []nodegroups.Spell{{From: ago(time.Minute)}}
		}, true, 0},
		{"the pod continues the waiting of another", 10 * minute, func(_, _ *nodegroups.Group, request *Request) { request.Inherited = 12 * minute }, false, minute},
		{"and all groups were full", 10 * minute, func(user, _ *nodegroups.Group, request *Request) {
			user.Spells, request.Inherited = []nodegroups.Spell{{To: ago(minute)}}, 12*minute
		}, false, 22 * minute},
		{"for which the group has ordered", 10 * minute, func(user, _ *nodegroups.Group, request *Request) {
			user.Orders, request.Inherited = []time.Time{ago(21 * minute), ago(minute)}, 12*minute
		}, false, 2 * minute},
		{"the autoscaler ignored the pod", 25 * minute, func(_, _ *nodegroups.Group, request *Request) { request.IgnoredUntil = ago(20 * minute) }, false, 3 * minute},
		{"nothing else starts it anew", 23 * minute, func(user, _ *nodegroups.Group, _ *Request) {
			user.Since, user.LastActivity, user.LastChanged, user.LimitsChanged, user.Until = now, now, now, now, now.Add(minute)
		}, true, 0},
		{"another of the kind has none left", minute, func(_, _ *nodegroups.Group, request *Request) {
			request.Declined = knowing(creditKey("user", ""), 59*minute)
		}, true, 0},
		{"an hour ago", minute, func(_, _ *nodegroups.Group, request *Request) {
			request.Declined = knowing(creditKey("user", ""), 60*minute)
		}, false, 22 * minute},
		{"and such a pod was served since", minute, func(user, _ *nodegroups.Group, request *Request) {
			user.Served, request.Declined = served(10*minute, 9*minute, "2"), knowing(creditKey("user", ""), 10*minute)
		}, false, 22 * minute},
		{"and a smaller pod was served since", minute, func(user, _ *nodegroups.Group, request *Request) {
			user.Served, request.Declined = served(10*minute, 9*minute, "1"), knowing(creditKey("user", ""), 10*minute)
		}, true, 0},
		{"and the group's limits were changed since", minute, func(user, _ *nodegroups.Group, request *Request) {
			user.LimitsChanged, request.Declined = ago(9*minute), knowing(creditKey("user", ""), 10*minute)
		}, false, 22 * minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rule(t, nil)
			r.StaleAfter = 3 * minute
			user, system := in(nodegroups.Growing, 0), in(nodegroups.Full, 0)
			system.Groups[0].Spells = []nodegroups.Spell{{}}
			request := Request{Pod: &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests("2")}}}}}}
			if tc.wants > 0 {
				request.NoRoomSince = ago(tc.wants)
			}
			if tc.change != nil {
				tc.change(&user.Groups[0], &system.Groups[0], &request)
			}
			d := r.Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{user, system, {}}}, now)
			v, until := &d.Burst[2], time.Time{}
			if tc.until > 0 {
				until = now.Add(tc.until)
			}
			system.Known = now // a scheduler that sees the pools for the first time
			if c := r.CreditEnds(request, &nodegroups.View{Pools: []nodegroups.Pool{user, system, {}}}, now); tc.wants > 0 && c.Before(now.Add(23*minute)) {
				t.Errorf("for a new scheduler, the credit ends at %v", c)
			}
			if v.Open != tc.wantOpen || !v.Until.Equal(until) || v.Open && d.Regular[0].Reason.Code != "NoCredit" {
				t.Errorf("open %v until %v by %+v, want %v until %v", v.Open, v.Until, d.Regular[0].Reason, tc.wantOpen, until)
			}
			if teaches := len(d.Regular[0].Declined) > 0; teaches != (v.Open && request.Declined == nil) {
				t.Errorf("others learn %q", d.Regular[0].Declined)
			}
			request.Pod.Spec.Priority = ptr.To[int32](expendable - 1)
			if d := r.Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{user, system, {}}}, now); len(d.Regular[0].Declined) > 0 {
				t.Errorf("others learn %q of a pod that autoscalers ignore", d.Regular[0].Declined)
			}
		})
	}
}

// knowing returns a Request.Declined that has an entry with the key, of the given time ago.
func knowing(key string, since time.Duration) func(string) time.Time {
	return func(asked string) time.Time {
		if asked != key {
			return time.Time{}
		}
		return ago(since)
	}
}
