package model

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
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
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

const agentPoolLabel = "kubernetes.azure.com/agentpool"

// subject is the code under test. It observes the same history as the model.
type subject struct {
	t          *testing.T
	configs    []configv1.Pool
	staleAfter time.Duration
	rule       gate.Rule
	tracker    *clusterautoscaler.Tracker
	sources    []clusterautoscaler.Source
	view       *nodegroups.View
	reader     *reader
	// classes has the Assessments of pods by their class (alike.View), for the view assessed.
	classes  map[string]*gate.Assessment
	assessed *nodegroups.View
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func duration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func newSubject(t *testing.T, h *history) *subject {
	s := &subject{t: t}
	for i := range h.settings.pools {
		p := &h.settings.pools[i]
		c := configv1.Pool{Name: p.name, NodeSelector: matching("kubernetes.azure.com/mode", p.mode), ClusterAutoscaler: &configv1.ClusterAutoscalerSource{},
			Capacity: &configv1.PoolCapacity{ProvisionGrace: duration(p.provision), BackoffGrace: duration(p.backoff), DeclineGrace: duration(p.decline)}}
		if p.agentPool != "" {
			c.NodeSelector = matching(agentPoolLabel, p.agentPool)
		}
		if p.pattern != "" {
			c.ClusterAutoscaler.NodeGroups = []string{p.pattern + "*"}
		}
		for _, g := range h.known {
			if g.template != nil && g.mode == p.mode {
				n := (&node{group: &group{agentPool: g.agentPool, mode: g.mode, kind: *g.template}}).object()
				c.ClusterAutoscaler.NodeTemplates = append(c.ClusterAutoscaler.NodeTemplates, configv1.NodeGroupTemplate{NodeGroup: g.name,
					NodeTemplate: configv1.NodeTemplate{Labels: n.Labels, Taints: n.Spec.Taints, Allocatable: n.Status.Allocatable}})
			}
		}
		s.configs = append(s.configs, c)
	}
	selector := matching("type", "virtual-kubelet")
	if h.v2 {
		selector.MatchLabels["virtualization"] = "virtualnode2"
	}
	s.configs = append(s.configs, configv1.Pool{Name: "aci", NodeSelector: selector, Burst: &configv1.Burst{Limits: &configv1.BurstLimits{Pods: int32(h.maxPods)}, Creates: configv1.BurstCreates{Per5Minutes: new(int32), PerHour: new(int32)}, WaitLimit: metav1.Duration{Duration: h.wait},
		MakeRoom: configv1.MakeRoom{BelowPriority: ptr.To[int32](math.MinInt32)}}}) // pods of any priority may burst
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: s.configs, Capacity: configv1.Capacity{DeclineGrace: duration(time.Minute)}}))(t)
	s.rule = gate.Rule{Pools: pools, UnknownGrace: h.unknownGrace, StaleAfter: noCreditEnds, NewPodDelay: h.newPodDelay, HoldLimit: h.hold}
	s.reader = newReader(s)
	s.staleAfter = h.staleAfter
	s.start()
	s.view = &nodegroups.View{Pools: make([]nodegroups.Pool, pools.Len())}
	return s
}

// start sets the tracker and the sources to those of a scheduler that has just started.
func (s *subject) start() {
	s.tracker = clusterautoscaler.NewTracker(s.staleAfter, lasting)
	s.sources = nil
	for i := range s.rule.Pools.Regular() {
		s.sources = append(s.sources, clusterautoscaler.Source{Tracker: s.tracker, Groups: clusterautoscaler.GroupsOf(&s.configs[i]),
			Graces: s.rule.Pools.At(i).Graces})
	}
}

// publish returns the data that a leader publishes at the time now.
func (s *subject) publish(now time.Time) map[string]string {
	state := &published.Status{View: &published.View{Args: &configv1.PoolPriorityArgs{Pools: s.configs}, Capacity: *s.view},
		Memory: published.Memory{Written: now, ClusterAutoscaler: s.tracker.Memory(true, now)}}
	data, err := state.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	return data
}

// restart replaces the scheduler with one that restores the published data at the time now.
func (s *subject) restart(data map[string]string, now time.Time) {
	state, err := published.Decode(&corev1.ConfigMap{Data: data})
	if err != nil {
		s.t.Fatal(err)
	}
	s.start()
	s.tracker.Restore(state.Memory.ClusterAutoscaler, now)
	s.view = &nodegroups.View{Pools: make([]nodegroups.Pool, s.rule.Pools.Len())}
	for i := range s.rule.Pools.Regular() {
		s.view.Pools[i], _ = state.View.Restored(s.configs[i].Name)
	}
}

