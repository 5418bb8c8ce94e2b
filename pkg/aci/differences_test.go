package aci

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestDifferences(t *testing.T) {
	volume := func(name string, source corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: name, VolumeSource: source}} }
	}
	projected := func(source corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{source}}}
	}
	token := projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "a"}})
	container := func(change func(*corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	items := []corev1.KeyToPath{{Key: "a", Path: "b"}}
	for _, tc := range []struct {
		name string
		pod  func(*corev1.Pod)
		want string // the beginning of one of the sentences; "" if there must be none
	}{
		{"plain", func(*corev1.Pod) {}, ""},
		{"the token that every pod is given", volume("kube-api-access-x7k2p", token), ""},
		{"a ConfigMap with its default mode", volume("v", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{DefaultMode: ptr.To(int32(0o644))}}), ""},
		{"an emptyDir", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), ""},
		{"the usual hardening", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		}, ""},
		{"a mount with a subPath", container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{SubPath: "a"}} }), "subPath"},
		{"a mount with a subPathExpr", container(func(c *corev1.Container) { c.VolumeMounts = []corev1.VolumeMount{{SubPathExpr: "$(A)"}} }), "subPath"},
		{"items of a ConfigMap", volume("v", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{Items: items}}), "the items"},
		{"items of a Secret", volume("v", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{Items: items}}), "the items"},
		{"an emptyDir in memory", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}), "the medium"},
		{"an emptyDir with a limit", volume("v", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Gi"))}}), "the medium"},
		{"a token of its own", volume("azure-identity-token", token), "ServiceAccount tokens"},
		{"its fields in a volume", volume("v", projected(corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{}})), "downwardAPI sources"},
		{"a variable from its resources", container(func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{}}}}
		}), "the values of environment variables"},
		{"the default time to end", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(30)) }, ""},
		{"a longer time to end", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(31)) }, "the whole of its terminationGracePeriodSeconds"},
		{"a user", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To(int64(1000))}
		}, "the users"},
		{"a group of its files", func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To(int64(1000))} }, "the users"},
		{"a user of a container", container(func(c *corev1.Container) { c.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr.To(int64(0))} }), "the users"},
		{"a capability", container(func(c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}}
		}), "the users"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
			tc.pod(pod)
			got := Differences(pod, V1)
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.want)) {
				t.Errorf("Differences() = %q, want %q", got, tc.want)
			}
			if elsewhere := slices.Concat(Differences(pod, V2), Differences(pod, Other)); len(elsewhere) > 0 {
				t.Errorf("on virtual nodes v2 or elsewhere: %q", elsewhere)
			}
		})
	}
}
