package returner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"poolpriority.dev/scheduler/pkg/pool"
)

// rooms finds nodes outside of burst pools that would take a pod, by the filters of the scheduler's own profile. It is a scheduler
// that never runs: its cache follows the cluster.
type rooms struct {
	pools     pool.List
	scheduler *scheduler.Scheduler
	framework framework.Framework
	snapshot  *cache.Snapshot
	moved     []move // in this round
	nodes     []fwk.NodeInfo
	kept      map[string]fwk.NodeInfo // nodes with the pods that were moved there, by name
}

// move is a pod for which room is kept.
type move struct {
	pod  fwk.PodInfo
	from fwk.NodeInfo
	to   string
}

// newRooms prepares a scheduler for the profile. Its informers are the factory's, which is to be started afterwards.
func newRooms(ctx context.Context, profile schedconfig.KubeSchedulerProfile, pools pool.List, client kubernetes.Interface, config *rest.Config, factory informers.SharedInformerFactory) (*rooms, error) {
	s, err := scheduler.New(ctx, client, factory, nil, func(string) events.EventRecorder { return &events.FakeRecorder{} },
		scheduler.WithProfiles(inTree(profile)), scheduler.WithKubeConfig(config))
	if err != nil {
		return nil, fmt.Errorf("preparing the scheduler's filters: %w", err)
	}
	f := s.Profiles[profile.SchedulerName]
	snapshot, ok := f.SnapshotSharedLister().(*cache.Snapshot)
	if !ok {
		return nil, fmt.Errorf("the scheduler's snapshot is a %T", f.SnapshotSharedLister())
	}
	return &rooms{pools: pools, scheduler: s, framework: f, snapshot: snapshot}, nil
}

// inTree is the profile without the plugins that Kubernetes does not bring: PoolPriority, whose order does not matter here and whose
// gate has no say on VMs, and others that look at more than whether a node can take a pod.
func inTree(profile schedconfig.KubeSchedulerProfile) schedconfig.KubeSchedulerProfile {
	p := *profile.DeepCopy()
	registry := plugins.NewInTreeRegistry()
	foreign := func(name string) bool { _, known := registry[name]; return name != "*" && !known }
	for _, set := range []*schedconfig.PluginSet{
		&p.Plugins.PreEnqueue, &p.Plugins.QueueSort, &p.Plugins.PreFilter, &p.Plugins.Filter, &p.Plugins.PostFilter, &p.Plugins.PreScore, &p.Plugins.Score,
		&p.Plugins.Reserve, &p.Plugins.Permit, &p.Plugins.PreBind, &p.Plugins.Bind, &p.Plugins.PostBind, &p.Plugins.MultiPoint,
	} {
		set.Enabled = slices.DeleteFunc(set.Enabled, func(p schedconfig.Plugin) bool { return foreign(p.Name) })
	}
	// What PoolPriority does in their place, and what no profile may be without.
	enable(&p.Plugins.Filter, names.TaintToleration)
	enable(&p.Plugins.Bind, names.DefaultBinder)
	if len(p.Plugins.QueueSort.Enabled) == 0 {
		enable(&p.Plugins.QueueSort, names.PrioritySort)
	}
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c schedconfig.PluginConfig) bool { return foreign(c.Name) })
	return p
}

func enable(set *schedconfig.PluginSet, name string) {
	set.Disabled = slices.DeleteFunc(set.Disabled, func(p schedconfig.Plugin) bool { return p.Name == name || p.Name == "*" })
}

// begin starts a round: the cluster is looked at as it is now, and nothing is kept for anyone.
func (r *rooms) begin(logger klog.Logger) error {
	if err := r.scheduler.Cache.UpdateSnapshot(logger, r.snapshot); err != nil {
		return fmt.Errorf("looking at the cluster: %w", err)
	}
	nodes, err := r.snapshot.NodeInfos().List()
	if err != nil {
		return fmt.Errorf("listing the nodes: %w", err)
	}
	r.moved, r.kept = nil, map[string]fwk.NodeInfo{}
	r.nodes = r.nodes[:0]
	for _, node := range nodes {
		if rank, _ := r.pools.RankOf(node.Node().Labels); rank != pool.Excluded && int(rank) <= r.pools.Regular() {
			r.nodes = append(r.nodes, node)
		}
	}
	slices.SortStableFunc(r.nodes, func(a, b fwk.NodeInfo) int {
		rankA, _ := r.pools.RankOf(a.Node().Labels)
		rankB, _ := r.pools.RankOf(b.Node().Labels)
		return cmp.Compare(rankA, rankB)
	})
	return nil
}

