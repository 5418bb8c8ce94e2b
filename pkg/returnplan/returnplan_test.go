package returnplan

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/seed"
)

func TestStays(t *testing.T) {
	owned := func(kind string) []metav1.OwnerReference {
		version := map[string]string{"Job": "batch/v1", "ReplicationController": "v1", "TaskRun": "tekton.dev/v1"}[kind]
		return []metav1.OwnerReference{{APIVersion: cmp.Or(version, "apps/v1"), Kind: kind, Name: "o", Controller: ptr.To(true)}}
	}
	for _, tc := range []struct {
		name string
		pod  corev1.Pod
		want string
	}{
		{"a ReplicaSet's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet")}}, ""},
		{"a StatefulSet's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("StatefulSet")}}, ""},
		{"nobody's", corev1.Pod{}, "no controller would replace it"},
		{"a ReplicationController's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicationController")}}, ""},
		{"a Job's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job")}}, "it is not known whether its controller, a Job, would replace it"},
		{"another controller's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("TaskRun")}}, "it is not known whether its controller, a TaskRun, would replace it"},
		{"another controller's, opted in", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("TaskRun"), Annotations: map[string]string{Annotation: Always}}}, ""},
		{"ending", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), DeletionTimestamp: &metav1.Time{}}}, "it is terminating"},
		{"failed", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet")}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, "it is terminating"},
		{"the autoscaler's annotation", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{safeToEvict: "false"}}},
			`its annotation cluster-autoscaler.kubernetes.io/safe-to-evict is "false"`},
		{"the autoscaler's annotation, the other way", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{safeToEvict: "true"}}}, ""},
		{"the autoscaler's annotation, until the pod has completed", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{safeToEvict: "on-completion"}}},
			`its annotation cluster-autoscaler.kubernetes.io/safe-to-evict is "on-completion"`},
		{"Karpenter's annotation, a duration", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{doNotDisrupt: "4h"}}},
			`its annotation karpenter.sh/do-not-disrupt is "4h"`},
		{"Karpenter's annotation, without a value", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{doNotDisrupt: ""}}},
			`its annotation karpenter.sh/do-not-disrupt is ""`},
		{"Karpenter's annotation, with a long value", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{doNotDisrupt: strings.Repeat("x", 1000)}}},
			`its annotation karpenter.sh/do-not-disrupt is "xxxxxxxxxxxxxxxxxxxx"`},
		{"Karpenter's annotation, the other way", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{doNotDisrupt: "false"}}}, ""},
		{"Karpenter's annotation", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{doNotDisrupt: "true"}}},
			`its annotation karpenter.sh/do-not-disrupt is "true"`},
		{"ours", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{Annotation: Never}}},
			`its annotation poolpriority.dev/return is "Never"`},
	} {
		if got := Stays(&tc.pod); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

var start = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

const interval = 10 * time.Second

func rules() Rules {
	return Rules{StableFor: time.Minute, PerMinute: 2, PerWorkload: 1, Interval: interval}
}

// script runs a planner for one pool and one workload. The test sets the workload's pods and the number of free slots.
type script struct {
	*testing.T
	*Planner
	now     time.Time
	free    int
	members []Member
	landed  int // evictions that helped, so far
}

func newScript(t *testing.T) *script {
	r := rules()
	return &script{T: t, Planner: NewPlanner([]*Rules{&r}), now: start, free: 1}
}

// next moves the clock by an interval and runs a round. It returns the UIDs of the chosen pods, and why earlier
// evictions did not help.
func (s *script) next(pods ...Pod) (chosen []types.UID, failed []string) {
	s.now = s.now.Add(interval)
	members := map[types.UID][]Member{}
	for workload := range s.workloads {
		members[workload] = s.members
	}
	for _, a := range s.Arrive(s.now, members) {
		if a.Reason == "" {
			s.landed++
		} else {
			failed = append(failed, a.Reason)
		}
	}
	left := s.free
	evict, _ := s.Round(s.now, 0, pods, func(Pod) (bool, string) { left--; return left >= 0, "" })
	for _, pod := range evict {
		chosen = append(chosen, pod.UID)
	}
	return chosen, failed
}

// quiet runs rounds until d is over. It fails if a pod is chosen, or if an eviction turns out not to have helped.
func (s *script) quiet(what string, d time.Duration, pods ...Pod) {
	s.Helper()
	for end := s.now.Add(d); s.now.Add(interval).Before(end); {
		if chosen, failed := s.next(pods...); len(chosen)+len(failed) > 0 {
			s.Fatalf("%s, at %v: chose %v, failed: %v", what, s.now.Sub(start), chosen, failed)
		}
	}
}

func (s *script) expect(what string, chosen []types.UID, want ...types.UID) {
	s.Helper()
	if !slices.Equal(chosen, want) {
		s.Errorf("%s, at %v: chose %v, want %v", what, s.now.Sub(start), chosen, want)
	}
}

func bound(uid types.UID, burst, ready bool) Member {
	return Member{UID: uid, Owner: "rs", Bound: true, Rank: map[bool]int{true: 2}[burst], Ready: ready}
}

// TestRound follows one workload through an eviction.
func TestRound(t *testing.T) {
	old, young := Pod{UID: "old", Created: start.Add(-time.Hour), Owner: "rs", Workload: "web", Below: 2}, Pod{UID: "young", Created: start, Owner: "rs", Workload: "web", Below: 2}
	s := newScript(t)
	s.members = []Member{bound("old", true, true), bound("young", true, true)}
	s.quiet("before stableFor", time.Minute, young, old)
	s.free = 0
	s.quiet("without room", time.Minute, young, old)
	s.free = 1
	s.next(young, old)
	s.quiet("before stableFor, again", time.Minute, young, old)
	chosen, _ := s.next(young, old)
	s.expect("after stableFor", chosen, "old")
	s.Evicted(s.now, 0, old, s.members)
	if !s.Away()["old"] {
		t.Error("the evicted pod is not away")
	}

	s.members[0].Ending = true
	s.quiet("while the pod ends", 5*time.Minute, young)
	s.members[0] = Member{UID: "new", Owner: "rs"}
	s.quiet("while the replacement is pending", 5*time.Minute, young)
	s.members[0] = bound("new", false, false)
	s.next(young)
	if s.Away()["old"] {
		t.Error("room is kept for a pod that has its node")
	}
	s.quiet("while the replacement is not ready", 4*time.Minute, young)
	if s.landed != 0 {
		t.Error("an eviction counts as one that helped before that is known")
	}
	s.members[0].Ready = true
	chosen, _ = s.next(young)
	if s.landed != 1 {
		t.Errorf("%d evictions helped, want 1", s.landed)
	}
	s.expect("when it is ready", chosen, "young")
}

// TestInVain: the ways in which an eviction does not help.
func TestInVain(t *testing.T) {
	pod := Pod{UID: "pod", Created: start, Owner: "rs", Workload: "web", Below: 2}
	for _, tc := range []struct {
		name    string
		members []Member // after the eviction
		within  time.Duration
		want    string
	}{
		{"in a burst pool again", []Member{bound("new", true, false)}, 2 * interval, "its replacement is in no better pool"},
		{"replaced by nothing", nil, vacantAfter + 4*interval, "nothing replaced it"},
		{"replaced by a pod of another owner", []Member{{UID: "new", Owner: "other", Bound: true, Ready: true}}, vacantAfter + 4*interval, "nothing replaced it"},
		{"never ready", []Member{bound("new", false, false)}, unreadyAfter + 4*interval, "its replacement does not become ready"},
		{"one is on a VM, and one of a scale-up is not", []Member{bound("scaled-up", true, true), bound("new", false, true)}, time.Hour, ""},
		{"the replacement is pending, and a pod of a scale-up is in the burst pool", []Member{bound("scaled-up", true, true), {UID: "new", Owner: "rs"}}, time.Hour, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript(t)
			s.members = []Member{bound("pod", true, true)}
			s.quiet("before stableFor", time.Minute+interval, pod)
			s.next(pod)
			s.Evicted(s.now, 0, pod, s.members)
			s.members = tc.members
			evicted := s.now
			var failed []string
			for s.now.Sub(evicted) < tc.within && len(failed) == 0 {
				_, failed = s.next()
			}
			if got := strings.Join(failed, ""); got != tc.want {
				t.Errorf("failed: %q, want %q", got, tc.want)
			}
		})
	}
}

