package aci

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// tokenVolume is the name prefix of the volume with the ServiceAccount token. The API server adds such a volume to a
// pod even if the pod does not use the token. Source: the ServiceAccount admission plugin.
const tokenVolume = "kube-api-access-"

// ignored lists features that the connector of AKS's virtual nodes ignores silently. Source: azure-aci v1.6.4. The list
// leaves out features that nearly every pod has. These are the usual hardening (runAsNonRoot, dropped capabilities,
// seccomp profiles, read-only root file systems), default modes of files, and the volume with the ServiceAccount token.
var ignored = []struct {
	what string // completes "it runs without …"
	used func(*corev1.Pod) bool
}{
	{"subPath: the whole volume is mounted", anyContainer(func(c *corev1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.SubPath != "" || m.SubPathExpr != "" })
	})},
	{"the items of ConfigMap and Secret volumes: all keys are mounted under their own names", anyVolume(func(v *corev1.Volume) bool {
		return v.ConfigMap != nil && len(v.ConfigMap.Items) > 0 || v.Secret != nil && len(v.Secret.Items) > 0
	})},
	{"the medium and the sizeLimit of emptyDir volumes", anyVolume(func(v *corev1.Volume) bool {
		return v.EmptyDir != nil && (v.EmptyDir.Medium != corev1.StorageMediumDefault || v.EmptyDir.SizeLimit != nil)
	})},
	{"ServiceAccount tokens in projected volumes, as workload identity uses them", anyVolume(hasProjected(func(s corev1.VolumeProjection) bool {
		return s.ServiceAccountToken != nil
	}))},
	{"downwardAPI sources in projected volumes", anyVolume(hasProjected(func(s corev1.VolumeProjection) bool { return s.DownwardAPI != nil }))},
	{"the values of environment variables from resourceFieldRef", anyContainer(func(c *corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil })
	})},
	{"the whole of its terminationGracePeriodSeconds: it gets at most 30 s to end", func(p *corev1.Pod) bool {
		return ptr.Deref(p.Spec.TerminationGracePeriodSeconds, 0) > 30
	}},
	{"the users, groups, sysctls and added capabilities of its securityContext", func(p *corev1.Pod) bool {
		s := p.Spec.SecurityContext
		return s != nil && (s.RunAsUser != nil || s.RunAsGroup != nil || s.FSGroup != nil || len(s.SupplementalGroups) > 0 || len(s.Sysctls) > 0) || inContainerContext(p)
	}},
}

var inContainerContext = anyContainer(func(c *corev1.Container) bool {
	s := c.SecurityContext
	return s != nil && (s.RunAsUser != nil || s.RunAsGroup != nil || s.Capabilities != nil && len(s.Capabilities.Add) > 0)
})

// hasProjected returns a function that reports whether a source of a projected volume matches. It skips the volume with
// the ServiceAccount token that the API server adds.
func hasProjected(match func(corev1.VolumeProjection) bool) func(*corev1.Volume) bool {
	return func(v *corev1.Volume) bool {
		return v.Projected != nil && !strings.HasPrefix(v.Name, tokenVolume) && slices.ContainsFunc(v.Projected.Sources, match)
	}
}

// Differences returns descriptions of the pod's features that the platform ignores silently.
func Differences(pod *corev1.Pod, on Platform) []string {
	if on != V1 {
		return nil
	}
	var without []string
	for i := range ignored {
		if ignored[i].used(pod) {
			without = append(without, ignored[i].what)
		}
	}
	return without
}
