package cli

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/text/encoding/unicode"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/test/must"
)

// TestLint: what lint prints with and without a cluster, a scheduler, rights and files. Its codes are tested in pkg/lint.
func TestLint(t *testing.T) {
	const aks, quota = "../lint/testdata/aks.json", "../lint/testdata/usages.json"
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	text := strings.NewReplacer(`"networkPluginMode": null`, `"networkPluginMode": "overlay"`, `"priority"`, `"random"`).Replace(string(must.ReadFile(t, aks)))
	must.NoError(t, os.WriteFile(overlay, []byte(text), 0o600))
	s := newServer(t)
	expander := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: expanderName}, Data: map[string]string{expanderKey: "20: [user]\n10: [system]"}}

	plain := func(args ...string) string { return strings.ReplaceAll(s.run(args...), overlay, "overlay.json") }
	local := []string{plain("lint", "--local", "--aks", aks), plain("lint", "--local", "--aks", overlay), plain("lint", "--local"), plain("lint", "--local", "--aks", quota),
		plain("lint", "--local", "--quota", "none.json")}
	golden(t, "lint-local", strings.Join(local, "\n"))
	if got := s.runWith(text, "lint", "--local", "--aks=-", "-o", "name"); !strings.Contains(got, "VirtualNodeImpossible\nExpanderNotPriority\n(exit status 1)") {
		t.Error(got)
	}

	file := filepath.Join(t.TempDir(), "aks.json")
	for text, want := range map[string]string{
		"\ufeff" + text: "VirtualNodeImpossible",
		string(must.Get(unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().Bytes([]byte(text)))(t)): "VirtualNodeImpossible",
		"[" + text + "]": "it does not describe one cluster as JSON",
		"\ufeff":         "it does not describe one cluster as JSON",
		strings.NewReplacer("currentKubernetesVersion", "c", "kubernetesVersion", "k", "autoScalerProfile", "a").Replace(text): "the version of Kubernetes: the file of --aks does not have it\n  the settings of the cluster autoscaler: the file of --aks does not have them",
	} {
		must.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		if got := s.run("lint", "--local", "--aks", file); !strings.Contains(got, want) {
			t.Errorf("want %q:\n%s", want, got)
		}
	}

	before := s.run("lint")
	s.put(full(t).published(0))
	s.put(expander)
	clean := s.run("lint", "--aks", aks, "--quota", quota)
	expander.Data[expanderKey] = "10: [user]\n20: [system]"
	s.put(expander)
	disorder := s.run("lint")
	s.forbid("get /api/v1/namespaces/kube-system")
	forbidden := s.run("lint")
	golden(t, "lint", strings.Join([]string{before, clean, disorder, forbidden}, "\n"))
	if got := s.run("lint", "-o", "json"); !strings.Contains(got, `"kind": "LintReport"`) || !strings.Contains(got, `"notChecked": [`) {
		t.Error(got)
	}
	s.forbid("get /version")
	if got := s.run("lint"); !strings.Contains(got, "nothing could be checked") || !strings.Contains(got, "(exit status 2)") {
		t.Error(got)
	}
}

// TestLintKarpenter: a NodePool without limits is a finding, and Karpenter before 1.0 is no Karpenter.
func TestLintKarpenter(t *testing.T) {
	w := full(t, func(args *configv1.PoolPriorityArgs) {
		args.Pools[0].ClusterAutoscaler, args.Pools[0].Karpenter = nil, &configv1.KarpenterSource{NodePool: "default"}
	})
	s := newServer(t, w.published(0))
	if got := s.run("lint"); !strings.Contains(got, "the cluster serves no NodePools of karpenter.sh/v1, which is needed") {
		t.Error(got)
	}
	if got := s.runWith("apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {name: a}", "lint", "-f", "-", "--local"); !strings.Contains(got, "NodePool a is of karpenter.sh/v1beta1, and karpenter.sh/v1 is needed") {
		t.Error(got)
	}
	s.putNodePool("default", map[string]any{})
	if got := s.run("lint"); !strings.Contains(got, "NoLimits: NodePool default") || strings.Contains(got, "ExpanderOrder") {
		t.Error(got)
	}
	s.putNodePool("default", map[string]any{"limits": map[string]any{"cpu": "100"}})
	if got := s.run("lint"); !strings.Contains(got, "Found no problem") {
		t.Error(got)
	}
}

