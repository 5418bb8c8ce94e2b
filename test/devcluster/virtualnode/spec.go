package virtualnode

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster/azure"
)

// Annotations of pods that control the simulated containers.
const (
	// RunsForAnnotation is how long the pod's containers run, such as 2s. Without the annotation, they run forever.
	// Ended containers restart if restartPolicy is Always. With OnFailure, they restart if the exit code is not 0.
	RunsForAnnotation = "devcluster.poolpriority.dev/runs-for"
	// ExitCodeAnnotation is the containers' exit code. Without it the exit code is 0.
	ExitCodeAnnotation = "devcluster.poolpriority.dev/exit-code"
)

// spec returns the group that azure-aci would create for the pod. If azure-aci would refuse the pod itself, spec
// returns azure-aci's message, which has no error code.
func (c *connector) spec(pod *corev1.Pod) (azure.Spec, error) {
	spec := azure.Spec{
		Name: groupName(pod.Namespace, pod.Name), Node: c.node, Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID,
		RestartPolicy: pod.Spec.RestartPolicy,
	}
	for _, check := range []func(*corev1.Pod) error{c.checkPullSecrets, checkInitContainers, checkContainers, c.checkVolumes} {
		if err := check(pod); err != nil {
			return spec, err
		}
	}
	for i := range pod.Spec.Containers {
		spec.Containers = append(spec.Containers, container(&pod.Spec.Containers[i]))
	}
	return spec, readAnnotations(pod, &spec)
}

func readAnnotations(pod *corev1.Pod, spec *azure.Spec) error {
	var err error
	if text := pod.Annotations[RunsForAnnotation]; text != "" {
		if spec.RunsFor, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("reading the annotation %s: %w", RunsForAnnotation, err)
		}
	}
	if text := pod.Annotations[ExitCodeAnnotation]; text != "" {
		code, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fmt.Errorf("reading the annotation %s: %w", ExitCodeAnnotation, err)
		}
		spec.ExitCode = int32(code)
	}
	return nil
}

// container returns the container with its resources in cores and GB. Requests are rounded down to multiples of 10m and
// 100 MB. The minimum is 10m and 100 MB. A container without requests gets 1 core and 1.5 GB. A memory limit is rounded
// down, too; a CPU limit is not.
func container(from *corev1.Container) azure.Container {
	c := azure.Container{Name: from.Name, Image: from.Image, CPU: 1, Memory: 1.5}
	if cpu, ok := from.Resources.Requests[corev1.ResourceCPU]; ok {
		c.CPU = max(0.01, float64(cpu.MilliValue()/10)/100)
	}
	if memory, ok := from.Resources.Requests[corev1.ResourceMemory]; ok {
		c.Memory = max(0.1, float64(memory.Value()/1e8)/10)
	}
	if cpu, ok := from.Resources.Limits[corev1.ResourceCPU]; ok {
		c.CPULimit = float64(cpu.MilliValue()) / 1000
	}
	if memory, ok := from.Resources.Limits[corev1.ResourceMemory]; ok {
		c.MemoryLimit = float64(memory.Value()/1e8) / 10
	}
	return c
}

func (c *connector) checkPullSecrets(pod *corev1.Pod) error {
	for _, ref := range pod.Spec.ImagePullSecrets {
		if _, err := c.secrets.Secrets(pod.Namespace).Get(ref.Name); err != nil {
			return err
		}
	}
	return nil
}

func checkInitContainers(pod *corev1.Pod) error {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if len(c.Command) == 0 && len(c.Args) > 0 {
			return argsWithoutCommand()
		}
		for _, unsupported := range []struct {
			has  bool
			what string
		}{
			{c.Ports != nil, "ports"},
			{c.Resources.Requests != nil, "resources requests"},
			{c.Resources.Limits != nil, "resources limits"},
			{c.LivenessProbe != nil, "livenessProbe"},
			{c.ReadinessProbe != nil, "readinessProbe"},
			{hasHook(c), "lifecycle hooks"},
			{c.StartupProbe != nil, "startupProbe"},
			{c.RestartPolicy != nil, "restartPolicy"}, // a sidecar; azure-aci's message for sidecars was not recorded
		} {
			if unsupported.has {
				return errdefs.InvalidInput("azure container instances initContainers do not support " + unsupported.what)
			}
		}
	}
	return nil
}

func argsWithoutCommand() error {
	return errdefs.InvalidInput("ACI does not support providing args without specifying the command. Please supply both command and args to the pod spec.")
}

func hasHook(c *corev1.Container) bool {
	has := func(h *corev1.LifecycleHandler) bool {
		return h != nil && (h.HTTPGet != nil || h.Exec != nil || h.TCPSocket != nil)
	}
	return c.Lifecycle != nil && (has(c.Lifecycle.PreStop) || has(c.Lifecycle.PostStart))
}

func checkContainers(pod *corev1.Pod) error {
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		switch {
		case len(c.Command) == 0 && len(c.Args) > 0:
			return argsWithoutCommand()
		case hasHook(c):
			return errdefs.InvalidInput("ACI does not support lifecycle hooks")
		case c.StartupProbe != nil:
			return errdefs.InvalidInput("ACI does not support startupProbe")
		}
		for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
			if err := checkProbe(probe, c.Ports); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkProbe(probe *corev1.Probe, ports []corev1.ContainerPort) error {
	if probe == nil || probe.Exec != nil {
		return nil
	}
	if probe.HTTPGet == nil { // tcpSocket or grpc
		return errors.New(`probe must specify one of "exec" and "httpGet"`)
	}
	if probe.HTTPGet.Port.Type == intstr.Int {
		return nil
	}
	for _, p := range ports {
		if p.Name == probe.HTTPGet.Port.StrVal {
			return nil
		}
	}
	return fmt.Errorf("unable to find named port: %s", probe.HTTPGet.Port.StrVal)
}

// azureFileDriver is the only CSI driver that azure-aci supports.
const azureFileDriver = "file.csi.azure.com"

func (c *connector) checkVolumes(pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.CSI != nil && v.CSI.Driver != azureFileDriver:
			return fmt.Errorf("pod %s requires volume %s which is of an unsupported type %s", pod.Name, v.Name, v.CSI.Driver)
		case v.AzureFile != nil:
			if _, err := c.secrets.Secrets(pod.Namespace).Get(v.AzureFile.SecretName); err != nil {
				return err
			}
		case v.Secret != nil:
			if _, err := c.secrets.Secrets(pod.Namespace).Get(v.Secret.SecretName); apierrors.IsNotFound(err) && !ptr.Deref(v.Secret.Optional, true) {
				//lint:ignore ST1005 azure-aci's words
				return fmt.Errorf("Secret %s is required by Pod %s and does not exist", v.Secret.SecretName, pod.Name)
			}
		case v.ConfigMap != nil:
			if _, err := c.configMaps.ConfigMaps(pod.Namespace).Get(v.ConfigMap.Name); apierrors.IsNotFound(err) && !ptr.Deref(v.ConfigMap.Optional, true) {
				return fmt.Errorf("ConfigMap %s is required by Pod %s and does not exist", v.ConfigMap.Name, pod.Name)
			}
		case v.CSI == nil && v.EmptyDir == nil && v.Projected == nil:
			return fmt.Errorf("pod %s requires volume %s which is of an unsupported type", pod.Name, v.Name)
		}
	}
	return nil
}
