package gate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/pool"
)

// HasRoom reports whether the pod fits into the remaining budgets of the burst pool and of its namespace there. used is
// the usage of the pool's budget, and share is the usage of the namespace's budget.
func HasRoom(pod *corev1.Pod, p *pool.Pool, used, share aci.Use) bool {
	return overBudget(pod, p, p.Limits(), used) == "" && overBudget(pod, p, p.PerNamespace(), share) == ""
}

// overBudget returns why the pod does not fit into the remaining part of the limits, or "".
func overBudget(pod *corev1.Pod, p *pool.Pool, limits pool.Limits, used aci.Use) string {
	if limits == (pool.Limits{}) {
		return ""
	}
	if limits.Pods > 0 && used.Pods >= limits.Pods {
		return fmt.Sprintf("%d of %d pods", used.Pods, limits.Pods)
	}
	if limits.MilliCPU == 0 && limits.Memory == 0 {
		return ""
	}
	needs := aci.Billed(pod, p.OnACI())
	with := used.Plus(needs)
	if limits.MilliCPU > 0 && with.MilliCPU > limits.MilliCPU {
		return fmt.Sprintf("%s of %s CPUs, the pod needs %s", aci.CPUs(used.MilliCPU), aci.CPUs(limits.MilliCPU), aci.CPUs(needs.MilliCPU))
	}
	if limits.Memory > 0 && with.Memory > limits.Memory {
		return fmt.Sprintf("%s of %s GB of memory, the pod needs %s", aci.Gigabytes(used.Memory), aci.Gigabytes(limits.Memory), aci.Gigabytes(needs.Memory))
	}
	return ""
}
