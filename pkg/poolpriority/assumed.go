package poolpriority

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// settleLimit is how long the binding to a burst node waits until the pods that are assumed on better nodes are
	// bound. PreBind plugins may take minutes, for example until a volume is there.
	settleLimit = 5 * time.Second
	// forgetLag is more than the time between Unreserve and a snapshot without the pod.
	forgetLag = 100 * time.Millisecond
)

// assumedPods has the pods that the scheduler has assumed on a node and has not bound yet. The cycles of other pods
// count an assumed pod as running there, and may choose a worse node because of it. If the pod is then not bound, for
// example because the API server restarts, the better node has room after all.
type assumedPods struct {
	mu       sync.Mutex
	pods     map[types.UID]assumedPod
	failures map[pool.Rank]time.Time // when a pod that was assumed on a node of the rank was last not bound
}

type assumedPod struct {
	rank pool.Rank
	done chan struct{} // closed when the pod is bound, or not assumed any more
}

func (a *assumedPods) add(pod types.UID, rank pool.Rank) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods == nil {
		a.pods, a.failures = map[types.UID]assumedPod{}, map[pool.Rank]time.Time{}
	}
	if _, again := a.pods[pod]; !again { // cycles of pod groups reserve twice
		a.pods[pod] = assumedPod{rank, make(chan struct{})}
	}
}

// bound records that the pod was bound.
func (a *assumedPods) bound(pod types.UID) { a.remove(pod, time.Time{}) }

// failed records that the pod was not bound.
func (a *assumedPods) failed(pod types.UID, now time.Time) { a.remove(pod, now) }

func (a *assumedPods) remove(pod types.UID, failed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pods[pod]
	if !ok {
		return
	}
	delete(a.pods, pod)
	if !failed.IsZero() {
		a.failures[p.rank] = failed
	}
	close(p.done)
}

// before returns the pods that are assumed on nodes of better ranks.
func (a *assumedPods) before(rank pool.Rank) []assumedPod {
	a.mu.Lock()
	defer a.mu.Unlock()
	var pods []assumedPod
	for _, p := range a.pods {
		if p.rank < rank {
			pods = append(pods, p)
		}
	}
	return pods
}

// failedSince reports whether a pod that was assumed on a node of a better rank has not been bound since then.
func (a *assumedPods) failedSince(rank pool.Rank, since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r, at := range a.failures {
		if r < rank && at.After(since) {
			return true
		}
	}
	return false
}

// settle returns an error if the node was chosen because better nodes were full, and a pod that counted as running on
// one of them could not be bound. Before a pod goes to a burst node, settle waits for the bindings to better nodes.
func (pl *PoolPriority) settle(ctx context.Context, state fwk.CycleState, nodeName string) error {
	c, err := readCycle(state)
	node, gone := pl.nodes.Get(nodeName)
	if err != nil || gone != nil {
		return nil
	}
	rank, i := pl.pools.RankOf(node.Labels)
	if pl.pools.IsBurst(i) {
		limit, cancel := context.WithTimeout(ctx, settleLimit)
		defer cancel()
		for _, p := range pl.assumed.before(rank) {
			select {
			case <-p.done:
			case <-limit.Done():
			}
		}
	}
	if pl.assumed.failedSince(rank, c.began.Add(-forgetLag)) {
		return fmt.Errorf("node %s was chosen because better nodes were full, but a pod could not be bound to one of them: trying again", nodeName)
	}
	return nil
}
