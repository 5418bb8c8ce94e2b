package poolpriority

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	schedutil "k8s.io/kubernetes/pkg/scheduler/util"
	"k8s.io/utils/lru"

	"poolpriority.dev/scheduler/pkg/alike"
)

const (
	// maxFilterKeys is how many kinds of pods are remembered, at 12 bytes a node each: the most recently used.
	maxFilterKeys = 256
	// maxAnswers is how many different statuses of Filter are stored, over all kinds. When it is reached, the next
	// failure clears everything.
	maxAnswers = 1000
	// maxChanged is how many changed nodes are checked one by one. If more have changed, the cycle checks all nodes, in
	// parallel.
	maxChanged = 100
)

// nodeLocal are the Filters that go by nothing but the node, as its NodeInfo has it, and by what filterKey reads of the
// pod.
var nodeLocal = sets.New(Name, names.NodeAffinity, names.NodeName, names.NodeResourcesFit, names.NodeUnschedulable, names.TaintToleration)

// diagnosisCache remembers, for kinds of pods, why Filter rejected each node of a regular pool. Of thousands of
// identical pods that fit no node, only one is then checked against all nodes; for the others only nodes that have
// changed are checked.
//
// The cache is sound because a status depends on nothing else. All PreFilters run for each pod, and a pod has a key
// only if all Filters that they leave on are nodeLocal: volumes, resource claims, gangs, spreading and affinity between
// pods are not. The status of such a Filter depends on the key and on the node's generation, which is never used twice.
// Nodes of burst pools also depend on the gate and the clock, and are filtered each time. Nominated pods can only take
// capacity away: a node with nominated pods is not cached. And if the pod may preempt others, the cache is not used.
type diagnosisCache struct {
	byFilterKey *lru.Cache // of *cachedDiagnosis, by alike.Filter; nil: none is known
	answers     []*fwk.Status
	numbers     map[string]int32 // of answers, by their text
}

// cachedDiagnosis holds the rejections of one kind of pod, by the node's slot in the index.
type cachedDiagnosis struct {
	seen    []int64 // the generation that the node had
	answers []int32 // the numbers of the statuses
}

// filterKey returns what nodeLocal Filters read of the pod, or false if they are not all that could reject it.
func (s *search) filterKey() (string, bool) {
	pl, spec := s.pl, &s.pod.Spec
	if len(pl.filters) == 0 || s.only != nil || spec.NodeName != "" || s.pod.Status.NominatedNodeName != "" {
		return "", false
	}
	skipped := s.state.GetSkipFilterPlugins()
	for name := range pl.filters {
		if !nodeLocal.Has(name) && !skipped.Has(name) {
			return "", false
		}
	}
	requests := resource.PodRequests(s.pod, resource.PodResourcesOptions{SkipPodLevelResources: !pl.features.EnablePodLevelResources})
	for name := range requests {
		if pl.features.EnableDRAExtendedResource && schedutil.IsScalarResourceName(name) {
			return "", false // NodeResourcesFit goes by DeviceClasses, too
		}
	}
	return alike.Filter(s.pod, requests), true
}

// recall returns the diagnosis for all nodes except burst nodes, if the cache has the search's key. It filters nodes
// that have changed. It returns nil if one of them is feasible, or if there is no cached diagnosis.
func (f *diagnosisCache) recall(ctx context.Context, s *search) *diagnosis {
	if f.byFilterKey == nil {
		return nil
	}
	key, ok := s.filterKey()
	if !ok {
		return nil
	}
	if known, ok := f.byFilterKey.Get(key); ok && !s.pl.mayPreempt(s.pod, s.nodes) {
		return f.renew(ctx, s, known.(*cachedDiagnosis))
	}
	return nil
}

// renew filters the nodes that have changed since the diagnosis was cached.
func (f *diagnosisCache) renew(ctx context.Context, s *search, known *cachedDiagnosis) *diagnosis {
	index := s.pl.index
	known.grow(index.allSlots)
	counts := make([]int, len(f.answers))
	var changed [maxChanged]int
	n := 0
	for i, slot := range index.slots {
		switch {
		case known.seen[slot] == index.seen[i]:
			counts[known.answers[slot]]++
		case s.pl.pools.IsBurstRank(index.entries[i].rank):
		case n == len(changed):
			return nil
		default:
			changed[n] = i
			n++
		}
	}
	found := &diagnosis{reasons: map[string]int{}, plugins: sets.New[string]()}
	for _, i := range changed[:n] {
		status, alone := runFilters(ctx, s.pl.handle, s.state, s.pod, s.nodes[i])
		if !status.IsRejected() {
			return nil // it has room, or the cycle will meet the same error
		}
		found.add(status, 1)
		if alone {
			f.note(known, index, i, status)
		}
	}
	for number, count := range counts {
		found.add(f.answers[number], count)
	}
	return found
}

