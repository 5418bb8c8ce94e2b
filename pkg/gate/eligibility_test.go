package gate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

func TestEligible(t *testing.T) {
	yes := true
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	asks := func(name corev1.ResourceName, quantity string) func(*corev1.Pod) {
		return container(func(c *corev1.Container) {
			c.Resources.Requests = corev1.ResourceList{name: resource.MustParse(quantity)}
		})
	}
	initContainer := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{}}
			change(&p.Spec.InitContainers[0])
		}
	}
	httpGet := func(port intstr.IntOrString) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: port}}
	}
	probe := func(handler corev1.ProbeHandler) func(*corev1.Pod) {
		return container(func(c *corev1.Container) {
			c.Ports, c.LivenessProbe = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}, &corev1.Probe{ProbeHandler: handler}
		})
	}
	field := func(path string) func(*corev1.Pod) {
		return container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}}
		})
	}
	cpuAndMemory := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	limits := func(cpu, memory, cpuLimit, memoryLimit string) func(*corev1.Pod) {
		return container(func(c *corev1.Container) {
			c.Resources = corev1.ResourceRequirements{Requests: cpuAndMemory(cpu, memory), Limits: cpuAndMemory(cpuLimit, memoryLimit)}
		})
	}
	named := func(namespace, name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Namespace, p.Name = namespace, name }
	}
	for _, tc := range []struct {
		name string
		pod  func(*corev1.Pod)
		v1   string // code of the reason; "" if the pod is eligible
		v2   string
	}{
		{"plain", func(*corev1.Pod) {}, "", ""},
		{"of a Deployment", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Controller: &yes}}
		}, "", ""},
		{"of a DaemonSet", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: &yes}}
		}, "DaemonSetPod", "DaemonSetPod"},
		{"a mirror pod", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, "MirrorPod", "MirrorPod"},
		{"Windows by its OS", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }, "Windows", "Windows"},
		{"Windows by its selector", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} }, "Windows", "Windows"},
		{"Linux by its OS", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Linux} }, "", ""},
		{"host network", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "HostNamespace", "HostNamespace"},
		{"host PID", func(p *corev1.Pod) { p.Spec.HostPID = true }, "HostNamespace", "HostNamespace"},
		{"host IPC", func(p *corev1.Pod) { p.Spec.HostIPC = true }, "HostNamespace", "HostNamespace"},
		{"host port", container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}} }), "HostPort", "HostPort"},
		{"container port", container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80}} }), "", ""},
		{"privileged", container(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{Privileged: &yes} }), "Privileged", "Privileged"},
		{"a privileged init container", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
		}, "Privileged", "Privileged"},
		{"host aliases", func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1"}} }, "HostAliases", ""},
		{"hostPath", volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), "HostPath", "HostPath"},
		{"a claim", volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}), "PersistentVolume", "PersistentVolume"},
		{"a generic ephemeral volume", volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), "PersistentVolume", "PersistentVolume"},
		{"NFS", volume(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}), "VolumeType", "VolumeType"},
		{"emptyDir", volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), "", ""},
		{"secret", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}), "", ""},
		{"configMap", volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}), "", ""},
		{"projected", volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}), "", ""},
		{"azureFile", volume(corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{}}), "", ""},
		{"inline Azure Files", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "file.csi.azure.com"}}), "", ""},
		{"an inline disk", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "disk.csi.azure.com"}}), "VolumeType", "VolumeType"},
		{"an image", volume(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}), "VolumeType", "VolumeType"},
		{"downwardAPI", volume(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}), "DownwardAPIVolume", "DownwardAPIVolume"},
		{"a plain init container", initContainer(func(*corev1.Container) {}), "", ""},
		{"an init container with a port", initContainer(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{ContainerPort: 80}} }), "InitContainer", ""},
		{"an init container with requests", initContainer(func(c *corev1.Container) { c.Resources.Requests = cpuAndMemory("1", "1Gi") }), "InitContainer", ""},
		{"an init container with limits", initContainer(func(c *corev1.Container) { c.Resources.Limits = cpuAndMemory("1", "1Gi") }), "InitContainer", ""},
		{"an init container with a probe", initContainer(func(c *corev1.Container) { c.ReadinessProbe = &corev1.Probe{} }), "InitContainer", ""},
		{"an init container with a hook", initContainer(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "InitContainer", ""},
		{"an init container with args and no command", initContainer(func(c *corev1.Container) { c.Args = []string{"-v"} }), "ArgsWithoutCommand", ""},
		{"a sidecar", initContainer(func(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) }), "Sidecar", ""},
		{"a lifecycle hook", container(func(c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{} }), "LifecycleHook", ""},
		{"args and no command", container(func(c *corev1.Container) { c.Args = []string{"-v"} }), "ArgsWithoutCommand", ""},
		{"args and a command", container(func(c *corev1.Container) { c.Command, c.Args = []string{"web"}, []string{"-v"} }), "", ""},
		{"a startup probe", container(func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{ProbeHandler: httpGet(intstr.FromInt32(80))} }), "StartupProbe", ""},
		{"a tcpSocket probe", probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}), "ProbeType", ""},
		{"a grpc probe", probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}), "ProbeType", ""},
		{"an exec probe", probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{}}), "", ""},
		{"an httpGet probe by number", probe(httpGet(intstr.FromInt32(80))), "", ""},
		{"an httpGet probe by name", probe(httpGet(intstr.FromString("http"))), "", ""},
		{"an httpGet probe by an unknown name", probe(httpGet(intstr.FromString("admin"))), "ProbePort", ""},
		{"a readiness probe by an unknown name", container(func(c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: httpGet(intstr.FromString("admin"))}
		}), "ProbePort", ""},
		{"a variable from status.podIP", field("status.podIP"), "FieldRef", ""},
		{"a variable from status.hostIP", field("status.hostIP"), "FieldRef", ""},
		{"a variable from metadata.name", field("metadata.name"), "", ""},
		{"a CPU limit above the request", limits("500m", "1Gi", "501m", "1Gi"), "LimitAboveRequests", ""},
		{"a memory limit above the request", limits("500m", "1Gi", "500m", "2Gi"), "LimitAboveRequests", ""},
		{"limits that equal the requests", limits("500m", "1Gi", "500m", "1Gi"), "", ""},
		{"a memory limit above the request by less than what is told apart", limits("500m", "110M", "500m", "190M"), "", ""},
		{"a limit above the container's own request, and not above that of all", func(p *corev1.Pod) {
			limits("500m", "1Gi", "1", "1.5Gi")(p)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: cpuAndMemory("1", "1Gi")}})
		}, "", ""},
		{"a limit below what a container is given that requests nothing", container(func(c *corev1.Container) { c.Resources.Limits = cpuAndMemory("1", "1Gi") }), "", ""},
		{"a limit above what a container is given that requests nothing", container(func(c *corev1.Container) { c.Resources.Limits = cpuAndMemory("2", "1Gi") }), "LimitAboveRequests", ""},
		{"a fraction of 10m, with a limit equal to it", limits("255m", "1Gi", "255m", "1Gi"), "FractionalCPU", ""},
		{"a fraction of 10m, without a limit", asks(corev1.ResourceCPU, "255m"), "", ""},
		{"less than 10m, with a limit equal to it", limits("5m", "1Gi", "5m", "1Gi"), "", ""},
		{"a name of 63 characters", named("web", strings.Repeat("a", 59)), "", ""},
		{"a name of 64 characters", named("web", strings.Repeat("a", 60)), "GroupName", ""},
		{"a name with a dot", named("web", "web-0.9"), "GroupName", ""},
		{"a name with hyphens in a row", named("web", "web--1"), "GroupName", ""},
		{"a resource claim", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} }, "ResourceClaim", "ResourceClaim"},
		{"a GPU", asks("nvidia.com/gpu", "1"), "ExtendedResource", "ExtendedResource"},
		{"no GPU", asks("nvidia.com/gpu", "0"), "", ""},
		{"ephemeral storage", asks(corev1.ResourceEphemeralStorage, "1Gi"), "EphemeralStorage", "EphemeralStorage"},
		{"CPU", asks(corev1.ResourceCPU, "1"), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
			tc.pod(pod)
			pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
				{Name: "user", NodeSelector: matching("mode", "user")},
				{Name: "v2", NodeSelector: matching("virtualization", "virtualnode2"), Burst: &configv1.Burst{}},
				{Name: "v2-by-its-nodes", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}},
				{Name: "v1", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{Platform: configv1.PlatformACI}},
				{Name: "other", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{Platform: configv1.PlatformOther}},
			}})
			must.NoError(t, err)
			r := &Rule{Pools: pools}
			view := &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), {},
				{NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"virtualization": "virtualnode2"}}}},
				{NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"virtualization": "virtualnode2"}}, {}}}, {}}}
			azureFiles := false
			check := func(want ...string) {
				t.Helper()
				decision := r.Decide(Request{Pod: pod, AzureFiles: azureFiles}, view, now)
				for b, code := range want {
					got := decision.Burst[1+b]
					if code == "" && !got.Open || code != "" && (got.Open || got.Reason.Code != code || !strings.HasPrefix(got.Reason.Sentence, "node(s) in a burst pool that cannot run ")) {
						t.Errorf("%s: %+v, want %q", pools.At(1+b).Name, got, code)
					}
				}
			}
			other := "" // any other virtual kubelet counts as unable to run only pods of DaemonSets and static pods
			if tc.v1 == "DaemonSetPod" || tc.v1 == "MirrorPod" {
				other = tc.v1
			}
			check(tc.v2, tc.v2, tc.v1, other)
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[pool.BurstAnnotation] = pool.BurstAlways
			check("", "", "", "")
			delete(pod.Annotations, pool.BurstAnnotation)
			if tc.v2 == "PersistentVolume" { // virtual nodes v2 can mount Azure Files
				azureFiles = true
				check("", "", tc.v1, other)
			}
			pod.Annotations[pool.BurstAnnotation] = pool.BurstNever
			for _, v := range r.Decide(Request{Pod: pod}, view, now).Burst {
				if v.Open {
					t.Error("the gate is open for a pod that opted out")
				}
			}
		})
	}
}

