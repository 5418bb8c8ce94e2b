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

	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
)

const (
	// maxCacheBytes bounds the cache. Each filter key (filterKey) takes one byte per node, and entryBytes. Each status
	// of a key takes entryBytes, too. The texts of keys and statuses also count. At the bound, the namespace that uses
	// most of the cache loses a random key. If pods of more keys than the cache holds are tried in turn, the cache thus
	// still has some of their keys.
	maxCacheBytes = 128 << 20
	entryBytes    = 512
	// maxAnswers bounds how many different Filter statuses the cache holds for one key. Nodes with other statuses are
	// not cached.
	maxAnswers = 255
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
// The cache is sound because a cached status depends only on the pod's key, on the node and on the version. All PreFilter
// plugins run for each pod. A pod has a key only if PreFilter skips each Filter plugin that is neither nodeLocal nor
// InterPodAffinity or PodTopologySpread. The status of a nodeLocal plugin depends only on the key and on the node's
// generation. No generation is used twice, except in the cycle of a pod group, and pods of a group have no key. The
// other two plugins also read other nodes, their pods and namespaces, so their statuses are valid for one version. The
// status of a burst node also depends on the gate and on the time, so burst nodes are filtered in every cycle. The
// status of a node with nominated pods is not cached. A pod that is nominated later only takes capacity away, so a
// cached rejection stays valid.
//
// A status is cached only if preemption cannot make the node feasible. Preemption cannot if Filter rejects the node
// without its pods of lower priority, too. This depends only on the node's generation and on the key, because the key
// includes the pod's priority. PodDisruptionBudgets only decide which victims preemption prefers.
type diagnosisCache struct {
	byFilterKey map[string]*cachedDiagnosis // nil: nothing is cached
	namespaces  map[string]cacheSize        // the part of each namespace
}

// cacheSize is the size of a part of the cache: the number of keys, and the bytes of texts and statuses.
type cacheSize struct{ keys, text int }

// bytes returns the size in bytes. slots is the number of slots of the index.
func (s cacheSize) bytes(slots int) int { return s.keys*(slots+entryBytes) + s.text }

// cachedDiagnosis holds why Filter rejected nodes for pods with one key.
type cachedDiagnosis struct {
	namespace string // the namespace of the first pod with the key
	text      int
	answers   []*fwk.Status
	// numbers has, by the node's slot in the index, 1 plus the index in answers; 0 means that no status is cached. It
	// is valid for nodes that have not changed since the generation newest. All generations come from one counter, so
	// these are the nodes with at most this generation.
	numbers []uint8
	newest  int64
	version int64 // the search's when the statuses were cached; compared only if they depend on other nodes
}

// filterKey returns a key of all fields of the pod that Filter plugins read. The key is empty if something that it does
// not cover could make Filter reject a node. local reports whether all the plugins are nodeLocal.
func (s *search) filterKey() (key string, local bool) {
	pl, spec := s.pl, &s.pod.Spec
	if _, grouped := compat.PodGroup(s.pod); len(pl.filters) == 0 || grouped || s.only != nil || spec.NodeName != "" || s.pod.Status.NominatedNodeName != "" {
		return "", false
	}
	skipped := s.state.GetSkipFilterPlugins()
	local = true
	for name := range pl.filters {
		if nodeLocal.Has(name) || skipped.Has(name) {
			continue
		}
		// InterPodAffinity and PodTopologySpread read other nodes, too. A spread over hosts also depends on which burst nodes
		// count as hosts. The profile's own constraints, for pods without any, depend on Services.
		spread, _ := alike.TopologyKeys(s.pod)
		if name != names.InterPodAffinity && (name != names.PodTopologySpread || len(spread) == 0 || slices.Contains(spread, v1.LabelHostname)) {
			return "", false
		}
		local = false
	}
	requests := resource.PodRequests(s.pod, resource.PodResourcesOptions{SkipPodLevelResources: !pl.features.EnablePodLevelResources})
	for name := range requests {
		if pl.features.EnableDRAExtendedResource && name != v1.ResourceCPU && name != v1.ResourceMemory && name != v1.ResourceEphemeralStorage &&
			!strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			return "", false // NodeResourcesFit reads DeviceClasses, too
		}
	}
	if !local {
		repelling, _ := pl.handle.SnapshotSharedLister().NodeInfos().HavePodsWithRequiredAntiAffinityList() // does not fail
		key = alike.Nearby(s.pod, len(repelling) > 0)
	}
	return strconv.Itoa(int(held.PreemptorPriority(s.pod))) + alike.Filter(s.pod, requests) + key, local
}

