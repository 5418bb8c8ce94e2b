package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/interpodaffinity"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	userNode, systemNode, virtualNode = "aks-userpool-20654782-vmss000001", "aks-systempool-33037761-vmss000000", "virtual-node-aci-linux"
	held, bursting                    = "web-7d4b9-x2k8q", "web-7d4b9-9fj2p"
)

// quotaReached is the message that virtual-kubelet writes in the status of a pod that Azure refused.
const quotaReached = `api call to https://management.azure.com/subscriptions/0000/resourceGroups/rg: got HTTP response status code 409 error code "ContainerGroupQuotaReached": ` +
	`Resource type 'StandardCores' container group quota '100' exceeded in region 'westeurope'.`

// sentenceOf returns the gate's sentence for the reason with the code.
func sentenceOf(t *testing.T, code string) string {
	if gate.Lookup(code).Sentence == "" {
		t.Fatalf("there is no reason %s", code)
	}
	return gate.Lookup(code).Sentence
}

// TestExplainKeepsSecrets: explain prints no values of variables, commands or annotations of others, so that its output
// can be sent with a bug report.
func TestExplainKeepsSecrets(t *testing.T) {
	const secret = "hunter2"
	s := newServer(t, growing(t).published(0), pod(held, time.Minute, reported(time.Minute, sentenceOf(t, "PoolGrowing")), func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		c.Env, c.Command, c.Args = []corev1.EnvVar{{Name: "PASSWORD", Value: secret}}, []string{secret}, []string{"--password=" + secret}
		p.Annotations["example.com/token"] = secret
	}))
	for _, format := range outputs {
		if out := s.run("explain", held, "-o", format); strings.Contains(out, secret) || !strings.Contains(out, held) {
			t.Error(out)
		}
	}
}

func claims(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	}
}

// apart sets a required anti-affinity over hosts.
func apart(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
		{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}}}
}

func ownedBy(kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: "owner", Controller: ptr.To(true)}}
	}
}

func selects(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func tolerates(tolerations ...corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, tolerations...) }
}

// recorded binds the pod to the virtual node at the time ago before date. The record r has the reason why the pod was
// let in.
func recorded(ago time.Duration, r gate.Record) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		on(ago, virtualNode, "aci", "-1000")(p)
		p.Annotations[gate.DecisionAnnotation] = r.Encode()
		p.Annotations[refusal.BoundAtAnnotation] = date.Add(-ago).Format(time.RFC3339)
		tolerates(corev1.Toleration{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
			corev1.Toleration{Key: configv1.GateTaintKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})(p)
	}
}

var open = gate.Record{Reason: "Open", Waited: "1m40s", Pools: map[string]string{"user": "AtMaxSize", "system": "Backoff"}}

func returns(args *configv1.PoolPriorityArgs) {
	args.Pools[2].Burst.Return.Enabled = true
}

func installedAs(installation string) func(*configv1.PoolPriorityArgs) {
	return func(args *configv1.PoolPriorityArgs) { args.Installation = installation }
}

// gateToleration returns the toleration of the installation's gate taint that the controller adds to pods.
func gateToleration(installation string) corev1.Toleration {
	return corev1.Toleration{Key: configv1.GateTaintKey, Operator: corev1.TolerationOpEqual, Value: installation, Effect: corev1.TaintEffectNoSchedule}
}

// spentIn returns a world whose burst pool has a budget for each namespace, which the namespace has spent.
func spentIn(t *testing.T, namespace string) *world {
	w := full(t, func(args *configv1.PoolPriorityArgs) {
		args.Pools[2].Burst.PerNamespace = &configv1.BurstLimits{Pods: 20}
	})
	w.use = aci.Use{Pods: 30, MilliCPU: 15000}
	w.change = func(v *published.View) {
		v.Shares = []map[string]aci.Use{nil, nil, {namespace: {Pods: 20, MilliCPU: 10000}}}
	}
	return w
}

