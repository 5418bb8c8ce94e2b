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

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
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

// render returns the rendered objects by kind, namespace and name, without the Namespace and Helm's hooks.
func render(t testing.TB, name string, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	objects := renderAll(t, name, args...)
	maps.DeleteFunc(objects, func(_ string, o *unstructured.Unstructured) bool {
		return o.GetAnnotations()["helm.sh/hook"] != "" || o.GetKind() == "Namespace"
	})
	return objects
}

// renderAll returns all rendered objects, with the Namespace and Helm's hooks.
func renderAll(t testing.TB, name string, args ...string) map[string]*unstructured.Unstructured {
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
		if len(object.Object) == 0 {
			continue
		}
		key := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
		if objects[key] != nil {
			t.Errorf("%s %v: there are two of %s", name, args, key)
		}
		objects[key] = object
	}
}

func helm(t testing.TB, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	return render(t, "helm", append([]string{"template", "pool-priority", chart, "--namespace", devcluster.SchedulerNamespace, "--kube-version", "1.35.4", ourImage}, args...)...)
}

// ofAccount matches the expression by which a policy recognizes one of our accounts: with kustomize in any namespace,
// with Helm in the release's.
var ofAccount = regexp.MustCompile(`username(\.matches\('\^system:serviceaccount:\[a-z0-9-\]\+:([a-z-]+)\$'\)| == 'system:serviceaccount:[a-z0-9-]+:([a-z-]+)')`)

// clusterScoped are the kinds that kustomize does not know to be cluster-scoped. The API server ignores the namespace
// that kustomize gives them.
var clusterScoped = []string{"FlowSchema", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}

// configOf returns the configuration in the Deployment's pod template.
func configOf(t testing.TB, objects map[string]*unstructured.Unstructured, deployment string) string {
	t.Helper()
	for key, object := range objects {
		if object.GetKind() != "Deployment" || object.GetName() != deployment {
			continue
		}
		config, ok, err := unstructured.NestedString(object.Object, "spec", "template", "metadata", "annotations", configv1.ConfigAnnotation)
		if err != nil || !ok {
			t.Fatalf("%s has no annotation %s: %v", key, configv1.ConfigAnnotation, err)
		}
		return config
	}
	t.Fatalf("no Deployment %s", deployment)
	return ""
}

// plain returns the objects as YAML, without the differences that are allowed: labels, the image's tag, the format of
// the configuration, and the namespace of the accounts in policies.
func plain(t *testing.T, objects map[string]*unstructured.Unstructured) map[string]string {
	t.Helper()
	all := map[string]string{}
	for key, object := range objects {
		object = object.DeepCopy()
		object.SetLabels(nil)
		if object.GetKind() == "Deployment" {
			unstructured.RemoveNestedField(object.Object, "spec", "template", "metadata", "labels")
			var config map[string]any
			must.NoError(t, yaml.Unmarshal([]byte(configOf(t, objects, object.GetName())), &config))
			must.NoError(t, unstructured.SetNestedMap(object.Object, config, "spec", "template", "metadata", "annotations", configv1.ConfigAnnotation))
		}
		if slices.Contains(clusterScoped, object.GetKind()) {
			object.SetNamespace("")
			key = object.GetKind() + " /" + object.GetName()
		}
		text := must.Get(yaml.Marshal(object.Object))(t)
		all[key] = strings.ReplaceAll(ofAccount.ReplaceAllString(string(text), "username == $2$3"), "image: registry.example.com/pool-priority-scheduler:v0.1.0-kubernetes1.35", "image: pool-priority-scheduler")
	}
	return all
}

// kustomize renders a kustomization.
func kustomize(t testing.TB, dir string) map[string]*unstructured.Unstructured {
	t.Helper()
	return render(t, "kubectl", "kustomize", dir)
}