// TestPauses: the pauses of a workload grow with each replacement that lands in a burst pool again. Restore sets the
// pause in a new planner.
func TestPauses(t *testing.T) {
	pod := Pod{UID: "pod-0", Created: start, Owner: "rs", Workload: "web", Below: 2}
	s := newScript(t)
	pauses := []time.Duration{}
	s.quiet("before stableFor", time.Minute+interval, pod)
	for tries := range 6 {
		began := s.now
		var chosen []types.UID
		for len(chosen) == 0 && s.now.Sub(began) < 24*time.Hour {
			s.members = []Member{bound(pod.UID, true, true)}
			chosen, _ = s.next(pod)
		}
		pauses = append(pauses, s.now.Sub(began))
		s.Evicted(s.now, 0, pod, s.members)
		pod.UID = types.UID(fmt.Sprint("pod-", tries+1))
	}
	for i := 2; i < len(pauses); i++ {
		if pauses[i] < pauses[i-1]+time.Minute {
			t.Errorf("the pauses are %v and do not grow", pauses)
		}
	}
	t.Logf("pauses of a workload whose pods land in the burst pool again: %v", pauses)
	next := newScript(t)
	next.members = s.members
	next.Restore(start, "web", Pause{60, start.Add(maxPause + time.Second)}) // written by a user
	next.Restore(start, "web", Pause{6, start.Add(time.Hour)})
	next.quiet("after a restart", time.Hour+time.Minute, pod)
	chosen, _ := next.next(pod)
	for range 3 {
		if len(chosen) == 0 {
			chosen, _ = next.next(pod)
		}
	}
	next.expect("after the pause", chosen, pod.UID)
}

