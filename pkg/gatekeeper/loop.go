package gatekeeper

import (
	"context"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/gatekeeper/publishing"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// settleTime is how long the gatekeeper waits for more changes before it looks: nodes come and go in crowds. After a
// look it rests for restFactor times as long as that took, so that it takes a tenth of a CPU in a large cluster whose
// nodes change all the time, but never for longer than maxRest.
const (
	settleTime = 50 * time.Millisecond
	restFactor = 9
	maxRest    = 500 * time.Millisecond
)

const (
	// sourcesTimeout is how long the gatekeeper waits at its start for what the pools are judged by.
	sourcesTimeout = 10 * time.Second
	// reportInterval is the shortest time between two reports because of pods that are held.
	reportInterval = time.Second
)

// Run judges the pools when something changed or time is up, and wakes pods, until the context ends. It begins once the
// scheduler's informers have synced: before that, the scheduler has not set what Activate needs.
func (g *Gatekeeper) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), g.synced...) {
		return
	}
	g.waitForSources(ctx)
	view := g.restore(ctx)
	byPool, _ := g.byPool()
	g.providers.Recall(ctx, byPool)
	g.judge(ctx, view)
	go g.publisher.Run(ctx)
	go g.providers.Run(ctx)
	g.takeOver(ctx)
	g.loop.timer = g.config.Clock.NewTimer(0)
	defer func() { g.loop.timer.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.loop.timer.C():
			g.look(ctx, false)
		case <-g.changed:
			g.rest()
			g.look(ctx, false)
		case <-g.earlier:
			g.look(ctx, true)
		}
	}
}

// waitForSources waits until it is known whether what the pools are judged by exists, and which Deployments there are.
// An API server that does not answer is not waited for: what cannot be read is Unknown.
func (g *Gatekeeper) waitForSources(ctx context.Context) {
	for deadline := g.config.Clock.Now().Add(sourcesTimeout); (!g.sources.Settled() || !g.override.Settled() || !g.rollouts.Synced()) && g.config.Clock.Now().Before(deadline) && ctx.Err() == nil; {
		g.config.Clock.Sleep(settleTime)
	}
	if !g.rollouts.Synced() {
		klog.FromContext(ctx).Info("Deployments cannot be read: the new pods of rollouts burst like others until they can be; may the scheduler list and watch them?")
	}
}

// loop is what Run remembers from one look to the next.
type loop struct {
	problems  *publishing.Problems
	takenOver bool      // what the last leader published was taken over
	giveUp    time.Time // when it is done without; zero until this scheduler leads
	timer     clock.Timer
	due       time.Time     // when something changes by itself; zero: never
	reported  time.Time     // when the last report was
	looked    time.Time     // when the last whole look ended
	took      time.Duration // by it
}

// rest lets more changes come, and what is not this loop have the CPU.
func (g *Gatekeeper) rest() {
	g.config.Clock.Sleep(max(settleTime, g.loop.looked.Add(min(restFactor*g.loop.took, maxRest)).Sub(g.config.Clock.Now())))
	select {
	case <-g.changed:
	default:
	}
}

// look judges the pools and decides anew for the held pods, reports, and sets the timer for the next look. With
// onlyNew, the pools are left as they are, and only pods that were held since the last time are looked at.
func (g *Gatekeeper) look(ctx context.Context, onlyNew bool) {
	began := g.config.Clock.Now()
	if !onlyNew {
		g.judge(ctx, g.view.Load())
	}
	again := g.takeOver(ctx)
	due := nodegroups.Earliest(nodegroups.Earliest(g.reconsider(ctx, onlyNew), again), nodegroups.Earliest(g.loop.problems.Due, g.override.Due(began)))
	if onlyNew {
		due = nodegroups.Earliest(due, g.loop.due)
	}
	if now := g.config.Clock.Now(); !onlyNew || now.Sub(g.loop.reported) >= reportInterval {
		g.loop.reported = now
		g.report(ctx)
	} else {
		due = nodegroups.Earliest(due, g.loop.reported.Add(reportInterval)) // what was held just now is told then
	}
	if g.leading.Load() {
		// The published state must not grow old: nobody could tell whether somebody leads.
		due = nodegroups.Earliest(due, g.config.Clock.Now().Add(published.Heartbeat))
	}
	if !onlyNew {
		g.loop.looked = g.config.Clock.Now()
		g.loop.took = g.loop.looked.Sub(began)
	}
	g.loop.due = due
	g.loop.timer.Stop()
	if !due.IsZero() {
		g.loop.timer = g.config.Clock.NewTimer(max(due.Sub(g.config.Clock.Now()), time.Millisecond))
	}
}

