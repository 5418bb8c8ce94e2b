package poolpriority

import (
	"cmp"
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/pool"
)

// hosts decides which burst nodes count as hosts for the topology spread constraints of a pod. Otherwise, a burst node
// counts as a host without pods. A few pods on VMs then reach the maximum skew, and no more pods can be placed on VMs.
// Therefore, no burst node counts while the search looks at VMs.
type hosts struct {
	pl       *PoolPriority
	c        *cycle
	pod      *v1.Pod
	run      func(*v1.Pod) error // runs the PreFilter plugins for the pod, or for a copy of it
	counts   bool                // whether burst nodes count
	excluded []string            // the nodes that did not count in the last run
}

// countHosts decides which burst nodes count for a pod with a DoNotSchedule topology spread constraint over hosts with
// nodeAffinityPolicy: Honor, the default. No burst node counts if the search is to look at VMs first. Otherwise, burst nodes
// that Filter accepts count. They also do if the pod's constraints ask for more than one host, or spread over another key.
func (pl *PoolPriority) countHosts(c *cycle, pod *v1.Pod, run func(*v1.Pod) error) error {
	spreads, fixed := false, !pl.strict || pl.retries.exhausted(pod.UID)
	for _, s := range pod.Spec.TopologySpreadConstraints {
		if s.WhenUnsatisfiable == v1.DoNotSchedule && (s.NodeAffinityPolicy == nil || *s.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor) {
			spreads = spreads || s.TopologyKey == v1.LabelHostname
			fixed = fixed || s.TopologyKey != v1.LabelHostname || s.MinDomains != nil && *s.MinDomains > 1
		}
	}
	if !spreads {
		return nil
	}
	h := &hosts{pl: pl, c: c, pod: pod, run: run}
	if !fixed {
		c.hosts = h
	}
	return h.count(fixed)
}

// count makes the burst nodes count that Filter accepts with the cycle's decision. If counts is false, no burst node counts.
func (h *hosts) count(counts bool) error {
	if h == nil {
		return nil
	}
	var excluded []string
	h.counts = counts
	for i := range h.pl.index.entries {
		e := &h.pl.index.entries[i]
		burst := h.pl.pools.IsBurstRank(e.rank)
		if (burst || e.rank == pool.Excluded) && (!burst || !counts || !h.c.decision.Burst[e.pool].Open || !h.pl.letsIn(h.pod, nil, e.node)) {
			excluded = append(excluded, e.node.Name)
		}
	}
	if slices.Equal(h.excluded, excluded) {
		return nil
	}
	h.excluded = excluded
	return h.run(without(h.pod, excluded))
}

// inVain ends a search that found no node: no burst node counts any more. If burst nodes counted, it returns why Filter
// rejects them, by the node's name. For those that did not count, all nodes count, which lets in no node: otherwise,
// NodeAffinity would reject them.
func (h *hosts) inVain(ctx context.Context) (vain map[string]*fwk.Status, err error) {
	if h == nil || !h.counts {
		return nil, h.count(false)
	}
	hidden, vain := h.excluded, map[string]*fwk.Status{}
	for _, all := range []bool{false, true} {
		if all {
			h.excluded, err = nil, h.run(h.pod)
		}
		for i := range h.pl.index.entries {
			e := &h.pl.index.entries[i]
			if err != nil || !h.pl.pools.IsBurstRank(e.rank) || slices.Contains(hidden, e.node.Name) != all {
				continue
			}
			status, _ := runFilters(ctx, h.pl.handle, h.c.search.state, h.pod, h.c.nodes[i])
			if vain[e.node.Name] = status; !status.IsRejected() { // it has become feasible, or a plugin failed
				return nil, errors.Join(status.AsError(), h.count(true))
			}
		}
	}
	return vain, errors.Join(err, h.count(false))
}

// without returns a copy of the pod for the PreFilter plugins. The copy's node affinity excludes the nodes. Topology
// spread constraints then do not count these nodes.
func without(pod *v1.Pod, nodes []string) *v1.Pod {
	var others []v1.NodeSelectorRequirement // the API allows one node name in each
	for _, node := range nodes {
		others = append(others, v1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpNotIn, Values: []string{node}})
	}
	if len(others) == 0 {
		return pod
	}
	spread := *pod
	affinity := cmp.Or(pod.Spec.Affinity.DeepCopy(), &v1.Affinity{})
	affinity.NodeAffinity = cmp.Or(affinity.NodeAffinity, &v1.NodeAffinity{})
	required := &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: others}}}
	if own := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; own != nil {
		required = own
		for i := range own.NodeSelectorTerms {
			if term := &own.NodeSelectorTerms[i]; len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty term matches nothing, and must stay empty
				term.MatchFields = append(term.MatchFields, others...)
			}
		}
	}
	affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	spread.Spec.Affinity = affinity
	return &spread
}
