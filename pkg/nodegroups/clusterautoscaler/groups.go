package clusterautoscaler

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// agentPoolLabels are the current and the legacy AKS label for a node's agent pool.
var agentPoolLabels = []string{"kubernetes.azure.com/agentpool", "agentpool"}

// Groups decides which node groups belong to one pool.
type Groups struct {
	pool       string // the pool's name
	patterns   []string
	agentPools []string
	selector   labels.Selector
}

// GroupsOf returns the node groups that the pool's configuration names, by patterns or by the node selector. If the
// configuration names no groups, the pool has the groups of its nodes.
func GroupsOf(p *configv1.Pool) Groups {
	selector, _ := metav1.LabelSelectorAsSelector(p.NodeSelector) // there is no error: the configuration was validated
	g := Groups{pool: p.Name, patterns: p.ClusterAutoscaler.NodeGroups, selector: selector}
	if len(g.patterns) > 0 {
		return g
	}
	for _, label := range agentPoolLabels {
		if value, ok := p.NodeSelector.MatchLabels[label]; ok {
			g.agentPools = append(g.agentPools, value)
		}
		for _, req := range p.NodeSelector.MatchExpressions {
			if req.Key == label && req.Operator == "In" {
				g.agentPools = append(g.agentPools, req.Values...)
			}
		}
	}
	return g
}

// mayHave reports whether nodes of this template may match the pool's node selector. It ignores requirements on place
// labels and on varied labels, because these labels may have any value.
func (g Groups) mayHave(template nodegroups.NodeTemplate) bool {
	requirements, _ := g.selector.Requirements()
	return !slices.ContainsFunc(requirements, func(r labels.Requirement) bool {
		return !nodegroups.IsPlaceLabel(r.Key()) && !slices.Contains(template.Varied, r.Key()) && !r.Matches(labels.Set(template.Labels))
	})
}

// owns reports whether the pool's configuration names the node group.
func (g Groups) owns(name string) bool {
	return slices.ContainsFunc(g.patterns, func(pattern string) bool { return pool.MatchesGroup(pattern, name) }) ||
		slices.ContainsFunc(g.agentPools, func(agentPool string) bool { return isVMSS(agentPool, name) || isVirtualMachines(agentPool, name) })
}

// mayClaim reports whether an orphaned node group may belong to the pool. It returns true if the pool's configuration
// names no groups, or if it names a Windows agent pool whose scale set has the group's name.
func (g Groups) mayClaim(name string) bool {
	return len(g.patterns)+len(g.agentPools) == 0 ||
		slices.ContainsFunc(g.agentPools, func(agentPool string) bool { return isWindowsVMSS(agentPool, name) })
}

// labelsOf returns the node labels that the group's name implies, each with its possible values.
func labelsOf(group string) map[string][]string {
	agentPool, sku, hasSize := strings.Cut(group, "/")
	if !hasSize || strings.Contains(sku, "/") { // names of Cluster API and of GKE have several slashes
		parts := strings.SplitN(group, "-", 3)
		if len(parts) < 3 || !isVMSS(parts[1], group) {
			return nil
		}
		agentPool = parts[1]
	}
	known := map[string][]string{}
	for _, label := range agentPoolLabels {
		known[label] = []string{agentPool}
	}
	if hasSize {
		known[corev1.LabelInstanceTypeStable] = []string{sku}
	}
	return known
}

// isVMSS reports whether name is the name of the agent pool's scale set on AKS, aks-<pool>-<digits>-vmss. Names of
// agent pools have no dashes. isVMSS compares whole parts between dashes: "pool1" does not match "aks-pool10-1-vmss".
func isVMSS(agentPool, name string) bool {
	parts := strings.SplitN(name, "-", 5)
	return len(parts) == 4 && strings.EqualFold(parts[0], "aks") && strings.EqualFold(parts[1], agentPool) && agentPool != "" &&
		parts[2] != "" && strings.Trim(parts[2], "0123456789") == "" && strings.EqualFold(parts[3], "vmss")
}

// Pattern returns a regular expression for the name of the group, and of the AKS scale set that would replace it, whose
// digits differ. The expander `priority` looks for a pattern anywhere in a name, so the pattern has anchors: pool1 would
// also match pool10.
func Pattern(group string) string {
	if parts := strings.Split(group, "-"); len(parts) == 4 && isVMSS(parts[1], group) {
		return "^" + regexp.QuoteMeta(parts[0]+"-"+parts[1]) + "-[0-9]+-" + parts[3] + "$"
	}
	return "^" + regexp.QuoteMeta(group) + "$"
}

// isWindowsVMSS reports whether name is the name of a Windows agent pool's scale set on AKS, aks<pool>.
func isWindowsVMSS(agentPool, name string) bool {
	return agentPool != "" && strings.EqualFold(name, "aks"+agentPool)
}

// isVirtualMachines reports whether name is <pool>/<sku>, the node group of one VM size in an AKS agent pool of type
// VirtualMachines.
func isVirtualMachines(agentPool, name string) bool {
	prefix, sku, found := strings.Cut(name, "/")
	return found && sku != "" && strings.EqualFold(prefix, agentPool)
}
