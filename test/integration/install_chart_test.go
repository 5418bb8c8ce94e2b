package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/must"
)

// podsOf returns the pod templates of the objects, by the key of the object.
func podsOf(t *testing.T, objects map[string]*unstructured.Unstructured) map[string]corev1.PodTemplateSpec {
	t.Helper()
	templates := map[string]corev1.PodTemplateSpec{}
	for key, object := range objects {
		deployment, job := &appsv1.Deployment{}, &batchv1.Job{}
		var err error
		switch object.GetKind() {
		case "Deployment":
			err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, deployment, true)
			templates[key] = deployment.Spec.Template
		case "Job":
			err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, job, true)
			templates[key] = job.Spec.Template
		}
		if err != nil {
			t.Fatal(key, err)
		}
	}
	return templates
}

const allValues = `
commonLabels: {team: platform}
commonAnnotations: {owner: me}
image: {repository: r.example/p, digest: "sha256:%s", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
priorityClassName: mine
nodeSelector: {disk: ssd}
tolerations: [{key: t, operator: Exists}]
affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
scheduler:
  extraArgs: [--logging-format=json, --feature-gates=A=true]
  labels: {l: "1"}
  annotations: {a: "1"}
  podLabels: {pl: "1"}
  podAnnotations: {pa: "1", poolpriority.dev/config: not this}
  serviceAccount: {name: existing, create: false}
controller:
  extraArgs: [--logging-format=json]
  serviceAccount: {name: renamed, annotations: {azure.workload.identity/client-id: id}}
cleanup: {resources: {limits: {memory: 64Mi}}}
`

// TestChartValues: the values are set on every pod and every object. Unknown values are rejected.
func TestChartValues(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("ab", 32)
	file := must.WriteFile(t, "values.yaml", []byte(fmt.Sprintf(allValues, digest)))
	objects := renderAll(t, "helm", "template", "pool-priority", chart, "--namespace", "mine", "--kube-version", "1.35.4", "--values", file)
	for key, object := range objects {
		labels := object.GetLabels()
		if labels["team"] != "platform" || labels["app.kubernetes.io/instance"] != "pool-priority" || labels["app.kubernetes.io/managed-by"] != "Helm" ||
			!strings.HasPrefix(labels["helm.sh/chart"], "pool-priority-scheduler-") || object.GetAnnotations()["owner"] != "me" {
			t.Errorf("%s has the labels %v and the annotations %v", key, labels, object.GetAnnotations())
		}
	}
	pods := podsOf(t, objects)
	want := []string{"Deployment mine/pool-priority-controller", "Deployment mine/pool-priority-scheduler", "Job mine/pool-priority-cleanup"}
	if got := slices.Sorted(maps.Keys(pods)); !slices.Equal(got, want) {
		t.Fatalf("pods of %v, want %v", got, want)
	}
	for key, pod := range pods {
		c := pod.Spec.Containers[0]
		if c.Image != "r.example/p@sha256:"+digest || c.ImagePullPolicy != corev1.PullAlways || len(pod.Spec.ImagePullSecrets) != 1 || pod.Spec.PriorityClassName != "mine" ||
			pod.Spec.NodeSelector["disk"] != "ssd" || len(pod.Spec.Tolerations) != 1 || pod.Spec.Tolerations[0].Key != "t" || pod.Spec.Affinity.NodeAffinity == nil ||
			c.Resources.Limits.Memory().IsZero() || pod.Labels["team"] != "platform" {
			t.Errorf("%s: %+v", key, pod)
		}
	}
	if args := pods[want[2]].Spec.Containers[0].Args; !slices.Contains(args, "--installation=pool-priority-scheduler") || !slices.Contains(args, "--scheduler-name=pool-priority-scheduler") {
		t.Errorf("what cleans up has the arguments %v", args)
	}
	scheduler, controller := pods[want[1]], pods[want[0]]
	if scheduler.Spec.ServiceAccountName != "existing" || controller.Spec.ServiceAccountName != "renamed" {
		t.Errorf("the pods run as %s and %s", scheduler.Spec.ServiceAccountName, controller.Spec.ServiceAccountName)
	}
	if got := scheduler.Spec.Containers[0].Args; !slices.Equal(got[2:], []string{"--logging-format=json", "--feature-gates=A=true"}) {
		t.Errorf("the scheduler's arguments are %v", got)
	}
	if scheduler.Labels["pl"] != "1" || scheduler.Annotations["pa"] != "1" || !strings.Contains(scheduler.Annotations["poolpriority.dev/config"], "KubeSchedulerConfiguration") {
		t.Errorf("the scheduler's pods have the labels %v and the annotations %v", scheduler.Labels, scheduler.Annotations)
	}
	deployment := objects[want[1]]
	if deployment.GetLabels()["l"] != "1" || deployment.GetAnnotations()["a"] != "1" {
		t.Errorf("the scheduler's Deployment has the labels %v and the annotations %v", deployment.GetLabels(), deployment.GetAnnotations())
	}
	if account := objects["ServiceAccount mine/renamed"]; account == nil || account.GetAnnotations()["azure.workload.identity/client-id"] != "id" || objects["ServiceAccount mine/existing"] != nil {
		t.Errorf("the ServiceAccounts among %v", slices.Sorted(maps.Keys(objects)))
	}
	for key, object := range objects {
		if kind := object.GetKind(); kind == "FlowSchema" || strings.HasSuffix(kind, "RoleBinding") {
			subjects := fmt.Sprint(object.Object["subjects"], object.Object["spec"])
			if strings.Contains(subjects, "pool-priority-scheduler") || strings.Contains(subjects, "pool-priority-controller") {
				t.Errorf("%s is for %s", key, subjects)
			}
		}
	}
	for _, set := range []string{"image.digest=md5:1", "scheduler.extraArgs={a}", "scheduler.serviceAccount.create=1", "cleanup.resource=1", "unknown=1"} {
		if out, err := tool(t, "helm", "template", "pool-priority", chart, "--kube-version", "1.35.4", ourImage, "--set", set); err == nil || !strings.Contains(out, "values don't meet the specifications of the schema") {
			t.Errorf("%s: %v: %s", set, err, out)
		}
	}
	for _, set := range []string{"image.tag=v1", "cleanup.enabled=false", "flowSchema.enabled=false", "affinity=null", "tolerations=null", "scheduler.resources=null", "scheduler.serviceAccount=null", "cleanup=null", "x-anchor.a=1"} {
		out, err := tool(t, "helm", "template", "pool-priority", chart, "--kube-version", "1.35.4", ourImage, "--set", set)
		if err != nil || strings.Contains(out, "kind: Job") == (set == "cleanup.enabled=false") || strings.Contains(out, "kind: FlowSchema") == (set == "flowSchema.enabled=false") {
			t.Errorf("%s: %v: %s", set, err, out)
		}
	}
}