// remember caches the statuses of a cycle in which no node was feasible, if it filtered all nodes.
func (f *diagnosisCache) remember(c *cycle, statuses fwk.NodeToStatusReader) {
	s := c.search
	if s == nil || !s.pl.strict || c.fromCache || s.pl.mayPreempt(s.pod, s.nodes) {
		return
	}
	if c.worst != anyRank {
		return // nodes were rejected because another pool had room
	}
	key, ok := s.filterKey()
	if !ok {
		return
	}
	if f.byFilterKey == nil || len(f.answers) >= maxAnswers {
		*f = diagnosisCache{byFilterKey: lru.New(maxFilterKeys), numbers: map[string]int32{}}
	}
	known := &cachedDiagnosis{}
	if old, ok := f.byFilterKey.Get(key); ok {
		known = old.(*cachedDiagnosis)
	}
	f.byFilterKey.Add(key, known)
	index := s.pl.index
	known.grow(index.allSlots)
	for i := range index.entries {
		e := &index.entries[i]
		if s.pl.pools.IsBurstRank(e.rank) || known.seen[index.slots[i]] == index.seen[i] {
			continue
		}
		if _, ok := c.flags.withNominated.Load(e.node.Name); ok {
			continue
		}
		if status := statuses.Get(e.node.Name); status.IsRejected() && status.Plugin() != "" {
			f.note(known, index, i, status)
		}
	}
}

// note caches the status of Filter for the node at the position.
func (f *diagnosisCache) note(known *cachedDiagnosis, index *index, position int, status *fwk.Status) {
	text := status.Plugin() + "\n" + strings.Join(status.Reasons(), "\n")
	number, ok := f.numbers[text]
	if !ok {
		number = int32(len(f.answers)) //nolint:gosec // there are not that many
		f.numbers[text] = number
		f.answers = append(f.answers, status)
	}
	slot := index.slots[position]
	known.seen[slot], known.answers[slot] = index.seen[position], number
}

// grow makes place for so many slots.
func (k *cachedDiagnosis) grow(slots int) {
	if n := slots - len(k.seen); n > 0 {
		k.seen, k.answers = append(k.seen, make([]int64, n)...), append(k.answers, make([]int32, n)...)
	}
}

// diagnosis are the reasons why Filter rejected nodes.
type diagnosis struct {
	reasons map[string]int // how many nodes, by reason
	plugins sets.Set[string]
}

func (o *diagnosis) add(status *fwk.Status, nodes int) {
	if nodes == 0 {
		return
	}
	o.plugins.Insert(status.Plugin())
	for _, reason := range status.Reasons() {
		o.reasons[reason] += nodes
	}
}

// String is the reasons as framework.FitError lists them.
func (o *diagnosis) String() string {
	lines := make([]string, 0, len(o.reasons))
	for reason, nodes := range o.reasons {
		lines = append(lines, fmt.Sprintf("%d %s", nodes, reason))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// fromCache adds the burst nodes, which are checked each time, to what was recalled. It returns a status of PreFilter
// that ends the cycle: with the reasons that Filter would have given for all nodes, and without preemption. It returns
// nil if a burst node would take the pod.
func (n *narrowing) fromCache(ctx context.Context, state fwk.CycleState, pod *v1.Pod, c *cycle, recalled *diagnosis) *fwk.Status {
	for i := range n.pl.pools.Burst() {
		for _, position := range n.pl.index.tiers[n.pl.pools.RankAt(i)] {
			status := n.RunFilterPluginsWithNominatedPods(ctx, state, pod, c.nodes[position])
			if !status.IsRejected() {
				return nil
			}
			recalled.add(status, 1)
		}
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, recalled.String())
}

// mayPreempt reports whether the pod may preempt others and there are pods of lower priority.
func (pl *PoolPriority) mayPreempt(pod *v1.Pod, nodes []fwk.NodeInfo) bool {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == v1.PreemptNever {
		return false
	}
	return pl.index.hasLower(corev1helpers.PodPriority(pod), nodes)
}
