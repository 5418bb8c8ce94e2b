package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/published"
)

// The states of a burst pool. A burst pool whose provider refuses pods has the provider's state instead.
const stateOpen, stateClosed, stateSpent, stateDown = "Open", "Closed", "Spent", "Down"

func (o *options) newStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status [POOL…]",
		Short: "List the pools (the default): how full they are, whether they can grow, whether the gate is open, and which pods wait",
		Long: "List the pools: how full they are, whether they can grow, whether the gate is open, and which pods wait.\n\n" +
			"NODES shows the numbers of usable nodes and of nodes on their way (+), and the maximum. CPU and MEMORY show what pods request, and what the nodes\n" +
			"offer. For a burst pool, PODS, CPU and MEMORY show what its provider bills, and the budget. Open and Closed are the gate's decision for a new\n" +
			"pod without constraints, requests or tolerations.",
		RunE: func(c *cobra.Command, pools []string) error { return o.runStatus(c.Context(), pools) },
	}
}

func (o *options) runStatus(ctx context.Context, pools []string) error {
	c, p, err := o.connectPublished(ctx)
	if err != nil {
		return err
	}
	now := c.now()
	list := p.list(now)
	c.countFinished(ctx, p, list)
	if all := list.Items; len(pools) > 0 {
		list.Items = nil
		for _, name := range pools {
			i := p.indexOf(name)
			if i == pool.None {
				return fmt.Errorf("there is no pool %s; the pools are %s", name, strings.Join(p.names(), ", "))
			}
			list.Items = append(list.Items, all[i])
		}
	}
	var names []string
	for _, item := range list.Items {
		names = append(names, "pool/"+item.Name)
	}
	return o.print(list, names, func(w io.Writer) { o.printStatus(w, list, len(pools) == 0, now) })
}

// list computes the status of the pools at the time now from the published state.
func (p *publishedState) list(now time.Time) *PoolStatusList {
	v := p.view
	l := &PoolStatusList{TypeMeta: typeMeta("PoolStatusList"), Written: v.Written, Leader: v.Leader, Version: v.Version, Notes: p.notes(now)}
	l.SchedulerName, l.Mode, l.Order = v.SchedulerName, string(v.Args.Mode), string(v.Args.Order)
	l.Held, l.UnlistedNodes, l.Problems = v.Held, v.Unlisted, v.Problems
	decision := v.Decide(v.Request(gate.PlainPod(), now), p.pools, now)
	for i := range p.pools.Len() {
		item := PoolStatus{Name: p.pools.At(i).Name, Rank: i, Burst: p.pools.IsBurst(i), Nodes: nodeCounts(v, i)}
		if item.Burst {
			p.addBurst(&item, i, &decision)
		} else {
			p.addRegular(&item, i)
		}
		l.Items = append(l.Items, item)
		l.Notes = append(l.Notes, p.closedFor(i, now)...)
	}
	if v.Args.Mode == configv1.ModeObserve {
		l.Notes = append(l.Notes, "with mode: Observe, the gate holds no pod, even if the state of a burst pool is Closed")
	}
	return l
}

// countFinished sets Finished of burst pools. A note says what the user may not list.
func (c *cluster) countFinished(ctx context.Context, p *publishedState, l *PoolStatusList) {
	for i, burst := range p.pools.Burst() {
		nodes := &corev1.NodeList{}
		err := c.list(ctx, nodes, "", metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(burst.NodeSelector), ResourceVersion: "0"})
		for k := range nodes.Items {
			finished := fmt.Sprintf("spec.nodeName=%s,status.phase!=%s,status.phase!=%s", nodes.Items[k].Name, corev1.PodPending, corev1.PodRunning)
			pods := &corev1.PodList{}
			err = errors.Join(err, c.list(ctx, pods, "", metav1.ListOptions{FieldSelector: finished, ResourceVersion: "0"}))
			l.Items[i].Finished += len(pods.Items)
		}
		if err != nil {
			l.Notes = append(l.Notes, fmt.Sprintf("the finished pods of pool %s are not counted: %v", burst.Name, oneLine(err)))
		}
	}
}

