package poolpriority

import (
	"cmp"
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
)

// hosts decides which burst nodes count as hosts for the topology spread constraints of a pod. Otherwise, a burst node
// counts as a host without pods. A few pods on VMs then reach the maximum skew, and no more pods can be placed on VMs.
// Therefore, no burst node counts while the search looks at VMs.
type hosts struct {
	pl       *PoolPriority
	pod      *v1.Pod
	run      func(*v1.Pod) error // runs the PreFilter plugins for the pod, or for a copy of it
	counts   bool                // whether burst nodes count
	excluded []string            // the nodes that did not count in the last run
}

// spreadsOverHosts reports whether the pod has a DoNotSchedule topology spread constraint over hosts with
// nodeAffinityPolicy: Honor, the default. It reports fixed if the constraints decide what the pod's hosts are: they ask for
// more than one host, or count something else on all nodes.
func spreadsOverHosts(pod *v1.Pod) (spreads, fixed bool) {
	for _, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == v1.DoNotSchedule && (c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor) {
			spreads = spreads || c.TopologyKey == v1.LabelHostname
			fixed = fixed || c.TopologyKey != v1.LabelHostname || c.MinDomains != nil && *c.MinDomains > 1
		}
	}
	return spreads, fixed
}

// countHosts makes the pod's topology spread constraints ignore burst nodes if the search is to look at VMs first. If
// not, burst nodes that Filter accepts count.
func (pl *PoolPriority) countHosts(c *cycle, pod *v1.Pod, run func(*v1.Pod) error) error {
	spreads, fixed := spreadsOverHosts(pod)
	if !spreads {
		return nil
	}
	h := &hosts{pl: pl, pod: pod, run: run}
	if fixed || !pl.strict || pl.retries.exhausted(pod.UID) {
		return h.count(&c.decision, true)
	}
	c.hosts = h
	return h.count(&c.decision, false)
}

// count makes the burst nodes count that Filter accepts with the decision. If counts is false, no burst node counts.
func (h *hosts) count(decision *gate.Decision, counts bool) error {
	if h == nil {
		return nil
	}
	var excluded []string
	open := make([]bool, h.pl.pools.Len())
	for i := range decision.Burst {
		open[i] = decision.Burst[i].Open
	}
	h.counts = counts
	for i := range h.pl.index.entries {
		e := &h.pl.index.entries[i]
		if (e.rank == pool.Excluded || h.pl.pools.IsBurstRank(e.rank)) && (!counts || !h.pl.letsIn(h.pod, open, e.node)) {
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
// rejects them, by the node's name. For that, all nodes count, which lets in no node: otherwise, NodeAffinity would reject the excluded ones.
func (h *hosts) inVain(ctx context.Context, c *cycle) (vain map[string]*fwk.Status, err error) {
	if h != nil && h.counts {
		h.excluded, vain, err = nil, map[string]*fwk.Status{}, h.run(h.pod)
		for i := range h.pl.index.entries {
			if e := &h.pl.index.entries[i]; err == nil && h.pl.pools.IsBurstRank(e.rank) {
				vain[e.node.Name], _ = runFilters(ctx, h.pl.handle, c.search.state, h.pod, c.nodes[i])
			}
		}
	}
	return vain, errors.Join(err, h.count(&c.decision, false))
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
