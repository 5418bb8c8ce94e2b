package lint

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// healthy returns the facts of a cluster without a problem. source is the source of the regular pools.
func healthy(t *testing.T, source configv1.Pool, change func(*configv1.PoolPriorityArgs)) *Facts {
	t.Helper()
	selector := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"mode": value}}
	}
	user, system := source, source
	user.Name, user.NodeSelector, system.Name, system.NodeSelector = "user", selector("user"), "system", selector("system")
	args := &configv1.PoolPriorityArgs{Pools: []configv1.Pool{user, system,
		{Name: "aci", NodeSelector: selector("aci"), Burst: &configv1.Burst{Limits: &configv1.BurstLimits{Pods: 100, CPU: ptr.To(resource.MustParse("100"))}}}}}
	if change != nil {
		change(args)
	}
	configv1.SetDefaults_PoolPriorityArgs(args)
	f := &Facts{Pools: must.Get(pool.ListOf(args))(t), View: &nodegroups.View{}, GroupsKnown: true}
	for range f.Pools.Len() {
		f.View.Pools = append(f.View.Pools, nodegroups.Pool{Nodes: 1})
	}
	f.AKS = must.Get(ParseAKS(must.ReadFile(t, "testdata/aks.json")))(t)
	f.Scheduler, f.Args = "pool-priority-scheduler", args
	f.BurstNodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"mode": "aci"}}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{
		{Key: azure, Value: "azure", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}, // it will be ready again
		f.Pools.GateTaint(),
	}}}}
	f.Quota = must.Get(ParseQuota(must.ReadFile(t, "testdata/usages.json")))(t)
	return f
}

var (
	autoscaler = configv1.Pool{ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}}
	static     = configv1.Pool{Fixed: &configv1.FixedSource{}}
)

