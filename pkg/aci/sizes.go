package aci

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// The ACI connector rounds CPU requests down to a multiple of cpuStep, which is in thousandths of a CPU. It rounds memory
// requests and memory limits down to a multiple of memoryStep, which is in bytes. The smallest request is one step.
const cpuStep, memoryStep = 10, 100_000_000

// TooLarge describes the first resource of which the pod needs more than largest. largest is the size of the largest
// pod that the provider runs. If the pod is not too large, TooLarge returns "".
func TooLarge(pod *corev1.Pod, onACI bool, largest corev1.ResourceList) string {
	if len(largest) == 0 {
		return ""
	}
	needs := Billed(pod, onACI)
	if most, ok := largest[corev1.ResourceCPU]; ok && needs.MilliCPU > most.MilliValue() {
		return fmt.Sprintf("the pod needs %s CPUs, the pool allows at most %s", CPUs(needs.MilliCPU), CPUs(most.MilliValue()))
	}
	if most, ok := largest[corev1.ResourceMemory]; ok && needs.Memory > most.Value() {
		return fmt.Sprintf("the pod needs %s GB of memory, the pool allows at most %s", Gigabytes(needs.Memory), Gigabytes(most.Value()))
	}
	return ""
}

// asked returns the sum of the containers' requests. rounded is the sum that the ACI connector sends. In exact, CPU
// requests are not rounded.
func asked(p *corev1.Pod) (rounded, exact Use) {
	for i := range p.Spec.Containers {
		use := requested(p.Spec.Containers[i].Resources.Requests, Use{MilliCPU: aciMilliCPU, Memory: aciMemory})
		use.MilliCPU, use.Memory = max(use.MilliCPU, cpuStep), max(use.Memory/memoryStep*memoryStep, memoryStep)
		exact = exact.Plus(use)
		use.MilliCPU = use.MilliCPU / cpuStep * cpuStep
		rounded = rounded.Plus(use)
	}
	return rounded, exact
}

// limitAboveRequests reports whether a container's limit exceeds the sum of all containers' requests. Azure refuses
// such a pod.
func limitAboveRequests(p *corev1.Pod) bool {
	_, exact := asked(p)
	return anyLimit(p, func(cpu, memory int64) bool {
		return cpu > exact.MilliCPU || memory/memoryStep*memoryStep > exact.Memory
	})
}

// fractionalCPU reports whether a container's CPU limit exceeds the sum of all containers' rounded CPU requests, but
// not the sum of the exact requests. The ACI connector rounds CPU requests down to a multiple of 10m, and does not
// round CPU limits.
func fractionalCPU(p *corev1.Pod) bool {
	rounded, exact := asked(p)
	return anyLimit(p, func(cpu, _ int64) bool { return cpu > rounded.MilliCPU && cpu <= exact.MilliCPU })
}

// anyLimit reports whether match returns true for the limits of any container. match gets the CPU limit in thousandths
// and the memory limit in bytes; 0 means no limit.
func anyLimit(p *corev1.Pod, match func(cpu, memory int64) bool) bool {
	return anyOf(p.Spec.Containers, func(c *corev1.Container) bool {
		return match(c.Resources.Limits.Cpu().MilliValue(), c.Resources.Limits.Memory().Value())
	})
}
