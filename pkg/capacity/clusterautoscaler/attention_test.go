package clusterautoscaler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/capacity"
)

// loopsAt are quiet loops that end at these seconds.
func loopsAt(seconds ...int) []write {
	var writes []write
	for _, at := range seconds {
		writes = append(writes, write{at: at})
	}
	return writes
}

// write is what the autoscaler does with its status: by itself, that of a loop in which nothing happened.
type write struct {
	at           int // in seconds
	target       int // 0: as before
	backoff      bool
	unhealthy    bool   // the group is
	clusterWide  bool   // the cluster is
	initializing bool   // or it has just been started
	missing      bool   // or the ConfigMap is deleted
	unreadable   bool   // or the API does not answer
	frozen       bool   // nothing is written, the scheduler looks
	uid          string // "": as before
	transition   string // clusterWide; "": as before
	anew         bool   // before that, the scheduler is started again
}

// follower hands writes to a tracker.
type follower struct {
	*testing.T
	tracker         *Tracker
	n, target       int
	uid, transition string
	last            *corev1.ConfigMap
}

func follow(t *testing.T) *follower {
	return &follower{T: t, tracker: NewTracker(graces), target: 1, uid: "1", transition: "a"}
}

func seconds(n int) time.Time { return epoch.Add(time.Duration(n) * time.Second) }

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
	if w.unreadable {
		f.tracker.Fail(errors.New("no answer"), now)
	} else if err := f.tracker.Observe(f.last, now); err != nil {
		f.Fatal(err)
	}
}

// TestAttention: a pod has been looked at once four loops that began after it came, and in which nothing happened, have ended.
func TestAttention(t *testing.T) {
	const never = -1
	pause := func(from, to int) capacity.Pause {
		return capacity.Pause{From: seconds(from), To: seconds(to)}
	}
	for _, tc := range []struct {
		name   string
		writes []write
		looked int // at pods that came before that
		pauses []capacity.Pause
	}{
		{"when the first of four loops began is not known", loopsAt(0, 10, 20, 30), never, nil},
		{"four loops", loopsAt(0, 10, 20, 30, 40), 0, nil},
		{"six loops: the last four", loopsAt(0, 10, 20, 30, 40, 50, 60), 20, nil},
		{"a loop in which a group rises does not count", []write{{at: 0}, {at: 10}, {at: 20, target: 2}, {at: 30}, {at: 40}}, never, nil},
		{"nor does it set back", []write{{at: 0}, {at: 10}, {at: 20, target: 2}, {at: 30}, {at: 40}, {at: 50}}, 0, nil},
		{"one in which a group enters back-off does not count", []write{{at: 0}, {at: 10}, {at: 20, backoff: true}, {at: 30}, {at: 40}}, never, nil},
		{"nor does it set back, and those after it count", []write{{at: 0}, {at: 10}, {at: 20, backoff: true}, {at: 30, backoff: true}, {at: 40, backoff: true}, {at: 50}}, 0, nil},
		{"a back-off that is seen again soon was not entered again", []write{{at: 0}, {at: 10, backoff: true}, {at: 20}, {at: 30, backoff: true}, {at: 40}, {at: 50}}, 10, nil},
		{"one in which a group becomes unhealthy does not count", []write{{at: 0}, {at: 10, unhealthy: true}, {at: 20, unhealthy: true}, {at: 30}, {at: 40}, {at: 50}}, 10, nil},
		{"one in which a group falls counts", []write{{at: 0, target: 3}, {at: 10, target: 2}, {at: 20}, {at: 30}, {at: 40}}, 0, nil},
		{"a status that is looked at again is no loop", []write{{at: 0}, {at: 10}, {at: 15, frozen: true}, {at: 20}, {at: 25, frozen: true}, {at: 30}}, never, nil},

		{"an autoscaler that starts has looked at nobody", append(loopsAt(0, 10, 20, 30, 40), write{at: 50, initializing: true}, write{at: 60, transition: "b"}), never, []capacity.Pause{pause(50, 60)}},
		{"and so has one by another ConfigMap", append(loopsAt(0, 10, 20, 30, 40), write{at: 50, uid: "2"}), never, nil},
		{"and one whose cluster became healthy at another time", append(loopsAt(0, 10, 20, 30, 40), write{at: 50, transition: "b"}), never, nil},
		{"loops of two autoscalers do not add up", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, uid: "2"}, {at: 40}, {at: 50}, {at: 60}}, never, nil},
		{"those of the second count", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, uid: "2"}, {at: 40}, {at: 50}, {at: 60}, {at: 70}}, 30, nil},

		{"silence pauses, from the last write on, and what was counted is kept", loopsAt(0, 10, 20, 300, 310), 0, []capacity.Pause{pause(20, 300)}},
		{"silence that is not long does not", loopsAt(0, 10, 20, 199, 209), 0, nil},
		{"a cluster that is unhealthy for a while pauses, and what was counted is kept", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, clusterWide: true, transition: "b"},
			{at: 40, clusterWide: true}, {at: 50, transition: "c"}, {at: 60}}, 0, []capacity.Pause{pause(30, 50)}},
		{"an autoscaler that starts while the cluster is unhealthy", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, clusterWide: true, transition: "b"},
			{at: 40, clusterWide: true, transition: "c"}, {at: 50, transition: "d"}, {at: 60}}, never, []capacity.Pause{pause(30, 50)}},
		{"a status that cannot be read for a while", []write{{at: 0}, {at: 10}, {at: 20}, {at: 25, unreadable: true}, {at: 28, unreadable: true}, {at: 30}, {at: 40}}, 0, []capacity.Pause{pause(25, 30)}},
		{"a ConfigMap that is gone for a while", []write{{at: 0}, {at: 10}, {at: 20}, {at: 25, missing: true}, {at: 30}, {at: 40}}, 0, []capacity.Pause{pause(25, 30)}},
		{"a ConfigMap that is deleted after a long silence", []write{{at: 0}, {at: 10}, {at: 500, frozen: true}, {at: 600, missing: true}, {at: 610}}, never, []capacity.Pause{pause(10, 610)}},
		{"a ConfigMap that cannot be read after a long silence", []write{{at: 0}, {at: 10}, {at: 600, unreadable: true}, {at: 610}}, never, []capacity.Pause{pause(10, 610)}},
		{"a pause that goes on", []write{{at: 0}, {at: 10, missing: true}, {at: 20, missing: true}}, never, []capacity.Pause{{From: seconds(10)}}},

		{"a scheduler that starts again goes on counting", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, anew: true}, {at: 40}}, 0, nil},
		{"and counts no status twice", []write{{at: 0}, {at: 10}, {at: 20}, {at: 21, frozen: true, anew: true}, {at: 22, frozen: true, anew: true}, {at: 30}}, never, nil},
		{"it knows since when there has been silence", []write{{at: 0}, {at: 10}, {at: 20}, {at: 150, frozen: true, anew: true}, {at: 300}, {at: 310}}, 0, []capacity.Pause{pause(20, 300)}},
		{"it goes on with a pause", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30, missing: true}, {at: 40, missing: true, anew: true}, {at: 50}, {at: 60}}, 0, []capacity.Pause{pause(30, 50)}},
		{"another autoscaler while it was gone", append(loopsAt(0, 10, 20, 30, 40), write{at: 100, anew: true, transition: "b"}), never, nil},
		{"a group that rose while it was gone", []write{{at: 0}, {at: 10}, {at: 20}, {at: 30}, {at: 60, anew: true, target: 2}}, never, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := follow(t)
			for _, w := range tc.writes {
				f.write(w)
			}
			got := Source{Tracker: f.tracker, Groups: agentPool("userpool")}.Judge(nil, seconds(tc.writes[len(tc.writes)-1].at)).Attention
			want := capacity.Attention{Pauses: tc.pauses}
			if tc.looked != never {
				want.Looked = seconds(tc.looked)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
		})
	}
}