// ourImage sets the chart's image, which has no default.
const ourImage = "--set=image.repository=registry.example.com/pool-priority-scheduler"

// TestChartBuilds: the chart uses the newest build that is not newer than the cluster. With Coscheduling, it uses the
// build for 1.35. If there is no such build, the chart's error says which value to set.
func TestChartBuilds(t *testing.T) {
	t.Parallel()
	example := func(name string) string { return "--set-file=config=" + root + "/manifests/examples/" + name + ".yaml" }
	repository, gangs, packing := ourImage, example("coscheduling"), example("packing")
	groups := "--api-versions=scheduling.k8s.io/v1alpha2/PodGroup"
	digest := "sha256:" + strings.Repeat("0", 64)
	for _, tc := range []struct {
		cluster string
		args    []string
		image   string // below the repository's host; "" is an error
		want    string
	}{
		{"1.35.8", nil, "", `image.repository: it is "", without a registry: set it to the image in your registry`},
		{"1.35.8", []string{"--set=image.repository=team/pool-priority-scheduler"}, "", `image.repository: it is "team/pool-priority-scheduler", without a registry`},
		{"1.35.8", []string{repository}, "pool-priority-scheduler:v0.1.0-kubernetes1.35", ""},
		{"v1.36.2+k3s", []string{repository}, "pool-priority-scheduler:v0.1.0-kubernetes1.36", ""},
		{"1.37.2", []string{repository}, "pool-priority-scheduler:v0.1.0-kubernetes1.37", ""},
		{"1.38.0", []string{repository}, "pool-priority-scheduler:v0.1.0-kubernetes1.37", ""},
		{"1.36.2", []string{repository, "--set=image.tag=mine"}, "pool-priority-scheduler:mine", ""},
		{"1.36.2", []string{repository, "--set=image.digest=" + digest}, "pool-priority-scheduler@" + digest, ""},
		{"1.36.2", []string{repository, packing}, "pool-priority-scheduler:v0.1.0-kubernetes1.35", ""},
		{"1.36.2", []string{repository, "--set=image.tag=mine,kubernetesMinor=1.35"}, "", "kubernetesMinor: it selects the default image, and image.tag or image.digest names another: set one of them"},
		{"1.35.8", []string{"--set=image.repository=https://registry.example.com/p"}, "", "without a registry"},
		{"1.36.2", []string{repository, "--set-string=kubernetesMinor=1.35"}, "pool-priority-scheduler:v0.1.0-kubernetes1.35", ""},
		{"1.36.2", []string{repository, "--set-string=kubernetesMinor=1.34"}, "", "kubernetesMinor: there is no build for Kubernetes 1.34: set it to one of 1.35, 1.36, 1.37, or leave it out"},
		{"1.35.8", []string{repository, "--set-string=kubernetesMinor=1.36"}, "", "kubernetesMinor: the build for Kubernetes 1.36 does not start in a cluster of 1.35"},
		{"1.36.2", []string{repository, gangs}, "pool-priority-scheduler:v0.1.0-kubernetes1.35", ""},
		{"1.36.2", []string{repository, gangs, "--set-string=kubernetesMinor=1.36"}, "", "kubernetesMinor: there is no build for Kubernetes 1.36 with Coscheduling: set it to one of 1.35, or leave it out"},
		{"1.37.0", []string{repository, gangs}, "", "config: Coscheduling is only in the build for Kubernetes 1.35, which runs with clusters up to 1.36, and this cluster is 1.37"},
		{"1.36.2", []string{repository, groups}, "pool-priority-scheduler:v0.1.0-kubernetes1.36", ""},
		{"1.36.2", []string{repository, groups, "--set-string=kubernetesMinor=1.35"}, "", "the build for Kubernetes 1.35 might split a gang between VMs and the burst pool aci: leave out kubernetesMinor"},
	} {
		out, err := tool(t, "helm", append([]string{"template", "pool-priority", chart, "--kube-version", tc.cluster}, tc.args...)...)
		if tc.image == "" && (err == nil || !strings.Contains(out, tc.want)) || tc.image != "" && (err != nil || !strings.Contains(out, "image: registry.example.com/"+tc.image+"\n")) {
			t.Errorf("Kubernetes %s, %v: %v: no %q in %s", tc.cluster, tc.args, err, tc.image+tc.want, out)
		}
	}
}