// TestLintWorkloads: lint finds the workloads of the cluster, of a file, and those that a configuration would affect
// before it is installed. Pods count for the Deployment or the CronJob that they belong to.
func TestLintWorkloads(t *testing.T) {
	const name = "pool-priority-scheduler"
	yes := true
	owned := func(o metav1.ObjectMeta, version, kind, by string) metav1.ObjectMeta {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: by, Controller: &yes}}
		return o
	}
	of := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	template := func(image string, change ...func(*corev1.PodTemplateSpec)) corev1.PodTemplateSpec {
		t := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{SchedulerName: name, Containers: []corev1.Container{{Name: "c", Image: image}}}}
		for _, c := range change {
			c(&t)
		}
		return t
	}
	deployment := func(name string, t corev1.PodTemplateSpec) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: of(name), Spec: appsv1.DeploymentSpec{Template: t, Selector: &metav1.LabelSelector{MatchLabels: t.Labels}}}
	}
	pod := func(o metav1.ObjectMeta, t corev1.PodTemplateSpec, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: o, Spec: t.Spec}
		p.Spec.NodeName, p.CreationTimestamp = node, metav1.NewTime(date.Add(-time.Hour))
		return p
	}
	ended := func(p *corev1.Pod) *corev1.Pod {
		p.Status.Phase = corev1.PodSucceeded
		return p
	}
	web := template("shop.azurecr.io/web:1")
	elsewhere := template("nginx", func(t *corev1.PodTemplateSpec) {
		t.Spec.SchedulerName, t.Spec.Tolerations = corev1.DefaultSchedulerName, []corev1.Toleration{{Key: "virtual-kubelet.io/provider", Operator: corev1.TolerationOpExists}}
	})
	member := pod(of("member"), template("nginx"), "")
	reported(time.Minute, sentenceOf(t, "GroupNotHeld"))(member)
	misspelt := template("nginx", func(t *corev1.PodTemplateSpec) { t.Spec.SchedulerName = "pool-priorty" })
	s := newServer(t,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.ServiceAccount{ObjectMeta: of("default")},
		&corev1.ServiceAccount{ObjectMeta: of("puller"), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}},
		&networkingv1.NetworkPolicy{ObjectMeta: of("deny")},
		deployment("web", web), &appsv1.ReplicaSet{ObjectMeta: owned(of("web-1"), "apps/v1", "Deployment", "web"), Spec: appsv1.ReplicaSetSpec{Template: web}},
		pod(owned(of("web-1-a"), "apps/v1", "ReplicaSet", "web-1"), web, "virtual"), pod(owned(of("web-1-b"), "apps/v1", "ReplicaSet", "web-1"), web, "vm"),
		deployment("puller", template("shop.azurecr.io/web:1", func(t *corev1.PodTemplateSpec) { t.Spec.ServiceAccountName, t.Labels = "puller", nil })),
		deployment("privileged", template("nginx", func(t *corev1.PodTemplateSpec) {
			t.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
		})),
		&batchv1.CronJob{ObjectMeta: of("nightly"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: elsewhere}}}},
		&batchv1.Job{ObjectMeta: owned(of("nightly-1"), "batch/v1", "CronJob", "nightly"), Spec: batchv1.JobSpec{Template: elsewhere}},
		pod(owned(of("nightly-1-a"), "batch/v1", "Job", "nightly-1"), elsewhere, "virtual-node-aci-linux"),
		member, ended(pod(of("ended"), elsewhere, "virtual-node-aci-linux")),
		pod(owned(of("custom-a"), "argoproj.io/v1alpha1", "Rollout", "custom"), misspelt, ""),
	)
	w := full(t)
	for _, n := range w.nodes {
		s.put(n)
	}
	config := must.ReadFile(t, "../../manifests/overlays/aks/config.yaml")
	files := filepath.Join(t.TempDir(), "app.yaml")
	written := deployment("new", web)
	written.TypeMeta = metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}
	must.NoError(t, os.WriteFile(files, must.Get(yaml.Marshal(written))(t), 0o600))
	plain := func(in string, args ...string) string {
		return strings.ReplaceAll(s.runWith(in, args...), filepath.Dir(files)+"/", "")
	}
	before := plain(string(config), "lint", "-f", "-")
	s.put(w.published(0))
	after := plain("", "lint")
	ofFile := plain("", "lint", "-f", files)
	local := plain(string(must.ReadFile(t, files)), "lint", "-f", "-", "--local")
	if got := plain("args: {pools: []}", "lint", "-f", "-", "--local"); !strings.Contains(got, "helm template") {
		t.Errorf("of the chart's values, it says %q", got)
	}
	s.forbid("get /api/v1/serviceaccounts", "get /api/v1/nodes")
	some := plain("", "lint", "-f", files)
	s.forbid("get /apis/batch/v1/jobs")
	none := plain("", "lint")
	golden(t, "lint-workloads", strings.Join([]string{before, after, ofFile, local, some, none}, "\n"))
}

