package integration

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/devcluster"
)

const chart = root + "/charts/pool-priority-scheduler"

// tool runs a binary of bin/tools and returns what it printed.
func tool(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(filepath.Join(*bin, "tools", name), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func render(t testing.TB, name string, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := tool(t, name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	objects := map[string]*unstructured.Unstructured{}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(out)), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); err == io.EOF {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) == 0 || object.GetAnnotations()["helm.sh/hook"] != "" || object.GetKind() == "Namespace" {
			continue
		}
		objects[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object
	}
}

func helm(t testing.TB, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	return render(t, "helm", append([]string{"template", "release", chart, "--namespace", devcluster.SchedulerNamespace, "--kube-version", "1.35.4"}, args...)...)
}

// anyNamespace is how a policy tells an account of ours.
var anyNamespace = regexp.MustCompile(`username\.matches\('\^system:serviceaccount:\[a-z0-9-\]\+:([a-z-]+)\$'\)`)

var configHash = regexp.MustCompile(`pool-priority-scheduler-config-[0-9a-z]{10}`)

// plain is the objects as YAML, without what may differ: the hash in the ConfigMap's name, the image's tag, and the form of the
// configuration file.
func plain(t *testing.T, objects map[string]*unstructured.Unstructured) map[string]string {
	t.Helper()
	all := map[string]string{}
	for key, object := range objects {
		if object.GetKind() == "ConfigMap" {
			data, _, err := unstructured.NestedString(object.Object, "data", "config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			var config map[string]any
			if err := yaml.Unmarshal([]byte(data), &config); err != nil {
				t.Fatal(err)
			}
			object.Object["data"] = config
			object.SetAnnotations(nil) // the chart's is kept while an upgrade fails, as kustomize's is anyway
		}
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		normal := strings.ReplaceAll(configHash.ReplaceAllString(string(text), "pool-priority-scheduler-config-HASH"), "image: pool-priority-scheduler:v0.1.0", "image: pool-priority-scheduler")
		all[configHash.ReplaceAllString(key, "pool-priority-scheduler-config-HASH")] = normal
	}
	return all
}

// TestChart: the chart and the manifests render the same objects, and what a user gets wrong is refused with its name.
func TestChart(t *testing.T) {
	t.Parallel()
	kustomize := func(overlay string) map[string]*unstructured.Unstructured {
		return render(t, "kubectl", "kustomize", root+"/manifests/overlays/"+overlay)
	}
	values := func(text string) string {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "--values=" + file
	}
	if diff := cmp.Diff(plain(t, kustomize("aks")), plain(t, helm(t))); diff != "" {
		t.Errorf("overlays/aks and the chart (-kustomize,+helm):\n%s", diff)
	}
	for _, overlay := range []string{"karpenter", "aks-observe"} {
		data, err := os.ReadFile(root + "/manifests/overlays/" + overlay + "/config.yaml")
		if err != nil {
			t.Fatal(err)
		}
		whole, err := yaml.Marshal(map[string]string{"config": string(data)})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(plain(t, kustomize(overlay)), plain(t, helm(t, values(string(whole))))); diff != "" {
			t.Errorf("overlays/%s and the chart with its configuration (-kustomize,+helm):\n%s", overlay, diff)
		}
	}
	// The chart knows the namespace of the accounts, which kustomize does not.
	policies := plain(t, render(t, "kubectl", "kustomize", "testdata/policies"))
	for key, text := range policies {
		policies[key] = anyNamespace.ReplaceAllString(text, "username == 'system:serviceaccount:"+devcluster.SchedulerNamespace+":$1'")
	}
	if diff := cmp.Diff(policies, plain(t, helm(t, values("policies: {leastRights: true, tenants: {enabled: true}}")))); diff != "" {
		t.Errorf("the policies and the chart's (-kustomize,+helm):\n%s", diff)
	}
	for dir, value := range map[string]string{
		"testdata/monitoring":       "monitoring: {serviceMonitor: monitoring.coreos.com/v1, alerts: true}",
		"testdata/monitoring-azure": "monitoring: {serviceMonitor: azmonitoring.coreos.com/v1}",
	} {
		if diff := cmp.Diff(plain(t, render(t, "kubectl", "kustomize", dir)), plain(t, helm(t, values(value)))); diff != "" {
			t.Errorf("%s and the chart with %s (-kustomize,+helm):\n%s", dir, value, diff)
		}
	}
	labelled := helm(t, values("monitoring: {serviceMonitor: monitoring.coreos.com/v1, alerts: true, labels: {release: mine}}"))
	for _, key := range []string{"ServiceMonitor pool-priority-system/pool-priority", "PrometheusRule pool-priority-system/pool-priority"} {
		if o := labelled[key]; o == nil || o.GetLabels()["release"] != "mine" || o.GetLabels()["app.kubernetes.io/name"] == "" {
			t.Errorf("%s is %v, want it with the label of the values", key, o)
		}
	}
	back := helm(t, values(`args: {pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}, fixed: {}}, {name: aci, nodeSelector: {matchLabels: {type: virtual-kubelet}}, burst: {return: {enabled: true}}}]}`))
	if back["ClusterRole /pool-priority-controller:return"] == nil {
		t.Errorf("with return, its role is not among %v", slices.Sorted(maps.Keys(back)))
	}
	viewed := plain(t, helm(t, values(`viewers: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: pool-priority-viewers}]`)))
	for key := range plain(t, helm(t)) {
		delete(viewed, key)
	}
	if diff := cmp.Diff(plain(t, render(t, "kubectl", "kustomize", "testdata/viewer-only")), viewed); diff != "" {
		t.Errorf("components/viewer and the chart with viewers (-kustomize,+helm):\n%s", diff)
	}
	elsewhere := helm(t, "--namespace", "elsewhere", values("monitoring: {serviceMonitor: monitoring.coreos.com/v1, alerts: true}\n"+
		"policies: {leastRights: true, tenants: {enabled: true}}\n"+
		"viewers: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: somebody}]"))
	for key, object := range elsewhere {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), devcluster.SchedulerNamespace) {
			t.Errorf("%s names the namespace %s", key, devcluster.SchedulerNamespace)
		}
	}
	gangs, err := os.ReadFile(root + "/manifests/examples/coscheduling.yaml")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := yaml.Marshal(map[string]string{"config": string(gangs)})
	if err != nil {
		t.Fatal(err)
	}
	if objects := helm(t, values(string(whole))); objects["ClusterRole /pool-priority-scheduler:coscheduling"] == nil {
		t.Errorf("with Coscheduling, its role is not among %v", slices.Sorted(maps.Keys(objects)))
	}
	for _, tc := range []struct{ values, want string }{
		{"config: '{profiles: []}'", "leaderElection must have resourceName: pool-priority-scheduler and resourceNamespace: pool-priority-system"},
		{"args: {statusConfigMap: a/b, pools: [{name: user, nodeSelector: {}}]}", "statusConfigMap must be pool-priority-system/pool-priority-status"},
		{"args: {pools: [{name: aci, nodeSelector: {}, burst: {return: null}}, {name: b, nodeSelector: {}, burst: {}}]}", ""}, // start-up says what is wrong
		{"scheduler: {replica: 3}", "replica"},
		{"monitoring: {serviceMonitor: true}", "serviceMonitor"},
		{"args: {pools: []}", "pools"},
		{"args: {pools: [{name: user}]}", "nodeSelector"},
		{"schedulerName: default-scheduler", "schedulerName"},
		{"image: {repository: ''}", "repository"},
		{"viewers: [somebody]", "viewers"},
		{"policies: {tenants: true}", "tenants"},
		{"policies: {tenants: {enabled: true, nodeNames: '['}}", "missing closing ]"},
		{"policies: {tenants: {enabled: true, labels: {type: '('}}}", "missing closing )"},
	} {
		if out, err := tool(t, "helm", "template", "release", chart, "--namespace", devcluster.SchedulerNamespace, "--kube-version", "1.35.4", values(tc.values)); (err == nil) != (tc.want == "") || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %v: no %q in %s", tc.values, err, tc.want, out)
		}
	}
	if out, err := tool(t, "helm", "template", "release", chart, "--kube-version", "1.34.2"); err == nil || !strings.Contains(out, "incompatible with Kubernetes v1.34.2") {
		t.Errorf("with Kubernetes 1.34: %v: %s", err, out)
	}
}

