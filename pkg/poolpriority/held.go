package poolpriority

import (
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/gate"
)

// held is the set of pods that the gate holds back.
type held struct {
	mu   sync.Mutex
	pods map[types.UID]*heldPod
}

type heldPod struct {
	pod   *v1.Pod
	since time.Time // since when it has been unschedulable
	// open says, by burst pool, whether the gate was open when last looked at. One that only the budget closed counts as
	// open: it is the end of a burst pod that wakes its pods.
	open   []bool
	budget bool // the budget closed a gate
}

func newHeld() *held { return &held{pods: map[types.UID]*heldPod{}} }

// add remembers the pod, held at the time now by the decision.
func (h *held) add(pod *v1.Pod, decision *gate.Decision, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[pod.UID]
	if !ok {
		entry = &heldPod{since: now}
		if since := unschedulableSince(pod); !since.IsZero() {
			entry.since = since
		}
		h.pods[pod.UID] = entry
	}
	entry.pod, entry.open = pod, openPools(decision)
	entry.budget = slices.ContainsFunc(decision.Burst, overBudget)
}

// waitsForBudget reports whether a budget holds the pod.
func (h *held) waitsForBudget(uid types.UID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.pods[uid]
	return ok && entry.budget
}

// update follows the pod: a bound one is forgotten.
func (h *held) update(pod *v1.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[pod.UID]; !ok {
		return
	} else if pod.Spec.NodeName != "" {
		delete(h.pods, pod.UID)
	} else {
		entry.pod = pod
	}
}

func (h *held) remove(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pods, uid)
}

// since is since when the pod has been unschedulable; zero if it is not known to be.
func (h *held) since(pod *v1.Pod) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry, ok := h.pods[pod.UID]; ok {
		return entry.since
	}
	return unschedulableSince(pod)
}

// all returns all held pods, by namespace/name.
func (h *held) all() map[string]*v1.Pod {
	h.mu.Lock()
	defer h.mu.Unlock()
	pods := make(map[string]*v1.Pod, len(h.pods))
	for _, entry := range h.pods {
		pods[entry.pod.Namespace+"/"+entry.pod.Name] = entry.pod
	}
	return pods
}

// reconsider decides anew for every held pod. It returns the pods for which a burst pool has opened since it was last
// looked at, by namespace/name, and the earliest time at which a decision changes by itself.
func (h *held) reconsider(decide func(gate.Request) gate.Decision) (map[string]*v1.Pod, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	opened := map[string]*v1.Pod{}
	var next time.Time
	for _, entry := range h.pods {
		decision := decide(gate.Request{Pod: entry.pod, UnschedulableSince: entry.since})
		open := openPools(&decision)
		for b := range open {
			if open[b] && !entry.open[b] {
				opened[entry.pod.Namespace+"/"+entry.pod.Name] = entry.pod
			}
		}
		entry.open = open
		next = capacity.Earliest(next, decision.Until())
	}
	return opened, next
}

func openPools(decision *gate.Decision) []bool {
	open := make([]bool, len(decision.Burst))
	for b := range decision.Burst {
		open[b] = decision.Burst[b].Open || overBudget(decision.Burst[b])
	}
	return open
}

func overBudget(v gate.Verdict) bool { return v.Reason.Code == gate.ReasonBudget.Code }

// unschedulableSince reads the pod's condition. A pod that waits for scheduling gates is not unschedulable yet.
func unschedulableSince(pod *v1.Pod) time.Time {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse && c.Reason == v1.PodReasonUnschedulable {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
