package poolpriority

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/lru"

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/compat"
)

const (
	// maxFilterKeys bounds how many filter keys (filterKey) the cache holds. Each key takes 12 bytes per node. The
	// cache drops the least recently used key.
	maxFilterKeys = 256
	// maxAnswers bounds how many different Filter statuses the cache holds for all keys together. When the bound is
	// reached, the next cycle that finds no feasible node clears the cache.
	maxAnswers = 1000
	// maxChanged bounds how many changed nodes are checked one by one. If more nodes have changed, the cycle checks all
	// nodes in parallel.
	maxChanged = 100
)

// nodeLocal are the Filter plugins whose result depends only on the node's NodeInfo and on the fields of the pod that
// filterKey reads.
var nodeLocal = sets.New(Name, names.NodeAffinity, names.NodeName, names.NodeResourcesFit, names.NodeUnschedulable, names.TaintToleration)

// diagnosisCache stores, for each filter key, why Filter rejected each node outside burst pools. If thousands of
// identical pods fit no node, Filter checks only the first pod against all nodes. It checks the other pods only against
// burst nodes and against nodes that have changed.
//
// The cache is sound because a cached status depends only on the pod's key and on the node. All PreFilter plugins run
// for each pod. A pod has a key only if PreFilter skips each Filter plugin that is not nodeLocal. The plugins for
// volumes, resource claims, gangs, topology spread and inter-pod affinity are not nodeLocal. The status of a nodeLocal
// plugin depends only on the key and on the node's generation. No generation is used twice, except in the cycle of a
// pod group, and pods of a group have no key. The status of a burst node also depends on the gate and on the time, so
// burst nodes are filtered in every cycle. The status of a node with nominated pods is not cached. A pod that is
// nominated later only takes capacity away, so a cached rejection stays valid.
//
// A status is cached only if preemption cannot make the node feasible. Preemption cannot if Filter rejects the node
// without its pods of lower priority, too. This depends only on the node's generation and on the key, because the key
// includes the pod's priority. PodDisruptionBudgets only decide which victims preemption prefers.
type diagnosisCache struct {
	byFilterKey *lru.Cache // *cachedDiagnosis by alike.Filter; nil: nothing is cached
	answers     []*fwk.Status
	numbers     map[string]int32 // the index in answers, by the text of the status
}

// cachedDiagnosis holds, by the node's slot in the index, why Filter rejected the node for pods with one key.
type cachedDiagnosis struct {
	seen    []int64 // the generation of the node when Filter rejected it
	answers []int32 // the index of the status in diagnosisCache.answers
}

// filterKey returns a key of all fields of the pod that nodeLocal plugins read. It returns false if something that the
// key does not cover could make Filter reject a node.
func (s *search) filterKey() (string, bool) {
	pl, spec := s.pl, &s.pod.Spec
	if len(pl.filters) == 0 || compat.InPodGroup(s.pod) || s.only != nil || spec.NodeName != "" || s.pod.Status.NominatedNodeName != "" {
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
		if pl.features.EnableDRAExtendedResource && name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage &&
			!strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			return "", false // NodeResourcesFit reads DeviceClasses, too
		}
	}
	return strconv.Itoa(int(preemptorPriority(s.pod))) + alike.Filter(s.pod, requests), true
}

// recall filters the nodes that have changed, and returns the diagnosis for all nodes except burst nodes. It returns
// nil if the cache does not have the pod's key or if more than maxChanged nodes have changed. It also returns nil if a
// changed node is feasible or if preemption may make it feasible.
func (f *diagnosisCache) recall(ctx context.Context, s *search) *diagnosis {
	if f.byFilterKey == nil {
		return nil
	}
	key, ok := s.filterKey()
	if !ok {
		return nil
	}
	if known, ok := f.byFilterKey.Get(key); ok {
		s.known = known.(*cachedDiagnosis)
		return f.renew(ctx, s, s.known)
	}
	return nil
}

// renew filters the nodes that have changed since the diagnosis was cached, and returns the updated diagnosis.
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
			return nil // the node is feasible, or Filter failed and the cycle will return the error
		}
		helps, final := s.mayHelp(ctx, i, status)
		if helps {
			return nil
		}
		found.add(status, 1)
		if alone && final {
			f.note(known, index, i, status)
		}
	}
	for number, count := range counts {
		found.add(f.answers[number], count)
	}
	return found
}

// remember caches the statuses of a cycle that filtered all nodes and found no feasible node.
func (f *diagnosisCache) remember(c *cycle, statuses fwk.NodeToStatusReader) {
	s := c.search
	if s == nil || !s.pl.strict || c.fromCache {
		return
	}
	if c.worst != anyRank {
		return // nodes were rejected only because of their rank
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
		status := statuses.Get(e.node.Name)
		if status.IsRejected() && status.Plugin() != "" && (status.Code() != fwk.Unschedulable || !s.mayPreempt(i) || s.hopeless(i)) {
			f.note(known, index, i, status)
		}
	}
}

// note caches the Filter status of the node at the given position of the index.
func (f *diagnosisCache) note(known *cachedDiagnosis, index *index, position int, status *fwk.Status) {
	text := status.Plugin() + "\n" + strings.Join(status.Reasons(), "\n")
	number, ok := f.numbers[text]
	switch {
	case !ok && len(f.answers) >= maxAnswers:
		return // remember clears the cache
	case !ok:
		number = int32(len(f.answers)) //nolint:gosec // there are not that many
		f.numbers[text] = number
		f.answers = append(f.answers, status)
	}
	slot := index.slots[position]
	known.seen[slot], known.answers[slot] = index.seen[position], number
}

// isCached reports whether the cache has the status of the node. Preemption cannot make such a node feasible.
func (s *search) isCached(position int) bool {
	index := s.pl.index
	return s.known != nil && s.known.seen[index.slots[position]] == index.seen[position]
}

// grow extends the slices to the given number of slots.
func (k *cachedDiagnosis) grow(slots int) {
	if n := slots - len(k.seen); n > 0 {
		k.seen, k.answers = append(k.seen, make([]int64, n)...), append(k.answers, make([]int32, n)...)
	}
}

// diagnosis counts the reasons why Filter rejected nodes.
type diagnosis struct {
	reasons map[string]int // the number of nodes, by reason
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

// String lists the reasons as framework.FitError does.
func (o *diagnosis) String() string {
	lines := make([]string, 0, len(o.reasons))
	for reason, nodes := range o.reasons {
		lines = append(lines, fmt.Sprintf("%d %s", nodes, reason))
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

// fromCache runs the Filter plugins on the burst nodes, and adds their statuses to the recalled diagnosis of the other
// nodes. It returns a PreFilter status that ends the cycle without preemption, with the reasons that Filter would have
// given for all nodes. It returns nil if a burst node is feasible
// or preemption may make it feasible.
func (n *narrowing) fromCache(ctx context.Context, state fwk.CycleState, pod *v1.Pod, c *cycle, recalled *diagnosis) *fwk.Status {
	for i := range n.pl.pools.Burst() {
		for _, position := range n.pl.index.tiers[n.pl.pools.RankAt(i)] {
			status := n.RunFilterPluginsWithNominatedPods(ctx, state, pod, c.nodes[position])
			if !status.IsRejected() {
				return nil
			}
			if helps, _ := c.search.mayHelp(ctx, position, status); helps {
				return nil
			}
			recalled.add(status, 1)
		}
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, recalled.String())
}
