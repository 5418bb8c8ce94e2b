package returner

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// rooms finds nodes of better regular pools on which a pod fits. It runs the Filter plugins of the scheduler's profile on a
// snapshot of the cluster, and takes a new snapshot in each round.
type rooms struct {
	pools     pool.List
	listPods  corelisters.PodLister
	listNodes corelisters.NodeLister
	framework framework.Framework
	snapshot  *snapshot
	moved     []move // the pods for which capacity is reserved in this round
	nodes     []fwk.NodeInfo
	ranks     []pool.Rank             // of nodes
	kept      map[string]fwk.NodeInfo // by node name: copies of nodes, to which the pods of moved are added
	burst     []fwk.NodeInfo          // the nodes of burst pools
	buffers   []*buffer
	packing   *packing // nil until it is computed
}

// snapshot is the lister from which the framework reads. Each round replaces its SharedLister.
type snapshot struct{ fwk.SharedLister }

// move is a pod for which capacity is reserved on the node named to.
type move struct {
	pod  fwk.PodInfo
	from fwk.NodeInfo // nil: the pod has left its node
	to   string
	// wanted is set if the pod would take room that a CapacityBuffer wants. No capacity is reserved then.
	wanted bool
}

// newRooms prepares the Filter plugins of the profile. It registers informers in config.Informers.
func newRooms(ctx context.Context, config *Config) (*rooms, error) {
	own, left := inTree(config.Profile)
	if left.Delete(configv1.PluginName).Len() > 0 {
		klog.FromContext(ctx).Info("The search for capacity in better pools ignores these out-of-tree plugins of the profile", "plugins", sets.List(left))
	}
	own.SchedulerName += "-return" // a label of kube-scheduler's metrics
	metrics.Register()             // the framework records metrics, and needs them registered
	r := &rooms{pools: config.Pools, snapshot: &snapshot{cache.NewEmptySnapshot()},
		listPods: config.Informers.Core().V1().Pods().Lister(), listNodes: config.Informers.Core().V1().Nodes().Lister()}
	var err error
	if r.framework, err = frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), &own,
		frameworkruntime.WithClientSet(config.Client),
		frameworkruntime.WithInformerFactory(config.Informers),
		frameworkruntime.WithSnapshotSharedLister(r.snapshot),
		frameworkruntime.WithParallelism(1), // the CPUs are for scheduling cycles
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(config.Informers.Storage().V1().CSINodes().Lister())),
	); err != nil {
		return nil, fmt.Errorf("preparing the scheduler's filters: %w", err)
	}
	return r, nil
}

// inTree returns the profile without out-of-tree plugins, and the names of the removed plugins. It removes
// PoolPriority, because the order of pools and the gate do not decide whether a pod fits a VM. The search for capacity
// ignores the other removed plugins.
func inTree(profile *schedconfig.KubeSchedulerProfile) (schedconfig.KubeSchedulerProfile, sets.Set[string]) {
	p := *profile.DeepCopy()
	registry := plugins.NewInTreeRegistry()
	left := sets.New[string]()
	foreign := func(name string) bool {
		if name == names.DynamicResources || name == names.DefaultPreemption {
			return true // not needed: find returns no node for pods with resource claims, and preempts nothing
		}
		_, known := registry[name]
		if known || name == "*" {
			return false
		}
		left.Insert(name)
		return true
	}
	for _, set := range []*schedconfig.PluginSet{
		&p.Plugins.PreEnqueue, &p.Plugins.QueueSort, &p.Plugins.PreFilter, &p.Plugins.Filter, &p.Plugins.PostFilter, &p.Plugins.PreScore, &p.Plugins.Score,
		&p.Plugins.Reserve, &p.Plugins.Permit, &p.Plugins.PreBind, &p.Plugins.Bind, &p.Plugins.PostBind, &p.Plugins.MultiPoint,
	} {
		set.Enabled = slices.DeleteFunc(set.Enabled, func(p schedconfig.Plugin) bool { return foreign(p.Name) })
	}
	// The scheduler's profile replaces TaintToleration and DefaultBinder by PoolPriority. Without PoolPriority, both
	// are needed here. The framework requires one queueSort plugin.
	enable(&p, &p.Plugins.Filter, names.TaintToleration)
	enable(&p, &p.Plugins.Bind, names.DefaultBinder)
	if len(p.Plugins.QueueSort.Enabled) == 0 {
		enable(&p, &p.Plugins.QueueSort, names.PrioritySort)
	}
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c schedconfig.PluginConfig) bool { return foreign(c.Name) })
	return p, left
}