// kustomization makes a directory with a kustomization and further files. In the text, MANIFESTS stands for the path of
// the manifests.
func kustomization(t testing.TB, text string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	manifests, err := filepath.Abs(root + "/manifests")
	must.NoError(t, err)
	if manifests, err = filepath.Rel(dir, manifests); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"kustomization.yaml": strings.ReplaceAll(text, "MANIFESTS", manifests)}
	maps.Copy(all, files)
	for name, text := range all {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// TestConfigTravels: the pod templates have the configuration, byte for byte, and no ConfigMap has it. The component
// config sets a user's own configuration on top of the base, an overlay or an example. Other seemingly correct ways to
// set a configuration are rejected.
func TestConfigTravels(t *testing.T) {
	t.Parallel()
	read := func(file string) string {
		t.Helper()
		data := must.ReadFile(t, file)
		return string(data)
	}
	carries := func(dir, want string) {
		t.Helper()
		objects := kustomize(t, dir)
		for _, name := range []string{devcluster.SchedulerName, devcluster.ControllerName} {
			if diff := cmp.Diff(want, configOf(t, objects, name)); diff != "" {
				t.Errorf("%s: the configuration of %s (-want,+got):\n%s", dir, name, diff)
			}
		}
		for key := range objects {
			if strings.HasPrefix(key, "ConfigMap ") {
				t.Errorf("%s: %s is installed", dir, key)
			}
		}
	}
	shipped, err := filepath.Glob(root + "/manifests/overlays/*")
	if err != nil || len(shipped) < 5 {
		t.Fatal(shipped, err)
	}
	for _, dir := range append(shipped, root+"/manifests/examples/own-pools") {
		carries(dir, read(filepath.Join(dir, "config.yaml")))
	}
	own := map[string]string{"config.yaml": read(root+"/manifests/examples/own-pools/config.yaml") + "# \"Quotes\", 'others', $dollars, {{braces}}, a tab\t, ünïcödé and no end of line"}
	const generated = "\nconfigMapGenerator: [{name: pool-priority-config, files: [config.yaml]}]\n"
	for _, below := range []string{"base", "overlays/aks", "examples/own-pools"} {
		carries(kustomization(t, "resources: [MANIFESTS/"+below+"]\ncomponents: [MANIFESTS/components/config]"+generated, own), own["config.yaml"])
	}
	for _, tc := range []struct{ name, text, want string }{
		{"the overlay's ConfigMap replaced", "resources: [MANIFESTS/overlays/aks]\nconfigMapGenerator: [{name: pool-priority-config, behavior: replace, files: [config.yaml]}]\n",
			"does not exist; cannot merge or replace"},
		{"merged with it", "resources: [MANIFESTS/overlays/aks]\nconfigMapGenerator: [{name: pool-priority-config, behavior: merge, files: [config.yaml]}]\n",
			"does not exist; cannot merge or replace"},
		{"the component without a ConfigMap", "resources: [MANIFESTS/overlays/aks]\ncomponents: [MANIFESTS/components/config]\n", "nothing selected by ConfigMap"},
		{"a file of another name", "resources: [MANIFESTS/base]\ncomponents: [MANIFESTS/components/config]\nconfigMapGenerator: [{name: pool-priority-config, files: [a=config.yaml]}]\n",
			"fieldPath `data.[config.yaml]` is missing"},
	} {
		if out, err := tool(t, "kubectl", "kustomize", kustomization(t, tc.text, own)); err == nil || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %v: no %q in %s", tc.name, err, tc.want, out)
		}
	}
}

