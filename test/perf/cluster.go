package main

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"poolpriority.dev/scheduler/pkg/lease"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/poolpriority"
	"poolpriority.dev/scheduler/test/compat"
)

// fill is how much of the pools is used.
type fill string

const (
	roomy       fill = "roomy"       // a tenth of each node is used
	nearlyFull  fill = "nearly full" // one user node in a hundred has room, and all system nodes
	full        fill = "full"        // no user node has room, but all system nodes
	overflowing fill = "overflowing" // only the virtual node has room
)

// kind is a kind of pods.
type kind string

const (
	plain   kind = "plain"
	nothing kind = "matches nothing" // a node selector that no node has
	volume  kind = "with a PVC"      // the claim is bound
	ordered kind = "with an order"   // the annotation names the order of the list
)

// unordered is a variant of our profile: its pods have no order.
const unordered = "ours, no order"

const mode = "kubernetes.azure.com/mode"

// cluster is a scheduler without an API server: the real framework, plugins and cache, with the variants as profiles.
type cluster struct {
	ctx    context.Context
	sched  *scheduler.Scheduler
	filter fwk.FilterPlugin // ours
	serial int
}

// newCluster returns a cluster of size VMs, with three user nodes for every two system nodes, and one virtual node.
func newCluster(ctx context.Context, size int, f fill) (*cluster, error) {
	config, err := options.LoadConfigFromFile(klog.Background(), "test/perf/profiles.yaml") // the variants
	if err != nil {
		return nil, err
	}
	c := &cluster{ctx: ctx}
	objects := []runtime.Object{&v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume", Annotations: map[string]string{"pv.kubernetes.io/bound-by-controller": "yes"}},
		Spec: v1.PersistentVolumeSpec{
			Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
			ClaimRef:               &v1.ObjectReference{Namespace: "default", Name: "claim", UID: "claim"},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "server", Path: "/"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim", UID: "claim", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "volume", AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}}
	for i := range size + 1 {
		objects = append(objects, makeNode(i, size))
	}
	plugins := poolpriority.NewFactory(lease.NewLeadership())
	client := fake.NewClientset(objects...)
	factory := compat.NewInformerFactory(client)
	c.sched, err = scheduler.New(ctx, client, factory, nil, compat.NoEvents,
		scheduler.WithProfiles(config.Profiles...),
		scheduler.WithParallelism(config.Parallelism),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{
			poolpriority.Name: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
				plugin, err := plugins.New(ctx, args, handle)
				c.filter, _ = plugin.(fwk.FilterPlugin)
				return plugin, err
			},
		}))
	if err != nil {
		return nil, err
	}
	plugins.Wrap(ctx, c.sched, config.Profiles) // as our binary does
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for deadline := time.Now().Add(time.Minute); c.sched.Cache.NodeCount() <= size; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return nil, errors.New("the scheduler does not see its nodes")
		}
	}
	// Pods are added to the scheduler's cache directly, without the fake API server.
	for i := range size + 1 {
		for _, pod := range fillers(i, size, f) {
			if err := c.sched.Cache.AddPod(klog.Background(), pod); err != nil {
				return nil, err
			}
		}
	}
	// The gate opens for a pod that fits nowhere else once it has seen the pools.
	for deadline := time.Now().Add(time.Minute); f == overflowing; time.Sleep(100 * time.Millisecond) {
		o, err := c.schedule("ours", plain, 1, false)
		if err != nil {
			return nil, err
		}
		if o.placed > 0 {
			break
		}
		if time.Now().After(deadline) {
			return nil, errors.New("the gate does not open")
		}
	}
	return c, nil
}

func makeNode(i, size int) *v1.Node {
	name := fmt.Sprintf("node-%05d", i)
	node := st.MakeNode().Name(name).UID(name).Label(v1.LabelHostname, name).Label(v1.LabelTopologyZone, fmt.Sprintf("zone-%d", i%3)).Label(v1.LabelOSStable, "linux").
		Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "4", v1.ResourceMemory: "16Gi", v1.ResourcePods: "110"})
	switch {
	case i == size:
		node.Label("type", "virtual-kubelet").Taints([]v1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: v1.TaintEffectNoSchedule}}).
			Capacity(map[v1.ResourceName]string{v1.ResourceCPU: "10000", v1.ResourceMemory: "4Ti", v1.ResourcePods: "5000"})
	case isUser(i):
		node.Label(mode, "user")
	default:
		node.Label(mode, "system")
	}
	node.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
	return node.Obj()
}

func isUser(i int) bool { return i%5 < 3 }

// fillers returns the ten pods that are on the node from the start. They are in ten namespaces, and the pods to schedule
// in one of them.
func fillers(i, size int, f fill) []*v1.Pod {
	const count, namespaces = 10, 10
	cpu := int64(40) // together a tenth of the node
	taken := f == overflowing || isUser(i) && (f == full || f == nearlyFull && i%100 != 0)
	switch {
	case i == size:
		return nil
	case taken:
		cpu = 395 // 50m are left
	}
	var pods []*v1.Pod
	for n := range count {
		pod := makePod(fmt.Sprintf("filler-%d-%d", i, n), plain)
		if ns := (i*count + n) % namespaces; ns > 0 {
			pod.Namespace = fmt.Sprintf("namespace-%d", ns)
		}
		pod.Labels = map[string]string{"app": "filler"}
		pod.Spec.NodeName = fmt.Sprintf("node-%05d", i)
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
		pods = append(pods, pod)
	}
	return pods
}