// look builds the view again, as the gatekeeper does.
func (s *subject) look(l *look) {
	s.rule.Override = gate.Override{Gate: gate.OverriddenGate(l.override.gate), Until: l.override.until}
	var nodes []*corev1.Node
	for i := range l.nodes {
		nodes = append(nodes, l.nodes[i].object())
	}
	_ = s.tracker.Observe(l.status.configMap(), l.at) // another test checks the error for an unreadable status
	byPool, _ := s.rule.Pools.Group(nodes)
	var claims []clusterautoscaler.OwnedGroups
	for i := range s.sources {
		claims = append(claims, clusterautoscaler.OwnedGroups{Source: s.sources[i], Nodes: byPool[i]})
	}
	s.tracker.ObserveNodes(claims, nodes, l.at)
	facts := make([]nodegroups.Facts, s.rule.Pools.Len())
	for i := range facts {
		p := s.rule.Pools.At(i)
		facts[i] = nodegroups.Facts{Nodes: byPool[i], Template: p.Template}
		if i < len(s.sources) {
			facts[i].Source, facts[i].ProvisionGrace = s.sources[i], s.sources[i].Graces.Provision
		}
	}
	s.view = nodegroups.Build(facts, s.view, l.at)
}

func (n *node) object() *corev1.Node {
	g := n.group
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, UID: types.UID(n.name), CreationTimestamp: metav1.Time{Time: n.created},
		Labels: map[string]string{agentPoolLabel: g.agentPool, "kubernetes.azure.com/mode": g.mode, "disk": g.kind.disk, "kubernetes.io/hostname": n.name}}}
	if g.size != "" {
		o.Labels[corev1.LabelInstanceTypeStable] = g.size
	} else {
		o.Spec.ProviderID = "azure:///subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/virtualMachineScaleSets/" + g.name + "/virtualMachines/" + n.name
	}
	taint := func(key string) {
		o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	if g.kind.tainted {
		taint("dedicated")
	}
	if n.startup {
		taint("startup-taint.cluster-autoscaler.kubernetes.io/csi")
	}
	if n.startupTaint {
		taint("example.com/agent")
	}
	if n.passing {
		taint("node.kubernetes.io/unschedulable")
	}
	if n.leaving && n.deleted {
		o.DeletionTimestamp = &metav1.Time{Time: n.created}
	} else if n.leaving {
		taint("ToBeDeletedByClusterAutoscaler")
	}
	o.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(g.kind.cpu, resource.DecimalSI)}
	condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Time{Time: n.readyAt}}
	if n.ready {
		condition.Status = corev1.ConditionTrue
	}
	o.Status.Conditions = []corev1.NodeCondition{condition}
	return o
}

func (m *moment) configMap() *corev1.ConfigMap {
	if m == nil {
		return nil
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(m.made + 1)), Annotations: map[string]string{clusterautoscaler.LastUpdatedAnnotation: fmt.Sprint(m.serial)}}}
	text := ""
	switch m.kind {
	case "garbage":
		text = "{"
	case "initializing":
		text = "autoscalerStatus: Initializing"
	default:
		health := "Healthy"
		if m.kind == "unhealthy" {
			health = "Unhealthy"
		}
		text = fmt.Sprintf("autoscalerStatus: Running\nclusterWide: {health: {status: %s, lastTransitionTime: t%d}}\nnodeGroups:\n", health, m.began)
		for _, name := range slices.Sorted(maps.Keys(m.groups)) {
			g := m.groups[name]
			health, scaleUp := "Healthy", "NoActivity"
			if g.unhealthy {
				health = "Unhealthy"
			}
			if g.backoff {
				scaleUp = "Backoff"
			}
			text += fmt.Sprintf("- {name: %s, health: {status: %s, cloudProviderTarget: %d, maxSize: %d, nodeCounts: {registered: {ready: %d, unready: {total: %d}}, longUnregistered: %d}}, scaleUp: {status: %s}}\n",
				name, health, g.target, g.max, g.ready, g.unready, g.longUnregistered, scaleUp)
		}
	}
	cm.Data = map[string]string{clusterautoscaler.StatusKey: text}
	return cm
}

