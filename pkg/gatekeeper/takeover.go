package gatekeeper

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const (
	// restoreLimit is the maximum age of a published state from which the scheduler restores the states of regular
	// pools. If UnknownGrace is longer than restoreLimit, UnknownGrace is the maximum. A restored pool also gets back
	// the time at which it entered its state.
	restoreLimit = 15 * time.Minute
	// takeOverTimeout is how long a new leader, and a scheduler that starts, tries to read the last leader's published
	// state. takeOverRetry is the time between two tries.
	takeOverTimeout, takeOverRetry = 30 * time.Second, time.Second
)

// restore restores the parts of the last leader's published state that are still valid. It returns the view with which
// the loop starts.
func (g *Gatekeeper) restore(ctx context.Context) *nodegroups.View {
	logger, now := klog.FromContext(ctx), g.config.Clock.Now()
	last, err := g.publisher.Load(ctx)
	for ; err != nil; last, err = g.publisher.Load(ctx) {
		logger.Error(err, "The published state cannot be read completely. If it stays so, the scheduler starts without the unreadable parts", "configMap", g.config.Args.StatusConfigMap)
		if last != nil || apierrors.IsForbidden(err) || ctx.Err() != nil || g.config.Clock.Since(now) >= takeOverTimeout {
			break
		}
		g.config.Clock.Sleep(takeOverRetry)
	}
	if last == nil {
		return g.view.Load()
	}
	now = g.config.Clock.Now()
	logger.Info("Starting from the published state", "configMap", g.config.Args.StatusConfigMap, "written", last.Memory.Written)
	g.sources.Restore(&last.Memory, now)
	g.providers.Restore(last, now)
	g.override.Restore(&last.Memory)
	view := *g.view.Load()
	if last.View != nil && now.Sub(last.Memory.Written) <= max(g.rule.UnknownGrace, restoreLimit) {
		view.Pools = slices.Clone(view.Pools)
		for i := range g.config.Pools.Regular() {
			if p, ok := last.View.Restored(g.config.Pools.At(i).Name); ok {
				view.Pools[i] = p
			}
		}
	}
	return &view
}

// takeOver reads the last leader's published state, and restores the times at which pods became unschedulable, and the pauses of Return. A
// standby cannot record these times itself, because it runs no scheduling cycles. Before this scheduler is the leader,
// takeOver does nothing. Before takeOver is done, this scheduler neither overwrites the published state nor uses the
// times in the pods' conditions. takeOver returns when to try again, or zero.
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
		logger.Error(err, "The last leader's published state cannot be read", "configMap", g.config.Args.StatusConfigMap)
		if last == nil && now.Before(g.loop.giveUp) {
			return now.Add(takeOverRetry)
		}
	}
	if last != nil {
		pods, _ := g.pods.List(labels.Everything()) // does not fail
		g.returns.Store(&returns{pauses: last.Memory.Returns})
		if last.View != nil {
			g.declines.Restore(last.View.Declines)
		}
		for _, pod := range pods {
			if mayWait(pod) {
				g.held.Restore(pod.UID, last.Memory.Unschedulable[pod.UID], last.Memory.Ignored[pod.UID], last.Memory.Heirs.Inherited[pod.UID])
			}
		}
		g.held.RestoreDeleted(last.Memory.Heirs.Deleted, now)
	}
	g.held.Trust(now)
	g.loop.takenOver = true
	close(g.tookOver)
	return time.Time{}
}