// makePod returns a pod that tolerates the virtual node, so that every variant may use it.
func makePod(name string, k kind) *v1.Pod {
	pod := st.MakePod().Namespace("default").Name(name).UID(name).Label("app", string(k[0])).Toleration("virtual-kubelet.io/provider").
		Req(map[v1.ResourceName]string{v1.ResourceCPU: "100m", v1.ResourceMemory: "128Mi"})
	switch k {
	case plain:
	case nothing:
		pod.NodeSelector(map[string]string{"no": "node"})
	case ordered:
		pod.Annotation(pool.OrderAnnotation, "same")
	case volume:
		pod.PVC("claim")
	}
	return pod.Obj()
}

// outcome has the results of scheduling pods.
type outcome struct {
	cycles          []time.Duration // sorted
	bytes           uint64          // allocated per pod, also by the cache
	placed          int
	wrong           int // pods placed although a better pool has a feasible node
	wronglyUnplaced int // pods not placed although a node is feasible
}

// schedule runs a scheduling cycle for each of n pods, one after the other, and removes the pods again. With judge it
// compares each result with brute force, which takes longer than the cycle.
func (c *cluster) schedule(profile string, k kind, n int, judge bool) (*outcome, error) {
	logger := klog.Background()
	if profile == unordered {
		profile, k = "ours", plain
	}
	c.serial++
	o := &outcome{cycles: make([]time.Duration, 0, n)}
	pods := make([]*v1.Pod, n)
	for i := range pods {
		pods[i] = makePod(fmt.Sprintf("%s-%d-%d", profile, c.serial, i), k)
		pods[i].Spec.SchedulerName = profile
	}
	defer func() {
		for _, pod := range pods {
			if pod.Spec.NodeName != "" {
				_ = c.sched.Cache.RemovePod(logger, pod)
			}
		}
		// The snapshot is updated here, so that the time is not counted for the next variant.
		_ = c.sched.Cache.UpdateSnapshot(logger, c.sched.Profiles["default"].SnapshotSharedLister().(*cache.Snapshot))
	}()
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	for _, pod := range pods {
		start := time.Now()
		result, err := compat.SchedulePod(c.ctx, c.sched, c.sched.Profiles[profile], framework.NewCycleState(), pod)
		o.cycles = append(o.cycles, time.Since(start))
		var fit *framework.FitError
		if err != nil && !errors.As(err, &fit) {
			return nil, fmt.Errorf("profile %s: %w", profile, err)
		}
		if judge {
			best, err := c.best(pod)
			if err != nil {
				return nil, err
			}
			switch {
			case fit != nil && best >= 0:
				o.wronglyUnplaced++
			case fit == nil && (best < 0 || c.rank(result.SuggestedHost) != best):
				o.wrong++
			}
		}
		if fit != nil {
			continue
		}
		o.placed++
		pod.Spec.NodeName = result.SuggestedHost
		if err := c.sched.Cache.AddPod(logger, pod); err != nil {
			return nil, err
		}
	}
	goruntime.ReadMemStats(&after)
	o.bytes = (after.TotalAlloc - before.TotalAlloc) / uint64(n)
	slices.Sort(o.cycles)
	return o, nil
}

// best returns the best rank with a node that is feasible by all in-tree filters, or -1. It tries all nodes.
func (c *cluster) best(pod *v1.Pod) (int, error) {
	profile := c.sched.Profiles["default"]
	state := framework.NewCycleState()
	allowed, status, _ := profile.RunPreFilterPlugins(c.ctx, state, pod)
	if status.IsRejected() {
		return -1, nil
	} else if !status.IsSuccess() {
		return -1, status.AsError()
	}
	infos, err := profile.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return -1, err
	}
	var has [3]atomic.Bool
	profile.Parallelizer().Until(c.ctx, len(infos), func(i int) {
		rank := rankOf(infos[i].Node())
		if has[rank].Load() || !allowed.AllNodes() && !allowed.NodeNames.Has(infos[i].Node().Name) {
			return
		}
		if profile.RunFilterPluginsWithNominatedPods(c.ctx, state, pod, infos[i]).IsSuccess() {
			has[rank].Store(true)
		}
	}, "oracle")
	for rank := range has {
		if has[rank].Load() {
			return rank, nil
		}
	}
	return -1, nil
}

func (c *cluster) rank(node string) int {
	info, err := c.sched.Profiles["default"].SnapshotSharedLister().NodeInfos().Get(node)
	if err != nil {
		return -1
	}
	return rankOf(info.Node())
}

// rankOf returns the expected rank of a node, without the plugin's code.
func rankOf(node *v1.Node) int {
	switch node.Labels[mode] {
	case "user":
		return 0
	case "system":
		return 1
	}
	return 2
}
