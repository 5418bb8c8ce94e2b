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
	// restoreLimit is the age up to which a published state is used to restore when a pool entered its state.
	restoreLimit = 15 * time.Minute
	// takeOverTimeout is how long a new leader tries, every takeOverRetry, to read the state that the last one
	// published.
	takeOverTimeout, takeOverRetry = 30 * time.Second, time.Second
)

// restore takes over the state that the last leader published, as far as it is still valid, and returns the first view.
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

// takeOver takes over, once this scheduler leads, since when pods have been unschedulable by the last leader's word:
// one that was ready to take over has followed the pools by itself, and not the pods. Until that is done, nothing is
// published over it, and no pod counts as waiting for long. It returns when to try again.
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
		logger.Error(err, "What the last leader published cannot be read", "configMap", g.config.Args.StatusConfigMap)
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
