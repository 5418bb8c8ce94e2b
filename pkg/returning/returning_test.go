package returning

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestStays(t *testing.T) {
	owned := func(kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: "o", Controller: ptr.To(true)}}
	}
	for _, tc := range []struct {
		name string
		pod  corev1.Pod
		want string
	}{
		{"a ReplicaSet's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet")}}, ""},
		{"a StatefulSet's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("StatefulSet")}}, ""},
		{"nobody's", corev1.Pod{}, "no controller would replace it"},
		{"a Job's", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job")}}, "it belongs to a Job"},
		{"ending", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), DeletionTimestamp: &metav1.Time{}}}, "it is ending"},
		{"failed", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet")}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, "it is ending"},
		{"the autoscaler's annotation", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{safeToEvict: "false"}}},
			`its annotation cluster-autoscaler.kubernetes.io/safe-to-evict is "false"`},
		{"the autoscaler's annotation, the other way", corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("ReplicaSet"), Annotations: map[string]string{safeToEvict: "true"}}}, ""},
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

// TestRound goes through the life of one workload's pod.
func TestRound(t *testing.T) {
	p := NewPlanner(rules())
	now := start
	old, young := Pod{UID: "old", Created: start.Add(-time.Hour), Owner: "rs", Workload: "web"}, Pod{UID: "young", Created: start, Owner: "rs", Workload: "web"}
	members := []Member{{UID: "old", Bound: true, Burst: true}, {UID: "young", Bound: true, Burst: true}}
	free := 2
	round := func(pods ...Pod) []Pod {
		left := free
		return p.Round(now, pods, func(Pod) bool { left--; return left >= 0 }, func(types.UID) []Member { return members })
	}
	expect := func(what string, got []Pod, want ...types.UID) {
		t.Helper()
		var uids []types.UID
		for _, pod := range got {
			uids = append(uids, pod.UID)
		}
		if !slices.Equal(uids, want) {
			t.Errorf("%s, at %v: chose %v, want %v", what, now.Sub(start), uids, want)
		}
	}
	for ; now.Before(start.Add(time.Minute)); now = now.Add(interval) {
		expect("before stableFor", round(young, old))
	}
	free = 0
	expect("when the room is gone", round(young, old))
	free, now = 1, now.Add(interval)
	for restart := now; now.Before(restart.Add(time.Minute)); now = now.Add(interval) {
		expect("after the room was gone", round(young, old))
	}
	expect("after stableFor", round(young, old), "old")
	p.Evicted(now, old, members)
	members = append(members[1:], Member{UID: "new"})
	free = 2
	for range 20 {
		now = now.Add(interval)
		expect("while the replacement is pending", round(young))
	}
	members[1].Bound, members[1].Burst = true, true // it landed in the burst pool again
	pauses := []time.Duration{}
	for tries := range 4 {
		landed := now
		var chosen []Pod
		for len(chosen) == 0 && now.Sub(landed) < 24*time.Hour {
			now = now.Add(interval)
			chosen = round(young)
		}
		pauses = append(pauses, now.Sub(landed))
		p.Evicted(now, young, members)
		young.UID = types.UID(fmt.Sprint("young-", tries))
		members = append(members, Member{UID: young.UID, Bound: true, Burst: true})
	}
	for i := 1; i < len(pauses); i++ {
		if pauses[i] < pauses[i-1]+time.Minute {
			t.Errorf("the pauses are %v and do not grow", pauses)
		}
	}
	t.Logf("pauses of a workload whose pods land in the burst pool again: %v", pauses)
}

