package devcluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	schedcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// simulator determines which pods fit on which nodes. Like the cluster autoscaler, it uses the default scheduler's
// filters. Only the last snapshot that it returned may be used.
type simulator struct {
	ctx       context.Context // of the autoscaler that it belongs to
	framework framework.Framework
	lister    *lister
}

// lister gives the framework the simulator's last snapshot.
type lister struct{ fwk.SharedLister }

func newSimulator(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory) (*simulator, error) {
	metrics.Register()
	config, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("reading the default profile: %w", err)
	}
	profile := &config.Profiles[0]
	// Dynamic resource allocation is not simulated.
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p schedconfig.Plugin) bool { return p.Name == names.DynamicResources })
	s := &simulator{ctx: ctx, lister: &lister{schedcache.NewEmptySnapshot()}}
	s.framework, err = frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(s.lister),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
	)
	if err != nil {
		return nil, fmt.Errorf("making the simulation's framework: %w", err)
	}
	return s, nil
}

// world is a set of nodes with pods, on which further pods can be placed.
type world struct {
	*simulator
	nodes []*corev1.Node
	pods  []*corev1.Pod
	infos []fwk.NodeInfo
}

// Snapshot returns the nodes with the pods that are on them.
func (s *simulator) Snapshot(nodes []*corev1.Node, pods []*corev1.Pod) autoscaler.Snapshot {
	w := &world{simulator: s, nodes: slices.Clone(nodes)}
	names := map[string]bool{}
	for _, node := range nodes {
		names[node.Name] = true
	}
	for _, pod := range pods {
		if names[pod.Spec.NodeName] {
			w.pods = append(w.pods, pod)
		}
	}
	w.rebuild()
	return w
}

func (w *world) rebuild() {
	snapshot := schedcache.NewSnapshot(w.pods, w.nodes)
	w.lister.SharedLister = snapshot
	w.infos = w.infos[:0]
	for _, node := range w.nodes {
		if info, err := snapshot.Get(node.Name); err == nil {
			w.infos = append(w.infos, info)
		}
	}
}

// Len returns the number of nodes.
func (w *world) Len() int { return len(w.nodes) }

// AddNode appends a node without pods to the list of nodes.
func (w *world) AddNode(node *corev1.Node) {
	w.nodes = append(w.nodes, node)
	w.rebuild()
}

// RemoveLast removes the last node of the list.
func (w *world) RemoveLast() {
	w.nodes = w.nodes[:len(w.nodes)-1]
	w.rebuild()
}

// Fits returns the name of the first node on which the pod fits, starting at the index from. If the pod fits on no
// node, it returns "".
func (w *world) Fits(pod *corev1.Pod, from int) (string, error) {
	state := framework.NewCycleState()
	result, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
	if status.IsRejected() {
		return "", nil
	} else if !status.IsSuccess() {
		return "", status.AsError()
	}
	for _, info := range w.infos[from:] {
		if !result.AllNodes() && !result.NodeNames.Has(info.Node().Name) {
			continue
		}
		status := w.framework.RunFilterPlugins(w.ctx, state, pod, info)
		if status.IsSuccess() {
			return info.Node().Name, nil
		} else if !status.IsRejected() {
			return "", status.AsError()
		}
	}
	return "", nil
}

// Reasons returns the reasons of the first plugin that rejects the pod on the node with the index i.
func (w *world) Reasons(pod *corev1.Pod, i int) ([]string, error) {
	state := framework.NewCycleState()
	result, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
	if status.IsSuccess() && result.AllNodes() {
		status = w.framework.RunFilterPlugins(w.ctx, state, pod, w.infos[i])
	}
	if !status.IsSuccess() && !status.IsRejected() {
		return nil, status.AsError()
	}
	return status.Reasons(), nil
}

// Place puts the pod on the node.
func (w *world) Place(pod *corev1.Pod, node string) error {
	placed := pod.DeepCopy()
	placed.Spec.NodeName = node
	w.pods = append(w.pods, placed)
	if pod.Spec.Affinity != nil || len(pod.Spec.TopologySpreadConstraints) > 0 {
		w.rebuild() // the snapshot keeps lists of nodes that have such pods
		return nil
	}
	info, err := w.lister.NodeInfos().Get(node)
	if err != nil {
		return err
	}
	podInfo, err := framework.NewPodInfo(placed)
	if err != nil {
		return err
	}
	info.AddPodInfo(podInfo)
	return nil
}
