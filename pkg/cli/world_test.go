package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/static"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/test/must"
)

const (
	userGroup, systemGroup = "aks-userpool-20654782-vmss", "aks-systempool-33037761-vmss"
	backoff                = "  scaleUp: {status: Backoff, backoffInfo: {errorCode: QuotaExceeded, errorMessage: the quota is used up}}\n"
)

// world has the pools user, system and aci, and the view that a leader publishes of them. The scheduler's own code
// computes the view from the status that an autoscaler writes.
type world struct {
	*testing.T
	args    *configv1.PoolPriorityArgs
	pools   pool.List
	tracker *clusterautoscaler.Tracker
	nodes   []*corev1.Node
	view    *nodegroups.View
	use     aci.Use
	held    published.Held
	// provider is the status of aci's provider.
	provider breaker.Status
	loops    int
	change   func(*published.View)
}

func newWorld(t *testing.T, change ...func(*configv1.PoolPriorityArgs)) *world {
	selector := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	args := &configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: selector("mode", "user"), ClusterAutoscaler: &configv1.ClusterAutoscalerSource{NodeGroups: []string{"aks-userpool-*-vmss"}}},
		{Name: "system", NodeSelector: selector("mode", "system"), ClusterAutoscaler: &configv1.ClusterAutoscalerSource{NodeGroups: []string{"aks-systempool-*-vmss"}}},
		{Name: "aci", NodeSelector: selector("type", "virtual-kubelet"), Burst: &configv1.Burst{
			Limits:      &configv1.BurstLimits{Pods: 100, CPU: ptr.To(resource.MustParse("100"))},
			Tolerations: []corev1.Toleration{{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
		}},
	}}
	for _, c := range change {
		c(args)
	}
	configv1.SetDefaults_PoolPriorityArgs(args)
	must.NoError(t, configv1.Validate(args).ToAggregate())
	pools := must.Get(pool.ListOf(args))(t)
	w := &world{T: t, args: args, pools: pools, tracker: clusterautoscaler.NewTracker(args.Capacity.StaleAfter.Duration, args.Capacity.ProvisionGrace.Duration)}
	w.view = &nodegroups.View{Pools: make([]nodegroups.Pool, pools.Len())}
	w.provider = breaker.Status{State: breaker.Open}
	w.add("virtual-node-aci-linux", "type", "virtual-kubelet", "")
	return w
}

// add adds a VM of the scale set or, if scaleSet is empty, a virtual node.
func (w *world) add(name, key, value, scaleSet string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{key: value, corev1.LabelOSStable: "linux"}, CreationTimestamp: metav1.NewTime(date.Add(-2 * time.Hour))}}
	if scaleSet != "" {
		n.Spec.ProviderID = "azure:///subscriptions/1/resourceGroups/mc/providers/Microsoft.Compute/virtualMachineScaleSets/" + scaleSet + "/virtualMachines/" + name[len(name)-1:]
	} else {
		n.Spec.Taints = []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: corev1.TaintEffectNoSchedule}, {Key: configv1.GateTaintKey, Value: configv1.DefaultInstallation, Effect: corev1.TaintEffectNoSchedule}}
	}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1900m"), corev1.ResourceMemory: resource.MustParse("6Gi")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: n.CreationTimestamp}}
	w.nodes = append(w.nodes, n)
}

// vms adds nodes to the pools user and system.
func (w *world) vms(user, system int) *world {
	for i := range user {
		w.add(fmt.Sprintf("aks-userpool-20654782-vmss00000%d", i), "mode", "user", userGroup)
	}
	for i := range system {
		w.add(fmt.Sprintf("aks-systempool-33037761-vmss00000%d", i), "mode", "system", systemGroup)
	}
	return w
}

func nodeGroup(name string, target, ready, most int, more ...string) string {
	return fmt.Sprintf("- name: %s\n  health: {status: Healthy, cloudProviderTarget: %d, maxSize: %d, nodeCounts: {registered: {ready: %d}}}\n%s", name, target, most, ready, strings.Join(more, ""))
}

// write simulates the autoscaler's loops, which are 10 s apart, from ago before date to until before date. In each loop
// the autoscaler writes its status, and the view is evaluated.
func (w *world) write(ago, until time.Duration, groups ...string) *world {
	w.Helper()
	for ; ago >= until; ago -= 10 * time.Second {
		w.loops++
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{UID: "status", Annotations: map[string]string{clusterautoscaler.LastUpdatedAnnotation: fmt.Sprint(w.loops)}},
			Data:       map[string]string{clusterautoscaler.StatusKey: "autoscalerStatus: Running\nclusterWide: {health: {status: Healthy}}\nnodeGroups:\n" + strings.Join(groups, "")},
		}
		must.NoError(w, w.tracker.Observe(cm, date.Add(-ago)))
		w.evaluate(ago)
	}
	return w
}

