package poolpriority

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// firstRetry is the delay of the first check on a pod that has preempted other pods. The delay doubles after each
	// check, up to lastRetry. After five minutes, the scheduling queue itself retries the pod.
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute

	coscheduling = "Coscheduling" // the name of the plugin of scheduler-plugins
)

// newPreemption returns an instance of the in-tree plugin DefaultPreemption for dry runs, with the arguments from the
// profile. It returns nil if the profile does not enable DefaultPreemption.
func (pl *PoolPriority) newPreemption(profile framework.Framework, configs []schedconfig.KubeSchedulerProfile) (*defaultpreemption.DefaultPreemption, error) {
	if find(profile.ListPlugins().PostFilter, names.DefaultPreemption) < 0 {
		return nil, nil
	}
	plugin, err := defaultpreemption.New(context.Background(), argsOf(profile, configs, names.DefaultPreemption), profile, pl.features)
	if err != nil {
		return nil, fmt.Errorf("initializing %s: %w", names.DefaultPreemption, err)
	}
	return plugin, nil
}

// argsOf returns the plugin's arguments in the profile, or nil if the configuration has none.
func argsOf(profile framework.Framework, configs []schedconfig.KubeSchedulerProfile, plugin string) (args runtime.Object) {
	for i := range configs {
		if configs[i].SchedulerName != profile.ProfileName() {
			continue
		}
		for _, c := range configs[i].PluginConfig {
			if c.Name == plugin {
				args = c.Args
			}
		}
	}
	return args
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

// preferred finds the nodes on which preemption does the least harm, and returns the best-ranked of these nodes. It
// returns nil if nothing will be preempted or if all nodes have the same rank. Of the returned nodes, in-tree
// preemption then chooses the one whose most important victims started last. In-tree preemption has no setting for an
// order of nodes.
func (pl *PoolPriority) preferred(ctx context.Context, plugin *defaultpreemption.DefaultPreemption, state fwk.CycleState, pod *v1.Pod, statuses fwk.NodeToStatusReader) []fwk.NodeInfo {
	c, err := readCycle(state)
	if plugin == nil || err != nil || c.narrowed || c.flags.unproven.Load() || c.flags.passing.Load() || pl.leadership != nil && pl.leadership.Ended(time.Now()) {
		return nil // nothing will be preempted
	}
	if !pl.index.hasLower(corev1helpers.PodPriority(pod), c.nodes) {
		return nil
	}
	lister := pl.handle.SnapshotSharedLister().NodeInfos()
	nodes, err := statuses.NodesForStatusCode(lister, fwk.Unschedulable)
	if err != nil || !pl.ofSeveralRanks(nodes) {
		return nil
	}
	if eligible, _ := plugin.PodEligibleToPreemptOthers(ctx, pod, statuses.Get(pod.Status.NominatedNodeName)); !eligible {
		return nil
	}
	budgets, err := plugin.Evaluator.PdbLister.List(labels.Everything())
	if err != nil {
		return nil // preemption will return the error
	}
	offset, count := plugin.GetOffsetAndNumCandidates(int32(len(nodes))) //nolint:gosec // there are not that many nodes
	candidates, _, err := plugin.Evaluator.DryRunPreemption(ctx, state, pod, nodes, budgets, offset, count)
	if err != nil && len(candidates) == 0 {
		return nil
	}
	return pl.leastHarm(lister, candidates)
}

func (pl *PoolPriority) ofSeveralRanks(nodes []fwk.NodeInfo) bool {
	return slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool {
		first, _ := pl.index.rankOf(nodes[0].Node())
		rank, _ := pl.index.rankOf(n.Node())
		return rank != first
	})
}

// leastHarm finds the candidates with the least harm, and returns the best-ranked nodes among them.
func (pl *PoolPriority) leastHarm(lister fwk.NodeInfoLister, candidates []preemption.Candidate) []fwk.NodeInfo {
	var least harm
	var best pool.Rank
	var nodes []fwk.NodeInfo
	for _, candidate := range candidates {
		node, err := lister.Get(candidate.Name())
		if err != nil {
			continue
		}
		rank, _ := pl.index.rankOf(node.Node())
		h := harmOf(candidate.Victims())
		switch order := cmp.Or(slices.Compare(h[:], least[:]), cmp.Compare(rank, best)); {
		case nodes == nil || order < 0:
			least, best, nodes = h, rank, []fwk.NodeInfo{node}
		case order == 0:
			nodes = append(nodes, node)
		}
	}
	return nodes
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

// awaitVictims requeues a pod that has preempted other pods on the node. It waits until a pod of lower priority is gone
// from the node, and stops if the preempting pod is no longer nominated to the node. kube-scheduler relies on the
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
			switch {
			case !slices.ContainsFunc(pl.handle.NominatedPodsForNode(name), func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID }):
			case slices.ContainsFunc(victims, pl.isGone):
				logger.V(2).Info("Retrying the pod: a pod of lower priority has left the node on which this pod preempted others", "pod", klog.KObj(pod), "node", name)
				pl.activate(logger, pod)
			case after < lastRetry:
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