// TestExplainByKarpenter: explain says how long the pod waits for a NodePool, without and with Karpenter's event that
// it cannot place the pod, and without the right to read events.
func TestExplainByKarpenter(t *testing.T) {
	w := newWorld(t).vms(2, 1).write(5*time.Minute, 0, nodeGroup(userGroup, 2, 2, 3), nodeGroup(systemGroup, 1, 1, 1))
	w.change = func(v *published.View) {
		v.Capacity.Pools[0].Groups[0].ByEvent, v.Capacity.Pools[0].Groups[0].MinWait = true, karpenter.MaxWait
	}
	p := pod(held, 3*time.Minute, reported(3*time.Minute, sentenceOf(t, "PoolCanGrow")))
	p.UID = "held"
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "event"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: p.UID},
		Source: corev1.EventSource{Component: karpenter.Component}, Reason: "FailedScheduling", LastTimestamp: metav1.NewTime(date.Add(-2 * time.Minute))}
	without, with := newServer(t, w.published(5*time.Second), p), newServer(t, w.published(5*time.Second), p, event)
	all := []string{without.run("explain", held), with.run("explain", held)}
	with.forbid("get /api/v1/namespaces/" + p.Namespace + "/events")
	golden(t, "explain-karpenter", strings.Join(append(all, with.run("explain", held)), "\n"))
}

// TestExplainByAutoscaler: explain says how long the pod waits for a group that can grow, without and with the cluster
// autoscaler's event, without the right to read events, and if the scheduler does not read them. The verdict is the
// scheduler's.
func TestExplainByAutoscaler(t *testing.T) {
	p := pod(held, 25*time.Second, reported(25*time.Second, sentenceOf(t, "PoolCanGrow")))
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "event"}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", UID: p.UID},
		Source: corev1.EventSource{Component: clusterautoscaler.Component}, Reason: "NotTriggerScaleUp", LastTimestamp: metav1.NewTime(date.Add(-21 * time.Second)),
		Message: "pod didn't trigger scale-up: 1 node(s) had untolerated taint(s), 2 max node group size reached"}
	var all []string
	for _, reads := range []bool{true, false} {
		w := newWorld(t, func(args *configv1.PoolPriorityArgs) {
			args.Pools[0].ClusterAutoscaler.NodeGroups = append(args.Pools[0].ClusterAutoscaler.NodeGroups, "aks-gpupool-*-vmss")
		}).vms(2, 1)
		if reads {
			w.tracker.ReceiveEvents(date.Add(-4 * time.Minute))
		}
		w.write(5*time.Minute, 0, nodeGroup(userGroup, 2, 2, 2), nodeGroup(systemGroup, 1, 1, 1), nodeGroup("aks-gpupool-11111111-vmss", 0, 0, 4))
		for _, event := range []*corev1.Event{nil, event} {
			request := gate.Request{Pod: p, NoRoomSince: date.Add(-25 * time.Second), UnschedulableSince: date.Add(-25 * time.Second)}
			s := newServer(t, w.published(5*time.Second), p)
			if event != nil {
				s.put(event)
				request.NoScaleUp = func(*corev1.Pod) nodegroups.NoScaleUp {
					return clusterautoscaler.EventOf(event, date.Add(-20*time.Second-300*time.Millisecond)).NoScaleUp
				}
			}
			rule := gate.NewRule(w.args, w.pools)
			decision := rule.Decide(request, w.view, date)
			if got := decision.Burst[2].Open; got != (reads && event != nil) {
				t.Errorf("reads %v, event %v: the scheduler's verdict is %+v", reads, event != nil, decision.Burst[2])
			}
			all = append(all, s.run("explain", held))
			if strings.Contains(all[len(all)-1], "PoolCanGrow") == decision.Burst[2].Open {
				t.Errorf("the scheduler's verdict is %+v, but explain prints:\n%s", decision.Burst[2], all[len(all)-1])
			}
			if reads && event != nil {
				s.forbid("get /api/v1/namespaces/" + p.Namespace + "/events")
				all = append(all, s.run("explain", held))
			}
		}
	}
	golden(t, "explain-autoscaler", strings.Join(all, "\n"))
}

