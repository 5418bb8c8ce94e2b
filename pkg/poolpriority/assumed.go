package poolpriority

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// settleLimit is how long the binding to a burst node waits until pods are bound to better nodes. A PreBind plugin
	// may take minutes, for example until a volume is there.
	settleLimit = 5 * time.Second
	// forgetLag is more than the time between Unreserve and a snapshot without the pod.
	forgetLag = 100 * time.Millisecond
	// longestCycle is more than the duration of a scheduling cycle.
	longestCycle = 10 * time.Second
	// maxRefusals bounds how many bindings of a pod settle refuses. Otherwise, a pod whose binding fails each time could
	// keep other pods from ever being bound.
	maxRefusals = 5
)

// errBetterNode is the error of settle.
var errBetterNode = errors.New("better nodes were full, but a pod could not be bound to one of them: trying again")

// assumedPods has the pods that the scheduler has assumed on a node and has not bound yet. The cycles of other pods
// count an assumed pod as running there, and may choose a worse node because of it. If the pod is then not bound, for
// example because the API server restarts, the better node has capacity after all.
type assumedPods struct {
	mu       sync.Mutex
	pods     map[types.UID]*assumedPod
	failed   []*assumedPod // those that were not bound lately
	refusals retries       // how many bindings of each pod settle has refused
}

type assumedPod struct {
	node *v1.Node
	rank pool.Rank
	// done is closed when the pod is bound, or not assumed any more. Then, failed is set if the pod was not bound.
	done   chan struct{}
	failed time.Time
}

func newAssumedPods() *assumedPods {
	return &assumedPods{pods: map[types.UID]*assumedPod{}, refusals: newRetries()}
}

func (a *assumedPods) add(pod types.UID, node *v1.Node, rank pool.Rank) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pods[pod] = &assumedPod{node: node, rank: rank, done: make(chan struct{})}
}

// remove records that the pod was bound, or if failed is set, that it was not bound at that time.
func (a *assumedPods) remove(pod types.UID, failed time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if failed.IsZero() {
		a.refusals.Remove(pod)
	}
	p := a.pods[pod]
	if p == nil {
		return
	}
	delete(a.pods, pod)
	if p.failed = failed; !failed.IsZero() {
		tooOld := failed.Add(-longestCycle)
		a.failed = append(slices.DeleteFunc(a.failed, func(p *assumedPod) bool { return p.failed.Before(tooOld) }), p)
	}
	close(p.done)
}

// before returns the pods on nodes that are better by the order than those of the rank, and that a cycle which began at the time began may have counted.
func (a *assumedPods) before(order *pool.Order, rank pool.Rank, began time.Time) (pods []*assumedPod) {
	place := order.PlaceOf(rank)
	if place == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		if order.PlaceOf(p.rank) < place {
			pods = append(pods, p)
		}
	}
	for _, p := range a.failed {
		if order.PlaceOf(p.rank) < place && p.failed.After(began.Add(-forgetLag)) {
			pods = append(pods, p)
		}
	}
	return pods
}

// settle returns an error if the pod's cycle counted another pod on a better node, and that pod could not be bound.
// Before a pod goes to a burst node, settle waits for the bindings to better nodes. Nodes that the pod cannot use do
// not matter.
func (pl *PoolPriority) settle(ctx context.Context, b *toBind) error {
	pod := b.pod
	c, err := readCycle(b.state)
	node, gone := pl.nodes.Get(b.node)
	if err != nil || gone != nil {
		return nil
	}
	wait := time.Duration(0)
	if pl.pools.IsBurstNode(node) {
		wait = settleLimit
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	failed := slices.ContainsFunc(c.counted, func(p *assumedPod) bool {
		return !c.leavesOut(pl.pools.Of(p.node)) && pl.letsIn(pod, nil, p.node) && p.hasFailed(ctx)
	})
	n := pl.assumed.refusals.count(pod.UID)
	if !failed || n >= maxRefusals {
		return nil
	}
	pl.assumed.refusals.Add(pod.UID, n+1)
	return errBetterNode
}

// hasFailed waits until the pod is bound or has failed, or until the context ends, and reports whether it has failed.
func (p *assumedPod) hasFailed(ctx context.Context) bool {
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	select {
	case <-p.done:
		return !p.failed.IsZero()
	default:
		return false
	}
}
