package gatekeeper

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/gatekeeper/publishing"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

// settleTime is how long the gatekeeper batches changes before a sync. Nodes are often added and removed in groups.
// After a sync, the gatekeeper pauses for restFactor times the duration of the sync, but for at most maxRest. As long
// as the pause is shorter than maxRest, full syncs use at most a tenth of a CPU, and so do syncs with onlyNew.
const (
	settleTime = 50 * time.Millisecond
	restFactor = 9
	maxRest    = 500 * time.Millisecond
)

const (
	// sourcesTimeout is how long a starting scheduler waits at most for the capacity sources, the override and the
	// Deployments.
	sourcesTimeout = 10 * time.Second
	// A sync with onlyNew reports only if the last report is at least reportInterval old.
	reportInterval = time.Second
	fullInterval   = 500 * time.Millisecond
)

// Run first waits until the scheduler's informers have synced, because Activate needs these informers. Then Run
// evaluates the pools and requeues pods after each change, and whenever the timer is due. Run returns when the context
// ends.
func (g *Gatekeeper) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), g.synced...) {
		g.providers.Run(ctx, nil) // the context has ended, so this only ends the queue that providers.New made
		return
	}
	go wait.UntilWithContext(ctx, g.watchGroups, groupsInterval)
	g.waitForSources(ctx)
	view := g.restore(ctx)
	byPool, _ := g.byPool()
	g.providers.Recall(ctx, byPool)
	g.evaluate(ctx, view)
	go g.publisher.Run(ctx)
	go g.providers.Run(ctx, g.evicts)
	go g.sendBatches(ctx)
	go g.fillSpaces(ctx)
	g.takeOver(ctx)
	g.loop.timer = g.config.Clock.NewTimer(0)
	defer func() { g.loop.timer.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.loop.timer.C():
			g.sync(ctx, false)
		case <-g.changed:
			g.rest(false, settleTime, g.changed)
			g.sync(ctx, false)
		case <-g.earlier:
			g.rest(true, 0, g.earlier)
			g.sync(ctx, true)
		}
	}
}

// waitForSources waits until the capacity sources, the override and the Deployments have been read, but at most for
// sourcesTimeout. A pool whose source cannot be read is Unknown.
func (g *Gatekeeper) waitForSources(ctx context.Context) {
	for deadline := g.config.Clock.Now().Add(sourcesTimeout); (!g.sources.Settled() || !g.override.Settled() || !g.rollouts.Synced()) && g.config.Clock.Now().Before(deadline) && ctx.Err() == nil; {
		g.config.Clock.Sleep(settleTime)
	}
	if !g.rollouts.Synced() {
		klog.FromContext(ctx).Info("The scheduler cannot read Deployments. Meanwhile, new pods of a rollout may burst although the rollout's old pods are about to free capacity. Check that the scheduler may list and watch Deployments")
	}
}

// loop is the state of Run between syncs.
type loop struct {
	problems  *publishing.Problems
	takenOver bool      // takeOver is done
	giveUp    time.Time // when takeOver stops trying to read the published state; zero until this scheduler leads
	timer     clock.Timer
	due       time.Time       // when the next sync is due if nothing changes; zero if none is due
	reported  time.Time       // when the last report was made
	last      map[bool]synced // the last full sync and, at true, the last sync with onlyNew
}

// synced is when a sync ended, and how long it took.
type synced struct {
	ended time.Time
	took  time.Duration
}

// rest waits for least, to batch changes, and then drains the channel. If the last sync of the same kind was recent,
// rest waits longer than least, to limit CPU use.
func (g *Gatekeeper) rest(onlyNew bool, least time.Duration, changes <-chan struct{}) {
	last := g.loop.last[onlyNew]
	g.config.Clock.Sleep(max(least, last.ended.Add(min(restFactor*last.took, maxRest)).Sub(g.config.Clock.Now())))
	select {
	case <-changes:
	default:
	}
}

// sync evaluates the pools, decides again for all held pods, reports, and sets the timer for the next sync. With
// onlyNew, sync does not evaluate the pools, and decides only for pods that became held since the last sync.
func (g *Gatekeeper) sync(ctx context.Context, onlyNew bool) {
	began := g.config.Clock.Now()
	if !onlyNew {
		g.evaluate(ctx, g.view.Load())
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
		due = nodegroups.Earliest(due, g.loop.reported.Add(reportInterval)) // the next report includes the newly held pods
	}
	if g.leading.Load() {
		// Readers take an old published state as a sign that no scheduler leads. The leader therefore publishes
		// regularly.
		due = nodegroups.Earliest(due, g.config.Clock.Now().Add(published.Heartbeat))
	}
	ended := g.config.Clock.Now()
	g.loop.last[onlyNew] = synced{ended, ended.Sub(began)}
	g.loop.due = due
	g.loop.timer.Stop()
	if !due.IsZero() {
		g.loop.timer = g.config.Clock.NewTimer(max(due.Sub(g.config.Clock.Now()), time.Millisecond))
	}
}