// TestCheck: each code has facts that yield exactly this code. Healthy clusters yield nothing.
func TestCheck(t *testing.T) {
	type args = configv1.PoolPriorityArgs
	both := func(a *args) {
		a.Pools[1].ClusterAutoscaler, a.Pools[1].Karpenter = nil, &configv1.KarpenterSource{NodePool: "default"}
	}
	unfit := func(f *Facts) {
		f.FitNoPool = []string{"Deployment shop/web"}
	}
	for _, tc := range []struct {
		name   string
		source configv1.Pool
		args   func(*args)
		facts  func(*Facts)
		want   string // code, severity and object
		says   string
	}{
		{name: "cluster autoscaler", source: autoscaler},
		{name: "static pools", source: static, facts: func(f *Facts) { f.AKS.AutoScalerProfile.Expander = "random" }},
		{name: "node auto-provisioning", source: configv1.Pool{Karpenter: &configv1.KarpenterSource{NodePool: "default"}}, facts: func(f *Facts) {
			f.AKS.NodeProvisioningProfile.Mode, f.AKS.AutoScalerProfile.Expander = "Auto", ""
			f.View.Pools[0].Nodes = 0 // Karpenter's NodePools are often empty
		}},
		{name: "nothing is known", source: static, facts: func(f *Facts) { *f = Facts{} }},
		{name: "a pool that is scaled to zero", source: autoscaler, facts: func(f *Facts) {
			f.View.Pools[0] = nodegroups.Pool{Groups: []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{Name: "aks-user-1-vmss"}}}}
		}},
		{name: "old API server", source: static, facts: func(f *Facts) { f.Server = errors.New("too old") }, want: "VersionUnsupported Error cluster", says: "too old"},
		{name: "old AKS", source: static, facts: func(f *Facts) { f.AKS.CurrentKubernetesVersion = "1.34.9" }, want: "VersionUnsupported Error AKS cluster", says: "1.34.9"},
		{name: "managed system node pools", source: static, args: func(a *args) {
			a.Pools[1].NodeSelector.MatchLabels = map[string]string{"kubernetes.azure.com/mode": "system"}
		}, facts: func(f *Facts) {
			f.AKS.HostedSystemProfile.Enabled, f.AKS.AgentPoolProfiles = true, nil
		}, want: "VirtualNodeImpossible Error AKS cluster, ManagedSystemPool Warning AKS cluster"},
		{name: "managed system node pools in no pool", source: static, facts: func(f *Facts) {
			f.AKS.HostedSystemProfile.Enabled, f.AKS.AgentPoolProfiles = true, nil
		}, want: "VirtualNodeImpossible Error AKS cluster"},
		{name: "other times than the defaults", source: autoscaler, facts: func(f *Facts) {
			f.AKS.AutoScalerProfile.Times = Times{"1m", "20m", "50s"}
		}, want: "OddSetting Warning capacity", says: "it is too short"},
		{name: "other times of an autoscaler that is not AKS's", source: autoscaler, facts: with(func(w *Workload) {
			w.Template.Spec.Containers = []corev1.Container{{Image: "registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.1", Args: []string{"--scan-interval=2m"}}}
		}), want: "OddSetting Warning capacity", says: "it is too short"},
		{name: "other times without a cluster autoscaler", source: static, facts: func(f *Facts) { f.AKS.AutoScalerProfile.NewPodScaleUpDelay = "1m" }},
		{name: "other times without a burst pool", source: autoscaler, args: func(a *args) { a.Pools = a.Pools[:2] }, facts: func(f *Facts) {
			f.AKS.AutoScalerProfile.NewPodScaleUpDelay, f.BurstNodes, f.Quota = "1m", nil, nil
		}},
		{name: "VMs that are stopped", source: autoscaler, args: stops("user"), facts: deallocates, want: "OddSetting Warning pool user", says: "Azure/AKS#5589"},
		{name: "VMs that are stopped, and a short time for them", source: autoscaler, args: func(a *args) {
			stops("user")(a)
			a.Pools[0].Capacity = &configv1.PoolCapacity{ProvisionGrace: &metav1.Duration{Duration: 5 * time.Minute}}
		}, facts: deallocates},
		{name: "VMs that are stopped, in no pool", source: autoscaler, args: stops("other"), facts: deallocates},
		{name: "VMs that are stopped, without a burst pool", source: autoscaler, args: func(a *args) {
			stops("user")(a)
			a.Pools = a.Pools[:2]
		}, facts: func(f *Facts) {
			deallocates(f)
			f.BurstNodes, f.Quota = nil, nil
		}},
		{name: "Overlay", source: static, facts: func(f *Facts) { f.AKS.NetworkProfile.NetworkPluginMode = "overlay" }, want: "VirtualNodeImpossible Error AKS cluster", says: "Azure CNI Overlay"},
		{name: "an autoscaler that cannot be", source: autoscaler, args: func(a *args) { a.Pools[1].ClusterAutoscaler, a.Pools[1].Fixed = nil, &configv1.FixedSource{} },
			facts: func(f *Facts) { f.AKS.NodeProvisioningProfile.Mode = "Auto"; f.AKS.AgentPoolProfiles = nil }, want: "WrongAutoscaler Error pool user", says: "no agent pool has the cluster autoscaler"},
		{name: "two autoscalers", source: autoscaler, args: both, facts: func(f *Facts) { f.AKS.NodeProvisioningProfile.Mode = "Auto" }},
		{name: "two autoscalers, and a workload that tolerates neither's taint", source: autoscaler, args: both, facts: unfit, want: "NoPoolFits Error workloads", says: "the pods of 1 workload(s) fit no VM"},
		{name: "a workload that tolerates no pool's taint", source: autoscaler, facts: unfit, want: "NoPoolFits Warning workloads", says: "Deployment shop/web"},
		{name: "expander random", source: autoscaler, facts: func(f *Facts) { f.AKS.AutoScalerProfile.Expander = "random" }, want: "ExpanderNotPriority Warning AKS cluster", says: `"random"`},
		{name: "an expander that is not known", source: autoscaler, facts: func(f *Facts) { f.AKS.AutoScalerProfile.Expander = "" }},
		{name: "expander random, configuration not known", source: autoscaler, facts: func(f *Facts) { *f = Facts{AKS: f.AKS}; f.AKS.AutoScalerProfile.Expander = "random" },
			want: "ExpanderNotPriority Warning AKS cluster", says: `"random"`},
		{name: "one of several expanders", source: autoscaler, facts: func(f *Facts) { f.AKS.AutoScalerProfile.Expander = "priority,least-waste" }},
		{name: "no burst node", source: autoscaler, facts: func(f *Facts) { f.View.Pools[2].Nodes = 0 }, want: "EmptyPool Warning pool aci", says: "matches no node"},
		{name: "no budget", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.Limits = nil }, facts: func(f *Facts) { f.Quota = nil }, want: "NoBudget Warning pool aci", says: "any number of pods"},
		{name: "a budget of pods only", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.Limits.CPU = nil }, want: "OverQuota Error pool aci", says: "none of CPU"},
		{name: "too many pods", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.Limits.Pods = 101 }, want: "OverQuota Error burst pools", says: "101 pods, and the quota 100"},
		{name: "too many CPUs", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.Limits.CPU = ptr.To(resource.MustParse("100500m")) }, want: "OverQuota Error burst pools", says: "100.5 CPUs, and the quota 100"},
		{name: "another provider has another quota", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.Limits.Pods, a.Pools[2].Burst.Platform = 900, configv1.PlatformOther }},
		{name: "system pool for add-ons", source: autoscaler, facts: func(f *Facts) {
			f.View.Pools[1].Groups = []nodegroups.Group{{NodeTemplates: []nodegroups.NodeTemplate{{Taints: []corev1.Taint{{Key: "CriticalAddonsOnly", Effect: corev1.TaintEffectNoSchedule}}}}}}
		}, want: "CriticalAddonsOnly Info pool system", says: "skip this pool"},
		{name: "what the scheduler found", source: autoscaler, facts: func(f *Facts) { f.Problems = []string{"pool user: no status"} }, want: "Problem Warning scheduler", says: "no status"},
		{name: "order of growth", source: autoscaler, facts: func(f *Facts) { f.Disorder = []string{"system grows first"} }, want: "ExpanderOrder Warning autoscaler", says: "system grows first"},
		{name: "a NodePool without limits", source: autoscaler, facts: func(f *Facts) { f.Unlimited = []string{"default"} }, want: "NoLimits Warning NodePool default", says: "never full"},
		{name: "a pool that is scaled to zero, before an installation", source: autoscaler, facts: func(f *Facts) { f.View.Pools[0].Nodes, f.GroupsKnown = 0, false }},
		{name: "a node in two pools", source: autoscaler, facts: func(f *Facts) {
			f.Overlaps = []pool.Overlap{{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vm"}}, Pools: "user, system"}}
		}, want: "InSeveralPools Warning node vm", says: "of the pools user, system; it belongs to the first"},
		{name: "a taint of virtual nodes that nobody tolerates", source: autoscaler, facts: tainted(nil), want: "UntoleratedTaint Warning pool aci", says: "the taint team=a:NoSchedule"},
		{name: "a taint that one of two workloads tolerates", source: autoscaler, facts: tainted(tolerates("team")), want: "UntoleratedTaint Warning pool aci", says: "the taint team=a:NoSchedule"},
		{name: "a taint that each workload that may burst tolerates", source: autoscaler, facts: func(f *Facts) {
			tainted(tolerates("team"))(f)
			f.Workloads = f.Workloads[:1]
		}},
		{name: "a denied taint", source: autoscaler, facts: func(f *Facts) { f.GateTaintDenied = "a policy denies it" }, want: "GateTaintDenied Error nodes", says: "a policy denies it"},
		{name: "before an installation, without a cluster", source: autoscaler, facts: func(f *Facts) { f.View = nil }},

		{name: "workloads without a problem", source: autoscaler, facts: func(f *Facts) {
			f.Workloads = []Workload{
				workload(nil), workload(func(w *Workload) { w.Ours, w.Pods = true, 3 }),
				workload(func(w *Workload) { // it may run on VMs only
					w.Template.Spec.Tolerations, w.Template.Spec.NodeSelector = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, map[string]string{"mode": "user"}
				}),
				workload(func(w *Workload) { // an agent
					w.Kind, w.Template.Spec.Tolerations = "DaemonSet", []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
				}),
				workload(func(w *Workload) { // evictions only
					w.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
				}),
				workload(func(w *Workload) { w.Template.Spec.Tolerations = tolerates(azure, configv1.GateTaintKey) }),
				workload(func(w *Workload) { // it loses what the pool's configuration allows to lose
					w.Ours, w.Lost = true, gate.Lost{}
				}),
				workload(func(w *Workload) { w.ByNamespace, w.Ours, w.Pods = true, true, 2 }),
			}
		}},
		{name: "tolerates the virtual node", source: autoscaler, facts: with(func(w *Workload) { w.Template.Spec.Tolerations = tolerates(azure) }), want: "LockedOut Error Deployment shop/web", says: "but not once they have the gate taint"},
		{name: "begins to burst", source: autoscaler, facts: func(f *Facts) {
			f.Pools.At(2).Burst.Tolerations = nil // an older scheduler published it
			f.Workloads = []Workload{workload(func(w *Workload) { w.Ours = true }), workload(func(w *Workload) { w.Ours, w.Template.Spec.Tolerations = true, tolerates(azure) })}
		}, want: "BeginsToBurst Info Deployment shop/web", says: "its pods burst from this version on"},
		{name: "without gate taint", source: autoscaler, facts: func(f *Facts) {
			with(func(w *Workload) { w.Template.Spec.Tolerations = tolerates(azure) })(f)
			*f.Args.GateTaint = false
		}},
		{name: "has pods there, whatever it tolerates now", source: autoscaler, facts: with(func(w *Workload) { w.OnBurst = 2 }), want: "LockedOut Error Deployment shop/web", says: "has 2 pod(s) on burst nodes"},
		{name: "tolerates everything", source: autoscaler, facts: with(func(w *Workload) {
			w.Ours, w.Template.Spec.Tolerations = true, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}),
			want: "ToleratesEverything Error Deployment shop/web", says: "adds no node"},
		{name: "tolerates everything, before there is a burst node", source: autoscaler, facts: func(f *Facts) {
			with(func(w *Workload) {
				w.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			})(f)
			f.BurstNodes = nil
		}, want: "ToleratesEverything Warning Deployment shop/web", says: "adds no node"},
		{name: "an unknown order", source: autoscaler, facts: with(func(w *Workload) {
			w.Ours, w.Template.Annotations = true, map[string]string{pool.OrderAnnotation: "typo"}
		}), want: "UnknownOrder Warning Deployment shop/web", says: `no order "typo"`},
		{name: "placeholders that the autoscaler ignores", source: autoscaler, facts: with(func(w *Workload) { w.Ours, w.Expendable = true, 2 }),
			want: "ExpendablePriority Warning Deployment shop/web", says: "2 of its pod(s)"},
		{name: "such placeholders without a cluster autoscaler", source: static, facts: with(func(w *Workload) { w.Ours, w.Expendable = true, 2 })},
		{name: "a buffer of burst pods", source: autoscaler, facts: with(func(w *Workload) { w.Ours, w.Buffer = true, "spare" }), want: "BufferCopiesBurstPods Warning Deployment shop/web", says: "CapacityBuffer spare"},
		{name: "a buffer of burst pods with Karpenter", source: static, facts: with(func(w *Workload) { w.Ours, w.Buffer = true, "spare" })},
		{name: "a buffer of burst pods without added tolerations", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.AddTolerations = ptr.To(false) }, facts: with(func(w *Workload) { w.Ours, w.Buffer = true, "spare" })},
		{name: "a privileged pod", source: autoscaler, facts: with(func(w *Workload) { w.Ours, w.CannotBurst = true, "Privileged, it is privileged" }), want: "CannotBurst Info Deployment shop/web", says: "always wait for a VM: Privileged"},
		{name: "a NetworkPolicy", source: autoscaler, facts: with(func(w *Workload) {
			w.Ours, w.Pods, w.Lost = true, 3, gate.Lost{configv1.LossNetworkPolicy: "the NetworkPolicy deny"}
		}),
			want: "RunsDifferently Info Deployment shop/web", says: "in pool aci, its 3 pod(s) run without the NetworkPolicy deny"},
		{name: "a long time to end", source: autoscaler, facts: with(func(w *Workload) { w.Ours, w.Template.Spec.TerminationGracePeriodSeconds = true, ptr.To(int64(300)) }),
			want: "RunsDifferently Info Deployment shop/web", says: "in pool aci, its pods run without the whole of its terminationGracePeriodSeconds"},
		{name: "pods that stay when they have ended", source: autoscaler, facts: with(func(w *Workload) { w.Kind, w.Ours, w.Finishes = "Job", true, true }), want: "FinishedPodsStay Info Job shop/web", says: "in pool aci"},
		{name: "pods that stay elsewhere", source: autoscaler, args: func(a *args) { a.Pools[2].Burst.Platform = configv1.PlatformOther }, facts: func(f *Facts) {
			with(func(w *Workload) { w.Kind, w.Ours, w.Finishes = "Job", true, true })(f)
			f.Quota = nil
		}},
		{name: "a private image", source: autoscaler, facts: with(func(w *Workload) { w.Ours, w.Unauthorized = true, "shop.azurecr.io/web:1" }), want: "NoPullSecret Warning Deployment shop/web", says: "shop.azurecr.io/web:1"},
		{name: "a private image on virtual nodes v2", source: autoscaler, facts: func(f *Facts) {
			with(func(w *Workload) { w.Ours, w.Unauthorized = true, "shop.azurecr.io/web:1" })(f)
			f.BurstNodes[0].Labels["virtualization"] = "virtualnode2"
		}},
		{name: "tolerates everything, and there is no burst pool", source: autoscaler, args: func(a *args) { a.Pools = a.Pools[:2] }, facts: func(f *Facts) {
			with(func(w *Workload) {
				w.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			})(f)
			f.BurstNodes, f.Quota = nil, nil
		}},
		{name: "a misspelt scheduler", source: autoscaler, facts: with(func(w *Workload) { w.Ignored, w.Template.Spec.SchedulerName = 2, "pool-priority" }), want: "UnknownScheduler Error Deployment shop/web",
			says: "nobody seems to run a scheduler pool-priority"},
		{name: "an annotation without the scheduler", source: autoscaler, facts: with(func(w *Workload) { w.Template.Annotations = map[string]string{pool.BurstAnnotation: "Never"} }),
			want: "NotOptedIn Warning Deployment shop/web", says: "another schedulerName"},
		{name: "pods older than the namespace's label", source: autoscaler, facts: with(func(w *Workload) { w.ByNamespace, w.Ours, w.OtherScheduler = true, true, 2 }),
			want: "NotOptedIn Info Deployment shop/web", says: "2 of its pod(s) have another scheduler"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := healthy(t, tc.source, tc.args)
			if tc.facts != nil {
				tc.facts(f)
			}
			var got []string
			for _, finding := range Check(f) {
				got = append(got, finding.Code+" "+string(finding.Severity)+" "+finding.Object)
				if !strings.Contains(finding.Message, tc.says) || finding.See == "" {
					t.Errorf("%+v, want %q", finding, tc.says)
				}
			}
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("found %q, want %q", got, tc.want)
			}
		})
	}
}