// enable enables the plugin at the extension point.
func enable(p *schedconfig.KubeSchedulerProfile, set *schedconfig.PluginSet, name string) {
	is := func(what string) func(schedconfig.Plugin) bool {
		return func(p schedconfig.Plugin) bool { return p.Name == what }
	}
	set.Disabled = slices.DeleteFunc(set.Disabled, is(name))
	everywhere := slices.ContainsFunc(p.Plugins.MultiPoint.Enabled, is(name)) && !slices.ContainsFunc(set.Disabled, is("*"))
	if !everywhere && !slices.ContainsFunc(set.Enabled, is(name)) {
		set.Enabled = append(set.Enabled, schedconfig.Plugin{Name: name})
	}
}

// begin starts a round. It takes a snapshot of the cluster, and reserves capacity for the evicted pods in away, whose
// replacements are not bound yet. If a pending pod has a nominated node, the snapshot counts the pod as running on that
// node. The snapshot also counts the pods that the nominated pod preempts. It is made from the informers: since 1.37, the
// scheduler's cache can fill one snapshot only, that of the cycles (backend/cache, pvcRefCountsDelta).
func (r *rooms) begin(away []move) {
	listed, _ := r.listNodes.List(labels.Everything()) // does not fail
	all, _ := r.listPods.List(labels.Everything())     // nor does this
	there := sets.New[string]()
	for _, node := range listed {
		there.Insert(node.Name)
	}
	pods := make([]*corev1.Pod, 0, len(all))
	for _, pod := range all {
		if pod.Spec.NodeName == "" && pod.Status.NominatedNodeName != "" {
			pod = pod.DeepCopy()
			pod.Spec.NodeName = pod.Status.NominatedNodeName
		}
		if there.Has(pod.Spec.NodeName) { // NewSnapshot would add a node for an unknown node name
			pods = append(pods, pod)
		}
	}
	r.snapshot.SharedLister = cache.NewSnapshot(pods, listed)
	nodes, _ := r.snapshot.NodeInfos().List() // does not fail
	r.moved, r.kept, r.buffers, r.packing = nil, map[string]fwk.NodeInfo{}, nil, nil
	for _, m := range away {
		r.keep(m)
	}
	r.nodes, r.ranks, r.burst = r.nodes[:0], r.ranks[:0], nil
	ranks := make(map[string]pool.Rank, len(nodes))
	for _, node := range nodes {
		rank, _ := r.pools.RankOf(node.Node())
		if ranks[node.Node().Name] = rank; r.pools.IsBurstRank(rank) {
			r.burst = append(r.burst, node)
		} else if rank != pool.Excluded && !nodegroups.MayGo(node.Node()) {
			r.nodes = append(r.nodes, node)
		}
	}
	// NewSnapshot lists the nodes in a random order. With a fixed order, a pod that found a node in one round finds it in the
	// next round, too.
	slices.SortFunc(r.nodes, func(a, b fwk.NodeInfo) int {
		nameA, nameB := a.Node().Name, b.Node().Name
		return cmp.Or(cmp.Compare(ranks[nameA], ranks[nameB]), cmp.Compare(nameA, nameB))
	})
	for _, node := range r.nodes {
		r.ranks = append(r.ranks, ranks[node.Node().Name])
	}
}

// keep reserves capacity for the pod on the node named m.to until the end of the round.
func (r *rooms) keep(m move) {
	node, ok := r.kept[m.to]
	if !ok {
		var err error
		if node, err = r.snapshot.NodeInfos().Get(m.to); err != nil {
			return // the node no longer exists, so there is no capacity to reserve
		}
		node = node.Snapshot()
		r.kept[m.to] = node
	}
	node.AddPodInfo(m.pod)
	r.moved, r.packing = append(r.moved, m), nil
}