// TestOwners: if there is no capacity for one pod, Round tries the other pods of its owner only if they may need
// something else.
func TestOwners(t *testing.T) {
	for _, alike := range []bool{true, false} {
		r := rules()
		p := NewPlanner([]*Rules{&r})
		asked := 0
		var pods []Pod
		for i := range 5 {
			pods = append(pods, Pod{UID: types.UID(fmt.Sprint(i)), Owner: "o", Workload: "o", Alike: alike})
		}
		p.Round(start, 0, pods, func(Pod) (bool, string) { asked++; return false, "" })
		if want := map[bool]int{true: 1, false: 5}[alike]; asked != want {
			t.Errorf("alike: %t: asked %d times, want %d", alike, asked, want)
		}
	}
}

// TestRefused: a workload's pause grows with each refused eviction. Other workloads are not paused.
func TestRefused(t *testing.T) {
	r := rules()
	p := NewPlanner([]*Rules{&r})
	blocked := Pod{UID: "blocked", Created: start.Add(-time.Hour), Owner: "a", Workload: "a"}
	other := Pod{UID: "other", Created: start, Owner: "b", Workload: "b"}
	yes := func(Pod) (bool, string) { return true, "" }
	p.Round(start, 0, []Pod{blocked, other}, yes)
	now := start.Add(time.Minute)
	if got, _ := p.Round(now, 0, []Pod{blocked, other}, yes); len(got) != 1 || got[0].UID != "blocked" {
		t.Fatalf("chose %v", got)
	}
	if pause := p.Refused(now, blocked); pause != refusedPause {
		t.Errorf("paused for %v", pause)
	}
	if got, _ := p.Round(now, 0, []Pod{blocked, other}, yes); len(got) != 1 || got[0].UID != "other" {
		t.Errorf("chose %v, want the other: a refused eviction does not count against the rate", got)
	}
	last := time.Duration(0)
	for range 10 {
		pause := p.Refused(now, blocked)
		if pause < last || pause > maxRefusedPause {
			t.Errorf("a pause of %v after one of %v", pause, last)
		}
		last = pause
	}
	if last != maxRefusedPause {
		t.Errorf("the last pause is %v", last)
	}
}

