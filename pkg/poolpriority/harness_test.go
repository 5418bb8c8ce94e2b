package poolpriority

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/apis/config/scheme"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

const (
	ourProfile    = "pool-priority-scheduler"
	oracleProfile = "oracle" // the in-tree plugins alone, in the same scheduler: same snapshot, same nominated pods
)

func TestMain(m *testing.M) {
	scheme.Register()
	os.Exit(m.Run())
}

// loadConfig reads a configuration as the scheduler does.
func loadConfig(t testing.TB, file string) *schedconfig.KubeSchedulerConfiguration {
	t.Helper()
	cfg := must.Get(options.LoadConfigFromFile(klog.Background(), file))(t)
	return cfg
}

// pluginArgs returns the plugin's arguments.
func pluginArgs(cfg *schedconfig.KubeSchedulerConfiguration) *configv1.PoolPriorityArgs {
	config := cfg.Profiles[0].PluginConfig
	return config[slices.IndexFunc(config, func(c schedconfig.PluginConfig) bool { return c.Name == Name })].Args.(*configv1.PoolPriorityArgs)
}

// harness is a scheduler without an API server: the real framework, cache and queue, fed by hand.
type harness struct {
	testing.TB
	ctx    context.Context
	sched  *scheduler.Scheduler
	plugin *PoolPriority
	logger klog.Logger
	bound  map[string]*v1.Pod
	client *fake.Clientset
	shared informers.SharedInformerFactory // not started: what listers see is put there by hand

	mu       sync.Mutex
	onDelete func(pod string) // nil: pods are deleted as in any fake
}

func newHarness(t testing.TB, cfg *schedconfig.KubeSchedulerConfiguration) *harness {
	t.Helper()
	h := must.Get(tryHarness(t, cfg))(t)
	return h
}

func tryHarness(t testing.TB, cfg *schedconfig.KubeSchedulerConfiguration, objects ...runtime.Object) (*harness, error) {
	return tryHarnessWith(t, cfg, nil, objects...)
}

// tryHarnessWith makes one with further plugins, which the configuration can name.
func tryHarnessWith(t testing.TB, cfg *schedconfig.KubeSchedulerConfiguration, plugins frameworkruntime.Registry, objects ...runtime.Object) (*harness, error) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(0)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.LoggerWithName(klog.Background(), t.Name())))
	t.Cleanup(cancel)
	h := &harness{TB: t, ctx: ctx, logger: logger, bound: map[string]*v1.Pod{}}
	registry := frameworkruntime.Registry{Name: func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := newPlugin(ctx, args, handle, clock.RealClock{})
		h.plugin = plugin
		return plugin, err
	}}
	for name, plugin := range plugins {
		registry[name] = plugin
	}
	client := fake.NewClientset(objects...)
	// Before anything uses the client.
	client.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deleted := h.deletion()
		if deleted == nil {
			return false, nil, nil
		}
		deleted(action.(clienttesting.DeleteAction).GetName())
		return true, nil, nil
	})
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return h.deletion() != nil, &v1.Pod{}, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	h.client, h.shared = client, factory
	oracle := *cfg.Profiles[0].DeepCopy()
	oracle.SchedulerName = oracleProfile
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	oracle.Plugins, oracle.PluginConfig = defaults.Profiles[0].Plugins, defaults.Profiles[0].PluginConfig
	oracle.Plugins.MultiPoint.Enabled = slices.DeleteFunc(oracle.Plugins.MultiPoint.Enabled, func(p schedconfig.Plugin) bool {
		return p.Name == names.NodeDeclaredFeatures // which the shipped profile disables
	})
	h.sched, err = scheduler.New(ctx, client, factory, nil,
		compat.NoEvents,
		scheduler.WithProfiles(cfg.Profiles[0], oracle),
		scheduler.WithExtenders(cfg.Extenders...),
		scheduler.WithFrameworkOutOfTreeRegistry(registry),
	)
	if err != nil {
		return nil, err
	}
	h.wrap(cfg.Profiles)
	if len(objects) > 0 { // volumes: their plugins go by events
		for _, informer := range []cache.SharedIndexInformer{
			factory.Core().V1().PersistentVolumes().Informer(), factory.Core().V1().PersistentVolumeClaims().Informer(),
			factory.Storage().V1().StorageClasses().Informer(), factory.Storage().V1().CSINodes().Informer(),
		} {
			go informer.Run(ctx.Done())
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				return nil, errors.New("an informer does not sync")
			}
		}
	}
	return h, nil
}