func TestExplainPod(t *testing.T) {
	overflow := func(args *configv1.PoolPriorityArgs) { args.Pools[2].Burst.WhileGrowing = configv1.Overflow }
	said, denied := func(code string) string { return sentenceOf(t, code) }, &denial.Denied{Message: "no", Until: date.Add(4 * time.Minute)}
	for _, tc := range []struct {
		name  string
		world *world
		pod   *corev1.Pod
		more  []string // arguments
	}{
		{"held", growing(t), pod(held, 42*time.Second, reported(41*time.Second, said("PoolGrowing"))), nil},
		{"held-wide", growing(t), pod(held, 42*time.Second, reported(41*time.Second, said("PoolGrowing"))), []string{"-o", "wide"}},
		{"held-json", growing(t), pod(held, 42*time.Second, reported(41*time.Second, said("PoolGrowing"))), []string{"-o", "json"}},
		{"held-overflow", growing(t, overflow), pod(held, 42*time.Second, reported(41*time.Second, said("PoolGrowing"))), nil},
		{"overflow-spent", growing(t, overflow), pod(held, 42*time.Second, reported(41*time.Second, said("BudgetSpent"))), nil},
		{"can-grow", newWorld(t).vms(2, 1).write(5*time.Minute, 0, nodeGroup(userGroup, 2, 2, 3), nodeGroup(systemGroup, 1, 1, 2)),
			pod(held, 21*time.Second, reported(20*time.Second, said("PoolCanGrow"))), nil},
		{"declined", newWorld(t).vms(2, 1).write(5*time.Minute, 0, nodeGroup(userGroup, 2, 2, 3), nodeGroup(systemGroup, 1, 1, 2)),
			pod(held, 3*time.Minute, reported(3*time.Minute, said("PoolCanGrow"))), nil},
		{"backing-off", newWorld(t).vms(2, 2).write(5*time.Minute, time.Minute, nodeGroup(userGroup, 2, 2, 3), nodeGroup(systemGroup, 2, 2, 2)).
			write(50*time.Second, 0, nodeGroup(userGroup, 2, 2, 3, backoff), nodeGroup(systemGroup, 2, 2, 2)), pod(held, 3*time.Minute, reported(3*time.Minute, said("PoolCanGrow"))), nil},
		{"changed", growing(t), pod(held, 42*time.Second, reported(41*time.Second, said("PoolCanGrow"))), nil},
		{"opened", full(t), pod(held, 42*time.Second, reported(41*time.Second, said("PoolGrowing"))), nil},
		{"dead", dead(t), pod(held, 8*time.Minute, reported(8*time.Minute, said("PoolUnknown"))), nil},
		{"not-applicable", growing(t), pod(held, time.Minute, reported(time.Minute, said("PoolGrowing")), selects("mode", "system")), nil},
		{"chose", growing(t), pod(held, time.Minute, reported(time.Minute, said("BudgetSpent")), selects("type", "virtual-kubelet")), nil},
		{"cannot-burst", growing(t), pod("db-0", 3*time.Minute, reported(3*time.Minute, said("PersistentVolume")), claims("data-db-0"), ownedBy("StatefulSet", "db")), nil},
		{"opted-out", full(t), pod(held, 3*time.Minute, reported(3*time.Minute, said("OptedOut")), annotate(pool.BurstAnnotation, "Never")), nil},
		{"gang", full(t), pod(held, 3*time.Minute, reported(3*time.Minute, said("GroupNotHeld"))), nil},
		{"unknown-value", full(t), pod(held, 3*time.Minute, reported(3*time.Minute, said("UnknownBurstValue")), annotate(pool.BurstAnnotation, "never")), nil},
		{"tolerates-all", growing(t), pod(held, 6*time.Minute, reported(6*time.Minute, said("PoolGrowing")), tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists})), nil},
		{"tolerates-gate", growing(t, installedAs("blue")), pod(held, 6*time.Minute, reported(6*time.Minute, said("PoolGrowing")), tolerates(gateToleration("blue"))), nil},
		{"tolerates-gate-of-others", growing(t, installedAs("blue")), pod(held, 6*time.Minute, reported(6*time.Minute, said("PoolGrowing")), tolerates(gateToleration("green"))), nil},
		{"rollout", full(t), pod(held, 20*time.Second, reported(19*time.Second, said("RolloutTerminating"))), nil},
		{"overridden", overridden(t), pod(held, 4*time.Minute, reported(3*time.Minute, said("OverriddenClosed"))), nil},
		{"denied", changed(full(t), func(v *published.View) { v.Capacity.Pools[2].Denied = denied }), pod(held, 4*time.Minute, reported(3*time.Minute, said("BindingsDenied"))), nil},
		{"denied-to-others", changed(growing(t), func(v *published.View) { v.Capacity.Pools[1].Denied = &denial.Denied{All: true, Until: denied.Until} }),
			pod(held, 42*time.Second, reported(41*time.Second, said("BindingsDenied")+", "+said("PoolGrowing"))), nil},
		{"behind", full(t), pod(held, 20*time.Second, reported(time.Second, said("SnapshotStale"))), nil},
		{"victims", full(t), pod(held, 20*time.Second, reported(19*time.Second, said("VictimsTerminating"))), nil},
		{"makes-room", full(t), pod(held, 20*time.Second, reported(19*time.Second, said("MakesRoom"))), nil},
		{"placeholder", full(t), pod(held, 3*time.Minute, reported(3*time.Minute, said("BelowPriority")), func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](-10) }), nil},
		{"refused", refusing(t), pod(held, 4*time.Minute, reported(3*time.Minute, said("Refused"))), nil},
		{"throttled", throttled(t), pod(held, 4*time.Minute, reported(3*time.Minute, said("CreateRate"))), nil},
		{"spent", worlds["spent"](t), pod(held, 4*time.Minute, reported(3*time.Minute, said("BudgetSpent"))), nil},
		{"namespace-spent", spentIn(t, "default"), pod(held, 4*time.Minute, reported(3*time.Minute, said("BudgetSpent"))), nil},
		{"other-namespace-spent", spentIn(t, "other"), pod(held, 42*time.Second, reported(41*time.Second, said("BudgetSpent"))), nil},
		{"wait-limit", growing(t, func(args *configv1.PoolPriorityArgs) { args.Pools[2].Burst.WaitLimit.Duration = 2 * time.Minute }),
			pod(held, 42*time.Second, reported(41*time.Second, said("PoolGrowing"))), nil},
		{"no-room", full(t), pod(held, time.Minute, condition(time.Minute, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/6 nodes are available: 1 Too many pods, 5 Insufficient cpu.")), nil},
		{"one-host", full(t), pod(held, time.Minute, condition(time.Minute, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/6 nodes are available: 1 "+interpodaffinity.ErrReasonAntiAffinityRulesNotMatch+", 5 Insufficient cpu."), apart), nil},
		{"nominated", growing(t), pod(held, time.Minute, reported(time.Minute, said("PoolGrowing")), func(p *corev1.Pod) { p.Status.NominatedNodeName = userNode }), nil},
		{"nominated-first-try", growing(t), pod(held, 20*time.Second, func(p *corev1.Pod) { p.Status.NominatedNodeName = userNode }), nil},
		{"failed", growing(t), pod(held, time.Minute, condition(time.Minute, corev1.ConditionFalse, corev1.PodReasonSchedulerError, "running Bind plugin: the server is away")), nil},
		{"not-tried", growing(t), pod(held, 2*time.Second), nil},
		{"never-tried", growing(t), pod(held, 2*time.Minute), nil},
		{"gated", growing(t), pod(held, 2*time.Minute, condition(2*time.Minute, corev1.ConditionFalse, corev1.PodReasonSchedulingGated, "Scheduling is blocked"), func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
		}), nil},
		{"observed", growing(t, observe), pod(held, time.Minute, condition(time.Minute, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/6 nodes are available: 1 node(s) had untolerated taint(s), 5 Insufficient cpu.")), nil},

		{"burst", full(t, returns), pod(bursting, 80*time.Minute, recorded(72*time.Minute, open)), nil},
		{"burst-would-wait", growing(t), pod(bursting, 80*time.Minute, recorded(72*time.Minute, open)), nil},
		{"burst-observed", full(t, observe), pod(bursting, 80*time.Minute, recorded(72*time.Minute, gate.Record{Reason: "PoolCanGrow", Observed: true, Pools: map[string]string{"user": "BelowMaxSize"}})), nil},
		{"burst-chose", growing(t, returns), pod("job-x7", 80*time.Minute, recorded(72*time.Minute, gate.Record{Reason: "SelectedByPod"}), selects("type", "virtual-kubelet"), ownedBy("Job", "job")), nil},
		{"burst-refused", refusing(t), pod(bursting, 4*time.Minute, recorded(3*time.Minute, open), func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodPending, refusal.ReasonProviderFailed
			p.Status.Message = quotaReached
		}), nil},
		{"burst-unrecorded", full(t), pod(bursting, 80*time.Minute, on(72*time.Minute, virtualNode, "aci", "-1000")), nil},
		{"on-vm", growing(t), pod("web-7d4b9-2m9xv", 3*time.Hour, on(3*time.Hour, systemNode, "system", "1000")), nil},
		{"on-vm-best", growing(t), pod("web-7d4b9-2m9xv", 3*time.Hour, on(3*time.Hour, userNode, "user", "2000")), nil},
		{"on-vm-preferred", growing(t, func(args *configv1.PoolPriorityArgs) { args.Order = configv1.OrderPreferred }), pod("web-7d4b9-2m9xv", 3*time.Hour, on(3*time.Hour, systemNode, "system", "1000")), nil},
		{"on-vm-own-cost", growing(t), pod("web-7d4b9-2m9xv", 3*time.Hour, on(3*time.Hour, userNode, "user", "2000"), annotate("controller.kubernetes.io/pod-deletion-cost", "7")), nil},
		{"ended", growing(t), pod(bursting, 3*time.Hour, recorded(time.Hour, open), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil},
		{"other-scheduler", growing(t), pod("web-1", 3*time.Hour, on(time.Hour, userNode, "", ""), func(p *corev1.Pod) { p.Spec.SchedulerName, p.Annotations = "default-scheduler", nil }), nil},
		{"other-scheduler-waits", growing(t), pod("web-1", 3*time.Minute, func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" },
			condition(time.Minute, corev1.ConditionFalse, corev1.PodReasonUnschedulable, "0/6 nodes are available: 1 node(s) had untolerated taint(s), 5 Insufficient cpu.")), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t, tc.world.published(5*time.Second), tc.pod)
			for _, n := range tc.world.nodes {
				s.put(n)
			}
			golden(t, "explain-"+tc.name, s.run(append([]string{"explain", tc.pod.Name}, tc.more...)...))
			nodes := 0
			for _, asked := range s.asked {
				if strings.Contains(asked, "/nodes") {
					nodes++
				}
			}
			if len(s.asked)-nodes != 2 || nodes > 1 {
				t.Errorf("asked for %q, want the pod, the ConfigMap, and at most one node", s.asked)
			}
		})
	}
}

// deployment returns the Deployment web, with the template of its pods.
func deployment(changes ...func(*corev1.Pod)) *appsv1.Deployment {
	p := pod("web", time.Hour, changes...)
	p.OwnerReferences, p.Name, p.Namespace = nil, "", ""
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "web"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}}}
}

func TestExplainWorkload(t *testing.T) {
	said := func(code string) string { return sentenceOf(t, code) }
	template := deployment().Spec.Template
	selector := deployment().Spec.Selector
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "x"}
	}
	objects := []runtime.Object{
		deployment(),
		&appsv1.ReplicaSet{ObjectMeta: meta("web-7d4b9"), Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
		&appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}, Template: template,
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}}},
		&appsv1.DaemonSet{ObjectMeta: meta("agent"), Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "agent"}}, Template: template}},
		&batchv1.Job{ObjectMeta: meta("once"), Spec: batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "once"}}, Template: template}},
		&batchv1.CronJob{ObjectMeta: meta("nightly"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}}},
		pod("a", time.Hour, on(time.Hour, userNode, "user", "2000")), pod("b", time.Hour, on(time.Hour, userNode, "user", "2000")),
		pod("c", time.Hour, on(time.Hour, systemNode, "system", "1000")), pod("d", 30*time.Minute, recorded(20*time.Minute, open)),
		pod("e", time.Minute, reported(time.Minute, said("PoolGrowing"))), pod("f", time.Minute, reported(time.Minute, said("PoolGrowing"))), pod("g", time.Second),
		pod("h", time.Hour, on(time.Hour, systemNode, "", ""), func(p *corev1.Pod) { p.Annotations = nil }),
		pod("i", time.Hour, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		pod("j", time.Hour, on(time.Hour, systemNode, "system", "1000"), func(p *corev1.Pod) { p.Labels = nil }),
	}
	for name, world := range map[string]*world{"growing": growing(t), "full": full(t)} {
		s := newServer(t, append(objects, world.published(5*time.Second))...)
		for _, n := range world.nodes {
			s.put(n)
		}
		var all []string
		for _, args := range [][]string{{"deploy/web"}, {"deployment", "web"}, {"rs/web-7d4b9"}, {"sts/db"}, {"ds/agent"}, {"job/once"}, {"cronjob/nightly"}} {
			if name == "full" && args[0] != "deploy/web" && args[0] != "sts/db" {
				continue
			}
			all = append(all, s.run(append([]string{"explain"}, args...)...))
		}
		golden(t, "explain-workload-"+name, strings.Join(all, "\n"))
	}
}

