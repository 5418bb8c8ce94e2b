// Package pool implements the ordered list of node pools. It determines the pool of each node and the rank of each
// pool.
package pool

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

const (
	// VirtualKubeletLabel, with the value VirtualKubeletType, marks the nodes of a virtual kubelet, such as AKS's
	// virtual node.
	VirtualKubeletLabel = "type"
	VirtualKubeletType  = "virtual-kubelet"

	// None is the index of a node that is in no pool.
	None = -1
)

// Rank is a place in the order of the nodes. Rank 0 is the most preferred.
type Rank int

// Excluded is the rank of virtual-kubelet nodes (IsVirtual) that are in no burst pool. The scheduler never uses these nodes.
const Excluded Rank = -1

// Pool is an entry of the list. It must not be changed.
type Pool struct {
	configv1.Pool
	selector labels.Selector
	admits   func(*corev1.Namespace) bool // whether pods of the namespace may use the burst pool; nil admits all
	// limits is the budget of a burst pool, and perNamespace that of each namespace in it.
	limits, perNamespace Limits
	// creates are the burst pool's rates. With shared, each namespace may use half.
	creates Rates
	shared  bool
	// Graces has the pool's own graces. A grace that the pool does not set has the value that applies to all pools.
	Graces Graces
	// installation is the name of the list's installation.
	installation string
}

// Graces limit how long a node group keeps the gate closed. Provision applies while ordered nodes are not usable yet.
// Backoff applies while the autoscaler backs off. Decline applies while the autoscaler could scale the group up but
// does not.
type Graces struct{ Provision, Backoff, Decline time.Duration }

// gracesOf returns the graces of the pool. all has the values of the graces that the pool does not set.
func gracesOf(p *configv1.Pool, all *configv1.Capacity) Graces {
	own := ptr.Deref(p.Capacity, configv1.PoolCapacity{})
	first := func(own, all *metav1.Duration) time.Duration {
		return ptr.Deref(cmp.Or(own, all), metav1.Duration{}).Duration
	}
	return Graces{Provision: first(own.ProvisionGrace, all.ProvisionGrace), Backoff: first(own.BackoffGrace, all.BackoffGrace), Decline: first(own.DeclineGrace, all.DeclineGrace)}
}

// List is the ordered list of pools, most preferred first, burst pools last. It must not be changed.
type List struct {
	pools     []Pool
	regular   int
	selective bool // whether any burst pool admits only some namespaces
	// installation is the name of the installation that the list belongs to.
	installation string
	orders       map[string]*Order // by name
}

// ListOf returns the list of the pools in the arguments. The arguments must be validated. ListOf returns an error if it
// cannot parse a selector.
func ListOf(args *configv1.PoolPriorityArgs) (List, error) {
	l := List{pools: make([]Pool, len(args.Pools)), installation: cmp.Or(args.Installation, configv1.DefaultInstallation)}
	for i := range args.Pools {
		p := &args.Pools[i]
		selector, err := metav1.LabelSelectorAsSelector(p.NodeSelector)
		if err != nil {
			return List{}, fmt.Errorf("parsing the node selector of pool %q: %w", p.Name, err)
		}
		l.pools[i] = Pool{Pool: *p, selector: selector, installation: l.installation, Graces: gracesOf(p, &args.Capacity)}
		if p.Burst == nil {
			l.regular++
		} else if err := l.pools[i].prepareBurst(args.Tenants); err != nil {
			return List{}, err
		}
		l.selective = l.selective || l.pools[i].admits != nil
	}
	l.orders = map[string]*Order{}
	for _, o := range args.Orders {
		l.orders[o.Name] = l.newOrder(o.Pools)
	}
	return l, nil
}

// Len returns the number of pools.
func (l List) Len() int { return len(l.pools) }

// Regular returns the number of regular pools. Regular pools have the indices below this number. All other indices
// belong to burst pools.
func (l List) Regular() int { return l.regular }

// HasBurst reports whether there is a burst pool.
func (l List) HasBurst() bool { return l.regular < len(l.pools) }

// At returns the pool with index i, from 0 to Len()-1.
func (l List) At(i int) *Pool { return &l.pools[i] }

// IsBurst reports whether the pool with index i is a burst pool. It returns false for None.
func (l List) IsBurst(i int) bool { return i != None && l.pools[i].Burst != nil }

// Burst iterates over the burst pools and their indices.
func (l List) Burst() iter.Seq2[int, *Pool] {
	return func(yield func(int, *Pool) bool) {
		for i := l.regular; i < len(l.pools) && yield(i, &l.pools[i]); i++ {
		}
	}
}

// IsVirtual reports whether the node is a virtual kubelet's: by its label, by the taint of virtual kubelets, or by the
// version that they report. A virtual kubelet, or whoever has its account, can remove the label.
func IsVirtual(node *corev1.Node) bool {
	return node.Labels[VirtualKubeletLabel] == VirtualKubeletType || strings.Contains(node.Status.NodeInfo.KubeletVersion, "-vk-") ||
		slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == configv1.ProviderTaintKey })
}

// LacksLabel reports whether the node would be in another pool, or in none, by its labels alone. The scheduler places no
// pod on such a node, because pods that select or exclude virtual nodes do so by the label.
func (l List) LacksLabel(node *corev1.Node) bool { return l.byLabels(node.Labels) != l.Of(node) }

