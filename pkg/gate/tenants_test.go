package gate

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// TestLosses: with tenants, a pod that would lose its NetworkPolicies or its security settings in a burst pool waits,
// until the pool or its namespace allows the loss. Its annotation allows nothing.
func TestLosses(t *testing.T) {
	selecting := func(name, key, value string) *networkingv1.NetworkPolicy {
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if key != "" {
			p.Spec.PodSelector = *matching(key, value)
		}
		return p
	}
	all, web, db := selecting("default-deny", "", ""), selecting("web", "app", "web"), selecting("db", "app", "db")
	wrong := selecting("wrong", "", "")
	wrong.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}
	const restricted, np, sc = "pod-security.kubernetes.io/enforce=restricted", "poolpriority.dev/network-policy-loss=", "poolpriority.dev/security-context-loss="
	for _, tc := range []struct {
		name     string
		labels   string // of the namespace
		policies []*networkingv1.NetworkPolicy
		class    string // the pod's RuntimeClass
		want     string // codes by pool: on Container Instances, elsewhere, and in pools that allow NetworkPolicy, SecurityContext or all
		detail   string
	}{
		{name: "nothing", want: "Open Open Open Open Open"},
		{name: "a policy for all pods", policies: []*networkingv1.NetworkPolicy{all}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy default-deny"},
		{name: "a policy for these pods", policies: []*networkingv1.NetworkPolicy{db, web}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy web"},
		{name: "two policies", policies: []*networkingv1.NetworkPolicy{web, all}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy default-deny"},
		{name: "a policy for other pods", policies: []*networkingv1.NetworkPolicy{db}, want: "Open Open Open Open Open"},
		{name: "a policy that cannot be parsed", policies: []*networkingv1.NetworkPolicy{wrong}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy wrong"},
		{name: "restricted", labels: restricted, want: "SecurityContextLost Open SecurityContextLost Open Open", detail: "the settings that restricted Pod Security requires"},
		{name: "baseline", labels: "pod-security.kubernetes.io/enforce=baseline", want: "Open Open Open Open Open"},
		{name: "restricted, a warning only", labels: "pod-security.kubernetes.io/warn=restricted", want: "Open Open Open Open Open"},
		{name: "both", labels: restricted, policies: []*networkingv1.NetworkPolicy{all}, want: "NetworkPolicyLost NetworkPolicyLost SecurityContextLost NetworkPolicyLost Open", detail: "the NetworkPolicy default-deny"},
		{name: "both, allowed", labels: restricted + "," + np + "Allowed," + sc + "Allowed", policies: []*networkingv1.NetworkPolicy{all}, want: "Open Open Open Open Open"},
		{name: "both, one allowed", labels: restricted + "," + np + "Allowed", policies: []*networkingv1.NetworkPolicy{all}, want: "SecurityContextLost Open SecurityContextLost Open Open", detail: "the settings that restricted Pod Security requires"},
		{name: "another value", labels: np + "allowed", policies: []*networkingv1.NetworkPolicy{all}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy default-deny"},
		{name: "the label of another loss", labels: sc + "Allowed", policies: []*networkingv1.NetworkPolicy{all}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy default-deny"},
		{name: "a RuntimeClass", class: "kata", want: "SandboxLost Open SandboxLost SandboxLost Open", detail: "the sandbox of its RuntimeClass kata"},
		{name: "a RuntimeClass, allowed", class: "kata", labels: "poolpriority.dev/sandbox-loss=Allowed", want: "Open Open Open Open Open"},
		{name: "the label of burst nodes", labels: "poolpriority.dev/burst-nodes=Allowed", policies: []*networkingv1.NetworkPolicy{all}, want: "NetworkPolicyLost NetworkPolicyLost Open NetworkPolicyLost Open", detail: "the NetworkPolicy default-deny"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			network, security := configv1.LossNetworkPolicy, configv1.LossSecurityContext
			args := &configv1.PoolPriorityArgs{Tenants: true, Pools: []configv1.Pool{{Name: "user", NodeSelector: matching("mode", "user")}}}
			for i, burst := range []configv1.Burst{{}, {Platform: configv1.PlatformOther}, {Allow: []configv1.Loss{network}}, {Allow: []configv1.Loss{security}}, {Allow: []configv1.Loss{security, network, configv1.LossSandbox}}} {
				args.Pools = append(args.Pools, configv1.Pool{Name: string(rune('a' + i)), NodeSelector: matching("type", string(rune('a'+i))), Burst: &burst})
			}
			r := &Rule{Pools: must.Get(pool.ListOf(args))(t)}
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
			for label := range strings.SplitSeq(tc.labels, ",") {
				key, value, _ := strings.Cut(label, "=")
				namespace.Labels[key] = value
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{RuntimeClassName: &tc.class}}
			var policies []*Policy
			for _, p := range tc.policies {
				policies = append(policies, NewPolicy(p))
			}
			lost := LostBy(pod, namespace, policies)
			for _, always := range []string{"", pool.BurstAlways} {
				pod.Annotations = map[string]string{pool.BurstAnnotation: always}
				request := Request{Pod: pod, Tenant: TenantOf(namespace, lost)}
				decision := r.Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}, {}, {}, {}, {}}}, now)
				var codes []string
				for _, v := range decision.Burst[1:] {
					codes = append(codes, v.Reason.Code)
					if v.Open != (v.Reason.Code == "Open") || !v.Until.IsZero() || !v.Open && v.Reason.Code[:3] == tc.want[:3] && v.Reason.Detail != tc.detail {
						t.Errorf("%+v, want the detail %q", v, tc.detail)
					}
				}
				if got := strings.Join(codes, " "); got != tc.want {
					t.Errorf("with the annotation %q: %s, want %s", always, got, tc.want)
				}
				request.Tenant = nil
				if d := r.Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {}, {}, {}, {}, {}}}, now); slices.ContainsFunc(d.Burst[1:], func(v Verdict) bool { return !v.Open }) {
					t.Errorf("without tenants: %+v", d.Burst)
				}
			}
			// The event names the losses, whether or not they are allowed.
			on := func(i int) string { return strings.Join(lost.In(r.Pools.At(i)), ", ") }
			wantOther := ""
			if what, ok := lost[network]; ok {
				wantOther = what
			}
			if want := strings.Join(slices.Sorted(maps.Values(lost)), ", "); on(1) != want || on(5) != want || on(2) != wantOther {
				t.Errorf("lost on Container Instances: %q, elsewhere: %q, want %q and %q", on(1), on(2), want, wantOther)
			}
		})
	}
}