// evaluate evaluates all pools and replaces the view. before is the old view. If a pool's state has not changed, the
// pool keeps the Since that it has in before.
func (g *Gatekeeper) evaluate(ctx context.Context, before *nodegroups.View) {
	logger, now := klog.FromContext(ctx), g.config.Clock.Now()
	byPool, unlisted := g.byPool()
	g.override.Observe(logger, now)
	g.sources.Observe(logger, byPool, unlisted, now)
	g.providers.Follow(byPool)
	facts, devices := make([]nodegroups.Facts, g.config.Pools.Len()), g.devices()
	for i := range facts {
		p := g.config.Pools.At(i)
		facts[i] = nodegroups.Facts{Nodes: byPool[i], Template: p.Template, Served: g.usage.Served, Devices: devices, ProvisionGrace: p.Graces.Provision}
		if i < g.config.Pools.Regular() {
			facts[i].Source = g.sources.Of(i)
		} else {
			facts[i].Provider = g.providers.Status(i, now)
		}
	}
	view := nodegroups.Build(facts, before, now)
	for i := range view.Pools {
		p := &view.Pools[i]
		if p.Denied = g.config.Denied.Of(i, now); p.Denied != nil {
			p.Until = nodegroups.Earliest(p.Until, p.Denied.Until)
		}
	}
	for i := range g.config.Pools.Regular() {
		if p, old := &view.Pools[i], &before.Pools[i]; old.State != p.State || old.Reason.Code != p.Reason.Code {
			logger.Info("The capacity of a pool changed", "pool", g.config.Pools.At(i).Name,
				"state", p.State, "reason", p.Reason.Code, "sentence", p.Reason.Sentence, "detail", p.Reason.Detail)
		}
	}
	g.providers.Transition(logger, before, view, byPool)
	g.view.Store(view)
	g.loop.problems.Look(g.sources, g.override, g.declines, g.held.Any, view, byPool, g.returns.Load().problem, !compat.SeesPodGroups && g.groups.Load() != nil, now)
}

// reconsider decides again for the held pods. If the gate of a burst pool has opened for a pod, and the pool's budget
// has room for the pod, reconsider admits the pod. reconsider returns when the next sync is due. With onlyNew, it
// decides only for pods that became held since the last sync.
func (g *Gatekeeper) reconsider(ctx context.Context, onlyNew bool) time.Time {
	logger := klog.FromContext(ctx)
	rule, view, now := g.overridden(), g.view.Load(), g.config.Clock.Now()
	type viewKey struct {
		pod        string
		azureFiles bool
	}
	assessments := map[viewKey]*gate.Assessment{}
	assess := func(key string, request *gate.Request) *gate.Assessment {
		of := viewKey{key, request.AzureFiles}
		if assessments[of] == nil {
			assessments[of] = rule.Assess(*request, view)
		}
		return assessments[of]
	}
	full, changes := g.findFull(&rule, view, onlyNew, assess, now)
	result := g.held.Reconsider(onlyNew, now, g.burstSpaces, func(c *held.Candidate) gate.Decision {
		request := g.request(c.Pod, c.AutoscalerKey, c.Since, now)
		if request.Wait, request.Overflow = c.Wait, full[c.Pod.UID]; c.AutoscalerKey == "" || !g.waits(c.Pod) {
			request.Declined = nil // what others found out does not hold for the pod, or it is gone: it may not be their trial
		}
		decision := rule.DecideFor(request, assess(c.ViewKey, &request), view, now)
		if g.declines.Learn(c.AutoscalerKey, &decision) {
			poke(g.changed) // earlier decisions of this sync for pods with the same key may be outdated
		}
		return decision
	})
	if result.Again {
		poke(g.earlier)
	}
	defer poke(g.batch)
	if g.budgetFreed.Swap(false) || !onlyNew || result.Budgets {
		changes = nodegroups.Earliest(changes, g.held.WithinBudgets(g.config.Pools, g.uses, now))
	}
	next := nodegroups.Earliest(nodegroups.Earliest(result.Next, changes), view.Until())
	if onlyNew {
		return next
	}
	ignored, due := g.held.Overdue(func(node string) bool { _, err := g.nodes.Get(node); return err == nil }, now)
	if ignored > 0 {
		logger.Info("Requeueing held pods that lack the condition PodScheduled with reason Unschedulable, or are nominated to a node that does not exist", "pods", ignored)
	}
	return nodegroups.Earliest(next, due)
}