// TestAttentionByAModel compares with a naive statement over the list of all writes, in random histories.
func TestAttentionByAModel(t *testing.T) {
	const histories, length = 150, 60
	decided, paused, resets := 0, 0, 0
	for seed := range uint64(histories) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := follow(t)
		m := model{target: 1}
		restarts := seed%2 == 1 // a back-off is remembered to the minute only
		at := 0
		for range length {
			w := write{}
			switch r.IntN(20) {
			case 0:
				at += 180 + r.IntN(600) // silence
			case 1, 2, 3:
				at += 1 + r.IntN(2) // one loop after another
			default:
				at += 10
			}
			switch r.IntN(40) {
			case 0:
				w.initializing = true
			case 1:
				w.missing = true
			case 2:
				w.unreadable = true
			case 3:
				w.uid = fmt.Sprint("u", at)
			case 4:
				w.transition = fmt.Sprint("t", at)
			case 5:
				w.clusterWide = true
			case 6, 7, 8:
				w.frozen = m.readable()
			case 9, 10, 11, 12, 13, 14:
				w.target = 1 + r.IntN(5)
			case 15, 16, 17, 18:
				w.backoff = !restarts
			case 19:
				w.unhealthy = true
			}
			// What nobody saw, a scheduler that starts cannot know.
			w.at, w.anew = at, restarts && r.IntN(6) == 0 && m.readable() && at-m.writes[len(m.writes)-1].at < int(graces.StaleAfter.Seconds())
			f.write(w)
			m.write(w)
			if !m.readable() {
				continue
			}
			got := f.tracker.attention.is()
			for range 5 {
				since, d := at-r.IntN(min(at, 900)+1), 1+r.IntN(300)
				decided++
				if want := m.hasLooked(since); got.HasLooked(seconds(since)) != want {
					t.Fatalf("history %d, at %d: looked at a pod of %d: %v, want %v, by\n%s", seed, at, since, !want, want, &m)
				}
				if want := m.waitedAt(since, d); len(got.Pauses) < 15 && !got.WaitedAt(seconds(since), time.Duration(d)*time.Second).Equal(seconds(want)) {
					t.Fatalf("history %d, at %d: a pod of %d has waited %d s at %v, want %d, by\n%s", seed, at, since, d, got.WaitedAt(seconds(since), time.Duration(d)*time.Second).Sub(epoch), want, &m)
				} else if want != since+d {
					paused++
				}
			}
		}
		resets += m.autoscalers
	}
	t.Logf("%d decisions, %d of them with pauses, %d other autoscalers", decided, paused, resets)
	if paused < 1000 || resets < 500 {
		t.Error("the histories are too quiet")
	}
}