// TestOnlyWhenFull: with tenants, a pod that selects burst nodes, or rules out all VMs by its node selector, affinity,
// topology or size, is held, unless its namespace may ask for burst nodes. Taints of VMs do not hold it.
func TestOnlyWhenFull(t *testing.T) {
	user := nodegroups.NodeTemplate{Labels: map[string]string{"mode": "user", "agentpool": "userpool", "kubernetes.io/os": "linux"}, Allocatable: asking("4", "16Gi").Resources.Requests}
	system := nodegroups.NodeTemplate{Labels: map[string]string{"mode": "system", "agentpool": "systempool", "kubernetes.io/os": "linux"}, Allocatable: asking("2", "8Gi").Resources.Requests}
	tainted := func(template nodegroups.NodeTemplate) nodegroups.NodeTemplate {
		template.Taints = []corev1.Taint{{Key: "CriticalAddonsOnly", Effect: corev1.TaintEffectNoSchedule}}
		return template
	}
	vms := func(state nodegroups.State, templates ...nodegroups.NodeTemplate) nodegroups.Pool {
		return of(nodegroups.Group{GroupStatus: nodegroups.GroupStatus{State: state}, NodeTemplates: templates})
	}
	selector := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
	}
	affinity := func(key string, operator corev1.NodeSelectorOperator, values ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}}}}}
		}
	}
	size := func(cpu string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{asking(cpu, "1Gi")} }
	}
	spread := func(key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule}}
		}
	}
	near := func(key string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: key}}}}
		}
	}
	full, dedicated, unknown := vms(nodegroups.Full, user), vms(nodegroups.Full, tainted(system)), vms(nodegroups.Full)
	for _, tc := range []struct {
		name         string
		user, system nodegroups.Pool
		pod          func(*corev1.Pod)
		want         string // the detail; "" if the pod is not held for this
	}{
		{"plain", full, dedicated, func(*corev1.Pod) {}, ""},
		{"a selector of VMs", full, dedicated, selector("agentpool", "userpool"), ""},
		{"a selector of the virtual node", full, dedicated, selector("type", "virtual-kubelet"), "the pod selects the burst pool itself"},
		{"the same, and nothing is known of VMs", unknown, unknown, selector("type", "virtual-kubelet"), "the pod selects the burst pool itself"},
		{"another label of the virtual node", full, dedicated, selector("kubernetes.azure.com/managed", "false"), "node selector kubernetes.azure.com/managed=false"},
		{"the absence of a label of VMs", full, dedicated, affinity("agentpool", corev1.NodeSelectorOpDoesNotExist), "required node affinity"},
		{"none of the values of VMs", full, dedicated, affinity("mode", corev1.NodeSelectorOpNotIn, "user", "system"), "required node affinity"},
		{"none of the values of VMs that the pod tolerates", full, dedicated, affinity("mode", corev1.NodeSelectorOpNotIn, "user"), "required node affinity"},
		{"none of the values of one pool", full, vms(nodegroups.Full, system), affinity("mode", corev1.NodeSelectorOpNotIn, "user"), ""},
		{"31 CPUs", full, dedicated, size("31"), "requests 31 cpu, a node offers at most 4"},
		{"as large as the largest VM", full, vms(nodegroups.Full, system), size("4"), ""},
		{"31 CPUs, and the size of VMs is unknown", full, unknown, size("31"), ""},
		{"a small tainted group hides no size", vms(nodegroups.Full, tainted(system), user), dedicated, size("31"), "requests 31 cpu, a node offers at most 4"},
		{"taints only", vms(nodegroups.Full, tainted(user)), dedicated, func(*corev1.Pod) {}, ""},
		{"a topologyKey that no VM has", full, dedicated, spread("type"), "topologyKey type"},
		{"affinity to pods by such a topologyKey", full, dedicated, near("type"), "topologyKey type"},
		{"a zone", full, dedicated, spread(corev1.LabelTopologyZone), ""},
		{"a host", full, dedicated, near(corev1.LabelHostname), ""},
		{"a selector, and a pool that can grow", vms(nodegroups.CanGrow, user), dedicated, selector("kubernetes.azure.com/managed", "false"), "node selector kubernetes.azure.com/managed=false"},
		{"another label of the virtual node, and a pool that never had a node", full, unknown, selector("kubernetes.azure.com/managed", "false"), "node selector kubernetes.azure.com/managed=false"},
		{"the absence of a label of VMs, and a pool that never had a node", full, unknown, affinity("agentpool", corev1.NodeSelectorOpDoesNotExist), "required node affinity"},
		{"a selector of a pool that never had a node", full, unknown, selector("agentpool", "systempool"), ""},
		{"a topologyKey that no VM has, and a pool that never had a node", full, unknown, spread("type"), "topologyKey type"},
		{"no VM is known", unknown, unknown, selector("kubernetes.io/os", "linux"), ""},
		{"a pool without groups", nodegroups.Pool{}, dedicated, selector("kubernetes.azure.com/managed", "false"), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
				{Name: "user", NodeSelector: matching("mode", "user")},
				{Name: "system", NodeSelector: matching("mode", "system")},
				{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{WaitLimit: metav1.Duration{Duration: time.Second}}},
			}}))(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{pool.BurstAnnotation: pool.BurstAlways}}}
			tc.pod(pod)
			decide := func(tenant *Tenant, override Override) Verdict {
				r := &Rule{Pools: pools, HoldLimit: time.Minute, Override: override}
				request := Request{Pod: pod, Tenant: tenant, UnschedulableSince: ago(time.Hour), NoRoomSince: ago(time.Hour)}
				return r.Decide(request, &nodegroups.View{Pools: []nodegroups.Pool{tc.user, tc.system, {}}}, now).Burst[2]
			}
			for _, override := range []Override{{}, {Gate: OverrideOpen}} {
				got := decide(&Tenant{}, override)
				if tc.want == "" && !got.Open || tc.want != "" && (got.Open || got.Reason.Code != "OnlyWhenFull" || got.Reason.Detail != tc.want || !got.Until.IsZero()) {
					t.Errorf("with the override %q: %+v, want the detail %q", override.Gate, got, tc.want)
				}
			}
			if got := decide(&Tenant{MayAsk: true}, Override{}); !got.Open {
				t.Errorf("in a namespace that may ask for burst nodes: %+v", got)
			}
			if got := decide(nil, Override{}); !got.Open {
				t.Errorf("without tenants: %+v", got)
			}
		})
	}
}