// judge judges all pools and swaps the view. What it has from the view before is since when a pool has been in its
// state.
func (g *Gatekeeper) judge(ctx context.Context, before *nodegroups.View) {
	logger, now := klog.FromContext(ctx), g.config.Clock.Now()
	byPool, unlisted := g.byPool()
	g.override.Observe(logger, now)
	g.sources.Observe(logger, byPool, unlisted, now)
	g.providers.Follow(byPool)
	facts := make([]nodegroups.Facts, g.config.Pools.Len())
	for i := range facts {
		p := g.config.Pools.At(i)
		facts[i] = nodegroups.Facts{Nodes: byPool[i], Template: p.Template, ProvisionGrace: p.Graces.Provision}
		if i < g.config.Pools.Regular() {
			facts[i].Source = g.sources.Of(i)
		} else {
			facts[i].Provider = g.providers.Judge(i, now)
		}
	}
	view := nodegroups.Build(facts, before, now)
	for i := range g.config.Pools.Regular() {
		if p, old := &view.Pools[i], &before.Pools[i]; old.State != p.State || old.Reason.Code != p.Reason.Code {
			logger.Info("The capacity of a pool changed", "pool", g.config.Pools.At(i).Name,
				"state", p.State, "reason", p.Reason.Code, "sentence", p.Reason.Sentence, "detail", p.Reason.Detail)
		}
	}
	g.providers.Transition(logger, before, view, byPool)
	g.view.Store(view)
	g.loop.problems.Look(g.sources, g.override, view, byPool, now)
}

// reconsider wakes the held pods for which a burst pool has opened, and returns when to look again.
// With onlyNew, only pods that were held since the last time are looked at.
func (g *Gatekeeper) reconsider(ctx context.Context, onlyNew bool) time.Time {
	logger := klog.FromContext(ctx)
	rule, view, now := g.overridden(), g.view.Load(), g.config.Clock.Now()
	type class struct {
		pod        string
		azureFiles bool
	}
	assessments := map[class]*gate.Assessment{}
	look := g.held.Reconsider(onlyNew, now, func(c *held.Candidate) gate.Decision {
		request := g.request(c.Pod, func() string { return c.Kind }, c.Since, now)
		request.Wait = c.Wait
		of := class{c.Class, request.AzureFiles}
		assessment := assessments[of]
		if assessment == nil {
			assessment = rule.Assess(request, view)
			assessments[of] = assessment
		}
		decision := rule.DecideFor(request, assessment, view, now)
		if g.kinds.Learn(c.Kind, &decision, now) {
			poke(g.changed) // for others of the kind that were looked at before
		}
		return decision
	})
	if look.Again {
		poke(g.earlier)
	}
	if len(look.Opened) > 0 {
		logger.V(2).Info("The gate opened for held pods", "pods", len(look.Opened))
		wakeUps.Add(float64(len(look.Opened)))
		g.config.Activate(logger, look.Opened)
	}
	if g.freed.Swap(false) || !onlyNew || look.Budgets {
		if pods, waiting := g.held.WithinBudgets(g.config.Pools, g.uses, now); len(pods) > 0 {
			logger.V(2).Info("Budgets have room for held pods", "pods", len(pods), "waiting", waiting)
			wakeUps.Add(float64(len(pods)))
			g.config.Activate(logger, pods)
		}
	}
	next := nodegroups.Earliest(look.Next, view.Until())
	if onlyNew {
		return next
	}
	untold, due := g.held.Unreported(now)
	if len(untold) > 0 {
		logger.Info("The API does not say of held pods that they are unschedulable, trying them again", "pods", len(untold))
		g.config.Activate(logger, untold)
	}
	return nodegroups.Earliest(next, due)
}

// report tells of problems and, once this scheduler leads, hands over to be published what the loop alone knows.
func (g *Gatekeeper) report(ctx context.Context) {
	view, logger, now := g.view.Load(), klog.FromContext(ctx), g.config.Clock.Now()
	g.loop.problems.Report(logger, g.leading.Load())
	g.loop.problems.ReportEmpty(logger, view)
	g.override.Report(g.leading.Load(), now)
	if !g.loop.takenOver {
		return
	}
	report := &publishing.Report{View: view, Override: g.override.InForce(now), Problems: g.loop.problems.Messages()}
	g.sources.Remember(&report.Memory, g.held.Count() > 0, now)
	g.providers.Remember(&report.Memory)
	g.override.Remember(&report.Memory)
	g.publisher.Submit(report)
}
