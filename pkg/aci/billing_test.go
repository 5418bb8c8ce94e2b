package aci

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestResizedContainer: the larger of the container's requests and of those with which it runs counts, for each
// resource.
func TestResizedContainer(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList { return asking(cpu, memory).Resources.Requests }
	for _, tc := range []struct {
		name   string
		spec   corev1.ResourceList
		status corev1.ContainerStatus
		want   Use
	}{
		{"not resized", list("2", "1G"), corev1.ContainerStatus{Name: "c", AllocatedResources: list("2", "1G")}, Use{Pods: 1, MilliCPU: 2000, Memory: 1e9}},
		{"nothing is known of what runs", list("2", "1G"), corev1.ContainerStatus{Name: "c"}, Use{Pods: 1, MilliCPU: 2000, Memory: 1e9}},
		{"fewer CPUs, more memory", list("1", "4G"), corev1.ContainerStatus{Name: "c", AllocatedResources: list("3", "2G")}, Use{Pods: 1, MilliCPU: 3000, Memory: 4e9}},
		{"by the resources", list("1", "4G"), corev1.ContainerStatus{Name: "c", Resources: &corev1.ResourceRequirements{Requests: list("2", "8G")}}, Use{Pods: 1, MilliCPU: 2000, Memory: 8e9}},
		{"another container", list("1", "4G"), corev1.ContainerStatus{Name: "d", AllocatedResources: list("3", "8G")}, Use{Pods: 1, MilliCPU: 1000, Memory: 4e9}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: tc.spec}}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{tc.status}}}
		if got := UseOf(pod, true); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// asking returns a container that requests the CPU and the memory; "" means no request.
func asking(cpu, memory string) corev1.Container {
	c := corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}
	for name, quantity := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if quantity != "" {
			c.Resources.Requests[name] = resource.MustParse(quantity)
		}
	}
	return c
}

func TestUseOf(t *testing.T) {
	sidecar := asking("2", "1G")
	sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	overhead := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for _, tc := range []struct {
		name         string
		phase        corev1.PodPhase
		spec         corev1.PodSpec
		onACI, other Use
	}{
		{"what is requested", "", corev1.PodSpec{Containers: []corev1.Container{asking("250m", "1G"), asking("1", "2G")}}, Use{Pods: 1, MilliCPU: 1250, Memory: 3e9}, Use{Pods: 1, MilliCPU: 1250, Memory: 3e9}},
		{"nothing is requested", "", corev1.PodSpec{Containers: []corev1.Container{asking("", ""), asking("", "")}}, Use{Pods: 1, MilliCPU: 2000, Memory: 3e9}, Use{Pods: 1}},
		{"only CPU is requested", "", corev1.PodSpec{Containers: []corev1.Container{asking("4", "")}}, Use{Pods: 1, MilliCPU: 4000, Memory: 1.5e9}, Use{Pods: 1, MilliCPU: 4000, Memory: 0}},
		{"an init container that requests more", "", corev1.PodSpec{Containers: []corev1.Container{asking("1", "4G")}, InitContainers: []corev1.Container{asking("2", "1G")}},
			Use{Pods: 1, MilliCPU: 2000, Memory: 4e9}, Use{Pods: 1, MilliCPU: 2000, Memory: 4e9}},
		{"an init container that requests nothing", "", corev1.PodSpec{Containers: []corev1.Container{asking("500m", "1G")}, InitContainers: []corev1.Container{{}}},
			Use{Pods: 1, MilliCPU: 500, Memory: 1e9}, Use{Pods: 1, MilliCPU: 500, Memory: 1e9}},
		{"a sidecar before an init container", "", corev1.PodSpec{Containers: []corev1.Container{asking("1", "1G")}, InitContainers: []corev1.Container{sidecar, asking("2", "1G")}},
			Use{Pods: 1, MilliCPU: 4000, Memory: 2e9}, Use{Pods: 1, MilliCPU: 4000, Memory: 2e9}},
		{"overhead is not known to Azure", "", corev1.PodSpec{Containers: []corev1.Container{asking("1", "1G")}, Overhead: overhead}, Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}, Use{Pods: 1, MilliCPU: 2000, Memory: 1e9}},
		{"never started", corev1.PodPending, corev1.PodSpec{Containers: []corev1.Container{asking("1", "1G")}}, Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}, Use{Pods: 1, MilliCPU: 1000, Memory: 1e9}},
		{"succeeded", corev1.PodSucceeded, corev1.PodSpec{Containers: []corev1.Container{asking("1", "1G")}}, Use{}, Use{}},
		{"failed", corev1.PodFailed, corev1.PodSpec{Containers: []corev1.Container{asking("1", "1G")}}, Use{}, Use{}},
		{"more than there is anywhere", "", corev1.PodSpec{Containers: []corev1.Container{asking("9e15", "9e18"), asking("9e15", "9e18")}},
			Use{Pods: 1, MilliCPU: 1<<63 - 1, Memory: 1<<63 - 1}, Use{Pods: 1, MilliCPU: 1<<63 - 1, Memory: 1<<63 - 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: tc.spec, Status: corev1.PodStatus{Phase: tc.phase}}
			if got := UseOf(pod, true); got != tc.onACI {
				t.Errorf("on ACI: %+v, want %+v", got, tc.onACI)
			}
			if got := UseOf(pod, false); got != tc.other {
				t.Errorf("elsewhere: %+v, want %+v", got, tc.other)
			}
		})
	}
}