// find returns the move of the pod to the best node on which the pod fits, and that is better than its own. If keep is set,
// it reserves capacity on that node until the end of the round. If the pod fits no node, find returns nil. find ignores the
// tolerations in given, because the pod's replacement will not have them. With spare, the pod leaves the room that the
// buffers want.
func (r *rooms) find(ctx context.Context, pod *corev1.Pod, given []corev1.Toleration, keep, spare bool) (*move, error) {
	from, err := r.snapshot.NodeInfos().Get(pod.Spec.NodeName)
	if err != nil || len(pod.Spec.ResourceClaims) > 0 {
		return nil, nil //nolint:nilerr // the node no longer exists and the pod will be deleted, or the pod has resource claims
	}
	leaving, err := framework.NewPodInfo(pod)
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", klog.KObj(pod), err)
	}
	arriving := pod.DeepCopy()
	arriving.Spec.NodeName, arriving.Status.NominatedNodeName = "", ""
	arriving.Spec.Tolerations = slices.DeleteFunc(arriving.Spec.Tolerations, func(t corev1.Toleration) bool {
		return slices.ContainsFunc(given, func(g corev1.Toleration) bool { return g.MatchToleration(&t) })
	})
	state := framework.NewCycleState()
	result, status, _ := r.framework.RunPreFilterPlugins(ctx, state, arriving)
	if status.IsRejected() {
		return nil, nil
	} else if !status.IsSuccess() {
		return nil, status.AsError()
	}
	if err := r.play(ctx, state, arriving, leaving, from); err != nil {
		return nil, err
	}
	to, err := r.firstFeasible(ctx, state, arriving, result, from.Node())
	if err != nil || to == "" {
		return nil, err
	}
	arriving.Spec.NodeName = to
	info, err := framework.NewPodInfo(arriving)
	if err != nil {
		return nil, fmt.Errorf("reading pod %s: %w", klog.KObj(pod), err)
	}
	m := move{pod: info, from: from, to: to}
	m.wanted = spare && len(r.buffers) > 0 && r.isWanted(ctx, state, &m, result)
	if keep && !m.wanted {
		r.keep(m)
	}
	return &m, nil
}

// play changes the state as if the pod had left its node, and as if the pods of all reserved moves ran on their new
// nodes.
func (r *rooms) play(ctx context.Context, state fwk.CycleState, arriving *corev1.Pod, leaving fwk.PodInfo, from fwk.NodeInfo) error {
	if err := r.remove(ctx, state, arriving, leaving, from); err != nil {
		return err
	}
	for _, m := range r.moved {
		if m.from != nil {
			if err := r.remove(ctx, state, arriving, m.pod, m.from); err != nil {
				return err
			}
		}
		if status := r.framework.RunPreFilterExtensionAddPod(ctx, state, arriving, m.pod, r.kept[m.to]); !status.IsSuccess() {
			return status.AsError()
		}
	}
	return nil
}

// firstFeasible returns the name of the best node by the pod's order that passes all Filter plugins, and that is better
// than the node from. If no node passes, it returns
// "".
func (r *rooms) firstFeasible(ctx context.Context, state fwk.CycleState, arriving *corev1.Pod, allowed *fwk.PreFilterResult, from *corev1.Node) (best string, err error) {
	requests := resource.PodRequests(arriving, resource.PodResourcesOptions{})
	order, _ := r.pools.OrderOf(arriving.Annotations)
	rank, _ := r.pools.RankOf(from)
	below := order.PlaceOf(rank)
	for i, node := range r.nodes {
		if place := order.PlaceOf(r.ranks[i]); place < below {
			if fits, err := r.fits(ctx, state, arriving, requests, allowed, r.latest(node)); err != nil {
				return "", err
			} else if fits {
				best, below = node.Node().Name, place
			}
		}
	}
	return best, nil
}

// latest returns the node with the pods of moved.
func (r *rooms) latest(node fwk.NodeInfo) fwk.NodeInfo {
	if kept, ok := r.kept[node.Node().Name]; ok {
		return kept
	}
	return node
}

// fits reports whether the node passes all Filter plugins. requests are the pod's.
func (r *rooms) fits(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, requests corev1.ResourceList, allowed *fwk.PreFilterResult, node fwk.NodeInfo) (bool, error) {
	if !allowed.AllNodes() && !allowed.NodeNames.Has(node.Node().Name) || tooLarge(requests, node) {
		return false, nil
	}
	status := r.framework.RunFilterPlugins(ctx, state, pod, node)
	if !status.IsSuccess() && !status.IsRejected() {
		return false, status.AsError()
	}
	return status.IsSuccess(), nil
}

func (r *rooms) remove(ctx context.Context, state fwk.CycleState, arriving *corev1.Pod, leaving fwk.PodInfo, from fwk.NodeInfo) error {
	if status := r.framework.RunPreFilterExtensionRemovePod(ctx, state, arriving, leaving, from); !status.IsSuccess() {
		return status.AsError()
	}
	return nil
}

// tooLarge reports whether NodeResourcesFit would certainly reject the pod. It is a cheap check before the Filter
// plugins run on each node.
func tooLarge(requests corev1.ResourceList, node fwk.NodeInfo) bool {
	allocatable, requested := node.GetAllocatable(), node.GetRequested()
	cpu, memory := requests.Cpu().MilliValue(), requests.Memory().Value()
	return cpu > 0 && cpu > allocatable.GetMilliCPU()-requested.GetMilliCPU() ||
		memory > 0 && memory > allocatable.GetMemory()-requested.GetMemory()
}