// model is the naive statement. It knows all writes.
type model struct {
	writes      []known
	target      int
	autoscalers int
	unhealthy   bool // the cluster was, when a status was last written
}

type known struct {
	write
	autoscaler int
	quiet      bool
	looks      bool // the status of an autoscaler that looks
}

func (m *model) String() string {
	var b strings.Builder
	for _, w := range m.writes {
		fmt.Fprintf(&b, "%+v\n", w)
	}
	return b.String()
}

// readable reports whether the last that was seen is the status of an autoscaler that looks.
func (m *model) readable() bool { return len(m.writes) > 0 && m.writes[len(m.writes)-1].looks }

func (m *model) write(w write) {
	if w.frozen {
		return
	}
	k := known{write: w, looks: !w.initializing && !w.missing && !w.unreadable && !w.clusterWide}
	if w.initializing || w.uid != "" || k.looks && w.transition != "" && !m.unhealthy {
		m.autoscalers++
	}
	if !w.missing && !w.unreadable && !w.initializing {
		m.unhealthy = w.clusterWide
	}
	k.autoscaler = m.autoscalers
	if k.looks {
		rose := k.target > m.target
		if k.target != 0 {
			m.target = k.target
		}
		k.quiet = !rose && !(k.backoff && !m.failedLately(k)) && !(k.unhealthy && !m.wasUnhealthy(k))
	}
	m.writes = append(m.writes, k)
}

// failedLately reports whether the autoscaler had the group in back-off before, within five minutes, and has not made it rise since.
func (m *model) failedLately(now known) bool {
	for i := len(m.writes) - 1; i >= 0; i-- {
		w := m.writes[i]
		if w.autoscaler != now.autoscaler || now.at-w.at > 300 {
			return false
		}
		if w.looks && w.backoff {
			return true
		}
		if w.looks && w.target != 0 && m.roseWith(i) {
			return false
		}
	}
	return false
}

// roseWith reports whether the group rose with the write.
func (m *model) roseWith(i int) bool {
	target := 1
	for _, w := range m.writes[:i] {
		if w.looks && w.target != 0 {
			target = w.target
		}
	}
	return m.writes[i].target > target
}

// wasUnhealthy reports whether the group was in the autoscaler's status before.
func (m *model) wasUnhealthy(now known) bool {
	for i := len(m.writes) - 1; i >= 0; i-- {
		if w := m.writes[i]; w.looks {
			return w.autoscaler == now.autoscaler && w.unhealthy
		}
	}
	return false
}

// hasLooked: there are four quiet loops of the autoscaler that looks now, each of which began, after the write before it, when the pod was there.
func (m *model) hasLooked(since int) bool {
	n, before := 0, -1
	for _, w := range m.writes {
		if !w.looks || w.autoscaler != m.autoscalers {
			continue
		}
		if w.quiet && before > since {
			n++
		}
		before = w.at
	}
	return n >= declineLoops
}

// waitedAt counts seconds.
func (m *model) waitedAt(since, d int) int {
	last := m.writes[len(m.writes)-1].at
	for at := since; ; at++ {
		if d == 0 {
			return at
		}
		if at > last || !m.pausedAt(at) {
			d--
		}
	}
}

// pausedAt reports whether in the second that begins then there was no autoscaler that looks.
func (m *model) pausedAt(at int) bool {
	for i := range m.writes {
		if i+1 == len(m.writes) || m.writes[i].at > at || m.writes[i+1].at <= at {
			continue
		}
		return !m.writes[i].looks || m.writes[i+1].at-m.writes[i].at >= int(graces.StaleAfter.Seconds())
	}
	return false
}
