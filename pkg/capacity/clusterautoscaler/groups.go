package clusterautoscaler

import (
	"path"
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

// present is which agent pools nodes are in, by their labels, and of which sizes: there are few, however many nodes there are.
type present struct {
	pools      []string    // AKS's names, each once
	sizes      [][2]string // agent pool and size, each pair once
	unlabelled bool        // there is a node without a label for its agent pool
}

func presentIn(nodes []*corev1.Node) present {
	var p present
	pools, sizes := map[string]bool{}, map[[2]string]bool{}
	for _, node := range nodes {
		labelled := false
		for _, label := range agentPoolLabels {
			agentPool, ok := node.Labels[label]
			if !ok {
				continue
			}
			labelled = true
			if !pools[agentPool] {
				pools[agentPool] = true
				p.pools = append(p.pools, agentPool)
			}
			if size := [2]string{agentPool, node.Labels[corev1.LabelInstanceTypeStable]}; !sizes[size] {
				sizes[size] = true
				p.sizes = append(p.sizes, size)
			}
		}
		p.unlabelled = p.unlabelled || !labelled
	}
	return p
}

// have reports whether one of the nodes is in the node group, as far as their labels tell.
func (p present) have(group string) bool {
	return slices.ContainsFunc(p.pools, func(agentPool string) bool { return isVMSS(agentPool, group) }) ||
		slices.ContainsFunc(p.sizes, func(size [2]string) bool {
			_, sku, _ := strings.Cut(group, "/")
			return isVirtualMachines(size[0], group) && strings.EqualFold(sku, size[1])
		})
}

// isVMSS reports whether name is that of the scale set of an AKS agent pool: aks-<pool>-<digits>-vmss. Pool names have
// no dashes, so "pool1" is not taken for "pool10".
func isVMSS(agentPool, name string) bool {
	parts := strings.SplitN(name, "-", 5)
	return len(parts) == 4 && strings.EqualFold(parts[0], "aks") && strings.EqualFold(parts[1], agentPool) && agentPool != "" &&
		parts[2] != "" && strings.Trim(parts[2], "0123456789") == "" && strings.EqualFold(parts[3], "vmss")
}

// isVirtualMachines reports whether name is that of one size of an AKS agent pool of type VirtualMachines: <pool>/<sku>.
func isVirtualMachines(agentPool, name string) bool {
	prefix, sku, found := strings.Cut(name, "/")
	return found && sku != "" && strings.EqualFold(prefix, agentPool)
}
