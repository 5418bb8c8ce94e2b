package providers

import (
	"cmp"
	"strings"

	v1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// maxWarned bounds how many owners WarnOfDifferences remembers. If there are more owners, the owners whose pods were
// bound least recently may get the event again.
const maxWarned = 5000

// reasonDifferently is the reason of the event that WarnOfDifferences writes.
const reasonDifferently = "RunsDifferently"

// WarnOfDifferences writes an event on a pod that was just bound to a burst node. The event lists the features of the
// pod that the burst pool's provider ignores, and the protections that the pod loses in the pool (lost). Only one pod
// of each owner gets the event.
func (p *Providers) WarnOfDifferences(pod *v1.Pod, lost func(*pool.Pool) []string) {
	if !p.config.Leading() {
		return // the leader writes the event
	}
	node, err := p.config.Nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return
	}
	i := p.config.Pools.Of(node)
	if !p.config.Pools.IsBurst(i) {
		return
	}
	in, service := p.config.Pools.At(i), "Azure Container Instances"
	if !in.OnACI() {
		service = "the virtual kubelet"
	}
	without := append(lost(in), aci.Differences(pod, aci.PlatformOf(in.OnACI(), aci.IsV2(node.Labels)))...)
	if len(without) == 0 {
		return
	}
	owner := cmp.Or(refusal.OwnerOf(pod), pod.UID)
	if _, told := p.warned.Get(owner); !told {
		p.warned.Add(owner, nil)
		p.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, reasonDifferently, "Binding",
			"in burst pool %s, %s runs the pod without %s", in.Name, service, strings.Join(without, "; without "))
	}
}