// stops has the first pool select the nodes of AKS's agent pools of the mode, and deallocates has the agent pool user stop
// its VMs.
func stops(mode string) func(*configv1.PoolPriorityArgs) {
	return func(args *configv1.PoolPriorityArgs) {
		args.Pools[0].NodeSelector.MatchLabels = map[string]string{"kubernetes.azure.com/mode": mode}
	}
}

func deallocates(f *Facts) { f.AKS.AgentPoolProfiles[1].ScaleDownMode = "Deallocate" }

// TestTooShort: the values to set are those that fit the autoscaler's times. Longer ones fit, too.
func TestTooShort(t *testing.T) {
	args := &configv1.PoolPriorityArgs{}
	configv1.SetDefaults_PoolPriorityArgs(args)
	for _, tc := range []struct {
		times Times
		want  string
	}{
		{Times{}, ""},
		{Times{"0s", "15m", "10s"}, ""},
		{Times{"3m", "30m", "60s"}, "newPodDelay: 3m0s, provisionGrace: 30m0s, staleAfter: 4m0s"},
		{Times{"", "10m", "45s"}, ""},
		{Times{"", "often", "46s"}, "staleAfter: 3m4s"},
	} {
		if got := strings.Join(tc.times.TooShort(&args.Capacity), ", "); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.times, got, tc.want)
		}
	}
}

