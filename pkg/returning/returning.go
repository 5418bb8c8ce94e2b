// Package returning decides which pods of a burst pool go back to VMs, and when: those for which there has been room for long
// enough, oldest first, within a rate, a few at a time of each workload, and with growing pauses where that does not help. It is
// pure: what it looks at is handed to it, the clock included.
package returning

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
)

const (
	// Annotation is the pod annotation by which a workload opts out.
	Annotation = "poolpriority.dev/return"
	// Never is the value of Annotation that opts out.
	Never = "Never"
	// safeToEvict and doNotDisrupt are the cluster autoscaler's and Karpenter's annotations of pods that are not to be moved.
	safeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"
	doNotDisrupt = "karpenter.sh/do-not-disrupt"

	// maxPause is the longest pause of a workload whose pods do not land better.
	maxPause = 6 * time.Hour
	// refusedPause is the first pause of a workload whose eviction was refused, and maxRefusedPause the longest.
	refusedPause, maxRefusedPause = 10 * time.Second, 10 * time.Minute
	// vacantAfter is when a pod that was evicted and that nothing replaces counts as given up.
	vacantAfter = time.Minute
	// maxRooms is for how many pods room is kept at a time.
	maxRooms = 100
)

// Stays returns why a pod is not to be returned whatever room there is, or "" if it may be: it opted out, or nothing would
// replace it as it was.
func Stays(pod *corev1.Pod) string {
	for _, a := range []struct{ key, value string }{{safeToEvict, "false"}, {doNotDisrupt, "true"}, {Annotation, Never}} {
		if pod.Annotations[a.key] == a.value {
			return fmt.Sprintf("its annotation %s is %q", a.key, a.value)
		}
	}
	switch owner := metav1.GetControllerOfNoCopy(pod); {
	case owner == nil:
		return "no controller would replace it"
	case owner.Kind == "Job" || owner.Kind == "DaemonSet" || owner.Kind == "Node":
		return "it belongs to a " + owner.Kind
	}
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return "it is ending"
	}
	return ""
}

// Rules are a burst pool's.
type Rules struct {
	// StableFor is for how long there must have been room for a pod.
	StableFor time.Duration
	// PerMinute is how many pods are evicted in a minute, PerWorkload how many of a workload may be on their way at a time.
	PerMinute, PerWorkload int
	// Interval is how often Round is called.
	Interval time.Duration
}

// Pod is a pod of the burst pool that may be returned.
type Pod struct {
	UID     types.UID
	Created time.Time
	// Owner is what made the pod: of its pods, one finds room where another does. Workload is what the user made: a Deployment
	// for the pods of its ReplicaSets.
	Owner, Workload types.UID
}

// Member is a pod of a workload, wherever it is.
type Member struct {
	UID types.UID
	// Bound says that it has a node, and Burst that this is in a burst pool.
	Bound, Burst bool
}

// Planner plans for one burst pool.
type Planner struct {
	rules     Rules
	limiter   *rate.Limiter
	since     map[types.UID]time.Time // since when there has been room for a pod
	workloads map[types.UID]*workload
}

type workload struct {
	away      []evicted
	failures  int // replacements in a row that landed in a burst pool again
	refusals  int // evictions in a row that were refused
	notBefore time.Time
}

// evicted is a pod that is on its way.
type evicted struct {
	at    time.Time
	known map[types.UID]bool // the workload's pods when it was evicted
}

// NewPlanner returns a planner to which nothing has happened yet.
func NewPlanner(rules Rules) *Planner {
	burst := max(1, int(math.Ceil(float64(rules.PerMinute)*rules.Interval.Minutes())))
	return &Planner{
		rules: rules, limiter: rate.NewLimiter(rate.Limit(float64(rules.PerMinute)/60), burst),
		since: map[types.UID]time.Time{}, workloads: map[types.UID]*workload{},
	}
}

