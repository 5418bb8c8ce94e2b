package virtualnode

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster/azure"
)

// unconnected returns a connector for a cluster without Secrets and ConfigMaps.
func unconnected() *connector {
	core := informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1()
	return &connector{node: Name, azure: azure.NewRegion(), pods: core.Pods().Lister(), secrets: core.Secrets().Lister(), configMaps: core.ConfigMaps().Lister()}
}

// onePod returns a pod with one container.
func onePod(change func(*corev1.Pod, *corev1.Container)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "1"},
		Spec:       corev1.PodSpec{NodeName: Name, RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
	change(p, &p.Spec.Containers[0])
	return p
}

func volume(v corev1.VolumeSource) func(*corev1.Pod, *corev1.Container) {
	return func(p *corev1.Pod, _ *corev1.Container) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: v})
	}
}

func initContainer(change func(*corev1.Container)) func(*corev1.Pod, *corev1.Container) {
	return func(p *corev1.Pod, _ *corev1.Container) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "init"}}
		change(&p.Spec.InitContainers[0])
	}
}

// TestRefusedByTheConnector: the connector refuses the pods that azure-aci refuses without a request to Azure.
func TestRefusedByTheConnector(t *testing.T) {
	const args = "ACI does not support providing args without specifying the command. Please supply both command and args to the pod spec."
	tcp := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}}
	named := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("http")}}}
	hook := &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	for _, tc := range []struct {
		name   string
		change func(*corev1.Pod, *corev1.Container)
		want   string
	}{
		{"plain", func(*corev1.Pod, *corev1.Container) {}, ""},
		{"args with a command", func(_ *corev1.Pod, c *corev1.Container) { c.Command, c.Args = []string{"a"}, []string{"b"} }, ""},
		{"args without command", func(_ *corev1.Pod, c *corev1.Container) { c.Args = []string{"b"} }, args},
		{"startupProbe", func(_ *corev1.Pod, c *corev1.Container) { c.StartupProbe = named }, "ACI does not support startupProbe"},
		{"tcpSocket probe", func(_ *corev1.Pod, c *corev1.Container) { c.ReadinessProbe = tcp }, `probe must specify one of "exec" and "httpGet"`},
		{"unknown port name", func(_ *corev1.Pod, c *corev1.Container) { c.LivenessProbe = named }, "unable to find named port: http"},
		{"known port name", func(_ *corev1.Pod, c *corev1.Container) {
			c.LivenessProbe, c.Ports = named, []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
		}, ""},
		{"hook", func(_ *corev1.Pod, c *corev1.Container) { c.Lifecycle = hook }, "ACI does not support lifecycle hooks"},
		{"missing pull secret", func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
		}, `secret "pull" not found`},
		{"plain init container", initContainer(func(*corev1.Container) {}), ""},
		{"init container with args", initContainer(func(c *corev1.Container) { c.Args = []string{"b"} }), args},
		{"init container with ports", initContainer(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{}} }), "azure container instances initContainers do not support ports"},
		{"init container with requests", initContainer(func(c *corev1.Container) { c.Resources.Requests = corev1.ResourceList{} }), "azure container instances initContainers do not support resources requests"},
		{"sidecar", initContainer(func(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) }), "azure container instances initContainers do not support restartPolicy"},
		{"emptyDir", volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), ""},
		{"projected", volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}), ""},
		{"missing secret", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), ""},
		{"missing secret that must be", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Optional: ptr.To(false)}}), "Secret s is required by Pod web and does not exist"},
		{"claim", volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}), "pod web requires volume data which is of an unsupported type"},
		{"downwardAPI", volume(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}), "pod web requires volume data which is of an unsupported type"},
		{"Azure files by CSI", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: azureFileDriver}}), ""},
		{"disk by CSI", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "disk.csi.azure.com"}}), "pod web requires volume data which is of an unsupported type disk.csi.azure.com"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if _, err := unconnected().spec(onePod(tc.change)); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want,+got):\n%s", diff)
			}
		})
	}
}

func TestResources(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	for _, tc := range []struct {
		name string
		from corev1.ResourceRequirements
		want azure.Container
	}{
		{"nothing", corev1.ResourceRequirements{}, azure.Container{CPU: 1, Memory: 1.5}},
		{"requests are rounded down", corev1.ResourceRequirements{Requests: list("155m", "1Gi")}, azure.Container{CPU: 0.15, Memory: 1}},
		{"little", corev1.ResourceRequirements{Requests: list("1m", "1Mi")}, azure.Container{CPU: 0.01, Memory: 0.1}},
		{"a limit of CPU is not", corev1.ResourceRequirements{Requests: list("155m", "1G"), Limits: list("155m", "1G")}, azure.Container{CPU: 0.15, Memory: 1, CPULimit: 0.155, MemoryLimit: 1}},
	} {
		if diff := cmp.Diff(tc.want, container(&corev1.Container{Resources: tc.from})); diff != "" {
			t.Errorf("%s (-want,+got):\n%s", tc.name, diff)
		}
	}
}

func TestAnnotations(t *testing.T) {
	spec, err := unconnected().spec(onePod(func(p *corev1.Pod, _ *corev1.Container) {
		p.Annotations = map[string]string{RunsForAnnotation: "1m30s", ExitCodeAnnotation: "3"}
	}))
	if err != nil || spec.RunsFor != 90*time.Second || spec.ExitCode != 3 {
		t.Errorf("got %+v, %v", spec, err)
	}
	for _, annotation := range []string{RunsForAnnotation, ExitCodeAnnotation} {
		if _, err := unconnected().spec(onePod(func(p *corev1.Pod, _ *corev1.Container) { p.Annotations = map[string]string{annotation: "x"} })); err == nil {
			t.Errorf("%s: x was taken", annotation)
		}
	}
}