// Of returns the index of the node's pool, or None. A node belongs to the first pool whose selector matches its labels. If
// this is no burst pool, a virtual kubelet's node belongs to the pool that it would be in with the label of virtual
// kubelets.
func (l List) Of(node *corev1.Node) int {
	i := l.byLabels(node.Labels)
	if !l.IsBurst(i) && IsVirtual(node) {
		i = l.byLabels(labels.Merge(node.Labels, labels.Set{VirtualKubeletLabel: VirtualKubeletType}))
	}
	return i
}

func (l List) byLabels(set labels.Set) int {
	for i := range l.pools {
		if l.pools[i].selector.Matches(set) {
			return i
		}
	}
	return None
}

// IsBurstNode reports whether the node belongs to a burst pool.
func (l List) IsBurstNode(node *corev1.Node) bool { return l.IsBurst(l.Of(node)) }

// Group returns the nodes by the index of their pool, and the nodes that are in no pool.
func (l List) Group(nodes []*corev1.Node) (byPool [][]*corev1.Node, unlisted []*corev1.Node) {
	byPool = make([][]*corev1.Node, len(l.pools))
	for _, node := range nodes {
		if i := l.Of(node); i != None {
			byPool[i] = append(byPool[i], node)
		} else {
			unlisted = append(unlisted, node)
		}
	}
	return byPool, unlisted
}

// Overlap is a node that the selectors of several pools match. Such a node belongs to the first of these pools.
type Overlap struct {
	Node *corev1.Node
	// Pools has the names of the pools, separated by commas.
	Pools string
}

func (o Overlap) String() string {
	return fmt.Sprintf("node %s matches the node selectors of the pools %s; it belongs to the first", o.Node.Name, o.Pools)
}

// Overlaps returns one of the nodes for each combination of pools whose selectors match a node, in order.
func (l List) Overlaps(nodes []*corev1.Node) []Overlap {
	found := map[string]*corev1.Node{}
	for _, node := range nodes {
		var names []string
		for i := range l.pools {
			if l.pools[i].selector.Matches(labels.Set(node.Labels)) {
				names = append(names, l.pools[i].Name)
			}
		}
		if id := strings.Join(names, ", "); len(names) > 1 && (found[id] == nil || node.Name < found[id].Name) {
			found[id] = node
		}
	}
	var overlaps []Overlap
	for _, id := range slices.Sorted(maps.Keys(found)) {
		overlaps = append(overlaps, Overlap{found[id], id})
	}
	return overlaps
}

// Return returns how pods of the pool return to better pools; nil if they do not.
func (p *Pool) Return() *configv1.Return {
	r := p.Pool.Return
	if p.Burst != nil {
		r = &p.Burst.Return
	}
	if r == nil || !r.Enabled {
		return nil
	}
	return r
}

// Ranks returns the number of ranks. There is one rank for each pool and one for the nodes in no pool.
func (l List) Ranks() int { return len(l.pools) + 1 }

// RankOf returns the rank of the node and the index of its pool (None if it is in no pool). Regular pools come first, then
// nodes in no pool, then burst pools.
func (l List) RankOf(node *corev1.Node) (Rank, int) {
	i := l.Of(node)
	isBurst := l.IsBurst(i)
	switch {
	case !isBurst && IsVirtual(node):
		return Excluded, i
	case i == None:
		return Rank(l.regular), None
	default:
		return l.RankAt(i), i
	}
}

// RankAt returns the rank of the pool with index i.
func (l List) RankAt(i int) Rank {
	if l.IsBurst(i) {
		return Rank(i + 1) // after the nodes in no pool
	}
	return Rank(i)
}

// IsBurstRank reports whether the rank is the rank of a burst pool.
func (l List) IsBurstRank(r Rank) bool { return int(r) > l.regular }

// PoolAt returns the index of the pool that has the rank, or None for the rank of nodes in no pool.
func (l List) PoolAt(r Rank) int {
	switch {
	case int(r) < l.regular:
		return int(r)
	case int(r) == l.regular:
		return None
	default:
		return int(r) - 1
	}
}

// Template returns a new node of the given node group, with the configured labels, taints and allocatable resources. It
// returns nil if no nodeTemplate is configured for the group.
func (p *Pool) Template(group string) *corev1.Node {
	template := p.template(group)
	if template == nil {
		return nil
	}
	nodeLabels := map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}
	maps.Copy(nodeLabels, p.NodeSelector.MatchLabels)
	maps.Copy(nodeLabels, template.Labels)
	for stable, beta := range map[string]string{corev1.LabelOSStable: "beta.kubernetes.io/os", corev1.LabelArchStable: "beta.kubernetes.io/arch"} {
		nodeLabels[beta] = cmp.Or(nodeLabels[beta], nodeLabels[stable])
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: nodeLabels},
		Spec:       corev1.NodeSpec{Taints: template.Taints},
		Status:     corev1.NodeStatus{Allocatable: template.Allocatable},
	}
}

// template returns the first entry of clusterAutoscaler.nodeTemplates that matches the group's name. If no entry
// matches, it returns the pool's own nodeTemplate.
func (p *Pool) template(group string) *configv1.NodeTemplate {
	if p.ClusterAutoscaler != nil {
		for i := range p.ClusterAutoscaler.NodeTemplates {
			t := &p.ClusterAutoscaler.NodeTemplates[i]
			if MatchesGroup(t.NodeGroup, group) {
				return &t.NodeTemplate
			}
		}
	}
	return p.NodeTemplate
}

// MatchesGroup reports whether the pattern matches the name of a node group. The syntax is that of path.Match, but an
// asterisk also matches slashes, because the names of groups on GKE are URLs.
func MatchesGroup(pattern, name string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
	return ok && err == nil
}
