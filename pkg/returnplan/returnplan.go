// Package returnplan decides which pods of burst pools go back to VMs, and when: those for which there has been room
// for long enough, those that do not run before those that do, oldest first, within a rate, a few at a time of each
// workload, and with growing pauses where that does not help. It is pure: what it looks at is handed to it, the clock
// included.
package returnplan

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/time/rate"

	"poolpriority.dev/scheduler/pkg/backoff"
)

const (
	// Annotation is the pod annotation by which a workload says whether its pods may be returned.
	Annotation = "poolpriority.dev/return"
	// Never is the value of Annotation that opts out.
	Never = "Never"
	// Always is the value of Annotation that opts in a workload with an unknown kind of controller.
	Always = "Always"
	// safeToEvict and doNotDisrupt are the cluster autoscaler's and Karpenter's annotations of pods that are not to be
	// moved.
	safeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	doNotDisrupt = "karpenter.sh/do-not-disrupt"

	// maxPause is the longest pause of a workload whose pods do not land better.
	maxPause = 6 * time.Hour
	// refusedPause is the first pause of a workload whose eviction was refused, and maxRefusedPause the longest.
	refusedPause, maxRefusedPause = 10 * time.Second, 10 * time.Minute
	// vacantAfter is when an evicted pod without a replacement counts as not replaced.
	vacantAfter = time.Minute
	// unreadyAfter is when a replacement that is not ready counts as one that will not be.
	unreadyAfter = 10 * time.Minute
	// maxRooms bounds for how many pods capacity is reserved at a time, and maxRoomsOfOne for how many of a workload.
	maxRooms, maxRoomsOfOne = 100, 10
)

// replaced are the kinds of controllers that replace an evicted pod with an equal one, with their API versions.
var replaced = map[string]string{"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1"}

// Stays returns why a pod is not to be returned whatever room there is, or "" if it may be: it opted out, or nothing
// would replace it as it was.
func Stays(pod *corev1.Pod) string {
	for _, a := range []struct{ key, value string }{{safeToEvict, "false"}, {doNotDisrupt, "true"}, {Annotation, Never}} {
		if pod.Annotations[a.key] == a.value {
			return fmt.Sprintf("its annotation %s is %q", a.key, a.value)
		}
	}
	switch owner := metav1.GetControllerOfNoCopy(pod); {
	case owner == nil:
		return "no controller would replace it"
	case replaced[owner.Kind] != owner.APIVersion && pod.Annotations[Annotation] != Always:
		return fmt.Sprintf("it is not known that its controller, a %s, would replace it", owner.Kind)
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return "it is ending"
	}
	return ""
}

// Rules are a burst pool's.
type Rules struct {
	// StableFor is how long there must have been capacity for a pod.
	StableFor time.Duration
	// PerMinute bounds the evictions in a minute, PerWorkload how many pods of a workload may be without a ready
	// replacement.
	PerMinute, PerWorkload int
	// Interval is how often Round is called.
	Interval time.Duration
}

// Pod is a pod of a burst pool that may be returned.
type Pod struct {
	UID     types.UID
	Created time.Time
	// Stuck is set if the pod has not started, or was refused: its eviction costs nothing.
	Stuck bool
	// Owner is the pod's controlling owner. Workload is the user's object: a Deployment for the pods of its
	// ReplicaSets.
	Owner, Workload types.UID
	// Alike is set if all pods of the owner need the same: without capacity for one there is none for another.
	Alike bool
}

// Member is a pod of a workload, wherever it is.
type Member struct {
	UID, Owner types.UID
	// Bound is set if it has a node, and Burst if that is in a burst pool.
	Bound, Burst bool
	Ready        bool
	Ending       bool
}

// Arrival is the outcome of an eviction.
type Arrival struct {
	// Pool is the index of the burst pool that the pod was evicted from.
	Pool int
	// Evicted is the pod, and Landed what replaced it, if anything did.
	Evicted, Landed types.UID
	// Reason is why it did not help; empty if it did.
	Reason string
	// InARow is how many evictions in a row did not help, and Until when the workload's backoff ends.
	InARow int
	Until  time.Time
}

// Planner plans for the burst pools of a list.
type Planner struct {
	pools     []plan // by the burst pool's index
	workloads map[types.UID]*workload
}