// TestLintTaints: lint counts the workloads whose pods tolerate the taints of no regular pool.
func TestLintTaints(t *testing.T) {
	w := full(t)
	for _, n := range w.nodes {
		if n.Spec.ProviderID != "" {
			n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
		}
	}
	s := newServer(t, w.evaluate(0).published(0), pod("plain", time.Minute), pod("tolerant", time.Minute, tolerates(corev1.Toleration{Key: "team", Operator: corev1.TolerationOpExists})))
	got := s.run("lint")
	for _, want := range []string{"WARNING  NoPoolFits: workloads", "the pods of 1 workload(s) fit no VM", ": Pod default/plain\n", "→ tolerate the taint of one of the pools"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}

// TestLintGateTaint: the dry run acts as the controller's account. Before an installation, it acts as the user if that
// account has no rights or may not be impersonated.
func TestLintGateTaint(t *testing.T) {
	none := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "virtual", errors.New(`User "u" cannot patch resource "nodes" in API group "" at the cluster scope`))
	impersonate := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "a", errors.New(`User "u" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "n"`))
	policy := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Message: `admission webhook "w" denied the request: no`}}
	const account = "system:serviceaccount:pool-priority-system:pool-priority-controller"
	for _, tc := range []struct {
		name         string
		account, own *apierrors.StatusError
		want         string // a part of the output; "": nothing about the taint
	}{
		{name: "let pass", own: policy},
		{name: "denied by a policy", account: policy, want: "by a dry run, " + account + " may not put the gate taint on node virtual-node-aci-linux: "},
		{name: "not installed", account: none, want: account + " has no rights, or you may not impersonate it"},
		{name: "not to be acted as", account: impersonate, want: account + " has no rights, or you may not impersonate it"},
		{name: "not installed, and denied by a policy", account: none, own: policy, want: "by a dry run, you may not put the gate taint on node virtual-node-aci-linux: "},
		{name: "not installed, and one may only read", account: none, own: none, want: account + " has no rights"},
		{name: "a webhook is down", account: apierrors.NewInternalError(errors.New("failed calling webhook")), want: "whether nodes can get the gate taint: Internal error"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := full(t)
			s := newServer(t, w.published(0))
			for _, n := range w.nodes {
				s.put(n)
			}
			s.patched = func(as string) *apierrors.StatusError {
				if as == account {
					return tc.account
				}
				return tc.own
			}
			if got := s.run("lint", "-f", "../../manifests/overlays/aks/config.yaml"); strings.Contains(got, "ERROR") != strings.HasPrefix(tc.want, "by a dry run") || !strings.Contains(got, tc.want) || tc.want == "" && strings.Contains(got, "gate taint") {
				t.Errorf("want %q:\n%s", tc.want, got)
			}
			// The running controller may have another account, of which nothing is known.
			if got := s.run("lint"); tc.account == none && (strings.Contains(got, "ERROR") || !strings.Contains(got, account+" has no rights")) {
				t.Error(got)
			}
		})
	}
}

// TestLintConfigurations: lint judges each file as the scheduler does, says the same, and warns of values that are likely
// mistakes.
func TestLintConfigurations(t *testing.T) {
	s := newServer(t)
	for _, file := range must.Get(filepath.Glob("../apis/config/v1/testdata/config/*.yaml"))(t) {
		if data := must.ReadFile(t, file); len(compat.OutOfTree) == 0 && strings.Contains(string(data), "Coscheduling") {
			continue // this build does not have it
		}
		data, out := string(must.ReadFile(t, file)), strings.ReplaceAll(s.run("lint", "--local", "-f", file), `\"`, `"`)
		if starts := strings.Contains(data, "# starts\n"); starts == strings.Contains(out, "(exit status 2)") || starts && !strings.Contains(data, "# warns: ") && strings.Contains(out, "OddSetting") {
			t.Errorf("%s: %s", file, out)
		}
		for line := range strings.Lines(data) {
			_, want, _ := strings.Cut(line, ": ")
			if (strings.HasPrefix(line, "# want: ") || strings.HasPrefix(line, "# warns: ")) && !strings.Contains(out, strings.TrimSpace(want)) {
				t.Errorf("%s: no %q in:\n%s", file, want, out)
			}
		}
	}
}
