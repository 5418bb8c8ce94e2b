package aci

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func ownedByDaemonSet(p *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// hasBadGroupName reports whether Azure refuses the name that the connector of v1 gives the pod's container group. Sources:
// azure-aci v1.6.4, containerGroupName; Azure's "Naming rules and restrictions for Azure resources".
func hasBadGroupName(p *corev1.Pod) bool {
	name := p.Namespace + "-" + p.Name
	return len(name) > 63 || strings.Contains(name, ".") || strings.Contains(name, "--")
}

func isWindows(p *corev1.Pod) bool {
	return (p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows) || p.Spec.NodeSelector[corev1.LabelOSStable] == string(corev1.Windows)
}

// anyOf reports whether any element of the list matches. Unlike slices.ContainsFunc, it copies no element.
func anyOf[T any](list []T, match func(*T) bool) bool {
	for i := range list {
		if match(&list[i]) {
			return true
		}
	}
	return false
}

func anyVolume(match func(*corev1.Volume) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return anyOf(p.Spec.Volumes, match) }
}

func isPVC(v *corev1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil }

// HasPVC reports whether a volume of the pod is a PersistentVolumeClaim, which may be made for the pod (ephemeral).
func HasPVC(pod *corev1.Pod) bool { return anyOf(pod.Spec.Volumes, isPVC) }

// isUnknownVolume reports whether the volume has a type that no virtual node on Azure Container Instances supports. It
// returns false for a type that has its own row in features.
func isUnknownVolume(v *corev1.Volume) bool {
	inlineFiles := v.CSI != nil && v.CSI.Driver == AzureFilesDriver
	return v.HostPath == nil && !isPVC(v) && v.DownwardAPI == nil &&
		v.EmptyDir == nil && v.Secret == nil && v.ConfigMap == nil && v.Projected == nil && v.AzureFile == nil && !inlineFiles
}

func anyContainer(match func(*corev1.Container) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return anyOf(p.Spec.Containers, match) || anyOf(p.Spec.InitContainers, match)
	}
}

func anyInitContainer(match func(*corev1.Container) bool) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return anyOf(p.Spec.InitContainers, match) }
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// isDemanding reports whether an init container has a feature that Azure Container Instances does not support in init
// containers.
func isDemanding(c *corev1.Container) bool {
	return len(c.Ports) > 0 || len(c.Resources.Requests) > 0 || len(c.Resources.Limits) > 0 ||
		c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil || c.Lifecycle != nil
}

// HasHostPorts reports whether a container of the pod has a host port.
func HasHostPorts(pod *corev1.Pod) bool { return anyContainer(hasHostPort)(pod) }

func hasHostPort(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
}

// anyProbe returns a function that reports whether a liveness or readiness probe of the pod matches.
func anyProbe(match func(*corev1.Probe, *corev1.Container) bool) func(*corev1.Pod) bool {
	return anyContainer(func(c *corev1.Container) bool {
		return c.LivenessProbe != nil && match(c.LivenessProbe, c) || c.ReadinessProbe != nil && match(c.ReadinessProbe, c)
	})
}

// namesNoPort reports whether an httpGet probe names a port that the container does not declare.
func namesNoPort(probe *corev1.Probe, c *corev1.Container) bool {
	if probe.HTTPGet == nil || probe.HTTPGet.Port.Type != intstr.String {
		return false
	}
	return !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal })
}

// hasLateField reports whether an environment variable comes from the pod's status. The ACI connector sets environment
// variables only once, when it creates the container group.
func hasLateField(c *corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && strings.HasPrefix(e.ValueFrom.FieldRef.FieldPath, "status.")
	})
}

// requests returns a function that reports whether a pod requests a resource whose name matches.
func requests(match func(corev1.ResourceName) bool) func(*corev1.Pod) bool {
	in := func(list corev1.ResourceList) bool {
		for name, quantity := range list {
			if match(name) && !quantity.IsZero() {
				return true
			}
		}
		return false
	}
	inContainer := anyContainer(func(c *corev1.Container) bool { return in(c.Resources.Requests) })
	return func(p *corev1.Pod) bool {
		return inContainer(p) || p.Spec.Resources != nil && in(p.Spec.Resources.Requests) || in(p.Spec.Overhead)
	}
}