const azure = "virtual-kubelet.io/provider"

func tolerates(keys ...string) (tolerations []corev1.Toleration) {
	for _, key := range keys {
		tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return tolerations
}

func workload(change func(*Workload)) Workload {
	w := Workload{Kind: "Deployment", Namespace: "shop", Name: "web"}
	if change != nil {
		change(&w)
	}
	return w
}

// tainted returns a function that gives the virtual nodes a taint. If there are tolerations, it adds a workload
// with them and one without.
func tainted(tolerations []corev1.Toleration) func(*Facts) {
	return func(f *Facts) {
		f.View.Pools[2].NodeTemplates = []nodegroups.NodeTemplate{{Taints: []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}}}
		if tolerations != nil {
			f.Workloads = []Workload{workload(func(w *Workload) { w.Ours, w.Template.Spec.Tolerations = true, tolerations }), workload(func(w *Workload) { w.Ours = true })}
		}
	}
}

// with adds a workload to the facts.
func with(change func(*Workload)) func(*Facts) {
	return func(f *Facts) { f.Workloads = []Workload{workload(change)} }
}

// TestOrder: errors come first, then warnings.
func TestOrder(t *testing.T) {
	f := healthy(t, autoscaler, func(args *configv1.PoolPriorityArgs) { args.Pools[2].Burst.Limits.Pods = 200 })
	f.AKS.AutoScalerProfile.Expander, f.View.Pools[0].Nodes, f.Disorder = "random", 0, []string{"a"}
	var got []string
	for _, finding := range Check(f) {
		got = append(got, finding.Code)
	}
	if diff := cmp.Diff([]string{"OverQuota", "ExpanderNotPriority", "EmptyPool", "ExpanderOrder"}, got); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
}

