package gate

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/pool"
)

// HasRoom reports whether the pod fits into the remaining budgets of the burst pool and of its namespace there. used is
// the usage of the pool's budget, and share is the usage of the namespace's budget.
func HasRoom(pod *corev1.Pod, p *pool.Pool, used, share aci.Use) bool {
	return overBudget(pod, p, p.Limits(), used) == "" && overBudget(pod, p, p.PerNamespace(), share) == ""
}

// createLag is how long after its binding the container group of a pod may be created. Connectors create those of many
// pods one after the other.
const createLag = 30 * time.Second

// CreatesUntil returns when a pod of the namespace may be created in the burst pool within the pool's rates, and which
// rate is spent; zero if it may be created now. creates are the last creates in the pool.
func CreatesUntil(namespace string, p *pool.Pool, creates breaker.Creates, now time.Time) (until time.Time, spent string) {
	rates, shared := p.Creates()
	check := func(most int, within time.Duration, namespace, whose string) {
		if at := creates.Last(most, namespace).Add(within + createLag); most > 0 && at.After(now) && at.After(until) {
			until, spent = at, fmt.Sprintf("%s%d pods in %s, the next at %s", whose, most, within, at.UTC().Format(time.RFC3339))
		}
	}
	for k, within := range pool.RateWindows {
		if check(rates[k], within, "", ""); shared {
			check((rates[k]+1)/2, within, namespace, "namespace "+namespace+": ")
		}
	}
	return until, spent
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