// model is a cluster with a limited number of slots on VMs, and any number in the burst pool.
type model struct {
	r        *rand.Rand
	slots    int
	pods     map[types.UID]*modelPod
	serial   int
	pending  []types.UID // workloads that lack a pod
	roomFrom time.Time   // since when there has been a free slot
	evicted  []time.Time
}

type modelPod struct {
	Pod
	burst bool
}

func (m *model) free() int {
	n := m.slots
	for _, p := range m.pods {
		if !p.burst {
			n--
		}
	}
	return n
}

// sorted returns the pods in the same order in each run.
func (m *model) sorted() []*modelPod {
	return slices.SortedFunc(maps.Values(m.pods), func(a, b *modelPod) int { return strings.Compare(string(a.UID), string(b.UID)) })
}

// place adds a pod of the workload: on a VM if a slot is free, otherwise in the burst pool.
func (m *model) place(now time.Time, workload types.UID) {
	m.serial++
	uid := types.UID(fmt.Sprintf("pod-%d", m.serial))
	m.pods[uid] = &modelPod{Pod{UID: uid, Created: now, Owner: workload, Workload: workload, Below: 2, Alike: true}, m.free() <= 0}
}

// TestNoPingPong plays random days: VMs come and go, workloads grow and shrink, and sometimes another pod takes the
// free slot at the moment of an eviction. It checks the rate, that there was capacity for every chosen pod for long
// enough, and that few replacements land in the burst pool again.
func TestNoPingPong(t *testing.T) {
	s := seed.Of(t, 1)
	total, wasted := 0, 0
	for day := range 20 {
		m := &model{r: rand.New(rand.NewPCG(s, uint64(day))), slots: 20, pods: map[types.UID]*modelPod{}}
		rules := Rules{StableFor: time.Duration(1+m.r.IntN(5)) * time.Minute, PerMinute: 1 + m.r.IntN(5), PerWorkload: 1 + m.r.IntN(2), Interval: interval}
		p := NewPlanner([]*Rules{&rules})
		workloads := []types.UID{"a", "b", "c"}
		moves := map[types.UID]int{} // pods that were evicted and landed in the burst pool, by workload
		for now := start; now.Before(start.Add(24 * time.Hour)); now = now.Add(interval) {
			switch m.r.IntN(60) {
			case 0:
				m.slots = max(0, m.slots+m.r.IntN(9)-4)
				for _, pod := range m.sorted() { // pods of removed VMs are placed again
					if m.free() < 0 && !pod.burst {
						delete(m.pods, pod.UID)
						m.pending = append(m.pending, pod.Workload)
					}
				}
			case 1:
				for range m.r.IntN(6) {
					m.pending = append(m.pending, workloads[m.r.IntN(len(workloads))])
				}
			case 2:
				for _, pod := range m.sorted() {
					if m.r.IntN(4) == 0 {
						delete(m.pods, pod.UID)
					}
				}
			}
			for _, workload := range m.pending {
				m.place(now, workload)
			}
			m.pending = nil
			if m.free() <= 0 {
				m.roomFrom = time.Time{}
			} else if m.roomFrom.IsZero() {
				m.roomFrom = now
			}
			var candidates []Pod
			for _, pod := range m.sorted() {
				if pod.burst {
					candidates = append(candidates, pod.Pod)
				}
			}
			members := func() map[types.UID][]Member {
				all := map[types.UID][]Member{}
				for _, pod := range m.sorted() {
					all[pod.Workload] = append(all[pod.Workload], Member{UID: pod.UID, Owner: pod.Workload, Bound: true, Rank: map[bool]int{true: 2}[pod.burst], Ready: true})
				}
				return all
			}
			p.Arrive(now, members())
			left := m.free()
			on := map[types.UID]int{}
			evict, _ := p.Round(now, 0, candidates, func(Pod) (bool, string) { left--; return left >= 0, "" })
			for _, pod := range evict {
				if m.roomFrom.IsZero() || now.Sub(m.roomFrom) < rules.StableFor {
					t.Fatalf("day %d, %v: a pod was chosen although there has been room since %v only", day, now, m.roomFrom)
				}
				if on[pod.Workload]++; on[pod.Workload] > rules.PerWorkload {
					t.Fatalf("day %d, %v: %d pods of a workload were chosen at once", day, now, on[pod.Workload])
				}
				before := members()[pod.Workload]
				delete(m.pods, pod.UID)
				p.Evicted(now, 0, pod, before)
				m.evicted = append(m.evicted, now)
				total++
				if m.r.IntN(10) == 0 { // another pod takes the slot
					m.slots--
				}
				wasFree := m.free() > 0
				m.place(now, pod.Workload)
				if !wasFree {
					moves[pod.Workload]++
					wasted++
				}
			}
		}
		for i, at := range m.evicted {
			n := 0
			for _, other := range m.evicted[:i+1] {
				if at.Sub(other) < time.Minute {
					n++
				}
			}
			if n > rules.PerMinute+1 {
				t.Errorf("day %d: %d evictions in the minute before %v, the limit is %d", day, n, at, rules.PerMinute)
			}
		}
	}
	t.Logf("%d pods were evicted in 20 days, %d of them in vain", total, wasted)
	if total < 100 || wasted*4 > total {
		t.Errorf("%d evictions, %d in vain", total, wasted)
	}
}