// TestRefused: a workload whose evictions are refused is left alone for longer and longer, and others are not.
func TestRefused(t *testing.T) {
	p := NewPlanner(rules())
	blocked := Pod{UID: "blocked", Created: start.Add(-time.Hour), Owner: "a", Workload: "a"}
	other := Pod{UID: "other", Created: start, Owner: "b", Workload: "b"}
	yes, none := func(Pod) bool { return true }, func(types.UID) []Member { return nil }
	p.Round(start, []Pod{blocked, other}, yes, none)
	now := start.Add(time.Minute)
	if got := p.Round(now, []Pod{blocked, other}, yes, none); len(got) != 1 || got[0].UID != "blocked" {
		t.Fatalf("chose %v", got)
	}
	if pause := p.Refused(now, blocked); pause != refusedPause {
		t.Errorf("paused for %v", pause)
	}
	if got := p.Round(now, []Pod{blocked, other}, yes, none); len(got) != 1 || got[0].UID != "other" {
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

// model is a cluster of which only slots are known: free ones on VMs, and as many as one likes in the burst pool.
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

// place puts a pod of the workload where the scheduler does.
func (m *model) place(now time.Time, workload types.UID) {
	m.serial++
	uid := types.UID(fmt.Sprintf("pod-%d", m.serial))
	m.pods[uid] = &modelPod{Pod{uid, now, workload, workload}, m.free() <= 0}
}

// TestNoPingPong plays a random day: VMs come and go, workloads grow and shrink, and room is taken by others in the moment of an
// eviction. No rate is exceeded, no pod leaves without room, and pods are not moved to and fro.
func TestNoPingPong(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	total, wasted := 0, 0
	for day := range 20 {
		m := &model{r: rand.New(rand.NewPCG(seed, uint64(day))), slots: 20, pods: map[types.UID]*modelPod{}}
		rules := Rules{StableFor: time.Duration(1+m.r.IntN(5)) * time.Minute, PerMinute: 1 + m.r.IntN(5), PerWorkload: 1 + m.r.IntN(2), Interval: interval}
		p := NewPlanner(rules)
		workloads := []types.UID{"a", "b", "c"}
		moves := map[types.UID]int{} // pods that were evicted and landed in the burst pool, by workload
		for now := start; now.Before(start.Add(24 * time.Hour)); now = now.Add(interval) {
			switch m.r.IntN(60) {
			case 0:
				m.slots = max(0, m.slots+m.r.IntN(9)-4)
				for _, pod := range m.pods { // the pods of VMs that go are placed anew
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
				for uid := range m.pods {
					if m.r.IntN(4) == 0 {
						delete(m.pods, uid)
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
			for _, pod := range m.pods {
				if pod.burst {
					candidates = append(candidates, pod.Pod)
				}
			}
			members := func(workload types.UID) []Member {
				var all []Member
				for _, pod := range m.pods {
					if pod.Workload == workload {
						all = append(all, Member{pod.UID, true, pod.burst})
					}
				}
				return all
			}
			left := m.free()
			on := map[types.UID]int{}
			for _, pod := range p.Round(now, candidates, func(Pod) bool { left--; return left >= 0 }, members) {
				if m.roomFrom.IsZero() || now.Sub(m.roomFrom) < rules.StableFor {
					t.Fatalf("day %d, %v: a pod was chosen although there has been room since %v only", day, now, m.roomFrom)
				}
				if on[pod.Workload]++; on[pod.Workload] > rules.PerWorkload {
					t.Fatalf("day %d, %v: %d pods of a workload were chosen at once", day, now, on[pod.Workload])
				}
				before := members(pod.Workload)
				delete(m.pods, pod.UID)
				p.Evicted(now, pod, before)
				m.evicted = append(m.evicted, now)
				total++
				if m.r.IntN(10) == 0 { // somebody else is faster
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

// TestHopeless: a workload whose pods never land better is evicted a few times a day.
func TestHopeless(t *testing.T) {
	p := NewPlanner(rules())
	pod := Pod{UID: "pod-0", Created: start, Owner: "w", Workload: "w"}
	n := 0
	for now := start; now.Before(start.Add(24 * time.Hour)); now = now.Add(interval) {
		members := func(types.UID) []Member { return []Member{{pod.UID, true, true}} }
		for range p.Round(now, []Pod{pod}, func(Pod) bool { return true }, members) {
			p.Evicted(now, pod, members(pod.Workload))
			n++
			pod.UID = types.UID(fmt.Sprintf("pod-%d", n))
		}
	}
	if n < 5 || n > 13 {
		t.Errorf("evicted %d times in a day", n)
	}
}
