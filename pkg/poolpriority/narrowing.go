package poolpriority

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// narrowing is a profile whose PreFilter ends with the search for the best pool.
type narrowing struct {
	framework.Framework
	pl        *PoolPriority
	lowerOnly bool // no PostFilter plugin preempts pods of equal or higher priority
}

// RunPreFilterPlugins runs the PreFilter plugins. It then narrows the cycle to nodes of the best rank that has a
// feasible node.
func (n *narrowing) RunPreFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod) (*fwk.PreFilterResult, *fwk.Status, sets.Set[string]) {
	c := n.pl.newCycle(state, pod)
	if n.pl.preemption != nil {
		n.pl.preemption.cycle = c
	}
	result, status, plugins := n.Framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		if n.pl.gatekeeper != nil {
			n.pl.gatekeeper.Held().Release(pod.UID)
		}
		return result, status, plugins
	}
	if err := n.pl.countHosts(c, pod, func(pod *v1.Pod) error {
		_, status, _ := n.Framework.RunPreFilterPlugins(ctx, state, pod)
		return status.AsError()
	}); err != nil {
		return nil, fwk.AsStatus(err), plugins
	}
	c.rejected = false
	var recalled *diagnosis
	if err := n.pl.choose(ctx, c, pod, func() *search {
		c.search = n.pl.newSearch(state, pod, c, n.inPlacement(state, result, len(c.nodes)))
		if c.leftOut == nil { // the cache does not know it
			recalled = n.pl.diagnoses.recall(ctx, c.search)
		}
		c.search.burstOnly = recalled != nil
		return c.search
	}); err != nil {
		return result, fwk.AsStatus(fmt.Errorf("searching for the best pool: %w", err)), plugins
	}
	if recalled != nil && !c.narrowed {
		if status := n.fromCache(ctx, state, pod, c, recalled); status != nil {
			c.fromCache = true
			cachedDiagnoses.Inc()
			return nil, status, recalled.plugins.Union(plugins)
		}
	}
	if c.narrowed {
		return &fwk.PreFilterResult{NodeNames: c.found}, status, plugins.Union(sets.New(Name))
	}
	for _, status := range c.vain {
		plugins = plugins.Union(sets.New(status.Plugin())) // Filter returns the status as this plugin's
	}
	return result, status, plugins
}

// inPlacement restricts the result to the nodes of the current placement. In the cycle of a pod group with topology
// constraints, the scheduler tries one placement after another, and PreFilter plugins get the other nodes, too. total is
// the number of all nodes. Source: pkg/scheduler/backend/cache, Snapshot, from 1.36 on.
func (n *narrowing) inPlacement(state fwk.CycleState, result *fwk.PreFilterResult, total int) *fwk.PreFilterResult {
	snapshot, ok := n.SnapshotSharedLister().(interface {
		NumNodesInPlacement() int
		ListNodesInPlacement() ([]fwk.NodeInfo, error)
	})
	if !ok || !inPodGroupCycle(state) || snapshot.NumNodesInPlacement() == total {
		return result
	}
	nodes, _ := snapshot.ListNodesInPlacement() // does not fail
	names := sets.New[string]()
	for _, node := range nodes {
		names.Insert(node.Node().Name)
	}
	return result.Merge(&fwk.PreFilterResult{NodeNames: names})
}

// RunFilterPluginsWithNominatedPods runs the Filter plugins.
func (n *narrowing) RunFilterPluginsWithNominatedPods(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	status, alone := runFilters(ctx, n.Framework, state, pod, node)
	if !alone {
		if c, err := readCycle(state); err == nil {
			c.flags.withNominated.Store(node.Node().Name, nil)
		}
	}
	return status
}

// runFilters runs the profile's Filter plugins as a scheduling cycle does. In the usual case, no pod is nominated to
// the node. alone is then true, and runFilters calls RunFilterPlugins directly.
func runFilters(ctx context.Context, profile framework.Framework, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo) (status *fwk.Status, alone bool) {
	if len(profile.NominatedPodsForNode(node.Node().Name)) == 0 {
		return profile.RunFilterPlugins(ctx, state, pod, node), true
	}
	return profile.RunFilterPluginsWithNominatedPods(ctx, state, pod, node), false
}

// RunPostFilterPlugins runs the PostFilter plugins. Preemption gets only the nodes on which it may help. awaitVictims
// retries a pod that has preempted other pods. If the node to which the pod is nominated no longer exists,
// RunPostFilterPlugins clears the nomination, because cluster autoscaler 1.36 and later ignores such a pod.
// DefaultPreemption clears it only for a pod that may preempt others.
func (n *narrowing) RunPostFilterPlugins(ctx context.Context, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	c, err := readCycle(state)
	if err == nil && n.lowerOnly && !c.narrowed && !c.fromCache {
		statuses = n.pl.amongOpen(state, pod, c, statuses)
		if c.below == math.MaxInt32 {
			defer n.pl.diagnoses.remember(c, statuses) // preemption adds the results of its dry runs to c
		}
	}
	result, status := n.Framework.RunPostFilterPlugins(ctx, state, pod, statuses)
	if name := pod.Status.NominatedNodeName; name != "" && (result == nil || result.Mode() == fwk.ModeNoop) {
		if _, err := n.SnapshotSharedLister().NodeInfos().Get(name); err != nil {
			result = &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride}}
		}
	}
	if status.IsSuccess() && result != nil && result.NominatingInfo != nil && result.NominatedNodeName != "" {
		if node, err := n.SnapshotSharedLister().NodeInfos().Get(result.NominatedNodeName); err == nil {
			n.pl.awaitVictims(klog.FromContext(ctx), pod, node)
		}
	}
	return result, status
}