// TestHopeless: pods of a workload are evicted only a few times a day if all replacements land in the burst pool again.
func TestHopeless(t *testing.T) {
	pod := Pod{UID: "pod-0", Created: start, Owner: "rs", Workload: "web", Below: 2}
	s := newScript(t)
	n := 0
	for s.now.Before(start.Add(24 * time.Hour)) {
		s.members = []Member{bound(pod.UID, true, true)}
		if chosen, _ := s.next(pod); len(chosen) > 0 {
			s.Evicted(s.now, 0, pod, s.members)
			n++
			pod.UID = types.UID(fmt.Sprintf("pod-%d", n))
		}
	}
	if n < 5 || n > 13 {
		t.Errorf("evicted %d times in a day", n)
	}
}

// TestHarmOf: a pod whose eviction would harm its workload.
func TestHarmOf(t *testing.T) {
	const only = "it is the only ready pod of its workload, and no PodDisruptionBudget selects it"
	for name, tc := range map[string]struct {
		ready             bool
		others            int
		outdated, guarded bool
		want              string
	}{
		"another is ready":      {true, 1, false, false, ""},
		"the only ready pod":    {true, 0, false, false, only},
		"the pod is not ready":  {false, 0, false, false, ""},
		"a PodDisruptionBudget": {true, 0, false, true, ""},
		"a rollout ends it":     {true, 1, true, true, "a rollout replaces it"},
	} {
		if got := HarmOf(tc.ready, tc.others, func() bool { return tc.outdated }, func() bool { return tc.guarded }); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestHarmful: a pod that would harm its workload is not evicted, and takes no capacity from others.
func TestHarmful(t *testing.T) {
	r := rules()
	p, room := NewPlanner([]*Rules{&r}), 0
	harmful := Pod{UID: "harmful", Created: start.Add(-time.Hour), Owner: "a", Workload: "a", Harm: "it is the only one"}
	other := Pod{UID: "other", Created: start, Owner: "b", Workload: "b"}
	round := func(after time.Duration, pods ...Pod) (evict, harmful []Pod) {
		free := room
		return p.Round(start.Add(after), 0, pods, func(Pod) (bool, string) { free--; return free >= 0, "" })
	}
	room = 1
	round(0, harmful, other)
	if evict, harmful := round(time.Minute, harmful, other); len(evict) != 1 || evict[0].UID != "other" || len(harmful) != 0 {
		t.Errorf("with room for one: evicts %v, harmful %v", evict, harmful)
	}
	room = 2
	round(2*time.Minute, harmful)
	if evict, harmful := round(3*time.Minute, harmful); len(evict) != 0 || len(harmful) != 1 {
		t.Errorf("with room for it: evicts %v, harmful %v", evict, harmful)
	}
}

// TestSawtooth: the load rises every ten minutes for five minutes, and each time a pod bursts that a VM soon has room
// for. The pauses between the returns grow. Pods that were there before the last return are not paused.
func TestSawtooth(t *testing.T) {
	s := newScript(t)
	evicted := []time.Duration{}
	for tooth := range 60 {
		pod := Pod{UID: types.UID(fmt.Sprint("pod-", tooth)), Created: s.now, Owner: "rs", Workload: "web", Below: 2}
		s.members = []Member{bound(pod.UID, true, true)}
		gone := false
		for end := s.now.Add(5 * time.Minute); s.now.Before(end); {
			pods := []Pod{pod}
			if gone {
				pods = nil
			}
			chosen, _ := s.next(pods...)
			if len(chosen) > 0 {
				evicted = append(evicted, s.now.Sub(start).Round(time.Minute))
				s.Evicted(s.now, 0, pod, s.members)
				s.members, gone = []Member{bound(pod.UID+"-new", false, true)}, true
			}
		}
		s.members = nil
		for range 30 {
			s.next()
		}
	}
	if len(evicted) < 3 || len(evicted) > 8 || s.landed != len(evicted) {
		t.Errorf("%d returns in 60 teeth, at %v; %d helped", len(evicted), evicted, s.landed)
	}
	for i := 2; i < len(evicted); i++ {
		if evicted[i]-evicted[i-1] < evicted[i-1]-evicted[i-2] && evicted[i]-evicted[i-1] < maxPause {
			t.Errorf("the pauses do not grow: %v", evicted)
		}
	}
	t.Logf("returns at %v", evicted)
}

// TestLateSuccess: an eviction helps only after a while. Pods that were created meanwhile wait for the pause, too, also
// with the next leader.
func TestLateSuccess(t *testing.T) {
	first, second := Pod{UID: "first", Created: start, Owner: "rs", Workload: "web", Below: 2}, Pod{UID: "second", Owner: "rs", Workload: "web", Below: 2}
	s := newScript(t)
	s.members = []Member{bound("first", true, true)}
	for chosen := []types.UID(nil); len(chosen) == 0; chosen, _ = s.next(first) {
	}
	s.Evicted(s.now, 0, first, s.members)
	second.Created = s.now.Add(interval)
	s.members = []Member{{UID: "new", Owner: "rs"}}
	s.quiet("while the replacement is pending", 3*interval, second)
	s.members = []Member{bound("new", false, true), bound("second", true, true)}
	s.quiet("just after the first eviction helped", 2*interval, second)
	next := newScript(t)
	next.now, next.members = s.now, s.members
	for uid, pause := range s.Pauses() {
		next.Restore(s.now, uid, pause)
	}
	for name, s := range map[string]*script{"in the pause": s, "with the next leader": next} {
		s.quiet(name, calmAfter*rules().StableFor-3*interval, second)
	}
	if s.landed != 1 {
		t.Errorf("%d evictions helped", s.landed)
	}
}