// Round returns the pods to evict at the time now. pods are all that may be returned. room finds a node for a pod and keeps it for
// it until the round is over; it returns whether there is one. members returns all pods of a workload.
func (p *Planner) Round(now time.Time, pods []Pod, room func(Pod) bool, members func(workload types.UID) []Member) []Pod {
	p.arrive(now, members)
	pods = slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	since := map[types.UID]time.Time{}
	full := map[types.UID]bool{} // owners for whose pods there is no room any more
	chosen := []Pod{}
	on := map[types.UID]int{} // by workload
	for _, pod := range pods {
		if len(since) >= maxRooms {
			break
		}
		w := p.workloads[pod.Workload]
		if full[pod.Owner] || w != nil && now.Before(w.notBefore) {
			continue
		}
		if !room(pod) {
			full[pod.Owner] = true
			continue
		}
		since[pod.UID] = now
		if before, ok := p.since[pod.UID]; ok {
			since[pod.UID] = before
		}
		if w != nil {
			on[pod.Workload] = max(on[pod.Workload], len(w.away))
		}
		if now.Sub(since[pod.UID]) >= p.rules.StableFor && on[pod.Workload] < p.rules.PerWorkload && float64(len(chosen)+1) <= p.limiter.TokensAt(now) {
			on[pod.Workload]++
			chosen = append(chosen, pod)
		}
	}
	p.since = since
	return chosen
}

// Evicted notes that the pod was evicted at the time now; members are the pods that its workload had before.
func (p *Planner) Evicted(now time.Time, pod Pod, members []Member) {
	p.limiter.AllowN(now, 1)
	delete(p.since, pod.UID)
	w := p.of(pod.Workload)
	w.refusals = 0
	known := make(map[types.UID]bool, len(members))
	for _, m := range members {
		known[m.UID] = true
	}
	w.away = append(w.away, evicted{at: now, known: known})
}

// Refused notes that the pod's eviction was refused at the time now, and returns for how long its workload is left alone.
func (p *Planner) Refused(now time.Time, pod Pod) time.Duration {
	w := p.of(pod.Workload)
	pause := double(refusedPause, w.refusals, maxRefusedPause)
	w.refusals++
	w.notBefore = now.Add(pause)
	return pause
}

// double doubles the duration n times, up to the limit.
func double(d time.Duration, n int, limit time.Duration) time.Duration {
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

func (p *Planner) of(uid types.UID) *workload {
	w, ok := p.workloads[uid]
	if !ok {
		w = &workload{}
		p.workloads[uid] = w
	}
	return w
}

// Failures returns how many of the workload's replacements in a row landed in a burst pool again, and until when it is left
// alone.
func (p *Planner) Failures(uid types.UID) (int, time.Time) {
	if w, ok := p.workloads[uid]; ok {
		return w.failures, w.notBefore
	}
	return 0, time.Time{}
}

// arrive finds out where what replaced the evicted pods landed.
func (p *Planner) arrive(now time.Time, members func(types.UID) []Member) {
	for uid, w := range p.workloads {
		var all []Member
		if len(w.away) > 0 {
			all = members(uid)
		}
		taken := map[types.UID]bool{}
		w.away = slices.DeleteFunc(w.away, func(e evicted) bool {
			i := slices.IndexFunc(all, func(m Member) bool { return !e.known[m.UID] && !taken[m.UID] })
			if i < 0 {
				return now.Sub(e.at) >= vacantAfter // scaled in, perhaps
			}
			m := all[i]
			taken[m.UID] = true
			switch {
			case !m.Bound:
				return false
			case m.Burst:
				w.notBefore = now.Add(double(p.rules.StableFor, w.failures, maxPause))
				w.failures++
			default:
				w.failures = 0
			}
			// It stands for no other.
			for j := range w.away {
				w.away[j].known[m.UID] = true
			}
			return true
		})
		if len(w.away) == 0 && w.failures == 0 && w.refusals == 0 {
			delete(p.workloads, uid)
		} else if len(w.away) == 0 && now.Sub(w.notBefore) > 2*maxPause {
			delete(p.workloads, uid) // long ago
		}
	}
}
