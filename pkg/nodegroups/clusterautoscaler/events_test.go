package clusterautoscaler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// messages are messages of events, with the numbers that count returns. The first six are real: two of our recorded runs,
// then kubernetes/autoscaler#5692, 2i2c-org/infrastructure#4165, and two of public troubleshooting pages.
var messages = map[string]struct{ groups, atMax int }{
	"pod didn't trigger scale-up: 2 max node group size reached":                                                                                         {2, 2},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 node(s) had untolerated taint(s)":                                                     {3, 2},
	"pod didn't trigger scale-up: 12 node(s) didn't match Pod's node affinity/selector, 3 max node group size reached":                                   {15, 3},
	"pod didn't trigger scale-up: 1 node(s) had untolerated taint {k8s.dask.org/dedicated: worker}, 8 node(s) didn't match Pod's node affinity/selector": {9, 0},
	"pod didn't trigger scale-up: 2 in backoff after failed scale-up":                                                                                    {},
	"pod didn't trigger scale-up: 3 pod has unbound immediate PersistentVolumeClaims":                                                                    {},
	"pod didn't trigger scale-up: ": {},
	"pod didn't trigger scale-up (it wouldn't fit if a new node is added): 1 max limit reached":                                                           {},
	"pod didn't trigger scale-up: max total nodes in cluster reached":                                                                                     {},
	"Unschedulable pod didn't trigger scale-up, because it's consuming ProvisioningRequest default/pr":                                                    {},
	"pod didn't trigger scale-up: 1 node(s) had untolerated taint {a: }, 2 node(s) had untolerated taint {b: c}":                                          {3, 0},
	"pod didn't trigger scale-up: 2 Insufficient cpu, 1 max node group size reached":                                                                      {3, 1},
	"pod didn't trigger scale-up: 1 Insufficient nvidia.com/gpu":                                                                                          {1, 0},
	"pod didn't trigger scale-up: 1 Insufficient cpu, 1 Insufficient memory":                                                                              {}, // one group or two
	"pod didn't trigger scale-up: 2 Insufficient cpu, 2 Insufficient memory, 1 max node group size reached":                                               {}, // two to four groups
	"pod didn't trigger scale-up: 2 max node group size reached, 1 not ready for scale-up":                                                                {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 in backoff after failed scale-up":                                                      {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 exceeded quota: \"cluster-wide\", resources: cpu, memory":                              {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 max cluster cpu, memory limit reached":                                                 {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 node(s) didn't match pod affinity rules":                                               {}, // another pod may start
	"pod didn't trigger scale-up: 2 max node group size reached, 1 node(s) didn't match pod topology spread constraints":                                  {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 can't schedule pod default/web: couldn't find a matching Node with passing predicates": {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 not all pods would fit and scale-up is using all-or-nothing strategy":                  {},
	"pod didn't trigger scale-up: 2 max node group size reached, 1 Too many pods":                                                                         {},
	"pod didn't trigger scale-up: 2 max node group size reached, 0 node(s) had untolerated taint(s)":                                                      {},
	"pod didn't trigger scale-up: 2 max node group size reached, -1 node(s) had untolerated taint(s)":                                                     {},
	"pod didn't trigger scale-up: 2 max node group size reached, 18446744073709551615 node(s) had untolerated taint(s)":                                   {},
	"pod didn't trigger scale-up: 2 max node group size reached,1 node(s) had untolerated taint(s)":                                                       {},
	"2 max node group size reached": {},
	"":                              {},
}

func TestCount(t *testing.T) {
	for message, want := range messages {
		if groups, atMax := count(message); groups != want.groups || atMax != want.atMax {
			t.Errorf("%q counts %d groups, %d at their maximum, want %+v", message, groups, atMax, want)
		}
	}
}

// FuzzCount: a message that counts groups consists of clauses that each count groups by themselves, and these numbers add
// up. The order of the clauses does not matter.
func FuzzCount(f *testing.F) {
	for message := range messages {
		f.Add(message)
	}
	const prefix = "pod didn't trigger scale-up: "
	f.Fuzz(func(t *testing.T, message string) {
		groups, atMax := count(message)
		if groups == 0 && atMax == 0 {
			return
		}
		clauses := strings.Split(strings.TrimPrefix(message, prefix), ", ")
		sum, sumAtMax, insufficient, reversed := 0, 0, 0, ""
		for _, clause := range clauses {
			var n int
			if _, err := fmt.Sscanf(clause, "%d ", &n); err != nil || n < 1 {
				t.Fatalf("%q: clause %q", message, clause)
			}
			one, oneAtMax := count(prefix + clause)
			if one != n || oneAtMax != 0 && oneAtMax != n {
				t.Fatalf("%q: clause %q counts %d groups, %d at their maximum", message, clause, one, oneAtMax)
			}
			sum, sumAtMax, reversed = sum+one, sumAtMax+oneAtMax, ", "+clause+reversed
			if strings.Contains(clause, "Insufficient") {
				insufficient++
			}
		}
		if sum != groups || sumAtMax != atMax || insufficient > 1 || atMax > groups {
			t.Fatalf("%q: %d groups, %d at their maximum, but the clauses count %d and %d", message, groups, atMax, sum, sumAtMax)
		}
		if g, m := count(prefix + strings.TrimPrefix(reversed, ", ")); g != groups || m != atMax {
			t.Fatalf("%q: in the reverse order it counts %d and %d", message, g, m)
		}
	})
}

func TestEventOf(t *testing.T) {
	at, seen := epoch, epoch.Add(3*time.Second)
	of := func(component, reason, message string) *corev1.Event {
		return &corev1.Event{Source: corev1.EventSource{Component: component}, Reason: reason, Message: message, LastTimestamp: metav1.NewTime(at)}
	}
	for name, tc := range map[string]struct {
		event *corev1.Event
		want  Event
	}{
		"no scale-up": {of(Component, "NotTriggerScaleUp", "pod didn't trigger scale-up: 2 max node group size reached"),
			Event{NoScaleUp: nodegroups.NoScaleUp{At: at, Seen: seen, Groups: 2, AtMax: 2}}},
		"no scale-up, for an unknown reason": {of(Component, "NotTriggerScaleUp", "1 reason"), Event{NoScaleUp: nodegroups.NoScaleUp{At: at, Seen: seen}}},
		"a scale-up":                         {of(Component, "TriggeredScaleUp", "pod triggered scale-up: [{a 0->1 (max: 3)}]"), Event{}},
		"another component's":                {of("kubelet", "NotTriggerScaleUp", "pod didn't trigger scale-up: 2 max node group size reached"), Event{}},
		"the autoscaler skips pods":          {of(Component, "GracefulDegradationStarted", "Autoscaler is unable to handle …"), Event{Degraded: at}},
		"it does not any more":               {of(Component, "GracefulDegradationStopped", "Autoscaler exited …"), Event{Recovered: at}},
	} {
		if diff := cmp.Diff(tc.want, EventOf(tc.event, seen)); diff != "" {
			t.Errorf("%s (-want,+got):\n%s", name, diff)
		}
	}
}

// TestLastNoScaleUp: of several events on a pod, the one that arrived last counts, whatever it says.
func TestLastNoScaleUp(t *testing.T) {
	event := func(at, groups int) Event {
		return Event{NoScaleUp: nodegroups.NoScaleUp{Seen: seconds(at), Groups: groups}}
	}
	if got := LastNoScaleUp([]Event{event(2, 2), event(3, 0), {Degraded: seconds(9)}, event(1, 1)}); got.Groups != 0 || got.Seen != seconds(3) {
		t.Errorf("%+v", got)
	}
	if got := LastNoScaleUp(nil); got != (nodegroups.NoScaleUp{}) {
		t.Errorf("%+v", got)
	}
}

// TestLastStatus: a new status has the numbers of its groups, and the time at which it was seen. The time of a status
// that another leader has seen is the published one.
func TestLastStatus(t *testing.T) {
	tracker := NewTracker(staleAfter, graces.Provision)
	status := func(stamp string, groups ...string) *corev1.ConfigMap {
		cm := running(groups...)
		cm.Annotations = map[string]string{LastUpdatedAnnotation: stamp}
		return cm
	}
	check := func(now int, cm *corev1.ConfigMap, want nodegroups.LastStatus) {
		t.Helper()
		if err := tracker.Observe(cm, seconds(now)); err != nil {
			t.Fatal(err)
		}
		tracker.ReceiveEvents(seconds(now))
		got := Source{Tracker: tracker, Groups: agentPool("userpool"), Graces: graces}.Status(nil, seconds(now)).LastStatus
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want,+got):\n%s", diff)
		}
	}
	full, empty, over := group("aks-userpool-1-vmss", 3, 3, 3), group("aks-gpu-1-vmss", 0, 0, 4), group("aks-system-1-vmss", 3, 3, 2)
	check(0, status("a", full, empty), nodegroups.LastStatus{Seen: seconds(0), Groups: 2, AtMax: 1, EventsSince: seconds(0)})
	check(5, status("a", full, empty), nodegroups.LastStatus{Seen: seconds(0), Groups: 2, AtMax: 1, EventsSince: seconds(0)})
	last := status("b", full, empty, over)
	check(10, last, nodegroups.LastStatus{Seen: seconds(10), Groups: 3, AtMax: 2, EventsSince: seconds(0)})
	tracker = again(t, tracker, seconds(15))
	check(15, last, nodegroups.LastStatus{Seen: seconds(10), Groups: 3, AtMax: 2, EventsSince: seconds(15)})
}

// TestDegradation: from the event GracefulDegradationStarted on, an outage lasts and no loop counts, until the event
// GracefulDegradationStopped, until another autoscaler takes over, or for 15 minutes.
func TestDegradation(t *testing.T) {
	started := func(at int) Event { return Event{Degraded: seconds(at)} }
	stopped := func(at int) Event { return Event{Recovered: seconds(at)} }
	pause := func(from, to int) nodegroups.Outage {
		return nodegroups.Outage{From: seconds(from), To: seconds(to)}
	}
	loops := func(to int) (writes []write) {
		for at := 0; at <= to; at += 10 {
			writes = append(writes, write{at: at})
		}
		return writes
	}
	for _, tc := range []struct {
		name   string
		events []Event
		writes []write
		looked int
		pauses []nodegroups.Outage
	}{
		{"never", nil, loops(60), 20, nil},
		{"it lasts: the loops before it count", []Event{started(45)}, loops(600), 0, []nodegroups.Outage{{From: seconds(50)}}},
		{"it stopped", []Event{started(15), stopped(42)}, loops(80), 40, []nodegroups.Outage{pause(20, 50)}},
		{"it stopped, and began again", []Event{started(15), stopped(42), started(66)}, loops(90), never, []nodegroups.Outage{pause(20, 50), {From: seconds(70)}}},
		{"it stopped before", []Event{stopped(15)}, loops(60), 20, nil},
		{"not reported again for 15 minutes", []Event{started(15)}, loops(990), 950, []nodegroups.Outage{pause(20, 920)}},
		{"reported again", []Event{started(15), started(600)}, loops(990), never, []nodegroups.Outage{{From: seconds(20)}}},
		{"another autoscaler", []Event{started(15)}, []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, initializing: true}, {at: 40, transition: "b"}, {at: 50}, {at: 60}, {at: 70}, {at: 80}}, 40,
			[]nodegroups.Outage{pause(20, 40)}},
		{"another autoscaler, which skips pods, too", []Event{started(15), started(45)}, []write{{at: 0}, {at: 20}, {at: 30, uid: "2"}, {at: 40}, {at: 50}, {at: 60}}, never,
			[]nodegroups.Outage{pause(20, 40), {From: seconds(50)}}},
		{"the status is lost meanwhile", []Event{started(15), stopped(42)}, []write{{at: 0}, {at: 20}, {at: 30, missing: true}, {at: 50, missing: true}, {at: 60}}, never,
			[]nodegroups.Outage{pause(20, 60)}},
		{"the scheduler restarts", []Event{started(15)}, []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, anew: true}, {at: 40}}, never, []nodegroups.Outage{{From: seconds(20)}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := follow(t)
			for _, w := range tc.writes {
				f.events = nil
				for _, e := range tc.events {
					if !seconds(w.at).Before(e.Degraded) && !seconds(w.at).Before(e.Recovered) {
						f.events = append(f.events, e)
					}
				}
				f.write(w)
			}
			f.scanned(tc.writes, tc.looked, tc.pauses)
		})
	}
}
