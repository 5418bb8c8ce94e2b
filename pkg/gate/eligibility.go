package gate

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"

	"poolpriority.dev/scheduler/pkg/capacity"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// virtualizationLabel and virtualNodesV2 mark the nodes of AKS virtual nodes v2, which can run more.
	virtualizationLabel = "virtualization"
	virtualNodesV2      = "virtualnode2"
)

// A feature is something that a pod uses and a virtual kubelet on Azure Container Instances cannot run.
type feature struct {
	code string // of the reason
	what string // read on in "node(s) in a burst pool that cannot run …"
	used func(*corev1.Pod) bool
	v2   func(Request) bool // whether virtual nodes v2 can run it for the pod; nil: they cannot
}

func always(Request) bool { return true }

// unsupported is what a virtual kubelet on ACI cannot run. Source: the limitations in the documentation of AKS virtual
// nodes and of virtual nodes on Azure Container Instances (v2).
var unsupported = []feature{
	{code: "DaemonSetPod", what: "DaemonSet pods", used: ownedByDaemonSet},
	{code: "MirrorPod", what: "static pods", used: func(p *corev1.Pod) bool { _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; return ok }},
	{code: "Windows", what: "Windows pods", used: isWindows},
	{code: "HostNamespace", what: "pods that use the host's network, PIDs or IPC", used: func(p *corev1.Pod) bool {
		return p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC
	}},
	{code: "HostPort", what: "pods with host ports", used: anyContainer(func(c *corev1.Container) bool {
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				return true
			}
		}
		return false
	})},
	{code: "Privileged", what: "privileged pods", used: anyContainer(func(c *corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})},
	{code: "HostAliases", what: "pods with host aliases", used: func(p *corev1.Pod) bool { return len(p.Spec.HostAliases) > 0 }},
	{code: "HostPath", what: "pods with hostPath volumes", used: anyVolume(func(v *corev1.Volume) bool { return v.HostPath != nil })},
	{code: "PersistentVolume", what: "pods with persistent volumes", v2: func(r Request) bool { return r.AzureFiles }, used: anyVolume(func(v *corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})},
	{code: "VolumeType", what: "pods with volumes other than emptyDir, secret, configMap, projected and azureFile", used: anyVolume(func(v *corev1.Volume) bool {
		return v.HostPath == nil && v.PersistentVolumeClaim == nil && v.Ephemeral == nil &&
			v.EmptyDir == nil && v.Secret == nil && v.ConfigMap == nil && v.Projected == nil && v.AzureFile == nil
	})},
	{code: "InitContainer", what: "pods with init containers", v2: always, used: func(p *corev1.Pod) bool { return len(p.Spec.InitContainers) > 0 }},
	{code: "LifecycleHook", what: "pods with lifecycle hooks", v2: always, used: anyContainer(func(c *corev1.Container) bool { return c.Lifecycle != nil })},
	{code: "ResourceClaim", what: "pods with resource claims", used: func(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }},
	{code: "EphemeralStorage", what: "pods that request ephemeral storage", used: requests(func(n corev1.ResourceName) bool { return n == corev1.ResourceEphemeralStorage })},
	{code: "ExtendedResource", what: "pods that request extended resources", used: requests(isExtended)},
}

// ineligible returns the reason why the burst pool's virtual kubelet cannot run the pod, or none with an empty code.
func ineligible(req Request, p *pool.Pool, shapes []capacity.Shape) capacity.Reason {
	v2 := isV2(p, shapes)
	for i := range unsupported {
		f := &unsupported[i]
		if v2 && f.v2 != nil && f.v2(req) {
			continue
		}
		if f.used(req.Pod) {
			return capacity.Reason{Code: f.code, Sentence: "node(s) in a burst pool that cannot run " + f.what}
		}
	}
	return capacity.Reason{}
}

// missingTopology returns a label over which the pod must be spread (DoNotSchedule) and that no node of the burst pool has, or "". Nodes
// without it are none for such a pod. Nothing is known of a pool without nodes.
func missingTopology(pod *corev1.Pod, p *capacity.Pool) string {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		has := p.Places[c.TopologyKey] || slices.ContainsFunc(p.Shapes, func(s capacity.Shape) bool { _, ok := s.Labels[c.TopologyKey]; return ok })
		if c.WhenUnsatisfiable == corev1.DoNotSchedule && len(p.Shapes) > 0 && !has {
			return c.TopologyKey
		}
	}
	return ""
}

// isV2 reports whether all nodes of the pool are virtual nodes v2: by its selector or by what it has.
func isV2(p *pool.Pool, shapes []capacity.Shape) bool {
	if knownLabels(p)[virtualizationLabel] == virtualNodesV2 {
		return true
	}
	for i := range shapes {
		if shapes[i].Labels[virtualizationLabel] != virtualNodesV2 {
			return false
		}
	}
	return len(shapes) > 0
}

func ownedByDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

func isWindows(p *corev1.Pod) bool {
	return (p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows) || p.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows)
}

func anyVolume(match func(*corev1.Volume) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		for i := range p.Spec.Volumes {
			if match(&p.Spec.Volumes[i]) {
				return true
			}
		}
		return false
	}
}

func anyContainer(match func(*corev1.Container) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range containers {
				if match(&containers[i]) {
					return true
				}
			}
		}
		return false
	}
}

func requests(match func(corev1.ResourceName) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		for name, quantity := range resource.PodRequests(p, resource.PodResourcesOptions{}) {
			if match(name) && !quantity.IsZero() {
				return true
			}
		}
		return false
	}
}

// Signature is what of the pod decides whether it is eligible for burst pools: equal for pods that are treated alike.
func Signature(req Request) any {
	used := []string{req.Pod.Annotations[BurstAnnotation], strconv.FormatBool(req.AzureFiles)}
	for i := range unsupported {
		if unsupported[i].used(req.Pod) {
			used = append(used, unsupported[i].code)
		}
	}
	return used
}
