package aci

import (
	"math"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Use is the part of a budget that pods use. MilliCPU is in thousandths of a CPU, and Memory is in bytes.
type Use struct {
	Pods     int   `json:"pods"`
	MilliCPU int64 `json:"milliCPU,omitempty"`
	Memory   int64 `json:"memory,omitempty"`
}

const (
	// aciMilliCPU and aciMemory are the CPU and memory that a container without requests gets on Azure Container
	// Instances. Azure bills them. Source: azure-aci v1.6.4, getContainers.
	aciMilliCPU, aciMemory = 1000, 1_500_000_000
)

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

// Billed returns what the provider bills for the pod: its requests, as Kubernetes counts them. Azure Container
// Instances ignores overhead and pod-level requests.
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
		sum = sum.Plus(requested(pod.Spec.Containers[i].Resources.Requests, given))
	}
	// An init container runs before the containers, beside the sidecars that precede it. It can use the resources that
	// the containers use later.
	for i := range pod.Spec.InitContainers {
		use := requested(pod.Spec.InitContainers[i].Resources.Requests, Use{})
		if isSidecar(&pod.Spec.InitContainers[i]) {
			sum, sidecars = sum.Plus(use), sidecars.Plus(use)
			use = Use{}
		}
		use = use.Plus(sidecars)
		most.MilliCPU, most.Memory = max(most.MilliCPU, use.MilliCPU), max(most.Memory, use.Memory)
	}
	return Use{MilliCPU: max(sum.MilliCPU, most.MilliCPU), Memory: max(sum.Memory, most.Memory)}
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

// CPUs formats thousandths of a CPU as CPUs.
func CPUs(milli int64) string { return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) }

// Gigabytes formats bytes as GB (1e9 bytes), the unit of the provider, rounded to a thousandth.
func Gigabytes(bytes int64) string {
	return strconv.FormatFloat(math.Round(float64(bytes)/1e6)/1e3, 'f', -1, 64)
}