func (k *podKind) pod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}, CreationTimestamp: metav1.Time{Time: k.created}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{}, HostNetwork: k.hostNet, Priority: &k.priority, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(k.cpu, resource.DecimalSI)}}}}}}
	if k.disk != "" {
		p.Spec.NodeSelector["disk"] = k.disk
	}
	if k.agentPool != "" {
		p.Spec.NodeSelector[agentPoolLabel] = k.agentPool
	}
	if k.virtual {
		p.Spec.NodeSelector["type"] = "virtual-kubelet"
	}
	if k.tolerates {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
	}
	if k.counts {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "job", UID: "job", Controller: ptr.To(true)}}
	}
	if k.init {
		p.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}
	}
	if k.burst != "" {
		p.Annotations[pool.BurstAnnotation] = k.burst
	}
	if k.delay > 0 {
		p.Annotations[gate.DelayAnnotation] = k.delay.String()
	}
	if k.requested {
		p.Annotations["autoscaling.x-k8s.io/consume-provisioning-request"] = "request"
	}
	return p
}

func (k *podKind) request(burst, burstPods int) gate.Request {
	uses := make([]aci.Use, burst+1)
	uses[burst].Pods, uses[burst].MilliCPU = burstPods, int64(burstPods)*1000
	return gate.Request{Pod: k.pod(), UnschedulableSince: k.since, NoRoomSince: k.noRoom, IgnoredUntil: k.ignored, Burst: uses}
}

// paces sets the pacing of the pod's owner in the view at the time now.
func (s *subject) paces(k *podKind, burst int, now time.Time) {
	owner := breaker.OwnerPacing{}
	for range k.pacing.starting {
		owner.Starting = append(owner.Starting, now.Add(5*time.Second))
	}
	for range k.pacing.refused {
		owner.Refused = append(owner.Refused, now.Add(time.Hour))
	}
	pacing := &breaker.Pacing{
		Peak:   breaker.Size{Pods: k.pacing.peakPods, MilliCPU: int64(k.pacing.peakCPU) * 1000},
		Recent: breaker.Size{Pods: k.pacing.recentPods, MilliCPU: int64(k.pacing.recentCPU) * 1000},
		Owners: map[types.UID]breaker.OwnerPacing{refusal.OwnerOf(k.pod()): owner},
	}
	if k.pacing.trusted {
		pacing.TrustedUntil = now.Add(time.Minute)
	}
	view := *s.view
	view.Pools = slices.Clone(view.Pools)
	view.Pools[burst].Provider.Pacing = pacing
	s.view = &view
}

func randomPod(r *rand.Rand, now time.Time) podKind {
	k := podKind{cpu: int64(1 + r.IntN(4)), tolerates: r.IntN(2) == 0, virtual: r.IntN(20) == 0, hostNet: r.IntN(25) == 0, init: r.IntN(15) == 0}
	k.disk = []string{"", "", "", "ssd", "hdd"}[r.IntN(5)]
	k.agentPool = []string{"", "", "", "", "", "", "gen", "sys", "pat", "spare"}[r.IntN(10)]
	k.burst = []string{"", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "Always", "Never"}[r.IntN(20)]
	k.created = now.Add(-time.Duration(r.IntN(3000)) * time.Second)
	if r.IntN(3) == 0 {
		k.created = now.Add(-time.Duration(r.IntN(300)) * time.Second)
	}
	if r.IntN(15) > 0 {
		k.since = k.created.Add(time.Duration(r.IntN(int(now.Sub(k.created)/time.Second)+1)) * time.Second)
		switch r.IntN(12) {
		case 0: // it waits for something other than resources
		case 1:
			k.noRoom = k.since.Add(now.Sub(k.since) / 2)
		default:
			k.noRoom = k.since
		}
	}
	if r.IntN(12) == 0 {
		k.delay = time.Duration(r.IntN(600)) * time.Second
	}
	k.requested = r.IntN(12) == 0
	if r.IntN(12) == 0 {
		k.ignored = now.Add(-time.Duration(r.IntN(200)) * time.Second)
	}
	if k.counts = r.IntN(5) == 0; k.counts {
		k.pacing = pacing{starting: r.IntN(4), refused: r.IntN(5), peakPods: r.IntN(8), peakCPU: r.IntN(10), trusted: r.IntN(2) == 0}
		k.pacing.recentPods, k.pacing.recentCPU = r.IntN(k.pacing.peakPods+1), r.IntN(k.pacing.peakCPU+1)
	}
	if r.IntN(15) == 0 {
		k.priority = -11
	} else if r.IntN(15) == 0 {
		k.priority = -10
	}
	return k
}
