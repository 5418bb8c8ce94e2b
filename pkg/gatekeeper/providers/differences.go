package providers

import (
	"cmp"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/refusal"
)

// maxWarned bounds of how many owners it is remembered that they were warned. When there are more, they may be warned again.
const maxWarned = 5000

// reasonDifferently is the reason of the event on a pod that a burst pool's provider runs without something that the pod asks for.
const reasonDifferently = "RunsDifferently"

// warned are the owners, by their UIDs, of whose pods it was said that they run differently in a burst pool. Its methods may be called by many
// goroutines.
type warned struct {
	mu     sync.Mutex
	owners map[types.UID]bool
}

// first reports whether the owner was not there before, and adds it.
func (w *warned) first(owner types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owners[owner] {
		return false
	}
	if w.owners == nil || len(w.owners) >= maxWarned {
		w.owners = map[types.UID]bool{}
	}
	w.owners[owner] = true
	return true
}

// WarnOfDifferences says once of each owner's pods, by an event on a pod that has just been bound, what a burst pool's provider leaves out of it.
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
	if p.warned.first(cmp.Or(refusal.OwnerOf(pod), pod.UID)) {
		p.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, reasonDifferently, "Binding",
			"in the pool %s (Azure Container Instances) it runs without %s", pool.Name, strings.Join(without, "; without "))
	}
}
