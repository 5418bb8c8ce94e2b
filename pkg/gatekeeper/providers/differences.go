package providers

import (
	"cmp"
	"strings"

	v1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// maxWarned is how many warned owners are remembered. With more, those warned least recently may be warned again.
const maxWarned = 5000

// reasonDifferently is the reason of the event on a pod that a burst pool's provider runs without something that the
// pod asks for.
const reasonDifferently = "RunsDifferently"

// WarnOfDifferences writes one event for each owner, on a pod that was just bound: what the burst pool's provider
// ignores of it.
func (p *Providers) WarnOfDifferences(pod *v1.Pod) {
	if !p.config.Leading() {
		return // the leader says it
	}
	node, err := p.config.Nodes.Get(pod.Spec.NodeName)
	if err != nil {
		return
	}
	i := p.config.Pools.Of(node.Labels)
	if !p.config.Pools.IsBurst(i) {
		return
	}
	pool := p.config.Pools.At(i)
	without := aci.Differences(pod, aci.PlatformOf(pool.OnACI(), aci.IsV2(node.Labels)))
	if len(without) == 0 {
		return
	}
	owner := cmp.Or(refusal.OwnerOf(pod), pod.UID)
	if _, told := p.warned.Get(owner); !told {
		p.warned.Add(owner, nil)
		p.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, reasonDifferently, "Binding",
			"in the pool %s (Azure Container Instances) it runs without %s", pool.Name, strings.Join(without, "; without "))
	}
}