// full has the held pods for which the upcoming nodes of the view have no room.
type full struct {
	view *nodegroups.View
	pods map[types.UID]bool
	at   time.Time // when they were found
	next time.Time // when to look again; zero if never
}

// isFull reports whether the upcoming nodes of the view have no room for the pod.
func (g *Gatekeeper) isFull(pod types.UID, view *nodegroups.View) bool {
	found := g.full.Load()
	return found != nil && found.view == view && found.pods[pod]
}

// findFull finds the held pods for which the upcoming nodes of the view have no room, for this sync and for scheduling
// cycles. It looks at all held pods, so with onlyNew it looks at most every fullInterval. It also returns when to look
// again. The caller passes a function that assesses a pod.
func (g *Gatekeeper) findFull(rule *gate.Rule, view *nodegroups.View, onlyNew bool, assess func(viewKey string, request *gate.Request) *gate.Assessment, now time.Time) (map[types.UID]bool, time.Time) {
	if !g.config.Pools.MayOverflow() || !view.AnyFinal() || !g.loop.takenOver {
		g.full.Store(nil)
		return nil, time.Time{}
	}
	if found := g.full.Load(); onlyNew && found != nil && found.view == view && now.Before(found.at.Add(fullInterval)) {
		return found.pods, nodegroups.Earliest(found.next, found.at.Add(fullInterval))
	}
	pods, again := g.held.Queue(now)
	queue := make([]gate.Queued, len(pods))
	for i := range pods {
		h := &pods[i]
		request := gate.Request{Pod: h.Pod, AzureFiles: g.volumes.AzureFiles(h.Pod)}
		queue[i] = gate.Queued{Pod: h.Pod, Assessment: assess(h.ViewKey, &request), Counts: h.Waits && h.AutoscalerKey != ""}
	}
	found := &full{view: view, at: now}
	found.pods, found.next = rule.Overflow(queue, view, now)
	found.next = nodegroups.Earliest(found.next, again)
	g.full.Store(found)
	return found.pods, found.next
}

// sendBatches requeues one batch after another, until the context ends.
func (g *Gatekeeper) sendBatches(ctx context.Context) {
	for ctx.Err() == nil {
		var due <-chan time.Time
		if again := g.SendBatch(klog.FromContext(ctx)); !again.IsZero() {
			due = g.config.Clock.After(max(again.Sub(g.config.Clock.Now()), time.Millisecond))
		}
		select {
		case <-ctx.Done():
		case <-g.batch:
		case <-due:
		}
	}
}

// SendBatch requeues the pods of the next batch, if it is due, and returns when to try again; zero if no pod waits. Run
// calls it, and so do tests without Run.
func (g *Gatekeeper) SendBatch(logger klog.Logger) (again time.Time) {
	pods, again := g.held.NextBatch(g.config.Clock.Now())
	if len(pods) > 0 {
		logger.V(2).Info("Requeueing held pods", "pods", len(pods))
		requeuedPods.Add(float64(len(pods)))
		g.config.Activate(logger, pods)
	}
	return again
}

// report logs problems and writes events about them. Once takeOver is done, report also submits a publishing.Report to
// the publisher. The Report has copies of the state that only the loop may read.
func (g *Gatekeeper) report(ctx context.Context) {
	view, logger, now := g.view.Load(), klog.FromContext(ctx), g.config.Clock.Now()
	g.loop.problems.Report(logger, g.leading.Load())
	g.loop.problems.ReportEmpty(logger, view)
	g.override.Report(g.leading.Load(), now)
	if !g.loop.takenOver {
		return
	}
	report := &publishing.Report{View: view, Override: g.override.InForce(now)}
	report.Problems, report.Codes = g.loop.problems.List()
	g.sources.Remember(&report.Memory, g.held.Count() > 0, now)
	g.providers.Remember(&report.Memory)
	g.override.Remember(&report.Memory)
	report.Memory.Returns, report.Memory.Heirs = g.Pauses(), g.held.Heirs(now)
	g.publisher.Submit(report)
}
