package poolpriority

import (
	"context"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/compat/dryrun"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// firstRetry is the delay of the first check on a pod that has preempted other pods. The delay doubles after each
	// check, until it is lastRetry or more. After five minutes, the scheduling queue itself retries the pod.
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute

	coscheduling = "Coscheduling" // the name of the plugin of scheduler-plugins
)

// preemptor changes how the profile's in-tree plugin DefaultPreemption works. There is one dry run for each node in a
// cycle, and the best-ranked of the nodes with the least harm is chosen.
type preemptor struct {
	dryrun.Interface
	pl        *PoolPriority
	evaluator *preemption.Evaluator
	cycle     *cycle // the current or last one; in-tree preemption does not pass its state to each method
}

// newPreemptor changes the profile's plugin DefaultPreemption. It returns nil if the profile does not enable
// DefaultPreemption. Only the list of PreEnqueue plugins gives access to the plugin. known is false if the profile
// enables DefaultPreemption without this extension point. Preemption then does not compare ranks.
func (pl *PoolPriority) newPreemptor(profile framework.Framework) (p *preemptor, known bool) {
	if find(profile.ListPlugins().PostFilter, names.DefaultPreemption) < 0 {
		return nil, true
	}
	for _, plugin := range profile.PreEnqueuePlugins() {
		if plugin, ok := plugin.(*defaultpreemption.DefaultPreemption); ok {
			p := &preemptor{Interface: dryrun.Interface{Interface: plugin.Evaluator.Interface}, pl: pl, evaluator: plugin.Evaluator, cycle: &cycle{below: math.MaxInt32}}
			dryrun.LimitVictims(plugin, p.mayPreempt)
			p.Around, plugin.Evaluator.Interface = p.around, p
			return p, true
		}
	}
	klog.InfoS("Preemption does not prefer better pools, because DefaultPreemption is a postFilter plugin, but not a preEnqueue plugin. Enable it under multiPoint", "profile", profile.ProfileName())
	return nil, false
}

// mayPreempt reports whether the pod may be preempted in this cycle. If only pods of low priority may, those that may
// burst themselves may not: they would do so in place of the pod. Nor may those for which the pod would not wait.
func (p *preemptor) mayPreempt(victim *v1.Pod) bool {
	return p.cycle.below == math.MaxInt32 || corev1helpers.PodPriority(victim) < p.cycle.below && pool.BurstValue(victim) != pool.BurstBelowPriority &&
		ptr.Deref(victim.Spec.TerminationGracePeriodSeconds, 0) <= int64(maxVictimsWait.Seconds())
}

// GetOffsetAndNumCandidates returns how many candidates a dry run collects. The nodes that among leaves out count, too.
func (p *preemptor) GetOffsetAndNumCandidates(nodes int32) (int32, int32) {
	return p.Interface.GetOffsetAndNumCandidates(max(nodes, p.cycle.candidates))
}

// OrderedScoreFuncs returns the order in which in-tree preemption compares nodes, with the rank before the victims'
// age.
func (p *preemptor) OrderedScoreFuncs(_ context.Context, victims map[string]*extenderv1.Victims) []func(node string) int64 {
	var funcs []func(node string) int64
	for i := range len(harm{}) {
		funcs = append(funcs, func(node string) int64 { return -harmOf(victims[node])[i] })
	}
	lister := p.pl.handle.SnapshotSharedLister().NodeInfos()
	return append(funcs, func(node string) int64 {
		info, err := lister.Get(node)
		if err != nil {
			return math.MinInt64
		}
		rank, _ := p.pl.index.rankOf(info.Node())
		return -int64(p.cycle.order.PlaceOf(rank))
	}, func(node string) int64 {
		start := util.GetEarliestPodStartTime(victims[node])
		if start == nil {
			return math.MinInt64
		}
		return start.UnixNano()
	})
}

// dryRun is the result of a dry run of preemption on a node.
type dryRun struct {
	dryrun.Result
	final bool // it failed, and would fail whatever pods are nominated to the node
}

// around makes a dry run, or returns the result of an earlier dry run on the node in the same cycle. All failed dry
// runs give the reason that in-tree preemption gives for nodes without a dry run. Otherwise, the pod's condition would
// depend on whether the cache had the result of the dry run.
func (p *preemptor) around(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, do func() dryrun.Result) dryrun.Result {
	c, err := readCycle(state)
	if err != nil {
		return do()
	}
	if earlier, ok := c.dryRuns.Load(node.Node().Name); ok {
		return earlier.(dryRun).Result
	}
	r := dryRun{Result: do()}
	if r.Status.IsRejected() {
		r.final = p.pl.handle.RunFilterPlugins(ctx, state, pod, node).IsRejected()
		r.Status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "Preemption is not helpful for scheduling")
	}
	c.dryRuns.Store(node.Node().Name, r)
	return r.Result
}

// mayHelp reports whether preemption may make the node feasible, which Filter has rejected with the status. If it may
// not, final reports whether this holds whatever pods are nominated to the node.
func (s *search) mayHelp(ctx context.Context, position int, status *fwk.Status) (helps, final bool) {
	if status.Code() != fwk.Unschedulable || !s.mayPreempt(position) {
		return false, true
	}
	p := s.pl.preemption
	budgets, _ := p.evaluator.PdbLister.List(labels.Everything()) // does not fail
	candidates, _, err := p.evaluator.DryRunPreemption(ctx, s.state, s.pod, s.nodes[position:position+1], budgets, 0, 1)
	return err != nil || len(candidates) > 0, s.hopeless(position)
}

