package clusterautoscaler

import (
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// agentPoolLabels are AKS's labels for the agent pool of a node, the current one and the legacy one.
var agentPoolLabels = []string{"kubernetes.azure.com/agentpool", "agentpool"}

// Groups tells the node groups of one pool by their names.
type Groups struct {
	patterns   []string
	agentPools []string
	byNodes    bool // the configuration names none: the nodes tell
}

// GroupsOf returns the node groups that the pool's configuration names, by its patterns or by its selector.
func GroupsOf(p *configv1.Pool) Groups {
	g := Groups{patterns: p.ClusterAutoscaler.NodeGroups}
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
	g.byNodes = len(g.patterns)+len(g.agentPools) == 0
	return g
}

// With returns the groups, extended by those of the agent pools that the nodes are in. Groups that are named by
// patterns are not extended.
func (g Groups) With(nodes []*corev1.Node) Groups {
	if len(g.patterns) > 0 {
		return g
	}
	seen := map[string]bool{}
	for _, name := range g.agentPools {
		seen[name] = true
	}
	for _, node := range nodes {
		for _, label := range agentPoolLabels {
			if value, ok := node.Labels[label]; ok {
				seen[value] = true
			}
		}
	}
	all := make([]string, 0, len(seen))
	for name := range seen {
		all = append(all, name)
	}
	sort.Strings(all)
	return Groups{agentPools: all, byNodes: g.byNodes}
}

// Claim reports whether the node group with the name is one of the pool's.
func (g Groups) Claim(name string) bool {
	for _, pattern := range g.patterns {
		if ok, err := path.Match(pattern, name); ok && err == nil {
			return true
		}
	}
	for _, agentPool := range g.agentPools {
		if isVMSS(agentPool, name) || isVirtualMachines(agentPool, name) {
			return true
		}
	}
	return false
}

// hasNode reports whether one of the nodes is in the node group, by their labels. Of a node without a label for its agent
// pool it cannot be told: unlabelled is what is taken of it.
func hasNode(group string, nodes []*corev1.Node, unlabelled bool) bool {
	return slices.ContainsFunc(nodes, func(node *corev1.Node) bool {
		labelled := false
		for _, label := range agentPoolLabels {
			agentPool, ok := node.Labels[label]
			if !ok {
				continue
			}
			labelled = true
			if isVMSS(agentPool, group) {
				return true
			}
			if _, sku, _ := strings.Cut(group, "/"); isVirtualMachines(agentPool, group) && strings.EqualFold(sku, node.Labels[corev1.LabelInstanceTypeStable]) {
				return true
			}
		}
		return !labelled && unlabelled
	})
}

var vmss = regexp.MustCompile(`^aks-([a-z0-9]+)-[0-9]+-vmss$`)

// isVMSS reports whether name is that of the scale set of an AKS agent pool: aks-<pool>-<digits>-vmss. Pool names have
// no dashes, so "pool1" is not taken for "pool10".
func isVMSS(agentPool, name string) bool {
	m := vmss.FindStringSubmatch(strings.ToLower(name))
	return m != nil && m[1] == strings.ToLower(agentPool)
}

// isVirtualMachines reports whether name is that of one size of an AKS agent pool of type VirtualMachines: <pool>/<sku>.
func isVirtualMachines(agentPool, name string) bool {
	prefix, sku, found := strings.Cut(name, "/")
	return found && sku != "" && strings.EqualFold(prefix, agentPool)
}