type plan struct {
	rules   Rules
	limiter *rate.Limiter
	since   map[types.UID]time.Time // since when there has been room for a pod
}

type workload struct {
	away      []evicted
	failures  int // in a row
	refusals  int // evictions in a row that were refused
	notBefore time.Time
}

// evicted is a pod that is on its way.
type evicted struct {
	uid, owner types.UID
	pool       int
	goneAt     time.Time          // zero while it ends
	known      map[types.UID]bool // the workload's pods when it was evicted
	arrivedAt  time.Time          // when its replacement was found to have a node; zero while it has none
	pause      time.Duration      // the workload's first pause if that was in vain
}

// NewPlanner returns a planner to which nothing has happened yet, with rules for each burst pool; nil for those that it
// need not plan for.
func NewPlanner(rules []*Rules) *Planner {
	p := &Planner{pools: make([]plan, len(rules)), workloads: map[types.UID]*workload{}}
	for b, r := range rules {
		if r != nil {
			burst := max(1, int(math.Ceil(float64(r.PerMinute)*r.Interval.Minutes())))
			p.pools[b] = plan{rules: *r, limiter: rate.NewLimiter(rate.Limit(float64(r.PerMinute)/60), burst), since: map[types.UID]time.Time{}}
		}
	}
	return p
}

