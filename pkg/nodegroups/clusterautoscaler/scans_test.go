package clusterautoscaler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// loopsAt returns quiet loops that end at these seconds.
func loopsAt(seconds ...int) []write {
	var writes []write
	for _, at := range seconds {
		writes = append(writes, write{at: at})
	}
	return writes
}

// write is one change of the autoscaler's status. Without further fields, it is the status of a quiet loop.
type write struct {
	at           int // in seconds
	target       int // 0: as before
	backoff      bool
	unhealthy    bool   // the group is unhealthy
	clusterWide  bool   // the cluster is unhealthy
	initializing bool   // the autoscaler has just started
	missing      bool   // the ConfigMap is deleted
	unreadable   bool   // the API server does not answer
	frozen       bool   // nothing is written, and the scheduler observes the status again
	uid          string // "": as before
	transition   string // the time of the cluster's last transition; "": as before
	anew         bool   // the scheduler is restarted first
}

// follower is a tracker that observes writes.
type follower struct {
	*testing.T
	tracker         *Tracker
	n, target       int
	uid, transition string
	last            *corev1.ConfigMap
	events          []Event
}

func follow(t *testing.T) *follower {
	return &follower{T: t, tracker: NewTracker(staleAfter, graces.Provision), target: 1, uid: "1", transition: "a"}
}

func seconds(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }

const never = -1

// scanned checks the Scans of the pool at the last of the writes. looked is ScannedBefore in seconds, or never.
func (f *follower) scanned(writes []write, looked int, pauses []nodegroups.Outage) {
	f.Helper()
	got := Source{Tracker: f.tracker, Groups: agentPool("userpool"), Graces: graces}.Status(nil, seconds(writes[len(writes)-1].at)).Scans
	want := nodegroups.Scans{Outages: pauses, LastStatus: got.LastStatus}
	if looked != never {
		want.ScannedBefore = seconds(looked)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("(-want,+got):\n%s", diff)
	}
}

func (f *follower) write(w write) {
	f.Helper()
	now := seconds(w.at)
	if w.anew {
		f.tracker = again(f.T, f.tracker, now)
	}
	f.n++
	if w.target != 0 {
		f.target = w.target
	}
	if w.uid != "" {
		f.uid = w.uid
	}
	if w.transition != "" {
		f.transition = w.transition
	}
	switch {
	case w.frozen:
	case w.missing:
		f.last = nil
	case w.initializing:
		f.last = &corev1.ConfigMap{Data: map[string]string{StatusKey: "autoscalerStatus: Initializing\n"}}
	default:
		g := group("aks-userpool-1-vmss", f.target, f.target, 30)
		if w.backoff {
			g += inBackoff
		}
		if w.unhealthy {
			g = unhealthy(g)
		}
		health := "Healthy"
		if w.clusterWide {
			health = "Unhealthy"
		}
		f.last = running(g)
		f.last.Data[StatusKey] += fmt.Sprintf("clusterWide: {health: {status: %s, lastTransitionTime: %q}}\n", health, f.transition)
	}
	if f.last != nil && !w.frozen {
		f.last = f.last.DeepCopy()
		f.last.UID = types.UID(f.uid)
		f.last.Annotations = map[string]string{LastUpdatedAnnotation: fmt.Sprint(f.n)}
	}
	f.tracker.Degraded = DegradedSince(f.events)
	if w.unreadable {
		f.tracker.Fail(errors.New("no answer"), now)
	} else if err := f.tracker.Observe(f.last, now); err != nil {
		f.Fatal(err)
	}
}