// TestInstall: the API server takes what is rendered, under the restricted pod security standard and without a warning, installed
// either way; and what is uninstalled leaves nothing behind.
func TestInstall(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	kubeConfig := "--kubeconfig=" + e.KubeConfig()
	overlays, err := filepath.Glob(root + "/manifests/overlays/*")
	if err != nil || len(overlays) < 2 {
		t.Fatal(overlays, err)
	}
	for _, overlay := range append(overlays, "testdata/policies") {
		for _, command := range [][]string{{"apply", "--warnings-as-errors"}, {"delete", "--wait=false"}} {
			if out, err := tool(t, "kubectl", append(command, kubeConfig, "-k", overlay)...); err != nil || strings.Contains(out, "Warning") {
				t.Errorf("kubectl %v -k %s: %v: %s", command, overlay, err, out)
			}
		}
		e.gone()
	}
	if out, err := tool(t, "helm", kubeConfig, "install", "release", chart, "--namespace", devcluster.SchedulerNamespace, "--create-namespace",
		"--set=policies.leastRights=true,policies.tenants.enabled=true"); err != nil || strings.Contains(out, "arning") {
		t.Fatalf("helm install: %v: %s", err, out)
	}
	if _, err := e.Client.AppsV1().Deployments(devcluster.SchedulerNamespace).Get(e.ctx, devcluster.SchedulerName, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	// No pod runs in this cluster, so that the Job of the hook would wait for ever.
	if out, err := tool(t, "helm", kubeConfig, "uninstall", "release", "--namespace", devcluster.SchedulerNamespace, "--no-hooks"); err != nil {
		t.Fatalf("helm uninstall: %v: %s", err, out)
	}
	roles, err := e.Client.RbacV1().ClusterRoles().List(e.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range roles.Items {
		if strings.HasPrefix(role.Name, "pool-priority") {
			t.Errorf("ClusterRole %s is left", role.Name)
		}
	}
	policies, err := e.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(e.ctx, metav1.ListOptions{})
	if err != nil || len(policies.Items) > 0 {
		t.Errorf("%d policies are left, %v", len(policies.Items), err)
	}
}

// gone waits until the namespace is gone.
func (e *env) gone() {
	e.Helper()
	e.Eventually(60*time.Second, func() string {
		if _, err := e.Client.CoreV1().Namespaces().Get(e.ctx, devcluster.SchedulerNamespace, metav1.GetOptions{}); err == nil {
			return fmt.Sprintf("namespace %s is there", devcluster.SchedulerNamespace)
		}
		return ""
	})
}