// TestChart: the chart and the manifests render the same objects. The error for a wrong value names the value.
func TestChart(t *testing.T) {
	t.Parallel()
	values := func(text string) string {
		file := must.WriteFile(t, "values.yaml", []byte(text))
		return "--values=" + file
	}
	if diff := cmp.Diff(plain(t, kustomize(t, root+"/manifests/overlays/aks")), plain(t, helm(t))); diff != "" {
		t.Errorf("overlays/aks and the chart (-kustomize,+helm):\n%s", diff)
	}
	for _, overlay := range []string{"karpenter", "aks-observe"} {
		data := must.ReadFile(t, root+"/manifests/overlays/"+overlay+"/config.yaml")
		whole := must.Get(yaml.Marshal(map[string]string{"config": string(data)}))(t)
		if diff := cmp.Diff(plain(t, kustomize(t, root+"/manifests/overlays/"+overlay)), plain(t, helm(t, values(string(whole))))); diff != "" {
			t.Errorf("overlays/%s and the chart with its configuration (-kustomize,+helm):\n%s", overlay, diff)
		}
	}
	shared := kustomization(t, "resources: [MANIFESTS/overlays/aks]\ncomponents: [MANIFESTS/components/config, MANIFESTS/components/tenants]\nconfigMapGenerator: [{name: pool-priority-config, files: [config.yaml]}]\n",
		map[string]string{"config.yaml": strings.Replace(string(must.ReadFile(t, aksConfig)), "      pools:", "      tenants: true\n      pools:", 1)})
	if diff := cmp.Diff(plain(t, kustomize(t, shared)), plain(t, helm(t, values("tenants: true")))); diff != "" {
		t.Errorf("overlays/aks with the component tenants and the chart with tenants (-kustomize,+helm):\n%s", diff)
	}
	testOptionalRights(t, values)
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
	if back["ClusterRole /pool-priority-scheduler:return"] == nil {
		t.Errorf("with return, its role is not among %v", slices.Sorted(maps.Keys(back)))
	}
	viewed := plain(t, helm(t, values(`viewers: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: pool-priority-viewers}]
overriders: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: pool-priority-on-call}]`)))
	for key := range plain(t, helm(t)) {
		delete(viewed, key)
	}
	if diff := cmp.Diff(plain(t, render(t, "kubectl", "kustomize", "testdata/viewer-only")), viewed); diff != "" {
		t.Errorf("components/viewer and override, and the chart with viewers and overriders (-kustomize,+helm):\n%s", diff)
	}
	elsewhere := helm(t, "--namespace", "elsewhere", values("monitoring: {serviceMonitor: monitoring.coreos.com/v1, alerts: true}\n"+
		"tenants: true\n"+
		"viewers: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: somebody}]"))
	for key, object := range elsewhere {
		text := must.Get(yaml.Marshal(object.Object))(t)
		if strings.Contains(string(text), devcluster.SchedulerNamespace) {
			t.Errorf("%s names the namespace %s", key, devcluster.SchedulerNamespace)
		}
		if strings.Contains(string(text), "username == ") && !strings.Contains(string(text), "username == 'system:serviceaccount:elsewhere:pool-priority-") {
			t.Errorf("%s is for accounts of another namespace:\n%s", key, text)
		}
	}
	gangs := must.ReadFile(t, root+"/manifests/examples/coscheduling.yaml")
	whole := must.Get(yaml.Marshal(map[string]string{"config": string(gangs)}))(t)
	if objects := helm(t, values(string(whole))); objects["ClusterRole /pool-priority-scheduler:coscheduling"] == nil {
		t.Errorf("with Coscheduling, its role is not among %v", slices.Sorted(maps.Keys(objects)))
	}
	for _, tc := range []struct{ values, want string }{
		{"config: '{leaderElection: {resourceNamespace: other}}'", "leaderElection.resourceNamespace must be the release's namespace pool-priority-system, or be left out; it is other"},
		{"args: {statusConfigMap: a/b, pools: [{name: user, nodeSelector: {}}]}", "statusConfigMap must be in the release's namespace pool-priority-system, for which the scheduler has rights; it is a/b"},
		{"config: '{leaderElection: {leaderElect: false}}'", "leaderElect is false, and scheduler.replicas is more than 1"},
		{"args: {scaleIn: {others: true}, pools: [{name: user, nodeSelector: {}}]}", "instead of others: true, deletionCosts: All"},
		{"args: {pools: [{name: aci, nodeSelector: {}, burst: {maxPods: 1}}]}", "instead of maxPods: N, write limits: {pods: N}"},
		{"config: '{profiles: []}'", ""}, // start-up says what is wrong
		{"args: {pools: [{name: aci, nodeSelector: {}, burst: {return: null}}, {name: b, nodeSelector: {}, burst: {}}]}", ""}, // start-up says what is wrong
		{"scheduler: {replica: 3}", "replica"},
		{"monitoring: {serviceMonitor: true}", "serviceMonitor"},
		{"args: {pools: []}", "pools"},
		{"args: {pools: [{name: user}]}", "nodeSelector"},
		{"schedulerName: default-scheduler", "schedulerName"},
		{"viewers: [somebody]", "viewers"},
		{"tenants: yes, please", "tenants"},
		{"policies: {tenants: {enabled: true}}", "enabled"},
		{"policies: {tenants: {nodeNames: '['}}", "missing closing ]"},
		{"policies: {tenants: {labels: {type: '('}}}", "missing closing )"},
		{"tenants: true\nconfig: '{profiles: []}'", "tenants: the value config is used, and the plugin's args in it have no tenants: true"},
	} {
		if out, err := tool(t, "helm", "template", "pool-priority", chart, "--namespace", devcluster.SchedulerNamespace, "--kube-version", "1.35.4", ourImage, values(tc.values)); (err == nil) != (tc.want == "") || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %v: no %q in %s", tc.values, err, tc.want, out)
		}
	}
	if out, err := tool(t, "helm", "template", "release", chart, "--kube-version", "1.34.2"); err == nil || !strings.Contains(out, "incompatible with Kubernetes v1.34.2") {
		t.Errorf("with Kubernetes 1.34: %v: %s", err, out)
	}
}