// evaluate computes the view at the time ago before date.
func (w *world) evaluate(ago time.Duration) *world {
	at := date.Add(-ago)
	byPool, _ := w.pools.Group(w.nodes)
	var claims []clusterautoscaler.OwnedGroups
	facts := make([]nodegroups.Facts, w.pools.Len())
	for i := range facts {
		p := w.pools.At(i)
		facts[i] = nodegroups.Facts{Nodes: byPool[i], Template: p.Template, ProvisionGrace: w.args.Capacity.ProvisionGrace.Duration}
		switch {
		case p.ClusterAutoscaler != nil:
			source := clusterautoscaler.Source{Tracker: w.tracker, Groups: clusterautoscaler.GroupsOf(&p.Pool), Graces: p.Graces}
			claims = append(claims, clusterautoscaler.OwnedGroups{Source: source, Nodes: byPool[i]})
			facts[i].Source = source
		case p.Fixed != nil:
			facts[i].Source = static.Fixed{}
		default:
			facts[i].Provider = w.provider
		}
	}
	w.tracker.ObserveNodes(claims, w.nodes, at)
	w.view = nodegroups.Build(facts, w.view, at)
	return w
}

// published returns the ConfigMap that the leader wrote at the time ago before date.
func (w *world) published(ago time.Duration) *corev1.ConfigMap {
	w.Helper()
	use := make([]aci.Use, w.pools.Len())
	use[w.pools.Len()-1] = w.use
	v := &published.View{
		Leader: "pool-priority-scheduler-6c9f7d5b8-4xk2p", Version: "v0.2.0 (Kubernetes v1.35.4)", SchedulerName: shippedName,
		Args: w.args, Installation: w.args.Installation, Capacity: *w.view, Burst: use, Held: w.held,
	}
	for i := range w.pools.Len() {
		v.Available = append(v.Available, w.view.Pools[i].Nodes-w.view.Pools[i].Starting)
	}
	if w.change != nil {
		w.change(v)
	}
	data := must.Get(v.Encode(date.Add(-ago)))(w)
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pool-priority-system", Name: "pool-priority-status"}, Data: map[string]string{published.ViewKey: string(data)}}
}

// changed returns the world, whose published state is changed.
func changed(w *world, change func(*published.View)) *world {
	w.change = change
	return w
}

// usage sets the published usage of the regular pools.
func usage(user, system published.Usage) func(*published.View) {
	return func(v *published.View) { v.Usage = []published.Usage{user, system, {}} }
}

func use(pods int, cpu, ofCPU, memory, ofMemory string) published.Usage {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	return published.Usage{Pods: pods, Requested: list(cpu, memory), Allocatable: list(ofCPU, ofMemory)}
}

// pod returns a pending pod of the ReplicaSet web-7d4b9 that was created at the time ago before date.
func pod(name string, ago time.Duration, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
			CreationTimestamp: metav1.NewTime(date.Add(-ago)),
			OwnerReferences:   []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7d4b9", UID: "web-7d4b9", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{SchedulerName: shippedName, Containers: []corev1.Container{{Name: "web", Image: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi")}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

// reported sets the condition that the scheduler writes on an unschedulable pod: VMs are full, and burst nodes are
// rejected with the sentences. The pod has been unschedulable since the time ago before date.
func reported(ago time.Duration, sentences ...string) func(*corev1.Pod) {
	message := "0/6 nodes are available: "
	for _, s := range sentences {
		message += "1 " + s + ", "
	}
	message += "5 Insufficient cpu. no new claims to deallocate, preemption: 0/6 nodes are available: 1 Preemption is not helpful for scheduling, 5 No preemption victims found for incoming pod."
	return condition(ago, corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)
}

func condition(ago time.Duration, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(date.Add(-ago))}}
	}
}

// on binds the pod to a node of the pool at the time ago before date, and sets its deletion cost.
func on(ago time.Duration, node, pool, cost string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		condition(ago, corev1.ConditionTrue, "", "")(p)
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		annotate("poolpriority.dev/pool", pool)(p)
		annotate("controller.kubernetes.io/pod-deletion-cost", cost)(p)
		annotate("poolpriority.dev/pod-deletion-cost", cost)(p)
	}
}

func annotate(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}