// TestUmbrella: another chart can depend on this one, even twice, with a condition, global values and its own templates
// of any name.
func TestUmbrella(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.NoError(t, os.CopyFS(filepath.Join(dir, "charts", "pool-priority-scheduler"), os.DirFS(chart)))
	for name, text := range map[string]string{
		"Chart.yaml": `{apiVersion: v2, name: umbrella, version: 1.0.0, dependencies: [
			{name: pool-priority-scheduler, version: ">=0", condition: pool-priority-scheduler.enabled},
			{name: pool-priority-scheduler, version: ">=0", alias: second, condition: second.enabled}]}`,
		"values.yaml":           "global: {imageRegistry: r, nested: {a: 1}}\npool-priority-scheduler: {enabled: true, image: {repository: r.example/p, tag: v9}, affinity: null}\nsecond: {enabled: true, image: {repository: r.example/p}, nameOverride: second}\n",
		"templates/own.yaml":    "{{- define \"image\" }}own{{ end }}{{- define \"config\" }}own{{ end }}{{- define \"fullname\" }}own{{ end }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ include \"image\" . }}}\n",
		"templates/_others.tpl": "{{- define \"podSpec\" }}nonsense: {{ end }}",
	} {
		must.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	objects := render(t, "helm", "template", "umbrella", dir, "--namespace", "mine", "--kube-version", "1.35.4")
	pods := podsOf(t, objects)
	for _, want := range []string{"Deployment mine/umbrella-pool-priority-scheduler", "Deployment mine/umbrella-pool-priority-controller", "Deployment mine/umbrella-second-scheduler", "Deployment mine/umbrella-second-controller"} {
		pod, ok := pods[want]
		if !ok {
			t.Errorf("%s is not among %v", want, slices.Sorted(maps.Keys(objects)))
			continue
		}
		first := strings.Contains(want, "pool-priority")
		if (pod.Spec.Containers[0].Image == "r.example/p:v9") != first || (pod.Spec.Affinity == nil) != first {
			t.Errorf("%s: %+v", want, pod.Spec)
		}
	}
	if off := render(t, "helm", "template", "umbrella", dir, "--kube-version", "1.35.4", "--set", "pool-priority-scheduler.enabled=false,second.enabled=false"); len(off) != 1 {
		t.Errorf("switched off, there are %v", slices.Sorted(maps.Keys(off)))
	}
}

// TestPodGroupsStay: no installation includes the CRD of PodGroups, so that no uninstallation deletes it.
func TestPodGroupsStay(t *testing.T) {
	t.Parallel()
	gangs := must.ReadFile(t, root+"/manifests/examples/coscheduling.yaml")
	values := must.Get(yaml.Marshal(map[string]string{"config": string(gangs)}))(t)
	file := must.WriteFile(t, "values.yaml", values)
	component := kustomization(t, "resources: [MANIFESTS/base]\ncomponents: [MANIFESTS/components/config, MANIFESTS/components/coscheduling]\nconfigMapGenerator: [{name: pool-priority-config, files: [config.yaml]}]\n",
		map[string]string{"config.yaml": string(gangs)})
	for way, objects := range map[string]map[string]*unstructured.Unstructured{
		"kustomize": renderAll(t, "kubectl", "kustomize", component),
		"helm":      renderAll(t, "helm", "template", "pool-priority", chart, "--include-crds", "--kube-version", "1.35.4", ourImage, "--values", file),
	} {
		for key := range objects {
			if strings.HasPrefix(key, "CustomResourceDefinition") {
				t.Errorf("%s installs %s", way, key)
			}
		}
	}
	if crds := renderAll(t, "kubectl", "kustomize", root+"/manifests/crds/podgroup"); crds["CustomResourceDefinition /podgroups.scheduling.x-k8s.io"] == nil {
		t.Errorf("manifests/crds/podgroup has %v", slices.Sorted(maps.Keys(crds)))
	}
}
