//go:build kubernetes_1_37

package dryrun

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// SelectVictimsOnNode makes a dry run of preemption on the node.
func (i *Interface) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, victims []*preemption.DomainVictim, budgets []*policyv1.PodDisruptionBudget) ([]*v1.Pod, int, *fwk.Status) {
	r := i.Around(ctx, state, pod, node, func() (r Result) {
		r.Victims, r.Violations, r.Status = i.Interface.SelectVictimsOnNode(ctx, state, pod, node, victims, budgets)
		return r
	})
	return r.Victims, r.Violations, r.Status
}

// LimitVictims makes the plugin preempt only pods for which may returns true.
func LimitVictims(plugin *defaultpreemption.DefaultPreemption, may func(*v1.Pod) bool) {
	allows := plugin.IsEligiblePod
	plugin.IsEligiblePod = func(node fwk.NodeInfo, victim preemption.Victim, preemptor *v1.Pod) bool {
		return !slices.ContainsFunc(victim.Pods(), func(p fwk.PodInfo) bool { return !may(p.GetPod()) }) && allows(node, victim, preemptor)
	}
}