// TestVirtualNodes: the answers are those of the table in docs/install.md.
func TestVirtualNodes(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*AKS)
		v1, v2 string
	}{
		{"Azure CNI, node subnet", func(*AKS) {}, "documented for this network", "documented for this network"},
		{"Overlay", func(a *AKS) { a.NetworkProfile.NetworkPluginMode = "overlay" }, "not possible: Azure CNI Overlay", "not possible: Azure CNI Overlay"},
		{"kubenet", func(a *AKS) { a.NetworkProfile.NetworkPlugin = "kubenet" }, "not possible: network plugin kubenet", "not possible: network plugin kubenet"},
		{"Cilium", func(a *AKS) { a.NetworkProfile.NetworkDataplane = "cilium" }, "not known: Cilium", "not possible: Cilium"},
		{"Azure NPM", func(a *AKS) { a.NetworkProfile.NetworkPolicy = "azure" }, "not known: network policy by Azure NPM", "not possible: network policy by Azure NPM"},
		{"Calico", func(a *AKS) { a.NetworkProfile.NetworkPolicy = "calico" }, "not known: network policy by Calico", "documented for this network"},
		{"authorized ranges", func(a *AKS) { a.APIServerAccessProfile.AuthorizedIPRanges = []string{"192.0.2.0/24"} }, "not possible: API-server authorized IP ranges", "not possible: API-server authorized IP ranges"},
		{"node auto-provisioning", func(a *AKS) { a.NodeProvisioningProfile.Mode = "Auto" }, "not known: node auto-provisioning", "not known: node auto-provisioning"},
		{"node auto-provisioning, Calico", func(a *AKS) { a.NodeProvisioningProfile.Mode, a.NetworkProfile.NetworkPolicy = "Auto", "calico" },
			"not known: network policy by Calico, node auto-provisioning", "not possible: node auto-provisioning with Calico"},
		{"Automatic", func(a *AKS) { a.SKU.Name = "Automatic" }, "not possible: AKS Automatic", "not possible: AKS Automatic"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := must.Get(ParseAKS(must.ReadFile(t, "testdata/aks.json")))(t)
			tc.change(a)
			if v1, v2 := a.VirtualNodes(); v1.String() != tc.v1 || v2.String() != tc.v2 {
				t.Errorf("v1 is %s, v2 is %s", v1, v2)
			}
		})
	}
}

