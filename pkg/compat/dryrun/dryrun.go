// Package dryrun wraps the dry runs of in-tree preemption. The signature of a dry run differs between the supported
// minor versions of Kubernetes.
package dryrun

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
)

// Result is the result of a dry run on one node.
type Result struct {
	Victims    []*v1.Pod
	Violations int // how many PodDisruptionBudget violations the preemption would cause
	Status     *fwk.Status
}

// Interface is in-tree preemption. In place of a dry run on a node, it calls Around.
type Interface struct {
	preemption.Interface
	// Around returns the result of the dry run. If the dry run is rejected, it leaves the node without the pods that
	// may be preempted.
	Around func(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo, dryRun func() Result) Result
}