// TestTenantsTellPodsApart: pods that the gate treats differently because of their namespaces have different keys. With
// tenants, pods of two namespaces always do, so that they teach one another nothing.
func TestTenantsTellPodsApart(t *testing.T) {
	seen := map[string]bool{}
	for _, tenant := range []*Tenant{nil, {}, {MayAsk: true}, {Lost: Lost{configv1.LossNetworkPolicy: "a"}}, {Lost: Lost{configv1.LossSecurityContext: "a"}}} {
		request := Request{Pod: PlainPod(), Tenant: tenant}
		key := request.AutoscalerKey()
		if tenant != nil {
			again := *tenant
			request.Tenant = &again
		}
		if seen[key] || key == "" || request.AutoscalerKey() != key {
			t.Errorf("%+v has the key %s of another, or not always", tenant, key)
		}
		request.Pod.Namespace, seen[key] = "other", true
		if same := request.AutoscalerKey() == key; same != (tenant == nil) {
			t.Errorf("%+v: a pod of another namespace has the same key: %v", tenant, same)
		}
	}
}

// TestHint: the hint has the command for the pod's namespace. With a namespaceSelector of the pool, no label of ours
// helps.
func TestHint(t *testing.T) {
	own := burstPool(t, configv1.Burst{NamespaceSelector: matching("team", "a")})
	none := burstPool(t, configv1.Burst{})
	for _, tc := range []struct {
		code  string
		pools pool.List
		want  string
	}{
		{"NamespaceNotSelected", none, "kubectl label namespace shop poolpriority.dev/burst=Allowed"},
		{"NamespaceNotSelected", own, "the labels that the pool's namespaceSelector asks for"},
		{"NetworkPolicyLost", own, "kubectl label namespace shop poolpriority.dev/network-policy-loss=Allowed, or in the pool, burst.allow: [NetworkPolicy]"},
		{"SandboxLost", own, "kubectl label namespace shop poolpriority.dev/sandbox-loss=Allowed, or in the pool, burst.allow: [Sandbox]"},
		{"SecurityContextLost", none, "kubectl label namespace shop poolpriority.dev/security-context-loss=Allowed, or in the pool, burst.allow: [SecurityContext]"},
		{"OnlyWhenFull", none, "kubectl label namespace shop poolpriority.dev/burst-nodes=Allowed"},
	} {
		if got := Hint(tc.code, tc.pools.At(1), "shop"); !strings.HasSuffix(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.code, got, tc.want)
		}
	}
	if got := Hint("PoolCanGrow", none.At(0), "shop"); got != "" {
		t.Errorf("of a regular pool: %q", got)
	}
}