// find returns the best-ranked node that would take the pod, keeps the room for it until the round is over, and returns "" if there
// is none.
func (r *rooms) find(ctx context.Context, pod *corev1.Pod) (string, error) {
	from, err := r.snapshot.NodeInfos().Get(pod.Spec.NodeName)
	if err != nil {
		return "", nil //nolint:nilerr // its node is gone, and it will be
	}
	leaving, err := framework.NewPodInfo(pod)
	if err != nil {
		return "", fmt.Errorf("reading pod %s: %w", klog.KObj(pod), err)
	}
	arriving := pod.DeepCopy()
	arriving.Spec.NodeName, arriving.Status.NominatedNodeName = "", ""
	state := framework.NewCycleState()
	result, status, _ := r.framework.RunPreFilterPlugins(ctx, state, arriving)
	if status.IsRejected() {
		return "", nil
	} else if !status.IsSuccess() {
		return "", status.AsError()
	}
	// The pod itself leaves, and those for which room is kept move.
	if err := r.remove(ctx, state, arriving, leaving, from); err != nil {
		return "", err
	}
	for _, m := range r.moved {
		if err := r.remove(ctx, state, arriving, m.pod, m.from); err != nil {
			return "", err
		}
		if status := r.framework.RunPreFilterExtensionAddPod(ctx, state, arriving, m.pod, r.kept[m.to]); !status.IsSuccess() {
			return "", status.AsError()
		}
	}
	requests := resource.PodRequests(arriving, resource.PodResourcesOptions{})
	for _, node := range r.nodes {
		name := node.Node().Name
		if !result.AllNodes() && !result.NodeNames.Has(name) {
			continue
		}
		if kept, ok := r.kept[name]; ok {
			node = kept
		}
		if tooLarge(requests, node) {
			continue
		}
		status := r.framework.RunFilterPlugins(ctx, state, arriving, node)
		if !status.IsSuccess() && !status.IsRejected() {
			return "", status.AsError()
		}
		if !status.IsSuccess() {
			continue
		}
		kept := node.Snapshot()
		arriving.Spec.NodeName = name
		info, err := framework.NewPodInfo(arriving)
		if err != nil {
			return "", fmt.Errorf("reading pod %s: %w", klog.KObj(pod), err)
		}
		kept.AddPodInfo(info)
		r.kept[name] = kept
		r.moved = append(r.moved, move{pod: info, from: from, to: name})
		return name, nil
	}
	return "", nil
}

func (r *rooms) remove(ctx context.Context, state fwk.CycleState, arriving *corev1.Pod, leaving fwk.PodInfo, from fwk.NodeInfo) error {
	if status := r.framework.RunPreFilterExtensionRemovePod(ctx, state, arriving, leaving, from); !status.IsSuccess() {
		return status.AsError()
	}
	return nil
}

// tooLarge reports whether NodeResourcesFit would certainly refuse the pod: it is asked of every node, and this is cheap.
func tooLarge(requests corev1.ResourceList, node fwk.NodeInfo) bool {
	allocatable, requested := node.GetAllocatable(), node.GetRequested()
	cpu, memory := requests.Cpu().MilliValue(), requests.Memory().Value()
	return cpu > 0 && cpu > allocatable.GetMilliCPU()-requested.GetMilliCPU() ||
		memory > 0 && memory > allocatable.GetMemory()-requested.GetMemory()
}

// synced waits until the caches have what they follow, and says now and then that they have not.
func (r *rooms) synced(ctx context.Context, factory informers.SharedInformerFactory) error {
	logger := klog.FromContext(ctx)
	for {
		wait, cancel := context.WithTimeout(ctx, 30*time.Second)
		missing := []string{}
		for kind, ok := range factory.WaitForCacheSync(wait.Done()) {
			if !ok {
				missing = append(missing, kind.String())
			}
		}
		err := r.scheduler.WaitForHandlersSync(wait)
		cancel()
		if len(missing) == 0 && err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		slices.Sort(missing)
		logger.Error(errors.Join(err, wait.Err()), "Pods are not returned from burst pools yet: the cluster cannot be read; does the controller have the rights of manifests/components/return?", "missing", missing)
	}
}
