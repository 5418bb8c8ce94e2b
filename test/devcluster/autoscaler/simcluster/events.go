package simcluster

import (
	"slices"
	"time"
)

// kind is the kind of an event. Events are data, not functions, so that a cluster can be cloned.
type kind int

const (
	loopBegins kind = iota
	loopEnds
	nodeRegisters
	nodeReady
	startupOver
	drainBegins
	vmDeleted
	nodeGone
	schedulerLooks
)

type event struct {
	at   time.Time
	kind kind
	name string // of a node
}

// after adds an event that happens after the duration.
func (c *Cluster) after(d time.Duration, k kind, name string) {
	e := event{at: c.now.Add(d), kind: k, name: name}
	i, _ := slices.BinarySearchFunc(c.events, e, func(have, e event) int {
		if have.at.After(e.at) {
			return 1
		}
		return -1 // after the events of the same time
	})
	c.events = slices.Insert(c.events, i, e)
}

// cancel removes all events of the kinds.
func (c *Cluster) cancel(kinds ...kind) {
	c.events = slices.DeleteFunc(c.events, func(e event) bool { return slices.Contains(kinds, e.kind) })
}

// Next returns the time of the next event. If there is no event, it returns false.
func (c *Cluster) Next() (time.Time, bool) {
	if len(c.events) == 0 {
		return time.Time{}, false
	}
	return c.events[0].at, true
}

// Step moves the clock to the next event and handles the event. It reports whether there was one.
func (c *Cluster) Step() bool {
	if len(c.events) == 0 {
		return false
	}
	e := c.events[0]
	c.events = slices.Delete(c.events, 0, 1)
	c.now = e.at
	c.handle(e)
	return true
}

// RunUntil handles all events up to and including the time t, and sets the clock to t.
func (c *Cluster) RunUntil(t time.Time) {
	for len(c.events) > 0 && !c.events[0].at.After(t) {
		c.Step()
	}
	c.now = t
}

// Run moves the clock by the duration.
func (c *Cluster) Run(d time.Duration) { c.RunUntil(c.now.Add(d)) }

// RunLoops runs until this many further loops have ended with a status.
func (c *Cluster) RunLoops(n int) {
	for ended := c.loops + n; c.autoscaler != nil && c.loops < ended; {
		c.Step()
	}
}

func (c *Cluster) handle(e event) {
	switch e.kind {
	case loopBegins:
		c.beginLoop()
	case loopEnds:
		c.endLoop()
	case nodeRegisters:
		c.register(e.name, false)
	case nodeReady:
		c.ready(e.name)
	case startupOver:
		c.removeTaint(e.name, c.groups[c.vms[e.name].group].StartupTaint)
	case drainBegins:
		c.drain(e.name)
	case vmDeleted:
		c.accept(e.name)
	case nodeGone:
		c.forget(e.name)
	case schedulerLooks:
		c.schedule()
	}
}
