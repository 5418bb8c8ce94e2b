package poolpriority

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/test/must"
)

func pod(name string) *st.PodWrapper {
	return st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(ourProfile).
		Req(map[v1.ResourceName]string{"cpu": "1", "memory": "1Gi"})
}

// hold has the gatekeeper hold the pod, which listers then know.
func (h *harness) hold(p *v1.Pod, d *gate.Decision, wait *gate.Wait) {
	h.Helper()
	must.NoError(h, h.shared.Core().V1().Pods().Informer().GetIndexer().Add(p))
	h.plugin.gatekeeper.Hold(h.logger, p, d, wait, false)
}

func (h *harness) addNodes(nodes ...*st.NodeWrapper) {
	for _, n := range nodes {
		h.sched.Cache.AddNode(h.logger, n.Obj())
	}
}

// aks is the configuration for AKS, but for the limits and the largest pod of its burst pool.
func aks(t testing.TB) *schedconfig.KubeSchedulerConfiguration {
	cfg := loadConfig(t, "../../manifests/overlays/aks/config.yaml")
	setBurst(cfg, func(b *configv1.Burst) { b.Limits, b.Largest = nil, nil })
	return cfg
}

// setBurst changes the burst pool in the plugin's arguments.
func setBurst(cfg *schedconfig.KubeSchedulerConfiguration, change func(*configv1.Burst)) {
	args := pluginArgs(cfg)
	change(args.Pools[len(args.Pools)-1].Burst)
}

// addOrder adds an order that reverses the pools user and system.
func addOrder(cfg *schedconfig.KubeSchedulerConfiguration) {
	pluginArgs(cfg).Orders = []configv1.NamedOrder{{Name: "system-first", Pools: []string{"system", "user", "aci"}}}
}

func TestNoArguments(t *testing.T) {
	cfg := aks(t)
	cfg.Profiles[0].PluginConfig = slices.DeleteFunc(cfg.Profiles[0].PluginConfig, func(c schedconfig.PluginConfig) bool { return c.Name == Name })
	if _, err := tryHarness(t, cfg); err == nil || !strings.Contains(err.Error(), "no arguments of kind PoolPriorityArgs") {
		t.Errorf("started with %v", err)
	}
}

func notReady(n *v1.Node) *v1.Node {
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse}}
	return n
}
