package controller

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"poolpriority.dev/scheduler/pkg/backoff"
	"poolpriority.dev/scheduler/pkg/denial"
)

const (
	// When another component undoes a change of a node's taints, the controller repeats the change after a backoff.
	// contestedRetry is the first backoff, and maxContestedRetry the longest. If a change lasted for maxContestedRetry
	// before it was undone, the controller repeats it at once.
	contestedRetry, maxContestedRetry = time.Second, time.Minute
	// contestedAfter is the number of undone changes in a row after which the controller writes an event on the node.
	contestedAfter = 3

	// ReasonGateTaintContested is the reason of the event on a node whose gate taint another component changes
	// repeatedly.
	ReasonGateTaintContested = "GateTaintContested"
)

// side is a node with its wanted state. If the wanted state of a node changes, or if a new node gets the same name, the
// count of changes starts at zero again.
type side struct {
	uid     types.UID
	tainted bool
}

// contests tracks the nodes whose taints the controller changed, by node name.
type contests struct {
	mu    sync.Mutex
	nodes map[string]contest
}

type contest struct {
	side     side
	inARow   int       // the number of changes in a row; each except the last was undone within maxContestedRetry
	last     time.Time // the time of the last change
	undone   bool      // the last change is known to have been undone
	reported bool
}

// written records that the controller changed the node's taints at the time now.
func (c *contests) written(node string, of side, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes == nil {
		c.nodes = map[string]contest{}
	}
	e := c.nodes[node]
	if e.side != of {
		e = contest{side: of}
	}
	e.inARow++
	e.last, e.undone = now, false
	c.nodes[node] = e
}

// undone records that the last change of the node's taints was undone. wait is the rest of the backoff before the
// controller may repeat the change. If the controller must write an event, tell is the number of undone changes in a
// row. Otherwise tell is 0.
func (c *contests) undone(node string, of side, now time.Time) (wait time.Duration, tell int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[node]
	if !ok || e.side != of {
		delete(c.nodes, node)
		return 0, 0
	}
	if !e.undone && now.Sub(e.last) >= maxContestedRetry {
		delete(c.nodes, node)
		return 0, 0
	}
	e.undone = true
	if e.inARow >= contestedAfter && !e.reported {
		e.reported, tell = true, e.inARow
	}
	c.nodes[node] = e
	return e.last.Add(backoff.Pause(contestedRetry, e.inARow-1, maxContestedRetry)).Sub(now), tell
}

// kept records that the node has the wanted taints.
func (c *contests) kept(node string, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.nodes[node]
	switch {
	case !ok:
	case now.Sub(e.last) >= maxContestedRetry:
		delete(c.nodes, node)
	default:
		e.undone = false
		c.nodes[node] = e
	}
}

func (c *contests) forget(node string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, node)
}

// undone returns the rest of the backoff before the controller repeats a change of the node's taints. After
// contestedAfter undone changes in a row, it writes an event.
func (r *GateTaint) undone(ctx context.Context, node *corev1.Node, of side, now time.Time) time.Duration {
	wait, times := r.contests.undone(node.Name, of, now)
	if times == 0 {
		return wait
	}
	taint := r.Pools.GateTaint()
	what := fmt.Sprintf("the gate taint %s was set %d times and taken off again each time", taint.ToString(), times)
	if !r.wants(node) {
		what = fmt.Sprintf("the gate taint %s was taken off %d times and set again each time", taint.ToString(), times)
	}
	what += fmt.Sprintf(". Another controller, an admission policy or a webhook undoes the change. Exempt the key %s in that component. The controller retries with a backoff of at most a minute", taint.Key)
	if r.wants(node) {
		what += ". Meanwhile, " + denial.Consequence
	}
	log.FromContext(ctx).Error(nil, "The gate taint of a node is contested", "node", node.Name, "problem", what)
	r.Recorder.Eventf(node, corev1.EventTypeWarning, ReasonGateTaintContested, "%s", short(what))
	return wait
}
