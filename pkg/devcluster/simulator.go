package devcluster

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

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
)

// simulator asks the default scheduler's filters where pods would fit, as the cluster autoscaler does.
type simulator struct {
	framework framework.Framework
	snapshot  atomic.Pointer[schedcache.Snapshot]
}

// lister hands the framework the snapshot of the world that is being asked about.
type lister struct{ *simulator }

func (l lister) NodeInfos() fwk.NodeInfoLister       { return l.snapshot.Load().NodeInfos() }
func (l lister) StorageInfos() fwk.StorageInfoLister { return l.snapshot.Load().StorageInfos() }

func newSimulator(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory) (*simulator, error) {
	metrics.Register()
	config, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("reading the default profile: %w", err)
	}
	profile := &config.Profiles[0]
	// Devices are not simulated.
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p schedconfig.Plugin) bool { return p.Name == names.DynamicResources })
	s := &simulator{}
	s.snapshot.Store(schedcache.NewEmptySnapshot())
	s.framework, err = frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(lister{s}),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(factory.Storage().V1().CSINodes().Lister())),
	)
	if err != nil {
		return nil, fmt.Errorf("making the simulation's framework: %w", err)
	}
	return s, nil
}

// world is a set of nodes with pods on them, to place further pods on.
type world struct {
	*simulator
	nodes []*corev1.Node
	pods  []*corev1.Pod
	infos []fwk.NodeInfo
}

func (s *simulator) world(nodes []*corev1.Node, pods []*corev1.Pod) *world {
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
	w.snapshot.Store(snapshot)
	w.infos = w.infos[:0]
	for _, node := range w.nodes {
		if info, err := snapshot.Get(node.Name); err == nil {
			w.infos = append(w.infos, info)
		}
	}
}

func (w *world) addNode(node *corev1.Node) {
	w.nodes = append(w.nodes, node)
	w.rebuild()
}

func (w *world) removeNode(name string) {
	w.nodes = slices.DeleteFunc(w.nodes, func(n *corev1.Node) bool { return n.Name == name })
	w.rebuild()
}

// fits returns the first node that the pod fits on, of those from the index on, or nil.
func (w *world) fits(ctx context.Context, pod *corev1.Pod, from int) (fwk.NodeInfo, error) {
	state := framework.NewCycleState()
	result, status, _ := w.framework.RunPreFilterPlugins(ctx, state, pod)
	if status.IsRejected() {
		return nil, nil
	} else if !status.IsSuccess() {
		return nil, status.AsError()
	}
	for _, info := range w.infos[from:] {
		if !result.AllNodes() && !result.NodeNames.Has(info.Node().Name) {
			continue
		}
		status := w.framework.RunFilterPlugins(ctx, state, pod, info)
		if status.IsSuccess() {
			return info, nil
		} else if !status.IsRejected() {
			return nil, status.AsError()
		}
	}
	return nil, nil
}

// add puts the pod on the node.
func (w *world) add(pod *corev1.Pod, info fwk.NodeInfo) error {
	placed := pod.DeepCopy()
	placed.Spec.NodeName = info.Node().Name
	w.pods = append(w.pods, placed)
	if pod.Spec.Affinity != nil || len(pod.Spec.TopologySpreadConstraints) > 0 {
		w.rebuild() // the snapshot keeps lists of nodes that have such pods
		return nil
	}
	podInfo, err := framework.NewPodInfo(placed)
	if err != nil {
		return err
	}
	info.AddPodInfo(podInfo)
	return nil
}

// place puts each pod on a node that it fits on, and returns the pods that fit nowhere.
func (w *world) place(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	var unfit []*corev1.Pod
	for _, pod := range pods {
		info, err := w.fits(ctx, pod, 0)
		if err != nil {
			return nil, err
		}
		if info == nil {
			unfit = append(unfit, pod)
			continue
		}
		if err := w.add(pod, info); err != nil {
			return nil, err
		}
	}
	return unfit, nil
}

// fill puts pods on new nodes, at most room of them, and returns the pods that are on them, those that are not, and the
// number of new nodes. The new nodes stay in the world.
func (w *world) fill(ctx context.Context, pods []*corev1.Pod, room int, template func(int) *corev1.Node) (helped, rest []*corev1.Pod, count int, err error) {
	from := len(w.nodes)
	for _, pod := range pods {
		info, err := w.fits(ctx, pod, from)
		if err != nil {
			return nil, nil, 0, err
		}
		if info == nil && count < room {
			node := template(count)
			w.addNode(node)
			if info, err = w.fits(ctx, pod, len(w.nodes)-1); err != nil {
				return nil, nil, 0, err
			}
			if info == nil {
				w.removeNode(node.Name)
			} else {
				count++
			}
		}
		if info == nil {
			rest = append(rest, pod)
			continue
		}
		helped = append(helped, pod)
		if err := w.add(pod, info); err != nil {
			return nil, nil, 0, err
		}
	}
	return helped, rest, count, nil
}