// closedFor says for which pods the burst pool with index i is closed, which namespaces have spent their budgets, and how
// many pods passed no gate.
func (p *publishedState) closedFor(i int, now time.Time) []string {
	var notes []string
	name := p.pools.At(i).Name
	for _, c := range p.view.Capacity.Pools[i].Provider.Closings {
		pods, then := "of namespace "+c.Namespace, "being tested with one of them"
		if c.Namespace == "" {
			pods = fmt.Sprintf("with at least %s CPUs and %s GB", decimal(float64(c.MilliCPU)/1000), decimal(float64(c.Memory)/gigabytes))
		}
		if now.Before(c.Until) {
			then = "tried again at " + c.Until.UTC().Format(time.RFC3339)
		}
		notes = append(notes, fmt.Sprintf("pool %s refused pods %s: %s: %s, %s", name, pods, c.Code, c.Message, then))
	}
	if used := p.view.Usage; used != nil && p.view.Burst != nil && p.pools.IsBurst(i) && used[i].Pods > p.view.Burst[i].Pods {
		notes = append(notes, fmt.Sprintf("%d pods of other schedulers are on the nodes of pool %s: they passed no gate, and its budget does not count them", used[i].Pods-p.view.Burst[i].Pods, name))
	}
	if p.view.Shares == nil {
		return notes
	}
	limits, shares := p.pools.At(i).PerNamespace(), p.view.Shares[i]
	spent := func(used, limit int64) bool { return limit > 0 && used >= limit }
	for _, namespace := range slices.Sorted(maps.Keys(shares)) {
		if use := shares[namespace]; spent(int64(use.Pods), int64(limits.Pods)) || spent(use.MilliCPU, limits.MilliCPU) || spent(use.Memory, limits.Memory) {
			notes = append(notes, fmt.Sprintf("namespace %s has spent its budget of pool %s: %s", namespace, name, budgetText(use, limits)))
		}
	}
	return notes
}

func nodeCounts(v *published.View, i int) NodeCounts {
	p := &v.Capacity.Pools[i]
	n := NodeCounts{Total: p.Nodes, OnTheirWay: p.Arriving(), Leaving: p.Leaving, Max: p.MaxNodes()}
	for k := range p.Groups {
		n.OnTheirWay += p.Groups[k].Starting
	}
	if v.Available != nil {
		n.Ready = &v.Available[i]
	}
	return n
}

func (p *publishedState) addRegular(item *PoolStatus, i int) {
	from := &p.view.Capacity.Pools[i]
	item.State, item.Reason, item.Since = string(from.State), from.Reason, from.Since
	item.Source = sourceOf(p.pools.At(i))
	if p.view.Usage != nil {
		u := &p.view.Usage[i]
		item.Pods, item.Requested, item.Allocatable = &u.Pods, u.Requested, u.Allocatable
	}
	for k := range from.Groups {
		g := &from.Groups[k]
		if g.State == from.State && g.State == nodegroups.Growing { // the pool grows as long as one of its groups
			item.Until = nodegroups.Latest(item.Until, g.Until)
		} else if g.State == from.State {
			item.Until = nodegroups.Earliest(item.Until, g.Until)
		}
		item.Groups = append(item.Groups, GroupStatus{
			Name: g.Name, State: string(g.State), Reason: g.Reason, Since: g.Since, Until: g.Until, Nodes: g.Nodes, Max: g.MaxNodes,
		})
	}
}

func sourceOf(p *pool.Pool) string {
	for name, is := range map[string]bool{
		"ClusterAutoscaler": p.ClusterAutoscaler != nil, "Karpenter": p.Karpenter != nil, "Static": p.Static != nil, "Fixed": p.Fixed != nil,
	} {
		if is {
			return name
		}
	}
	return ""
}

func (p *publishedState) addBurst(item *PoolStatus, i int, decision *gate.Decision) {
	v, provider, verdict := p.view, &p.view.Capacity.Pools[i].Provider, &decision.Burst[i]
	item.Reason, item.Until = verdict.Reason, verdict.Until
	if v.Burst != nil {
		item.Pods, item.Requested = &v.Burst[i].Pods, corev1.ResourceList{
			corev1.ResourceCPU: *resource.NewMilliQuantity(v.Burst[i].MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(v.Burst[i].Memory, resource.DecimalSI),
		}
	}
	item.Limits = p.pools.At(i).Burst.Limits.List()
	if taint := v.Capacity.Pools[i].Untolerated(p.pools.At(i).Tolerations()); taint != nil {
		item.Taint = taint.ToString()
	}
	switch {
	case item.Nodes.Total == 0 || item.Nodes.Ready != nil && *item.Nodes.Ready == 0:
		item.State, item.Reason = stateDown, gate.ReasonNotAvailable
		item.Reason.Detail = "it has no nodes"
		if item.Nodes.Total > 0 {
			item.Reason.Detail = "its " + count(item.Nodes.Total, "node is", "nodes are") + " cordoned or not ready"
		}
	case provider.State == breaker.Refusing || provider.State == breaker.HalfOpen:
		item.State, item.Since, item.Until = string(provider.State), provider.Since, provider.Until
		item.Reason = gate.ReasonProviderRefusing
		item.Reason.Detail = provider.Code + ": " + strings.TrimSuffix(provider.Message, ".")
	case verdict.Open && !verdict.Observed:
		item.State = stateOpen
	case verdict.Reason.Code == gate.ReasonBudgetSpent.Code:
		item.State = stateSpent
	default:
		item.State = stateClosed
		for k := range decision.Regular {
			if decision.Regular[k].Holds() && gate.Lookup(verdict.Reason.Code).OfEarlierPool() {
				item.HeldBy = append(item.HeldBy, PoolState{Pool: p.pools.At(k).Name, State: string(v.Capacity.Pools[k].State)})
			}
		}
	}
}