// TestScans: ScannedBefore is the earliest start of the last four quiet loops.
func TestScans(t *testing.T) {
	pause := func(from, to int) nodegroups.Outage {
		return nodegroups.Outage{From: seconds(from), To: seconds(to)}
	}
	for _, tc := range []struct {
		name   string
		writes []write
		looked int // ScannedBefore, in seconds
		pauses []nodegroups.Outage
	}{
		{"when the first of four loops began is not known", loopsAt(0, 10, 20, 30), never, nil},
		{"four loops", loopsAt(0, 10, 20, 30, 40), 0, nil},
		{"six loops: the last four", loopsAt(0, 10, 20, 30, 40, 50, 60), 20, nil},
		{"a loop in which a group rises does not count", []write{{at: 0}, {at: 10}, {at: 20, target: 2}, {at: 30}, {at: 40}}, never, nil},
		{"nor does it set back", []write{{at: 0}, {at: 10}, {at: 20, target: 2}, {at: 30}, {at: 40}, {at: 50}}, 0, nil},
		{"one in which a group enters backoff does not count", []write{{at: 0}, {at: 10}, {at: 20, backoff: true}, {at: 30}, {at: 40}}, never, nil},
		{"nor does it set back, and those after it count", []write{{at: 0}, {at: 10}, {at: 20, backoff: true}, {at: 30, backoff: true}, {at: 40, backoff: true}, {at: 50}}, 0, nil},
		{"a backoff that is seen again soon was not entered again", []write{{at: 0}, {at: 10, backoff: true}, {at: 20}, {at: 30, backoff: true}, {at: 40}, {at: 50}}, 10, nil},
		{"one in which a group becomes unhealthy does not count", []write{{at: 0}, {at: 10, unhealthy: true}, {at: 20, unhealthy: true}, {at: 30}, {at: 40}, {at: 50}}, 10, nil},
		{"one in which a group falls counts", []write{{at: 0, target: 3}, {at: 10, target: 2}, {at: 20}, {at: 30}, {at: 40}}, 0, nil},
		{"a status that is looked at again is no loop", []write{{at: 0}, {at: 10}, {at: 15, frozen: true}, {at: 20}, {at: 25, frozen: true}, {at: 30}}, never, nil},

		{"an autoscaler that starts has looked at nobody", append(loopsAt(0, 10, 20, 30, 40), write{at: 50, initializing: true}, write{at: 60, transition: "b"}), never, []nodegroups.Outage{pause(50, 60)}},
		{"and so has one by another ConfigMap", append(loopsAt(0, 10, 20, 30, 40), write{at: 50, uid: "2"}), never, nil},
		{"and one whose cluster became healthy at another time", append(loopsAt(0, 10, 20, 30, 40), write{at: 50, transition: "b"}), never, nil},
		{"loops of two autoscalers do not add up", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, uid: "2"}, {at: 40}, {at: 50}, {at: 60}}, never, nil},
		{"those of the second count", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, uid: "2"}, {at: 40}, {at: 50}, {at: 60}, {at: 70}}, 30, nil},

		{"silence pauses, from the last write on, and what was counted is kept", loopsAt(0, 10, 20, 300, 310), 0, []nodegroups.Outage{pause(20, 300)}},
		{"silence that is not long does not", loopsAt(0, 10, 20, 199, 209), 0, nil},
		{"a cluster that is unhealthy for a while pauses, and what was counted is kept", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, clusterWide: true, transition: "b"},
			{at: 40, clusterWide: true}, {at: 50, transition: "c"}, {at: 60}}, 0, []nodegroups.Outage{pause(30, 50)}},
		{"an autoscaler that starts while the cluster is unhealthy", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, clusterWide: true, transition: "b"},
			{at: 40, clusterWide: true, transition: "c"}, {at: 50, transition: "d"}, {at: 60}}, never, []nodegroups.Outage{pause(30, 50)}},
		{"a status that cannot be read for a while", []write{{at: 0}, {at: 10}, {at: 20}, {at: 25, unreadable: true}, {at: 28, unreadable: true}, {at: 30}, {at: 40}}, 0, []nodegroups.Outage{pause(25, 30)}},
		{"a ConfigMap that is gone for a while", []write{{at: 0}, {at: 10}, {at: 20}, {at: 25, missing: true}, {at: 30}, {at: 40}}, 0, []nodegroups.Outage{pause(25, 30)}},
		{"a ConfigMap that is deleted after a long silence", []write{{at: 0}, {at: 10}, {at: 500, frozen: true}, {at: 600, missing: true}, {at: 610}}, never, []nodegroups.Outage{pause(10, 610)}},
		{"a ConfigMap that cannot be read after a long silence", []write{{at: 0}, {at: 10}, {at: 600, unreadable: true}, {at: 610}}, never, []nodegroups.Outage{pause(10, 610)}},
		{"a pause that goes on", []write{{at: 0}, {at: 10, missing: true}, {at: 20, missing: true}}, never, []nodegroups.Outage{{From: seconds(10)}}},

		{"a scheduler that starts again goes on counting", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, anew: true}, {at: 40}}, 0, nil},
		{"and counts no status twice", []write{{at: 0}, {at: 10}, {at: 20}, {at: 21, frozen: true, anew: true}, {at: 22, frozen: true, anew: true}, {at: 30}}, never, nil},
		{"it knows since when there has been silence", []write{{at: 0}, {at: 10}, {at: 20}, {at: 150, frozen: true, anew: true}, {at: 300}, {at: 310}}, 0, []nodegroups.Outage{pause(20, 300)}},
		{"a status that was written while it was gone comes after silence", []write{{at: 0}, {at: 10}, {at: 20}, {at: 300, anew: true}, {at: 310}}, 0, []nodegroups.Outage{pause(20, 300)}},
		{"it goes on with a pause", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, missing: true}, {at: 40, missing: true, anew: true}, {at: 50}, {at: 60}}, 0, []nodegroups.Outage{pause(30, 50)}},
		{"another autoscaler while it was gone", append(loopsAt(0, 10, 20, 30, 40), write{at: 100, anew: true, transition: "b"}), never, nil},
		{"a group that rose while it was gone", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30}, {at: 60, anew: true, target: 2}}, never, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := follow(t)
			for _, w := range tc.writes {
				f.write(w)
			}
			f.scanned(tc.writes, tc.looked, tc.pauses)
		})
	}
}

