// Package returnplan decides which pods are returned from their pool to a better one, and when: from burst pools to VMs,
// and from regular pools to better regular pools. A pod is returned once a node has had capacity for the pod for the time
// Rules.StableFor. Pods that have not started are returned before started pods,
// and older pods before younger pods. Rules.PerMinute bounds the rate of evictions, and Rules.PerWorkload bounds how
// many pods of one workload are evicted at a time. An eviction helps if a better pool runs the replacement. If an eviction does
// not help, the planner pauses the workload, and each further pause is twice as long. If it helped, pods that come later
// wait for a pause, too, so that a sawtooth of the load does not restart pods at each tooth. The package has no side
// effects: the caller passes all input, including the time.
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
	// Annotation is the pod annotation that sets whether the pods of a workload may be returned.
	Annotation = "poolpriority.dev/return"
	// Never is the value of Annotation that opts a workload out.
	Never = "Never"
	// Always is the value of Annotation that opts in a workload whose kind of controller is not in replaced.
	Always = "Always"
	// safeToEvict and doNotDisrupt are the annotations of the cluster autoscaler and of Karpenter for pods that must
	// not be moved. With a duration as the value of doNotDisrupt, Karpenter may move the pod after this time. Return
	// never does, because the value says that a move is unwelcome.
	safeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	doNotDisrupt = "karpenter.sh/do-not-disrupt"

	// maxPause is the longest pause of a workload whose evictions did not help. maxPauses bounds the result of Pauses.
	maxPause, maxPauses = 6 * time.Hour, 200
	// refusedPause is the first pause of a workload after the API server refused an eviction. maxRefusedPause is the
	// longest such pause.
	refusedPause, maxRefusedPause = 10 * time.Second, 10 * time.Minute
	// vacantAfter is how long the planner waits until an evicted pod has a replacement.
	vacantAfter = time.Minute
	// unreadyAfter is how long the planner waits until a replacement that is bound becomes ready.
	unreadyAfter = 10 * time.Minute
	// calmAfter is the first pause after a return that helped, in multiples of Rules.StableFor.
	calmAfter = 12
	// maxRooms bounds the number of pods for which a round reserves capacity. maxRoomsOfOne bounds the number of these
	// pods in one workload. If Rules.PerWorkload is higher, Rules.PerWorkload is the bound.
	maxRooms, maxRoomsOfOne = 100, 10
)

// keeps has the annotations that keep a pod in its burst pool, with the values that do so.
var keeps = []struct {
	key string
	by  func(value string) bool
}{
	{safeToEvict, func(value string) bool { return value == "false" || value == "on-completion" }},
	{doNotDisrupt, func(value string) bool { return value != "false" }},
	{Annotation, func(value string) bool { return value == Never }},
}

