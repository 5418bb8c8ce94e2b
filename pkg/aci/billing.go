package aci

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Use is the part of a budget that pods use. MilliCPU is in thousandths of a CPU, and Memory is in bytes.
type Use struct {
	Pods     int   `json:"pods"`
	MilliCPU int64 `json:"milliCPU,omitempty"`
	Memory   int64 `json:"memory,omitempty"`
}

// aciMilliCPU and aciMemory are the CPU and memory that a container without requests gets on Azure Container Instances.
// Azure bills them. Source: azure-aci v1.6.4, getContainers.
const aciMilliCPU, aciMemory = 1000, 1_500_000_000

// UseOf returns how much of a burst pool's budget the pod uses. This is what the provider bills for the pod. onACI is
// set if the provider is Azure Container Instances. A pod that has ended uses nothing, but a pod that has not started
// does use the budget.
func UseOf(pod *corev1.Pod, onACI bool) Use {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Use{}
	}
	use := Billed(pod, onACI)
	use.Pods = 1
	return use
}

// IsShared reports whether the pod uses the budget that all namespaces share, beside the budget of its namespace. A pod
// of another scheduler passed no gate, so that it uses only the budget of its own namespace.
func IsShared(pod *corev1.Pod, scheduler string) bool { return pod.Spec.SchedulerName == scheduler }

// Billed returns what the provider bills for the pod: its requests, as Kubernetes counts them. Azure Container
// Instances ignores overhead and pod-level requests. If a container was resized, the larger of its new requests and
// those with which it runs counts.
func Billed(pod *corev1.Pod, onACI bool) Use {
	if onACI {
		return ofContainers(pod, Use{MilliCPU: aciMilliCPU, Memory: aciMemory})
	}
	use := ofContainers(pod, Use{})
	if pod.Spec.Resources != nil {
		use = requested(pod.Spec.Resources.Requests, use)
	}
	return use.Plus(requested(pod.Spec.Overhead, Use{}))
}

// ofContainers returns what the pod's containers request together. If a container has no request for CPU or memory, the
// given amount counts. If an init container has no such request, zero counts.
func ofContainers(pod *corev1.Pod, given Use) Use {
	var sum, sidecars, most Use
	for i := range pod.Spec.Containers {
		use := requested(pod.Spec.Containers[i].Resources.Requests, given)
		for k := range pod.Status.ContainerStatuses {
			if s := &pod.Status.ContainerStatuses[k]; s.Name == pod.Spec.Containers[i].Name {
				use = use.max(requested(s.AllocatedResources, Use{}))
				use = use.max(requested(ptr.Deref(s.Resources, corev1.ResourceRequirements{}).Requests, Use{}))
			}
		}
		sum = sum.Plus(use)
	}
	// An init container runs before the containers, beside the sidecars that precede it. It can use the resources that
	// the containers use later.
	for i := range pod.Spec.InitContainers {
		use := requested(pod.Spec.InitContainers[i].Resources.Requests, Use{})
		if isSidecar(&pod.Spec.InitContainers[i]) {
			sum, sidecars = sum.Plus(use), sidecars.Plus(use)
			use = Use{}
		}
		most = most.max(use.Plus(sidecars))
	}
	return sum.max(most)
}

// max returns the larger CPU and the larger memory of u and other.
func (u Use) max(other Use) Use {
	return Use{MilliCPU: max(u.MilliCPU, other.MilliCPU), Memory: max(u.Memory, other.Memory)}
}

// requested returns the CPU and memory in the list. For a resource that the list lacks, it returns the given amount.
func requested(list corev1.ResourceList, given Use) Use {
	if cpu, ok := list[corev1.ResourceCPU]; ok {
		given.MilliCPU = cpu.MilliValue()
	}
	if memory, ok := list[corev1.ResourceMemory]; ok {
		given.Memory = memory.Value()
	}
	return given
}

// Plus returns the sum of u and other. CPU and memory are limited to the range from 0 to math.MaxInt64.
func (u Use) Plus(other Use) Use {
	return Use{Pods: u.Pods + other.Pods, MilliCPU: plus(u.MilliCPU, other.MilliCPU), Memory: plus(u.Memory, other.Memory)}
}

func plus(a, b int64) int64 {
	a, b = max(a, 0), max(b, 0)
	if a <= math.MaxInt64-b {
		return a + b
	}
	return math.MaxInt64
}

// Bounded limits the usage of one pod, so that the sum over a million pods cannot overflow.
func (u Use) Bounded() Use {
	const most = math.MaxInt64 >> 20
	return Use{Pods: u.Pods, MilliCPU: min(max(u.MilliCPU, 0), most), Memory: min(max(u.Memory, 0), most)}
}

// Add returns u plus n times other. n is 1 or -1. u and other are sums of Bounded usages.
func (u Use) Add(n int, other Use) Use {
	return Use{Pods: u.Pods + n*other.Pods, MilliCPU: u.MilliCPU + int64(n)*other.MilliCPU, Memory: u.Memory + int64(n)*other.Memory}
}

// CPUs formats thousandths of a CPU as CPUs.
func CPUs(milli int64) string { return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) }

// Gigabytes formats bytes as GB (1e9 bytes), the unit of the provider, rounded to a thousandth.
func Gigabytes(bytes int64) string {
	return strconv.FormatFloat(math.Round(float64(bytes)/1e6)/1e3, 'f', -1, 64)
}
