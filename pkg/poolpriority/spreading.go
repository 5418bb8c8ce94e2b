package poolpriority

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// spreadsOverHosts reports whether the pod has a DoNotSchedule constraint over hosts that counts nodes by the pod's
// node affinity, as is the default. Such a constraint counts a burst node as a host without pods, though nothing may go
// there: a few pods on VMs are skewed then, and no more are placed beside them.
func spreadsOverHosts(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.TopologySpreadConstraints, func(c v1.TopologySpreadConstraint) bool {
		return c.WhenUnsatisfiable == v1.DoNotSchedule && c.TopologyKey == v1.LabelHostname &&
			(c.NodeAffinityPolicy == nil || *c.NodeAffinityPolicy == v1.NodeInclusionPolicyHonor)
	})
}

// asSpread returns the pod as PreFilter plugins are to see it so that nodes of closed burst pools are no hosts to
// spread over: with a node affinity that rules them out. It is nil if there is no need to.
func (pl *PoolPriority) asSpread(c *cycle, pod *v1.Pod) *v1.Pod {
	if pl.gatekeeper == nil || !spreadsOverHosts(pod) {
		return nil
	}
	var others []v1.NodeSelectorRequirement // the API has one name in each
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
			if term := &own.NodeSelectorTerms[i]; len(term.MatchExpressions)+len(term.MatchFields) > 0 { // an empty one matches nothing, and must not begin to
				term.MatchFields = append(term.MatchFields, others...)
			}
		}
	}
	affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	spread.Spec.Affinity = affinity
	return &spread
}