// TestMissingTopology: a pod never bursts if a DoNotSchedule constraint spreads it over a label that the burst pool's
// nodes lack. The reason says so.
func TestMissingTopology(t *testing.T) {
	virtual := nodegroups.Pool{NodeTemplates: []nodegroups.NodeTemplate{{Labels: map[string]string{"type": "virtual-kubelet"}}}, Places: map[string]bool{corev1.LabelHostname: true}}
	for _, tc := range []struct {
		name string
		key  string
		when corev1.UnsatisfiableConstraintAction
		aci  nodegroups.Pool
		want string
	}{
		{"over zones", corev1.LabelTopologyZone, corev1.DoNotSchedule, virtual, "TopologyMissing"},
		{"over zones, if possible", corev1.LabelTopologyZone, corev1.ScheduleAnyway, virtual, "Open"},
		{"over hosts", corev1.LabelHostname, corev1.DoNotSchedule, virtual, "Open"},
		{"over a label that the nodes have", "type", corev1.DoNotSchedule, virtual, "Open"},
		{"there is no node yet", corev1.LabelTopologyZone, corev1.DoNotSchedule, nodegroups.Pool{}, "Open"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{TopologyKey: tc.key, WhenUnsatisfiable: tc.when}}}}
		d := rule(t, nil).Decide(Request{Pod: pod}, &nodegroups.View{Pools: []nodegroups.Pool{in(nodegroups.Full, 0), in(nodegroups.Full, 0), tc.aci}}, now)
		if got := d.Burst[2].Reason.Code; got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