// testOptionalRights: without the values volumes and policies.leastRights, the chart has fewer rights, or no policies.
func testOptionalRights(t *testing.T, values func(string) string) {
	t.Helper()
	all := plain(t, helm(t))
	without := func(text string) (gone, added []string) {
		some := plain(t, helm(t, values(text)))
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if some[key] == "" {
				gone = append(gone, key)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(some)) {
			if all[key] == "" {
				added = append(added, key)
			}
		}
		return gone, added
	}
	gone, added := without("volumes: false")
	if want := []string{"ClusterRoleBinding /pool-priority-scheduler:volume-scheduler"}; !slices.Equal(gone, want) || len(added) != 2 || !strings.Contains(added[0], "storageclasses") {
		t.Errorf("volumes: false takes away %v and adds %v", gone, added)
	}
	gone, added = without("policies: {leastRights: false}")
	if len(gone) != 23 || len(added) != 0 || slices.ContainsFunc(gone, func(key string) bool { return !strings.HasPrefix(key, "ValidatingAdmissionPolicy") }) {
		t.Errorf("leastRights: false takes away %d objects, %v, and adds %v", len(gone), gone, added)
	}
}

// TestNamespaceAndNames: if kustomize or Helm sets a namespace, all objects are in this namespace, and none is in
// kube-system. (Argo CD and Flux set the namespace of kustomize, too.) The name of the Helm release is part of the
// objects' names.
func TestNamespaceAndNames(t *testing.T) {
	t.Parallel()
	const elsewhere = "pool-priority-of-mine" // it contains our name
	for _, component := range []string{"", "return", "karpenter", "coscheduling", "viewer", "override", "network-policy", "monitoring", "alerts", "dashboard", "tenants"} {
		text := "namespace: " + elsewhere + "\nresources: [MANIFESTS/overlays/aks]\n"
		if component != "" {
			text += "components: [MANIFESTS/components/" + component + "]\n"
		}
		inNamespace(t, kustomize(t, kustomization(t, text, nil)), elsewhere)
	}
	for text, want := range map[string]bool{"": true, "components: [MANIFESTS/components/existing-namespace]\n": false} {
		all := renderAll(t, "kubectl", "kustomize", kustomization(t, "namespace: "+elsewhere+"\nresources: [MANIFESTS/overlays/aks]\n"+text, nil))
		if got := all["Namespace /"+elsewhere] != nil; got != want || all["Namespace /"+devcluster.SchedulerNamespace] != nil {
			t.Errorf("%q: the namespace is part of the installation: %t, want %t", text, got, want)
		}
	}
	green := plain(t, kustomize(t, kustomization(t, "namespace: green-system\nnamePrefix: green-\nresources: [MANIFESTS/overlays/aks]\n", nil)))["FlowSchema /green-pool-priority-leases"]
	if strings.Count(green, "name: green-pool-priority-") != 3 || strings.Count(green, "namespace: green-system") != 2 {
		t.Errorf("with a namePrefix, a FlowSchema does not have it in its name and those of two accounts:\n%s", green)
	}
	diff := cmp.Diff(plain(t, kustomize(t, kustomization(t, "namespace: "+elsewhere+"\nresources: [MANIFESTS/overlays/aks]\n", nil))), plain(t, helm(t, "--namespace", elsewhere)))
	if diff != "" {
		t.Errorf("overlays/aks and the chart in another namespace (-kustomize,+helm):\n%s", diff)
	}
	release := func(name string, args ...string) map[string]*unstructured.Unstructured {
		return render(t, "helm", append([]string{"template", name, chart, "--namespace", elsewhere, "--kube-version", "1.35.4", ourImage}, args...)...)
	}
	first := release("pool-priority")
	for _, same := range [][]string{{"pool-priority-scheduler"}, {"other", "--set=fullnameOverride=pool-priority"}} {
		if diff := cmp.Diff(plain(t, first), plain(t, release(same[0], same[1:]...))); diff != "" {
			t.Errorf("the releases pool-priority and %v (-want,+got):\n%s", same, diff)
		}
	}
	for name, want := range map[string]string{"team-a": "team-a-pool-priority", "my-pool-priority": "my-pool-priority", "a.b": "a-b-pool-priority",
		strings.Repeat("long-", 9) + "er": strings.Repeat("long-", 9) + "er-pool-priority"} {
		want = strings.TrimSuffix(want[:min(len(want), 50)], "-")
		objects := release(name)
		inNamespace(t, objects, elsewhere)
		for key, object := range objects {
			if !strings.HasPrefix(object.GetName(), want) || first[key] != nil {
				t.Errorf("release %s: %s", name, key)
			}
			if labels := object.GetLabels()["app.kubernetes.io/name"]; len(labels) > 63 {
				t.Errorf("release %s: %s has the label %s", name, key, labels)
			}
		}
		config := configOf(t, objects, want+"-scheduler")
		for _, text := range []string{"resourceName: " + want + "-scheduler\n", "statusConfigMap: " + elsewhere + "/" + want + "-status\n"} {
			if !strings.Contains(config, text) {
				t.Errorf("release %s: no %q in\n%s", name, text, config)
			}
		}
		rights := fmt.Sprint(objects["Role "+elsewhere+"/"+want+"-scheduler:leader-election"], objects["Role "+elsewhere+"/"+want+"-scheduler:status"], objects["Role "+elsewhere+"/"+want+"-controller:leader-election"])
		for _, name := range []string{"[" + want + "-scheduler]", "[" + want + "-status]", "[" + want + "-controller]"} {
			if !strings.Contains(rights, name) {
				t.Errorf("release %s: no right to %s in %s", name, name, rights)
			}
		}
	}
	// The rights are for the ConfigMaps that the configuration names.
	named := release("pool-priority", "--set-json=args="+`{"statusConfigMap":"`+elsewhere+`/published","capacity":{"clusterAutoscalerStatus":"a/autoscaler"},"pools":[{"name":"user","nodeSelector":{}}]}`)
	if rights := fmt.Sprint(named["Role "+elsewhere+"/pool-priority-scheduler:status"], named["ClusterRole /pool-priority-scheduler:configmaps"]); !strings.Contains(rights, "[published]") || !strings.Contains(rights, "[autoscaler]") {
		t.Errorf("the rights do not follow the configuration: %s", rights)
	}
}

