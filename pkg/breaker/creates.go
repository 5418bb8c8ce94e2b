package breaker

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Create is the binding of a pod to a burst pool's node, for which the provider creates a container group.
type Create struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	At        time.Time `json:"at"`
}

// Creates are the last pods that were bound to a burst pool's nodes, oldest first. Some of them may be gone.
type Creates []Create

// Last returns when the n-th last create was, or the n-th last of the namespace if it is not empty; zero if there are
// fewer.
func (c Creates) Last(n int, namespace string) time.Time {
	for _, create := range slices.Backward(c) {
		if namespace == "" || create.Namespace == namespace {
			if n--; n == 0 {
				return create.At
			}
		}
	}
	return time.Time{}
}

func (c Creates) has(uid types.UID) bool {
	return slices.ContainsFunc(c, func(known Create) bool { return known.UID == uid })
}

// Creates returns the last creates, as a new list, and, as created now, those of placed that the Breaker has not seen. placed
// has the namespaces of pods by UID.
func (b *Breaker) Creates(placed map[types.UID]string, now time.Time) Creates {
	c := slices.Clone(b.creates)
	for uid, namespace := range placed {
		if _, seen := b.pods[uid]; !seen && !b.creates.has(uid) { // the list has only the last of those seen
			c = append(c, Create{uid, namespace, now})
		}
	}
	return c
}

// RestoreCreates adds the creates that the previous leader counted.
func (b *Breaker) RestoreCreates(creates Creates, now time.Time) {
	for _, create := range creates {
		b.created(create, now)
	}
}

// created counts a create. One in the future counts as now: the clock of the leader that bound the pod was ahead.
func (b *Breaker) created(create Create, now time.Time) {
	create.At = earliest(create.At, now).UTC()
	if b.creates.has(create.UID) {
		return
	}
	i, _ := slices.BinarySearchFunc(b.creates, create.At, func(known Create, at time.Time) int { return known.At.Compare(at) })
	creates := slices.Insert(slices.Clone(b.creates), i, create) // an earlier Status shares the old list
	b.creates = creates[max(0, len(creates)-b.rules.Creates):]
}
