package cli

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leftOut stands for what may be secret and is not needed.
const leftOut = "(left out)"

// keptAnnotations are the prefixes of the annotations that are dumped: those that somebody here reads. Others may hold anything, whole manifests too.
var keptAnnotations = []string{
	"poolpriority.dev/", "cluster-autoscaler.kubernetes.io/", "controller.kubernetes.io/", "karpenter.sh/", "kubernetes.io/config.", "deployment.kubernetes.io/", "scheduling.x-k8s.io/",
}

func redactMeta(m *metav1.ObjectMeta) {
	m.ManagedFields = nil
	for key := range m.Annotations {
		kept := false
		for _, prefix := range keptAnnotations {
			kept = kept || strings.HasPrefix(key, prefix)
		}
		if !kept {
			delete(m.Annotations, key)
		}
	}
}

// redactPod leaves out of a pod what is nobody's business: values of variables, commands, addresses, what volumes are told.
func redactPod(p *corev1.Pod) {
	redactMeta(&p.ObjectMeta)
	redactSpec(&p.Spec, false)
	s := &p.Status
	s.HostIP, s.HostIPs, s.PodIP, s.PodIPs = "", nil, "", nil
}

// redactDeployment does so with a Deployment of ours, whose command lines are kept.
func redactDeployment(d *appsv1.Deployment) {
	redactMeta(&d.ObjectMeta)
	redactMeta(&d.Spec.Template.ObjectMeta)
	redactSpec(&d.Spec.Template.Spec, true)
}

func redactSpec(s *corev1.PodSpec, commands bool) {
	for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			redactContainer(&containers[i], commands)
		}
	}
	for i := range s.EphemeralContainers {
		c := corev1.Container(s.EphemeralContainers[i].EphemeralContainerCommon)
		redactContainer(&c, commands)
		s.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		if v.CSI != nil {
			blank(v.CSI.VolumeAttributes)
		}
		if v.FlexVolume != nil {
			blank(v.FlexVolume.Options)
		}
	}
	s.HostAliases = shortened(s.HostAliases)
}

// shortened keeps that there are some: the gate looks at that.
func shortened(aliases []corev1.HostAlias) []corev1.HostAlias {
	if len(aliases) == 0 {
		return nil
	}
	return []corev1.HostAlias{{IP: leftOut}}
}

func blank(values map[string]string) {
	for key := range values {
		values[key] = leftOut
	}
}

func redactContainer(c *corev1.Container, commands bool) {
	for i := range c.Env {
		if c.Env[i].Value != "" {
			c.Env[i].Value = leftOut
		}
	}
	if !commands {
		blankAll(c.Command)
		blankAll(c.Args)
	}
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil {
			redactHandler(p.Exec, p.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				redactHandler(h.Exec, h.HTTPGet)
			}
		}
	}
}

func redactHandler(exec *corev1.ExecAction, get *corev1.HTTPGetAction) {
	if exec != nil {
		blankAll(exec.Command)
	}
	if get != nil {
		get.Path = leftOut
		for i := range get.HTTPHeaders {
			get.HTTPHeaders[i].Value = leftOut
		}
	}
}

// blankAll keeps how many words there are.
func blankAll(words []string) {
	for i := range words {
		words[i] = leftOut
	}
}

// redactNode leaves out of a node its addresses, its images and its volumes.
func redactNode(n *corev1.Node) {
	redactMeta(&n.ObjectMeta)
	s := &n.Status
	s.Addresses, s.Images, s.VolumesInUse, s.VolumesAttached = nil, nil, nil, nil
}