// inNamespace fails the test if an object is in another namespace, or if its text names kube-system or the default
// namespace of the manifests.
func inNamespace(t *testing.T, objects map[string]*unstructured.Unstructured, namespace string) {
	t.Helper()
	for key, object := range objects {
		if n := object.GetNamespace(); n != "" && n != namespace {
			t.Errorf("%s is in the namespace %s", key, n)
		}
		text := must.Get(yaml.Marshal(object.Object))(t)
		exempt := strings.HasPrefix(object.GetKind(), "ValidatingAdmissionPolicy") // kube-system is exempt from some
		if object.GetKind() != "CustomResourceDefinition" && (strings.Contains(string(text), devcluster.SchedulerNamespace) || strings.Contains(string(text), "kube-system") && !exempt) {
			t.Errorf("%s names another namespace:\n%s", key, text)
		}
	}
}

// TestInstall: the API server accepts the objects of kustomize and Helm without a warning, under the restricted pod
// security standard. Nothing is left after an uninstallation.
func TestInstall(t *testing.T) {
	t.Parallel()
	e := start(t, nil)
	kubeConfig := "--kubeconfig=" + e.KubeConfig()
	overlays, err := filepath.Glob(root + "/manifests/overlays/*")
	if err != nil || len(overlays) < 2 {
		t.Fatal(overlays, err)
	}
	more := kustomization(t, "resources: [MANIFESTS/overlays/aks]\ncomponents: [MANIFESTS/components/network-policy, MANIFESTS/components/viewer, MANIFESTS/components/override]\n", nil)
	for _, overlay := range append(overlays, root+"/manifests/examples/own-pools", more, "testdata/policies") {
		for _, command := range [][]string{{"apply", "--warnings-as-errors"}, {"delete", "--wait=false", "--ignore-not-found"}} { // the namespace takes its objects with it
			if out, err := tool(t, "kubectl", append(command, kubeConfig, "-k", overlay)...); err != nil || strings.Contains(out, "Warning") {
				t.Errorf("kubectl %v -k %s: %v: %s", command, overlay, err, out)
			}
		}
		e.gone()
	}
	if out, err := tool(t, "helm", kubeConfig, "install", "pool-priority", chart, "--namespace", devcluster.SchedulerNamespace, "--create-namespace", ourImage,
		"--set=networkPolicy.enabled=true,tenants=true", "--set-json=viewers=[{\"apiGroup\":\"rbac.authorization.k8s.io\",\"kind\":\"Group\",\"name\":\"developers\"}]"); err != nil || strings.Contains(out, "arning") || !strings.Contains(out, "With tenants: true, pods burst only from namespaces that you label") {
		t.Fatalf("helm install: %v: %s", err, out)
	}
	if _, err := e.Client.AppsV1().Deployments(devcluster.SchedulerNamespace).Get(e.ctx, devcluster.SchedulerName, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	// No pod runs in this cluster, so the hook's Job would wait forever.
	if out, err := tool(t, "helm", kubeConfig, "uninstall", "pool-priority", "--namespace", devcluster.SchedulerNamespace, "--no-hooks"); err != nil {
		t.Fatalf("helm uninstall: %v: %s", err, out)
	}
	roles := must.Get(e.Client.RbacV1().ClusterRoles().List(e.ctx, metav1.ListOptions{}))(t)
	for _, role := range roles.Items {
		if strings.HasPrefix(role.Name, "pool-priority") {
			t.Errorf("ClusterRole %s is left", role.Name)
		}
	}
	if out, err := tool(t, "kubectl", kubeConfig, "get", "flowschemas", "--output=name"); err != nil || strings.Contains(out, "pool-priority") {
		t.Errorf("FlowSchemas are left: %v: %s", err, out)
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
