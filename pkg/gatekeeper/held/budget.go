package held

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

// wokenFor is for how long a pod that was woken for the room that a budget has is reckoned to take it: by then it is
// bound or held again.
const wokenFor = 10 * time.Second

// WithinBudgets returns, by namespace/name, the pods to requeue because a budget has room for them: first those of the
// highest priority, then those that have waited for the longest. waiting counts all pods that only budgets hold. If
// there are any, uses returns what is on the nodes of each pool.
func (h *Pods) WithinBudgets(pools pool.List, uses func() []aci.Use, now time.Time) (pods map[string]*v1.Pod, waiting int) {
	all := h.onBudget(now)
	if len(all) == 0 {
		return nil, 0
	}
	used := uses()
	var chosen []*budgeted
	for i := range all {
		w := &all[i]
		if w.reserve(pools, used) && !w.isWoken {
			chosen = append(chosen, w)
		}
	}
	return h.wake(chosen, now), len(all)
}

// budgeted is a pod that only the budgets of burst pools hold.
type budgeted struct {
	entry    *heldPod // only to be compared with; the rest is a copy
	pod      *v1.Pod
	pools    []bool // by the pools' index: those that would let it in
	since    time.Time
	isWoken  bool // and not back yet: what it takes is taken
	priority int32
}

// reserve takes of the first of its pools that has room for the pod what it needs, and reports whether one has.
func (w *budgeted) reserve(pools pool.List, uses []aci.Use) bool {
	for i := range pools.Burst() {
		if p := pools.At(i); w.pools[i] && gate.HasRoom(w.pod, p, uses[i]) {
			uses[i] = uses[i].Plus(aci.UseOf(w.pod, p.OnACI()))
			return true
		}
	}
	return false
}

// onBudget returns the pods that only budgets hold: those that were woken and are not back yet first, then the best
// first.
func (h *Pods) onBudget(now time.Time) []budgeted {
	var waiting []budgeted
	h.each(func(_ types.UID, entry *heldPod) {
		if entry.budget && slices.Contains(entry.open, true) {
			waiting = append(waiting, budgeted{entry: entry, pod: entry.pod, pools: slices.Clone(entry.open), since: h.firstFailed[entry.pod.UID],
				isWoken: now.Before(entry.woken.Add(wokenFor)), priority: corev1helpers.PodPriority(entry.pod)})
		}
	})
	rank := map[bool]int{true: 0, false: 1}
	slices.SortFunc(waiting, func(a, b budgeted) int {
		return cmp.Or(rank[a.isWoken]-rank[b.isWoken], cmp.Compare(b.priority, a.priority), a.since.Compare(b.since), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	return waiting
}

// wake notes that the pods are woken, and returns those that are held still, by namespace/name.
func (h *Pods) wake(chosen []*budgeted, now time.Time) map[string]*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	pods := map[string]*v1.Pod{}
	for _, w := range chosen {
		if entry, ok := h.pods[w.pod.UID]; ok && entry == w.entry {
			entry.woken = now
			pods[nameOf(entry.pod)] = entry.pod
		}
	}
	return pods
}