// watches waits until somebody watches the resource: the fake client tells a watch nothing of what was written between
// the list and the watch.
func (h *harness) watches(resource string) {
	h.Helper()
	must.Eventually(h, "somebody watches "+resource, func() bool {
		return slices.ContainsFunc(h.client.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", resource) })
	})
}

// victims has pods that are deleted told to the function, and nothing else done to them.
func (h *harness) victims(deleted func(pod string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onDelete = deleted
}

func (h *harness) deletion() func(pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.onDelete
}

// wrap has the profile look for the best pool after PreFilter, as our binary does.
func (h *harness) wrap(profiles []schedconfig.KubeSchedulerProfile) {
	(&Factory{profile: ourProfile, plugin: h.plugin}).Wrap(h.Context(), h.sched, profiles)
}

// inState is a pool of one node group in the state.
func inState(state nodegroups.State) nodegroups.Pool {
	return nodegroups.Pool{State: state, Groups: []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{State: state}}}}
}

// setCapacity replaces what the gate goes by: a state for each regular pool.
func (h *harness) setCapacity(states ...nodegroups.State) {
	h.plugin.gatekeeper.Assume(h.viewOf(states...))
}

// viewOf is a view with a state for each regular pool. It is so old that nodes which are not in it do not matter.
func (h *harness) viewOf(states ...nodegroups.State) *nodegroups.View {
	view := &nodegroups.View{Pools: make([]nodegroups.Pool, h.plugin.pools.Len())}
	for i, state := range states {
		view.Pools[i] = inState(state)
	}
	return view
}

// schedule runs one scheduling cycle for the pod and returns the node; the pod is on it from then on.
func (h *harness) schedule(pod *v1.Pod) (string, error) {
	return h.scheduleIn(framework.NewCycleState(), pod)
}

// scheduleIn does so with a state that can be looked at afterwards.
func (h *harness) scheduleIn(state fwk.CycleState, pod *v1.Pod) (string, error) {
	info := h.pop(pod)
	defer h.sched.SchedulingQueue.Done(pod.UID)
	result, err := compat.SchedulePod(h.ctx, h.sched, h.sched.Profiles[ourProfile], state, info.Pod)
	if err != nil {
		return "", err
	}
	h.place(pod, result.SuggestedHost)
	return result.SuggestedHost, nil
}

// pop has the pod go through the queue. Others that were requeued meanwhile go back to those that wait.
func (h *harness) pop(pod *v1.Pod) *framework.QueuedPodInfo {
	for compat.Enqueue(h.ctx, h.sched, pod); ; {
		info := must.Get(compat.NextPod(h.logger, h.sched))(h)
		if info.Pod.UID == pod.UID {
			return info
		}
		h.wait(info)
	}
}

// wait has a pod that was popped wait in the queue.
func (h *harness) wait(info *framework.QueuedPodInfo) {
	info.UnschedulablePlugins.Insert("NodeResourcesFit")
	must.NoError(h, compat.AddUnschedulable(h.logger, h.sched, info))
}

func (h *harness) place(pod *v1.Pod, node string) {
	placed := pod.DeepCopy()
	placed.Spec.NodeName = node
	must.NoError(h, h.sched.Cache.AddPod(h.logger, placed))
	h.sched.SchedulingQueue.DeleteNominatedPodIfExists(placed)
	h.bound[pod.Name] = placed
}

func (h *harness) remove(name string) {
	must.NoError(h, h.sched.Cache.RemovePod(h.logger, h.bound[name]))
	delete(h.bound, name)
}

// userNode, systemNode and virtualNode are nodes as AKS has them.
func userNode(name string) *st.NodeWrapper {
	return st.MakeNode().Name(name).Label("kubernetes.azure.com/mode", "user").Label("agentpool", "userpool").
		Label(v1.LabelHostname, name).Capacity(map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "30"})
}

func systemNode(name string) *st.NodeWrapper {
	return st.MakeNode().Name(name).Label("kubernetes.azure.com/mode", "system").Label("agentpool", "systempool").
		Label(v1.LabelHostname, name).Capacity(map[v1.ResourceName]string{"cpu": "4", "memory": "16Gi", "pods": "30"})
}

func virtualNode(name string) *st.NodeWrapper {
	return st.MakeNode().Name(name).Label("type", "virtual-kubelet").Label(v1.LabelHostname, name).
		Taints([]v1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: v1.TaintEffectNoSchedule}}).
		Capacity(map[v1.ResourceName]string{"cpu": "10000", "memory": "4Ti", "pods": "5000"}).
		Condition(v1.NodeReady, v1.ConditionTrue, "", "")
}