// Round returns the pods of the burst pool with the index b to evict at the time now. pods are all that may be
// returned. room finds a node for a pod and keeps it for it until the round is over; it returns whether there is one.
func (p *Planner) Round(now time.Time, b int, pods []Pod, room func(Pod) bool) []Pod {
	plan := &p.pools[b]
	pods = slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(stuckFirst(a, b), a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	since := map[types.UID]time.Time{}
	full := map[types.UID]bool{} // owners without capacity for their pods
	kept := map[types.UID]int{}  // rooms, by workload
	away := map[types.UID]int{}  // chosen now, by workload
	chosen := []Pod{}
	for _, pod := range pods {
		if len(since) >= maxRooms {
			break
		}
		w := p.workloads[pod.Workload]
		if w != nil && slices.ContainsFunc(w.away, func(e evicted) bool { return e.uid == pod.UID }) {
			continue // it was evicted, and is about to end
		}
		if full[pod.Owner] || w != nil && now.Before(w.notBefore) || kept[pod.Workload] >= max(maxRoomsOfOne, plan.rules.PerWorkload) {
			continue
		}
		if !room(pod) {
			full[pod.Owner] = pod.Alike
			continue
		}
		kept[pod.Workload]++
		since[pod.UID] = now
		if before, ok := plan.since[pod.UID]; ok {
			since[pod.UID] = before
		}
		onTheirWay := away[pod.Workload]
		if w != nil {
			onTheirWay += len(w.away)
		}
		if now.Sub(since[pod.UID]) >= plan.rules.StableFor && onTheirWay < plan.rules.PerWorkload && float64(len(chosen)+1) <= plan.limiter.TokensAt(now) {
			away[pod.Workload]++
			chosen = append(chosen, pod)
		}
	}
	plan.since = since
	return chosen
}

// stuckFirst orders pods that do not run before those that do.
func stuckFirst(a, b Pod) int {
	switch {
	case a.Stuck == b.Stuck:
		return 0
	case a.Stuck:
		return -1
	}
	return 1
}

// Evicted notes that the pod of the burst pool with the index b was evicted at the time now; members are the pods of
// its workload.
func (p *Planner) Evicted(now time.Time, b int, pod Pod, members []Member) {
	p.pools[b].limiter.AllowN(now, 1)
	delete(p.pools[b].since, pod.UID)
	w := p.of(pod.Workload)
	w.refusals = 0
	known := make(map[types.UID]bool, len(members))
	for _, m := range members {
		known[m.UID] = true
	}
	w.away = append(w.away, evicted{uid: pod.UID, owner: pod.Owner, pool: b, known: known, pause: p.pools[b].rules.StableFor})
}

// Refused notes that the pod's eviction was refused at the time now, and returns for how long its workload is left
// alone.
func (p *Planner) Refused(now time.Time, pod Pod) time.Duration {
	w := p.of(pod.Workload)
	pause := backoff.Pause(refusedPause, w.refusals, maxRefusedPause)
	w.refusals++
	w.notBefore = now.Add(pause)
	return pause
}

// Restore takes over what a planner before this one found out of the workload.
func (p *Planner) Restore(uid types.UID, failures int, until time.Time) {
	w := p.of(uid)
	w.failures = max(w.failures, failures)
	if until.After(w.notBefore) {
		w.notBefore = until
	}
}

// Away returns the evicted pods whose replacements have no node yet: their capacity is reserved.
func (p *Planner) Away() map[types.UID]bool {
	away := map[types.UID]bool{}
	for _, w := range p.workloads {
		for i := range w.away {
			if w.away[i].arrivedAt.IsZero() {
				away[w.away[i].uid] = true
			}
		}
	}
	return away
}

// Arrive finds, before a round, where replacements of evicted pods landed, and returns the new outcomes. members
// returns all pods of a workload.
func (p *Planner) Arrive(now time.Time, members func(workload types.UID) []Member) []Arrival {
	var arrivals []Arrival
	for uid, w := range p.workloads {
		var all []Member
		if len(w.away) > 0 {
			all = members(uid)
		}
		taken := map[types.UID]bool{}
		var still []evicted
		for _, e := range w.away {
			m := e.replacement(all, taken)
			taken[m.UID] = m.UID != ""
			over, reason := e.follow(m, all, now)
			switch {
			case reason != "":
				w.notBefore = now.Add(backoff.Pause(e.pause, w.failures, maxPause))
				w.failures++
				arrivals = append(arrivals, Arrival{Pool: e.pool, Evicted: e.uid, Landed: m.UID, InARow: w.failures, Until: w.notBefore, Reason: reason})
			case over:
				w.failures = 0
				arrivals = append(arrivals, Arrival{Pool: e.pool, Evicted: e.uid, Landed: m.UID})
			default:
				still = append(still, e)
			}
			if over && m.UID != "" { // it stands for no other
				for _, other := range w.away {
					other.known[m.UID] = true
				}
			}
		}
		w.away = still
		idle := len(w.away) == 0 && now.After(w.notBefore)
		if idle && (w.failures+w.refusals == 0 || now.Sub(w.notBefore) > 2*maxPause) {
			delete(p.workloads, uid)
		}
	}
	return arrivals
}

// replacement returns the replacement of the evicted pod, if there is one yet. Replacements cannot be matched to
// evicted pods: of the owner's newer pods it takes the most advanced one.
func (e *evicted) replacement(all []Member, taken map[types.UID]bool) Member {
	var best Member
	rank := func(m Member) int {
		switch {
		case m.Bound && !m.Burst && m.Ready:
			return 4
		case m.Bound && !m.Burst:
			return 3
		case !m.Bound:
			return 2
		default:
			return 1
		}
	}
	for _, m := range all {
		if m.Owner == e.owner && !m.Ending && !e.known[m.UID] && !taken[m.UID] && (best.UID == "" || rank(m) > rank(best)) {
			best = m
		}
	}
	return best
}

// follow updates the evicted pod at the time now; m is its replacement. It returns whether the outcome is known, and
// why the eviction did not help, if so.
func (e *evicted) follow(m Member, all []Member, now time.Time) (over bool, reason string) {
	if !m.Bound {
		e.arrivedAt = time.Time{}
	} else if e.arrivedAt.IsZero() {
		e.arrivedAt = now
	}
	switch {
	case m.UID == "" && slices.ContainsFunc(all, func(m Member) bool { return m.UID == e.uid }):
		return false, "" // it is ending
	case m.UID == "" && e.goneAt.IsZero():
		e.goneAt = now
		return false, ""
	case m.UID == "" && now.Sub(e.goneAt) >= vacantAfter:
		return true, "nothing replaced it"
	case m.UID == "" || !m.Bound:
		return false, ""
	case m.Burst:
		return true, "its replacement is in a burst pool again"
	case m.Ready:
		return true, ""
	case now.Sub(e.arrivedAt) >= unreadyAfter:
		return true, "its replacement does not become ready"
	}
	return false, ""
}

func (p *Planner) of(uid types.UID) *workload {
	w, ok := p.workloads[uid]
	if !ok {
		w = &workload{}
		p.workloads[uid] = w
	}
	return w
}