// mayPreempt reports whether the pod may preempt other pods on the node, and would then fit by the resources that the
// index compares.
func (s *search) mayPreempt(position int) bool {
	if s.pl.preemption == nil {
		return false
	}
	e, info, priority := &s.pl.index.entries[position], s.nodes[position], min(held.PreemptorPriority(s.pod), s.pl.preemption.cycle.below)
	if e.scan(info).lowest >= priority {
		return false
	}
	free := e.free
	for _, p := range info.GetPods() {
		if corev1helpers.PodPriority(p.GetPod()) < priority {
			r := p.CalculateResource().Resource
			free.MilliCPU, free.Memory, free.Pods = free.MilliCPU+r.GetMilliCPU(), free.Memory+r.GetMemory(), free.Pods+1
		}
	}
	return !s.byResources || s.request.fit(free)
}

// hopeless reports whether a dry run on the node failed in this cycle, and would fail whatever pods are nominated to
// the node.
func (s *search) hopeless(position int) bool {
	c, err := readCycle(s.state)
	if err != nil {
		return false
	}
	r, ok := c.dryRuns.Load(s.pl.index.entries[position].node.Name)
	return ok && r.(dryRun).final
}

// preemptsLowerOnly reports whether all PostFilter plugins of the profile are known to preempt only pods of lower
// priority.
func preemptsLowerOnly(profile framework.Framework) bool {
	known := []string{Name, names.DefaultPreemption, names.DynamicResources, coscheduling}
	return !slices.ContainsFunc(profile.ListPlugins().PostFilter.Enabled, func(p schedconfig.Plugin) bool { return !slices.Contains(known, p.Name) })
}

// among limits preemption to nodes. It returns all other statuses as the cycle has them.
type among struct {
	fwk.NodeToStatusReader
	nodes []fwk.NodeInfo
}

// NodesForStatusCode returns the nodes with the status code. For Unschedulable, the code that preemption requests, it
// returns only a.nodes.
func (a *among) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	if code == fwk.Unschedulable {
		return a.nodes, nil
	}
	return a.NodeToStatusReader.NodesForStatusCode(lister, code)
}

// amongOpen limits preemption to the nodes on which it may help. If these are all burst nodes, they count as hosts again.
func (pl *PoolPriority) amongOpen(state fwk.CycleState, pod *v1.Pod, c *cycle, statuses fwk.NodeToStatusReader) *among {
	s := c.search
	if s == nil {
		s = pl.newSearch(state, pod, c, nil)
	}
	a, all := &among{NodeToStatusReader: statuses}, int32(0)
	for i, info := range c.nodes {
		if statuses.Get(info.Node().Name).Code() != fwk.Unschedulable {
			continue
		}
		all++
		// Preemption cannot make a node feasible whose status is cached.
		if (s.known == nil || !s.known.has(pl.index.slots[i], pl.index.seen[i])) && s.mayPreempt(i) {
			a.nodes = append(a.nodes, info)
		}
	}
	c.candidates = all
	if len(a.nodes) > 0 && !slices.ContainsFunc(a.nodes, func(info fwk.NodeInfo) bool { return !pl.pools.IsBurstNode(info.Node()) }) {
		_ = c.hosts.count(true) // if it fails, preemption finds no node
	}
	return a
}

// harm holds the values that in-tree preemption compares before it compares the victims' age. It compares them in this
// order: PodDisruptionBudget violations, the highest priority of a victim, the sum of the victims' priorities, and the
// number of victims.
type harm [4]int64

func harmOf(victims *extenderv1.Victims) harm {
	h := harm{victims.NumPDBViolations, math.MinInt64, 0, int64(len(victims.Pods))}
	for _, p := range victims.Pods {
		priority := int64(corev1helpers.PodPriority(p))
		h[1] = max(h[1], priority)
		h[2] += priority + math.MaxInt32 + 1 // each term is positive, so each further pod raises the sum
	}
	return h
}

// awaitVictims requeues a pod that has preempted other pods on the node, each time that pods of lower priority are gone from
// the node, and stops if the preempting pod is no longer nominated to the node. kube-scheduler relies on the
// deletion event of a victim, but the event is lost if it arrives during the preempting pod's cycle. Also, two pods may
// choose the same victim, and preemption sends no event for a victim that is already deleted
// (kubernetes/kubernetes#141694, open as of 1.35). Without awaitVictims, the preempting pod would wait for five minutes
// although its node has capacity.
func (pl *PoolPriority) awaitVictims(logger klog.Logger, pod *v1.Pod, node fwk.NodeInfo) {
	name := node.Node().Name
	var victims []*v1.Pod
	for _, p := range node.GetPods() {
		if p := p.GetPod(); corev1helpers.PodPriority(p) < corev1helpers.PodPriority(pod) {
			victims = append(victims, p)
		}
	}
	var look func(after time.Duration)
	look = func(after time.Duration) {
		time.AfterFunc(after, func() {
			nominated := slices.ContainsFunc(pl.handle.NominatedPodsForNode(name), func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID })
			before := len(victims)
			if victims = slices.DeleteFunc(victims, pl.isGone); nominated && len(victims) < before {
				logger.V(2).Info("Retrying the pod: a pod of lower priority has left the node on which this pod preempted others", "pod", klog.KObj(pod), "node", name)
				pl.activate(logger, pod)
			}
			if nominated && after < lastRetry {
				look(2 * after)
			}
		})
	}
	look(firstRetry)
}

func (pl *PoolPriority) isGone(pod *v1.Pod) bool {
	now, err := pl.pods.Pods(pod.Namespace).Get(pod.Name)
	return err != nil || now.UID != pod.UID
}