// TestScanInterval: staleAfter and quiet are at least three and two loops, as they were seen. Neither a long silence nor
// the first loops of an autoscaler change that.
func TestScanInterval(t *testing.T) {
	for _, tc := range []struct {
		name         string
		staleAfter   time.Duration
		writes       []write
		stale, quiet time.Duration // after the last write
	}{
		{"AKS's interval", staleAfter, loopsAt(0, 10, 20, 30, 40), 3 * time.Minute, time.Minute},
		{"the longest that is usual on AKS", staleAfter, loopsAt(0, 30, 60, 90, 120), 3 * time.Minute, time.Minute},
		{"a longer one", staleAfter, loopsAt(0, 90, 180, 270, 360), 270 * time.Second, 3 * time.Minute},
		{"the shortest staleAfter, and loops that are as long", 30 * time.Second, loopsAt(0, 31, 62, 93, 124), 93 * time.Second, 62 * time.Second},
		{"one that becomes longer", staleAfter, loopsAt(0, 10, 20, 30, 40, 130, 220, 310), 270 * time.Second, 3 * time.Minute},
		{"one that becomes shorter", staleAfter, loopsAt(0, 90, 180, 270, 360, 370, 380, 390), 3 * time.Minute, time.Minute},
		{"three loops say nothing yet", staleAfter, loopsAt(0, 90, 180, 270), 3 * time.Minute, time.Minute},
		{"two silences among loops", staleAfter, loopsAt(0, 10, 20, 1000, 2000), 3 * time.Minute, time.Minute},
		{"silences only", staleAfter, loopsAt(0, 200, 400, 600, 800, 1000), 3 * time.Minute, time.Minute},
		{"another autoscaler", staleAfter, append(loopsAt(0, 90, 180, 270, 360), write{at: 370, initializing: true}, write{at: 380, transition: "b"}), 3 * time.Minute, time.Minute},
		{"the scheduler starts again", staleAfter, append(loopsAt(0, 90, 180, 270), write{at: 360, anew: true}), 270 * time.Second, 3 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := follow(t)
			f.tracker = NewTracker(tc.staleAfter, graces.Provision)
			for _, w := range tc.writes {
				f.write(w)
			}
			last := seconds(tc.writes[len(tc.writes)-1].at)
			for _, after := range []time.Duration{tc.stale - time.Second, tc.stale} {
				got := Source{Tracker: f.tracker, Groups: agentPool("userpool"), Graces: graces}.Status(nil, last.Add(after))
				if isStale := got.Reason.Code == "StatusStale"; isStale != (after == tc.stale) {
					t.Errorf("after %v: %s", after, got.Reason.Code)
				}
				if !got.Until.Equal(last.Add(tc.stale)) && after < tc.stale {
					t.Errorf("until %v, want %v", got.Until, last.Add(tc.stale))
				}
			}
			for _, after := range []time.Duration{tc.quiet - time.Second, tc.quiet} {
				if published := f.tracker.Memory(false, last.Add(after)).Stamp != ""; published != (after == tc.quiet) {
					t.Errorf("after %v, the stamp is published: %v", after, published)
				}
			}
		})
	}
}