func TestExplainFile(t *testing.T) {
	const file = `
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      schedulerName: pool-priority-scheduler
      containers: [{name: web, image: nginx, resources: {limits: {cpu: 500m, memory: 1Gi}}}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: tool}
  spec:
    schedulerName: pool-priority-scheduler
    hostNetwork: true
    containers: [{name: tool, image: tool}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: c}]}}}}
---
apiVersion: example.com/v1
kind: Unheard
metadata: {name: of}
`
	s := newServer(t, growing(t).published(5*time.Second))
	golden(t, "explain-file", s.runWith(file, "explain", "-f", "-"))
	for name, input := range map[string]string{
		"nothing": "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n",
		"garbage": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {template: 7}\n",
		"no-yaml": "a: [\n",
	} {
		golden(t, "explain-file-"+name, s.runWith(input, "explain", "-f", "-"))
	}
	golden(t, "explain-file-missing", s.run("explain", "-f", "testdata/none.yaml"))
}

// TestSaidIsTheGatesOwn: saidOf finds each sentence that the scheduler may write into a pod's condition, whatever else
// the message contains.
func TestSaidIsTheGatesOwn(t *testing.T) {
	for _, r := range gate.Reasons(gate.Kind.InCondition) {
		p := pod("p", time.Minute, reported(time.Minute, r.Sentence))
		if said := saidOf(gate.ScheduledCondition(p).Message); len(said) != 1 || said[0] != r.Reason {
			t.Errorf("%s is read as %+v", r.Code, said)
		}
	}
}

// TestNamesOfGroups: a workload cannot burst if its new pods may get names that are too long for container groups.
func TestNamesOfGroups(t *testing.T) {
	s := newServer(t, full(t).published(0))
	for kind, length := range map[string]int{"Deployment": 63 - len("shop--0123456789-01234"), "StatefulSet": 63 - len("shop--0")} {
		for extra, want := range []string{"would be let into aci", "cannot burst: GroupName"} {
			file := fmt.Sprintf("apiVersion: apps/v1\nkind: %s\nmetadata: {namespace: shop, name: %s}\nspec: {template: {spec: {schedulerName: %s, containers: [{name: web}]}}}\n", kind, strings.Repeat("a", length+extra), shippedName)
			if got := s.runWith(file, "explain", "-f", "-"); !strings.Contains(got, want) {
				t.Errorf("%s, %d more: want %q:\n%s", kind, extra, want, got)
			}
		}
	}
}
