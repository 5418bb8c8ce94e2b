package aci

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Feature is a feature of pods that a virtual kubelet may be unable to run.
type Feature struct {
	// Code identifies the feature, and What completes "cannot run …".
	Code, What string
	// Any is set if no virtual kubelet can run the feature, whatever its platform.
	Any bool

	used func(*corev1.Pod) bool
	v2   support
}

// support is the condition under which virtual nodes v2 run a feature.
type support int

const (
	never support = iota
	always
	withAzureFiles // if all PersistentVolumeClaims of the pod are for Azure Files
)

// features lists what a virtual kubelet cannot run. If Any is set, no platform can run the feature. Otherwise, Azure
// Container Instances cannot run it. One source is tests of azure-aci v1.6.4, the connector of AKS's virtual nodes,
// which showed what the connector refuses or drops. The other source is the limitations in the documentation of AKS
// virtual nodes. Virtual nodes v2 have a different connector, so the documentation is the only source for them. A
// feature that the documentation does not mention counts as supported by virtual nodes v2.
var features = []Feature{
	{Code: "DaemonSetPod", What: "DaemonSet pods", used: ownedByDaemonSet, Any: true},
	{Code: "MirrorPod", What: "static pods", Any: true, used: func(p *corev1.Pod) bool { _, ok := p.Annotations[corev1.MirrorPodAnnotationKey]; return ok }},
	{Code: "Windows", What: "Windows pods", used: isWindows},
	{Code: "HostNamespace", What: "pods that use the host's network, PIDs or IPC", used: func(p *corev1.Pod) bool {
		return p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC
	}},
	{Code: "HostPort", What: "pods with host ports", used: anyContainer(hasHostPort)},
	{Code: "Privileged", What: "privileged pods", used: anyContainer(func(c *corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})},
	{Code: "HostAliases", What: "pods with host aliases", v2: always, used: func(p *corev1.Pod) bool { return len(p.Spec.HostAliases) > 0 }},
	{Code: "HostPath", What: "pods with hostPath volumes", used: anyVolume(func(v *corev1.Volume) bool { return v.HostPath != nil })},
	{Code: "PersistentVolume", What: "pods with persistent volumes", v2: withAzureFiles, used: anyVolume(isPVC)},
	{Code: "DownwardAPIVolume", What: "pods with downwardAPI volumes", used: anyVolume(func(v *corev1.Volume) bool { return v.DownwardAPI != nil })},
	{Code: "VolumeType", What: "pods with volumes other than emptyDir, secret, configMap, projected and azureFile", used: anyVolume(isUnknownVolume)},
	{Code: "Sidecar", What: "pods with sidecars (init containers with restartPolicy Always)", v2: always, used: anyInitContainer(isSidecar)},
	{Code: "InitContainer", What: "pods with init containers that have ports, resources, probes or hooks", v2: always, used: anyInitContainer(isDemanding)},
	{Code: "LifecycleHook", What: "pods with lifecycle hooks", v2: always, used: anyContainer(func(c *corev1.Container) bool { return c.Lifecycle != nil })},
	{Code: "ArgsWithoutCommand", What: "pods with a container that has args and no command", v2: always, used: anyContainer(func(c *corev1.Container) bool {
		return len(c.Args) > 0 && len(c.Command) == 0
	})},
	{Code: "StartupProbe", What: "pods with startup probes", v2: always, used: anyContainer(func(c *corev1.Container) bool { return c.StartupProbe != nil })},
	{Code: "ProbeType", What: "pods with tcpSocket or grpc probes", v2: always, used: anyProbe(func(p *corev1.Probe, _ *corev1.Container) bool {
		return p.Exec == nil && p.HTTPGet == nil
	})},
	{Code: "ProbePort", What: "pods with an httpGet probe on a port name that the container does not declare", v2: always, used: anyProbe(namesNoPort)},
	{Code: "FieldRef", What: "pods with an environment variable from a status field, such as status.podIP or status.hostIP", v2: always, used: anyContainer(hasLateField)},
	{Code: "LimitAboveRequests", What: "pods with a container limit above the sum of all containers' requests", v2: always, used: limitAboveRequests},
	{Code: "FractionalCPU", What: "pods with a container CPU limit above the sum of all CPU requests, after each request is rounded down to a multiple of 10m", v2: always, used: fractionalCPU},
	{Code: "GroupName", What: "pods whose NAMESPACE-NAME cannot name a container group: it has more than 63 characters, a dot, or two hyphens in a row", v2: always, used: hasBadGroupName},
	{Code: "ResourceClaim", What: "pods with resource claims", used: func(p *corev1.Pod) bool { return len(p.Spec.ResourceClaims) > 0 }},
	{Code: "EphemeralStorage", What: "pods that request ephemeral storage", used: requests(func(n corev1.ResourceName) bool { return n == corev1.ResourceEphemeralStorage })},
	{Code: "ExtendedResource", What: "pods that request extended resources", used: requests(IsExtendedResource)},
}

// Features returns all features that a virtual kubelet may be unable to run.
func Features() []Feature { return slices.Clone(features) }

// Unsupported returns the first feature of the pod that nodes of the platform cannot run, and whether there is one.
// azureFiles is set if all PersistentVolumeClaims of the pod are for Azure Files.
func Unsupported(pod *corev1.Pod, on Platform, azureFiles bool) (Feature, bool) {
	for _, f := range features {
		runs := on == Other || on == V2 && (f.v2 == always || f.v2 == withAzureFiles && azureFiles)
		if (f.Any || !runs) && f.used(pod) {
			return f, true
		}
	}
	return Feature{}, false
}

// FeaturesOf returns the codes of the features that the pod uses.
func FeaturesOf(pod *corev1.Pod) []string {
	var used []string
	for i := range features {
		if features[i].used(pod) {
			used = append(used, features[i].Code)
		}
	}
	return used
}
