package gate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// ineligible returns the reason why the burst pool's virtual kubelet cannot run the pod, whatever the pod's size. The
// code of the reason is empty if the virtual kubelet can run the pod.
func ineligible(req Request, p *pool.Pool, templates []nodegroups.NodeTemplate) nodegroups.Reason {
	if feature, ok := aci.Unsupported(req.Pod, aci.PlatformOf(p.OnACI(), isV2(p, templates)), req.AzureFiles); ok {
		return reasonsUnsupported[feature.Code]
	}
	return nodegroups.Reason{}
}

// missingTopology returns the topologyKey of a DoNotSchedule spread constraint if no node of the burst pool has that
// label, and "" otherwise. A node without the label is not feasible. If the burst pool has no nodes, missingTopology
// returns "", because the labels of future nodes are unknown.
func missingTopology(pod *corev1.Pod, p *nodegroups.Pool) string {
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		has := p.Places[c.TopologyKey] || slices.ContainsFunc(p.NodeTemplates, func(s nodegroups.NodeTemplate) bool {
			_, ok := s.Labels[c.TopologyKey]
			return ok || slices.Contains(s.Varied, c.TopologyKey)
		})
		if c.WhenUnsatisfiable == corev1.DoNotSchedule && len(p.NodeTemplates) > 0 && !has {
			return c.TopologyKey
		}
	}
	return ""
}

// isV2 reports whether all nodes of the pool are virtual nodes v2, according to the pool's selector or to the labels of
// its nodes.
func isV2(p *pool.Pool, templates []nodegroups.NodeTemplate) bool {
	isOther := func(t nodegroups.NodeTemplate) bool { return !aci.IsV2(t.Labels) }
	return aci.IsV2(knownLabels(p)) || len(templates) > 0 && !slices.ContainsFunc(templates, isOther)
}
