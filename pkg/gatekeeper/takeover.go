package gatekeeper

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const (
	// restoreLimit is the maximum age of a published state whose pool states are restored. If UnknownGrace is longer,
	// UnknownGrace is the maximum. The states of regular pools are restored with the times at which the pools entered
	// them.
	restoreLimit = 15 * time.Minute
	// takeOverTimeout is how long a new leader tries to read the last leader's published state. takeOverRetry is the
	// time between two tries.
	takeOverTimeout, takeOverRetry = 30 * time.Second, time.Second
)

// restore restores the parts of the last leader's published state that are still valid. It returns the view to start
// from.
func (g *Gatekeeper) restore(ctx context.Context) *nodegroups.View {
	logger, now := klog.FromContext(ctx), g.config.Clock.Now()
	last, err := g.publisher.Load(ctx)
	if err != nil {
		logger.Error(err, "The published state cannot be read; starting without what is missing", "configMap", g.config.Args.StatusConfigMap)
	}
	if last == nil {
		return g.view.Load()
	}
	logger.Info("Starting from the published state", "configMap", g.config.Args.StatusConfigMap, "written", last.Memory.Written)
	g.sources.Restore(&last.Memory, now)
	g.providers.Restore(&last.Memory, now)
	g.override.Restore(&last.Memory)
	view := *g.view.Load()
	if now.Sub(last.Memory.Written) > max(g.rule.UnknownGrace, restoreLimit) {
		return &view
	}
	view.Pools = slices.Clone(view.Pools)
	for _, published := range last.Pools {
		for i := range g.config.Pools.Regular() {
			if g.config.Pools.At(i).Name == published.Name {
				view.Pools[i] = published.Restored()
			}
		}
	}
	return &view
}

// takeOver restores the times at which pods became unschedulable from the last leader's published state. It does
// nothing until this scheduler leads. A standby evaluates the pools, but cannot record when pods become unschedulable,
// because it runs no scheduling cycles. Until takeOver is done, this scheduler does not overwrite the published state
// and does not use the times of the pods' conditions. takeOver returns when to try again, or zero.
func (g *Gatekeeper) takeOver(ctx context.Context) time.Time {
	if g.loop.takenOver || !g.leading.Load() {
		return time.Time{}
	}
	logger, now := klog.FromContext(ctx), g.config.Clock.Now()
	if g.loop.giveUp.IsZero() {
		g.loop.giveUp = now.Add(takeOverTimeout)
	}
	last, err := g.publisher.Load(ctx)
	if err != nil {
		logger.Error(err, "The state that the last leader published cannot be read", "configMap", g.config.Args.StatusConfigMap)
		if last == nil && now.Before(g.loop.giveUp) {
			return now.Add(takeOverRetry)
		}
	}
	if last != nil {
		pods, _ := g.pods.List(labels.Everything()) // does not fail
		for _, pod := range pods {
			if since, ok := last.Memory.Unschedulable[pod.UID]; ok {
				g.held.Restore(pod.UID, since)
			}
		}
	}
	g.held.Trust(now)
	g.loop.takenOver = true
	return time.Time{}
}