// replaced maps kinds of controllers to their API versions. These controllers replace an evicted pod with an equal pod.
var replaced = map[string]string{"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "ReplicationController": "v1"}

// Stays returns why a pod must stay in its burst pool even if a VM has capacity, or "" if the pod may be returned. A
// pod stays if an annotation opts it out, or if it is terminating or has terminated. A pod also stays if no controller
// would replace it with an equal pod.
func Stays(pod *corev1.Pod) string {
	for _, a := range keeps {
		if value, ok := pod.Annotations[a.key]; ok && a.by(value) {
			return fmt.Sprintf("its annotation %s is %.20q", a.key, value) // cut, because users choose the value
		}
	}
	switch owner := metav1.GetControllerOfNoCopy(pod); {
	case owner == nil:
		return "no controller would replace it"
	case replaced[owner.Kind] != owner.APIVersion && pod.Annotations[Annotation] != Always:
		return fmt.Sprintf("it is not known whether its controller, a %s, would replace it", owner.Kind)
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return "it is terminating"
	}
	return ""
}

// Rules are the limits of a pool.
type Rules struct {
	// StableFor is how long a node must have had capacity for a pod before the pod is returned. MinAge is how long ago
	// the pod must have been created.
	StableFor, MinAge time.Duration
	// PerMinute bounds the evictions in a minute. PerWorkload bounds, for each workload, the evicted pods without a
	// ready replacement.
	PerMinute, PerWorkload int
	// Interval is the time between calls of Round.
	Interval time.Duration
}

// Pod is a pod that may be returned from its pool.
type Pod struct {
	UID     types.UID
	Created time.Time
	// Stuck is set if the pod has not started, or was refused. The eviction of a stuck pod interrupts no work.
	Stuck bool
	// Owner is the key of the pod's controller (refusal.KeyOf). Workload is the key of the user's object, such as the Deployment that
	// owns the pod's ReplicaSet.
	Owner, Workload types.UID
	// Alike is set if all pods of the owner have the same requirements. If no VM has capacity for one of these pods, no
	// VM has capacity for the others.
	Alike bool
	// Below is the rank below which nodes are better for the pod. Ranks are places in the pod's order.
	Below int
	// Harm is why an eviction would harm the workload (HarmOf). Such a pod is not evicted.
	Harm string
}

// HarmOf returns why an eviction would harm the pod's workload, or "". ready is whether the pod is ready, and others the
// number of the workload's other pods that are. outdated reports whether a rollout replaces the pod anyway.
// guarded reports whether a PodDisruptionBudget selects the pod: then the API server decides.
func HarmOf(ready bool, others int, outdated, guarded func() bool) string {
	switch {
	case outdated():
		return "a rollout replaces it"
	case ready && others == 0 && !guarded():
		return "it is the only ready pod of its workload, and no PodDisruptionBudget selects it"
	}
	return ""
}

// Member is any pod of a workload, on any node or pending.
type Member struct {
	UID, Owner types.UID
	// Bound is set if the pod has a node. Rank is the place of that node in the pod's order.
	Bound  bool
	Rank   int
	Ready  bool
	Ending bool
}

// Arrival is the outcome of an eviction: whether the replacement became ready in a better pool.
type Arrival struct {
	// Pool is the index of the pool that the pod was evicted from.
	Pool int
	// Evicted is the evicted pod. Landed is its replacement; empty if there is none.
	Evicted, Landed types.UID
	// Reason is why the eviction did not help. It is empty if the eviction helped.
	Reason string
	// InARow counts the evictions in a row that did not help. Until is the end of the workload's pause.
	InARow int
	Until  time.Time
}

// Planner plans the returns.
type Planner struct {
	pools     []plan // by the pool's index
	workloads map[types.UID]*workload
}

type plan struct {
	rules   Rules
	limiter *rate.Limiter
	since   map[types.UID]time.Time // since when a node has had capacity for the pod, by the pod's UID
	wanted  map[types.UID]bool      // whether this is capacity that others want
}

type workload struct {
	away      []evicted
	failures  int // evictions in a row that did not help
	refusals  int // evictions in a row that were refused
	notBefore time.Time
	// waves counts the groups of pods of which an eviction helped. A group has the pods that were created after helped, which
	// is when the first pod of the group before was evicted; zero for the first group. Until calm, the next group stays.
	helped, calm time.Time
	waves        int
}

func (w *workload) pausedUntil() time.Time { return latest(w.notBefore, w.calm) }

// evicted is an evicted pod whose outcome is not known yet.
type evicted struct {
	uid, owner types.UID
	created    time.Time
	at         time.Time // when it was evicted
	pool       int
	below      int
	goneAt     time.Time          // zero while the pod is terminating
	known      map[types.UID]bool // the workload's pods when this pod was evicted
	arrivedAt  time.Time          // when its replacement was first seen bound; zero while it is not bound
	pause      time.Duration      // the workload's first pause if the eviction does not help: stableFor
}

// NewPlanner returns a planner without a history. rules has the rules of each pool, by its index; nil for a pool from
// which no pod is returned.
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

// place orders what is true before what is not.
var place = map[bool]int{true: 0, false: 1}

// Round returns the pods to evict from the pool with the index b at the time now, and those that would be evicted if this
// did no harm. pods has all pods of this pool that may be returned. room reserves capacity
// for a pod on a node until the round is over. If no node has capacity, room returns false. It also returns whom the pod
// would harm on that node, or "".
func (p *Planner) Round(now time.Time, b int, pods []Pod, room func(Pod) (fits bool, harm string)) (evict, harmful []Pod) {
	plan := &p.pools[b]
	pods = slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(place[a.Harm == ""]-place[b.Harm == ""], place[a.Stuck]-place[b.Stuck], a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	since, wanted := map[types.UID]time.Time{}, map[types.UID]bool{}
	full := map[types.UID]bool{} // owners for whose pods no node has capacity, or only capacity that others want
	kept := map[types.UID]int{}  // pods with reserved capacity, by workload
	away := map[types.UID]int{}  // pods chosen in this round, by workload
	rooms := 0
	for _, pod := range pods {
		if rooms >= maxRooms {
			break
		}
		w := p.workloads[pod.Workload]
		if w != nil && slices.ContainsFunc(w.away, func(e evicted) bool { return e.uid == pod.UID }) {
			continue // the pod was evicted, and has not terminated yet
		}
		if !pod.Stuck && now.Sub(pod.Created) < plan.rules.MinAge {
			continue
		}
		if w != nil && !pod.Stuck && pod.Created.After(w.helped) && now.Before(w.calm) {
			continue
		}
		if full[pod.Owner] || w != nil && now.Before(w.notBefore) || kept[pod.Workload] >= max(maxRoomsOfOne, plan.rules.PerWorkload) {
			continue
		}
		fits, harm := room(pod)
		full[pod.Owner] = pod.Alike && (!fits || harm != "")
		if !fits {
			continue
		}
		pod.Harm = cmp.Or(pod.Harm, harm)
		kept[pod.Workload]++
		since[pod.UID] = now
		if wanted[pod.UID] = harm != ""; harm == "" {
			rooms++
		}
		if before, ok := plan.since[pod.UID]; ok && plan.wanted[pod.UID] == wanted[pod.UID] {
			since[pod.UID] = before
		}
		onTheirWay := away[pod.Workload]
		if w != nil {
			onTheirWay += len(w.away)
		}
		switch {
		case now.Sub(since[pod.UID]) < plan.rules.StableFor:
		case pod.Harm != "":
			harmful = append(harmful, pod)
		case onTheirWay < plan.rules.PerWorkload && float64(len(evict)+1) <= plan.limiter.TokensAt(now):
			away[pod.Workload]++
			evict = append(evict, pod)
		}
	}
	plan.since, plan.wanted = since, wanted
	return evict, harmful
}

// Evicted records that the pod of the pool with the index b was evicted at the time now. members has all pods of
// the pod's workload.
func (p *Planner) Evicted(now time.Time, b int, pod Pod, members []Member) {
	p.pools[b].limiter.AllowN(now, 1)
	delete(p.pools[b].since, pod.UID)
	w := p.of(pod.Workload)
	w.refusals = 0
	known := make(map[types.UID]bool, len(members))
	for _, m := range members {
		known[m.UID] = true
	}
	w.away = append(w.away, evicted{uid: pod.UID, owner: pod.Owner, created: pod.Created, at: now, pool: b, below: pod.Below, known: known, pause: p.pools[b].rules.StableFor})
}

// Refused records that the pod's eviction was refused at the time now. It returns the pause of the pod's workload.
func (p *Planner) Refused(now time.Time, pod Pod) time.Duration {
	w := p.of(pod.Workload)
	pause := backoff.Pause(refusedPause, w.refusals, maxRefusedPause)
	w.refusals++
	w.notBefore = now.Add(pause)
	return pause
}

// Pause is the pause of a workload after evictions that did not help, or after one that did.
type Pause struct {
	// InARow counts the evictions in a row that did not help; 0 after one that did. Until is the end of the pause.
	InARow int       `json:"inARow"`
	Until  time.Time `json:"until"`
}

// Pauses returns the pauses by workload, also those that have ended: the next pause of such a workload is twice as long. If
// there are more than maxPauses, it returns those that end last.
func (p *Planner) Pauses() map[types.UID]Pause {
	var paused []types.UID
	for uid, w := range p.workloads {
		if w.failures+w.waves > 0 {
			paused = append(paused, uid)
		}
	}
	slices.SortFunc(paused, func(a, b types.UID) int {
		return cmp.Or(p.workloads[b].pausedUntil().Compare(p.workloads[a].pausedUntil()), cmp.Compare(a, b))
	})
	pauses := map[types.UID]Pause{}
	for _, uid := range paused[:min(len(paused), maxPauses)] {
		pauses[uid] = Pause{p.workloads[uid].failures, p.workloads[uid].pausedUntil().UTC()}
	}
	return pauses
}

// Restore sets the workload's pause at the time now, as an earlier planner recorded it. After an eviction that helped
// (InARow is 0), all pods of the workload stay until then. A pause that ends later than the longest pause has no effect, because a user has
// written it.
func (p *Planner) Restore(now time.Time, uid types.UID, pause Pause) {
	if pause.Until.After(now.Add(maxPause)) {
		return
	}
	w := p.of(uid)
	w.failures, w.waves, w.notBefore = max(w.failures, pause.InARow), max(w.waves, min(1-pause.InARow, 1)), latest(w.notBefore, pause.Until)
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// Away returns the evicted pods whose replacements are not bound yet. The caller keeps capacity reserved for these
// replacements.
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

// Arrive checks the replacements of evicted pods, and returns the outcomes that have become known. Call Arrive before
// each round. members has all pods of each workload.
func (p *Planner) Arrive(now time.Time, members map[types.UID][]Member) []Arrival {
	var arrivals []Arrival
	for uid, w := range p.workloads {
		all, taken := members[uid], map[types.UID]bool{}
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
				w.succeed(e, now)
				arrivals = append(arrivals, Arrival{Pool: e.pool, Evicted: e.uid, Landed: m.UID})
			default:
				still = append(still, e)
			}
			if over && m.UID != "" { // no other evicted pod has the same replacement
				for _, other := range w.away {
					other.known[m.UID] = true
				}
			}
		}
		w.away = still
		idle := len(w.away) == 0 && now.After(w.pausedUntil())
		if idle && (w.failures+w.refusals+w.waves == 0 || now.Sub(w.pausedUntil()) > 2*maxPause) {
			delete(p.workloads, uid)
		}
	}
	return arrivals
}

// succeed records that the eviction helped.
func (w *workload) succeed(e evicted, now time.Time) {
	if e.created.After(w.helped) {
		w.calm = now.Add(backoff.Pause(calmAfter*e.pause, w.waves, maxPause))
		w.waves++
		w.helped = e.at
	}
}

// replacement returns the replacement of the evicted pod, if there is one yet. The API does not show which evicted pod
// a new pod replaces. replacement therefore returns the owner's new pod that comes first in this order: ready in a better
// pool, bound to a better pool, pending, bound to another node.
func (e *evicted) replacement(all []Member, taken map[types.UID]bool) Member {
	var best Member
	worth := func(m Member) int {
		switch {
		case m.Bound && m.Rank < e.below && m.Ready:
			return 4
		case m.Bound && m.Rank < e.below:
			return 3
		case !m.Bound:
			return 2
		default:
			return 1
		}
	}
	for _, m := range all {
		if m.Owner == e.owner && !m.Ending && !e.known[m.UID] && !taken[m.UID] && (best.UID == "" || worth(m) > worth(best)) {
			best = m
		}
	}
	return best
}

// follow updates the evicted pod e at the time now. m is the replacement of e. follow returns whether the outcome is
// known and, if the eviction did not help, why.
func (e *evicted) follow(m Member, all []Member, now time.Time) (over bool, reason string) {
	if !m.Bound {
		e.arrivedAt = time.Time{}
	} else if e.arrivedAt.IsZero() {
		e.arrivedAt = now
	}
	switch {
	case m.UID == "" && slices.ContainsFunc(all, func(m Member) bool { return m.UID == e.uid }):
		return false, "" // the evicted pod is still terminating
	case m.UID == "" && e.goneAt.IsZero():
		e.goneAt = now
		return false, ""
	case m.UID == "" && now.Sub(e.goneAt) >= vacantAfter:
		return true, "nothing replaced it"
	case m.UID == "" || !m.Bound:
		return false, ""
	case m.Rank >= e.below:
		return true, "its replacement is in no better pool"
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
