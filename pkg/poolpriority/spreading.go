package poolpriority

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// spreadsOverHosts reports whether the pod has a DoNotSchedule topology spread constraint over hosts with
// nodeAffinityPolicy: Honor, the default. Such a constraint counts a burst node as a host without pods, even while the
// gate is closed. A few pods on VMs then reach the maximum skew, and no more pods can be placed on VMs.
func spreadsOverHosts(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == v1.DoNotSchedule && c.TopologyKey == v1.LabelHostname &&
			(c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor)
	})
}

// asSpread returns a copy of the pod for the PreFilter plugins. The copy's node affinity excludes the nodes of burst
// pools whose gate is closed. Topology spread constraints then do not count these nodes. asSpread returns nil if no
// copy is needed.
func (pl *PoolPriority) asSpread(c *cycle, pod *v1.Pod) *v1.Pod {
	if pl.gatekeeper == nil || !spreadsOverHosts(pod) {
		return nil
	}
	var others []v1.NodeSelectorRequirement // the API allows one node name in each
	for i := range pl.pools.Burst() {
		if c.decision.Burst[i].Open {
			continue
		}
		for _, position := range pl.index.tiers[pl.pools.RankAt(i)] {
			others = append(others, v1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpNotIn, Values: []string{c.nodes[position].Node().Name}})
		}
	}
	if len(others) == 0 {
		return nil
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