// TestParse: the REST API's form is read like that of the az command. Other files are refused.
func TestParse(t *testing.T) {
	plain := must.ReadFile(t, "testdata/aks.json")
	want := must.Get(ParseAKS(plain))(t)
	nested := must.Get(ParseAKS([]byte(`{"sku": {"name": "Base"}, "properties": ` + string(plain) + `}`)))(t)
	if diff := cmp.Diff(want, nested); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
	for _, text := range []string{"", "{}", "[" + string(plain) + "]", "no JSON", string(must.ReadFile(t, "testdata/usages.json"))} {
		if a, err := ParseAKS([]byte(text)); err == nil || !strings.HasSuffix(err.Error(), ": write the file with az aks show --output json") {
			t.Errorf("ParseAKS(%.20q) = %+v, %v", text, a, err)
		}
	}
	automatic := must.Get(ParseAKS([]byte(`{"hostedSystemProfile": {"enabled": true}, "kubernetesVersion": "1.36", "agentPoolProfiles": null, "networkProfile": {"networkPlugin": "azure"}}`)))(t)
	if automatic.CurrentKubernetesVersion != "1.36" {
		t.Errorf("the version is %q", automatic.CurrentKubernetesVersion)
	}
	for _, text := range []string{"", "{}", "[]", "no JSON", string(plain)} {
		if q, err := ParseQuota([]byte(text)); err == nil {
			t.Errorf("ParseQuota(%.20q) = %+v", text, q)
		}
	}
}

// FuzzParse: no text crashes Check.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/aks.json", "testdata/usages.json"} {
		f.Add(must.ReadFile(f, name))
	}
	f.Fuzz(func(_ *testing.T, data []byte) {
		facts := &Facts{}
		facts.AKS, _ = ParseAKS(data)
		facts.Quota, _ = ParseQuota(data)
		Check(facts)
	})
}
