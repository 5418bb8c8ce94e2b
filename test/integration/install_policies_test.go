package integration

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
)

// added returns the objects that a component adds to overlays/aks, and those that Helm's settings add to the chart.
func added(t *testing.T, component, namespace string, settings ...string) (byKustomize, byHelm map[string]*unstructured.Unstructured) {
	t.Helper()
	text := "resources: [MANIFESTS/overlays/aks]\n"
	if namespace != devcluster.SchedulerNamespace { // kustomize also sets it on cluster-scoped objects of unknown kinds
		text += "namespace: " + namespace + "\n"
	}
	byKustomize = kustomize(t, kustomization(t, text+"components: [MANIFESTS/components/"+component+"]\n", nil))
	byHelm = helm(t, append([]string{"--namespace", namespace}, settings...)...)
	for _, key := range slices.Collect(maps.Keys(helm(t, "--namespace", namespace))) {
		delete(byKustomize, key)
		delete(byHelm, key)
	}
	// kustomize sets the namespace on these, so that their keys differ.
	maps.DeleteFunc(byKustomize, func(_ string, o *unstructured.Unstructured) bool { return slices.Contains(clusterScoped, o.GetKind()) })
	return byKustomize, byHelm
}

// TestNetworkPolicy: each policy selects the pods of one Deployment and allows ingress to all of their ports, by name.
// The chart has the same policies as the component, and names them after the release.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	byKustomize, byHelm := added(t, "network-policy", "mine", "--set=networkPolicy.enabled=true")
	if diff := cmp.Diff(plain(t, byKustomize), plain(t, byHelm)); diff != "" || len(byHelm) != 2 {
		t.Errorf("the component and the chart (-kustomize,+helm):\n%s", diff)
	}
	for _, release := range []string{"pool-priority", "team-a"} {
		objects := render(t, "helm", "template", release, chart, "--kube-version", "1.35.4", ourImage, "--namespace", "mine", "--set=networkPolicy.enabled=true")
		policies := 0
		for key, object := range objects {
			if object.GetKind() != "NetworkPolicy" {
				continue
			}
			policies++
			policy := &networkingv1.NetworkPolicy{}
			must.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, policy))
			deployment := objects["Deployment mine/"+policy.Name]
			if deployment == nil {
				t.Fatalf("%s: %s is for no Deployment", release, key)
			}
			pod := podsOf(t, map[string]*unstructured.Unstructured{"": deployment})[""]
			for label, value := range policy.Spec.PodSelector.MatchLabels {
				if pod.Labels[label] != value {
					t.Errorf("%s: %s selects pods with %s=%s, and those have %v", release, key, label, value, pod.Labels)
				}
			}
			if want, got := portsOf(pod.Spec.Containers[0]), policyPorts(policy); !slices.Equal(got, want) {
				t.Errorf("%s: %s lets in to %v, want %v", release, key, got, want)
			}
		}
		if policies != 2 {
			t.Errorf("%s: there are %d network policies", release, policies)
		}
	}
}

// portsOf returns the names of the container's ports.
func portsOf(c corev1.Container) []string {
	var names []string
	for _, port := range c.Ports {
		names = append(names, port.Name)
	}
	slices.Sort(names)
	return names
}

// policyPorts returns the names of the ports to which the policy allows ingress.
func policyPorts(policy *networkingv1.NetworkPolicy) []string {
	var names []string
	for _, rule := range policy.Spec.Ingress {
		for _, port := range rule.Ports {
			if port.Port.Type == intstr.String {
				names = append(names, port.Port.StrVal)
			}
		}
	}
	slices.Sort(names)
	return names
}

// TestOptInPolicies: the policy of the chart is that of the component, except for the namespace and the scheduler's
// name. The example for Kyverno has the same failure policy, conditions and mutations. It has no other test.
func TestOptInPolicies(t *testing.T) {
	t.Parallel()
	byKustomize, byHelm := added(t, "opt-in", devcluster.SchedulerNamespace, "--set=optIn.enabled=true")
	if diff := cmp.Diff(plain(t, byKustomize), plain(t, byHelm)); diff != "" || len(byHelm) != 2 {
		t.Errorf("the component and the chart (-kustomize,+helm):\n%s", diff)
	}
	objects := render(t, "helm", "template", "team-a", chart, "--kube-version", "1.35.4", ourImage, "--namespace", "mine",
		"--set=optIn.enabled=true,schedulerName=of-team-a", "--api-versions=admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
	policy, binding := objects["MutatingAdmissionPolicy /team-a-pool-priority-scheduler"], objects["MutatingAdmissionPolicyBinding /team-a-pool-priority-scheduler"]
	if policy == nil || binding == nil {
		t.Fatalf("there are only %v", slices.Sorted(maps.Keys(objects)))
	}
	for object, want := range map[*unstructured.Unstructured]string{policy: "[kube-system mine]", binding: "[of-team-a]"} {
		text := must.Get(yaml.Marshal(object.Object))(t)
		if flat := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "\n", " ")), " "); object.GetAPIVersion() != "admissionregistration.k8s.io/v1" ||
			!strings.Contains(flat, "- "+strings.Join(strings.Fields(strings.Trim(want, "[]")), " - ")) || strings.Contains(flat, devcluster.SchedulerNamespace) {
			t.Errorf("the release team-a has no %s in\n%s", want, text)
		}
	}
	if name, _, _ := unstructured.NestedString(binding.Object, "spec", "policyName"); name != policy.GetName() {
		t.Errorf("the binding is of the policy %s", name)
	}
	if text := fmt.Sprint(policy.Object); !strings.Contains(text, "!= 'pool-priority'") {
		t.Errorf("the pods of any installation are not left alone: %s", text)
	}

	data := must.ReadFile(t, filepath.Join(root, "manifests/examples/opt-in/kyverno.yaml"))
	example := map[string]any{}
	must.NoError(t, yaml.UnmarshalStrict(data, &example))
	ours := byKustomize["MutatingAdmissionPolicy /pool-priority-scheduler"]
	if ours == nil {
		t.Fatal("the component has no policy")
	}
	for _, field := range []string{"failurePolicy", "matchConditions", "mutations"} {
		want, _, _ := unstructured.NestedFieldNoCopy(ours.Object, "spec", field)
		got, ok, _ := unstructured.NestedFieldNoCopy(example, "spec", field)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("the example for Kyverno: %s (-component,+example):\n%s", field, diff)
		}
	}
}