// recall filters the nodes that have changed, and returns the diagnosis for all nodes except burst nodes. It returns
// nil if the cache does not have the pod's key or if more than maxChanged nodes have changed. If the pod is rejected
// because of other nodes, too, it returns nil if any node or namespace has changed. It also returns nil if a changed
// node is feasible or if preemption may make it feasible.
func (f *diagnosisCache) recall(ctx context.Context, s *search) *diagnosis {
	if f.byFilterKey == nil {
		return nil
	}
	key, local := s.key() // no pod has an empty key
	if s.known = f.byFilterKey[key]; s.known == nil {
		return nil
	}
	s.known.grow(len(s.pl.index.positions)) // preemption reads it, too
	stale := !local && s.known.version != s.version
	if s.known.version = s.version; stale {
		clear(s.known.numbers)
		return nil
	}
	return f.renew(ctx, s, s.known)
}

// renew filters the nodes that have changed since the diagnosis was cached, and returns the updated diagnosis.
func (f *diagnosisCache) renew(ctx context.Context, s *search, known *cachedDiagnosis) *diagnosis {
	index := s.pl.index
	var counts [maxAnswers + 1]int
	var changed [maxChanged]int
	n := 0
	for i, slot := range index.slots {
		if known.has(slot, index.seen[i]) {
			counts[known.numbers[slot]]++
			continue
		}
		known.numbers[slot] = 0
		switch {
		case s.pl.pools.IsBurstRank(index.entries[i].rank):
		case n == len(changed):
			return nil
		default:
			changed[n] = i
			n++
		}
	}
	known.newest = index.newest
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
			f.note(known, index.slots[i], status)
		}
	}
	for i, status := range known.answers {
		found.add(status, counts[i+1])
	}
	return found
}

// remember caches the statuses of a cycle that filtered all nodes and found no feasible node.
func (f *diagnosisCache) remember(c *cycle, statuses fwk.NodeToStatusReader) {
	s := c.search
	if s == nil || !s.pl.strict || c.fromCache || c.leftOut != nil || c.worst != anyRank { // at another place, nodes were rejected only because of their rank
		return
	}
	key, _ := s.key()
	if key == "" {
		return
	}
	if f.byFilterKey == nil {
		*f = diagnosisCache{byFilterKey: map[string]*cachedDiagnosis{}, namespaces: map[string]cacheSize{}}
	}
	known := f.byFilterKey[key]
	if known == nil {
		known = &cachedDiagnosis{namespace: s.pod.Namespace, version: s.version}
		f.byFilterKey[key] = known
		f.resize(known, 1, len(key))
	}
	index := s.pl.index
	known.grow(len(index.positions))
	for i := range index.entries {
		e, slot := &index.entries[i], index.slots[i]
		if known.has(slot, index.seen[i]) {
			continue
		}
		if known.numbers[slot] = 0; s.pl.pools.IsBurstRank(e.rank) {
			continue
		}
		if _, ok := c.flags.withNominated.Load(e.node.Name); ok {
			continue
		}
		status := statuses.Get(e.node.Name)
		if status.IsRejected() && status.Plugin() != "" && (status.Code() != fwk.Unschedulable || !s.mayPreempt(i) || s.hopeless(i)) {
			f.note(known, slot, status)
		}
	}
	known.newest = index.newest
	f.shrink(maxCacheBytes, len(index.positions))
}

// note caches the Filter status of the node in the slot.
func (f *diagnosisCache) note(known *cachedDiagnosis, slot int, status *fwk.Status) {
	i := slices.IndexFunc(known.answers, func(a *fwk.Status) bool {
		return a.Plugin() == status.Plugin() && slices.Equal(a.Reasons(), status.Reasons())
	})
	if i < 0 {
		if i = len(known.answers); i == maxAnswers {
			return
		}
		known.answers = append(known.answers, status)
		f.resize(known, 0, entryBytes+len(strings.Join(status.Reasons(), "")))
	}
	known.numbers[slot] = uint8(i + 1) //nolint:gosec // at most maxAnswers
}

// resize adds to the size of the key's part of the cache.
func (f *diagnosisCache) resize(known *cachedDiagnosis, keys, text int) {
	known.text += text
	part := f.namespaces[known.namespace]
	part.keys, part.text = part.keys+keys, part.text+text
	if f.namespaces[known.namespace] = part; part.keys == 0 {
		delete(f.namespaces, known.namespace)
	}
}

// shrink drops keys until the cache has at most the given number of bytes.
func (f *diagnosisCache) shrink(most, slots int) {
	for len(f.byFilterKey) > 0 {
		largest, all := "", 0
		for namespace, part := range f.namespaces {
			if all += part.bytes(slots); part.bytes(slots) > f.namespaces[largest].bytes(slots) {
				largest = namespace
			}
		}
		if all <= most {
			return
		}
		for key, known := range f.byFilterKey { // in random order
			if known.namespace == largest {
				delete(f.byFilterKey, key)
				f.resize(known, -1, -known.text)
				break
			}
		}
	}
}

// has reports whether a status is cached for the node in the slot with the generation.
func (k *cachedDiagnosis) has(slot int, generation int64) bool {
	return k.numbers[slot] != 0 && generation <= k.newest
}

// grow extends numbers to the given number of slots.
func (k *cachedDiagnosis) grow(slots int) {
	if n := slots - len(k.numbers); n > 0 {
		k.numbers = append(k.numbers, make([]uint8, n)...)
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
