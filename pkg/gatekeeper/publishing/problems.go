package publishing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/providers"
	"poolpriority.dev/scheduler/pkg/gatekeeper/sources"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Problems finds and reports problems that the user can fix, such as mistakes in the cluster's objects or in the
// configuration. Each problem is logged once while it lasts. If a problem is about an object, one event is also written
// on the object.
type Problems struct {
	recorder         events.EventRecorder
	pools            pool.List
	gated            bool                 // whether the nodes of burst pools must have the gate taint
	withoutGateTaint map[string]time.Time // by node name: when a burst node was first seen without the gate taint
	Due              time.Time            // when to look for problems again without an event; zero means never
	current          []problem
	logged           map[string]bool // by id: the current problems that were logged
	told             map[string]bool // by id: the current problems for which an event was written
	empty            map[int]bool    // by the pool's index: the pools for which ReportEmpty has logged
}

type problem struct {
	id        string         // does not change while the problem lasts, even if the message does
	regarding runtime.Object // nil if there is no object
	code      string
	message   string
}

// gateTaintGrace is how long a burst node may lack the gate taint before this is a problem. The node may be new, or the
// controller may have no leader for a moment.
const gateTaintGrace = 30 * time.Second

// NewProblems returns Problems without entries. gated is set if the nodes of burst pools must have the gate taint.
func NewProblems(recorder events.EventRecorder, pools pool.List, gated bool) *Problems {
	return &Problems{recorder: recorder, pools: pools, gated: gated, withoutGateTaint: map[string]time.Time{}, logged: map[string]bool{}, told: map[string]bool{}, empty: map[int]bool{}}
}

// Look replaces the current problems with those that exist at the time now. anyHeld is that of the held pods
// (held.Pods.Any). returning is the problem of Return, or "". groupsIgnored is set if the API server serves PodGroups, and
// this build does not see which pods belong to them.
func (ps *Problems) Look(from *sources.Sources, override *sources.Override, declines *gate.Declines, anyHeld func(func(*v1.Pod, string) bool) bool, view *nodegroups.View, byPool [][]*v1.Node, returning string, groupsIgnored bool, now time.Time) {
	ps.current = nil
	type key struct {
		object runtime.Object // a pointer
		reason nodegroups.Reason
	}
	pools := map[key][]string{}
	var keys []key
	for i := range ps.pools.Regular() {
		if p := &view.Pools[i]; p.State == nodegroups.Unknown {
			k := key{from.Object(i), p.Reason}
			if pools[k] == nil {
				keys = append(keys, k)
			}
			pools[k] = append(pools[k], ps.pools.At(i).Name)
		}
		for _, g := range view.Pools[i].Groups {
			if g.Foreign {
				message := fmt.Sprintf("pool %s: %s: %s", ps.pools.At(i).Name, g.Reason.Sentence, g.Reason.Detail)
				var node runtime.Object
				if len(g.Members) > 0 { // else the NodePool is remembered
					node = g.Members[0]
				}
				ps.problemf("KarpenterNodes", message, node, "%s", message)
			}
		}
	}
	for _, k := range keys {
		names := strings.Join(pools[k], ", ")
		message := fmt.Sprintf("pool %s: %s", names, k.reason.Sentence)
		if k.reason.Detail != "" {
			message += ": " + k.reason.Detail
		}
		ps.problemf(k.reason.Code, names, k.object, "%s", message)
	}
	ps.findRefusing(view)
	ps.findDenied(view)
	ps.findOverlaps(byPool)
	ps.findVirtual(byPool)
	ps.findUntolerated(anyHeld, view)
	ps.findTemplates(view)
	ps.findNotServing(declines, view, now)
	ps.findSharedNodes(from)
	ps.findStuck(from.Stuck(), byPool)
	ps.findWithoutGateTaint(byPool, now)
	ps.findOthers(byPool)
	if returning != "" {
		ps.problemf("ReturnUnfinished", "", nil, "%s", returning)
	}
	if groupsIgnored {
		ps.problemf("PodGroupsIgnored", "", nil, "the API server serves PodGroups, and the build for Kubernetes 1.35 does not see which pods belong to them. A gang may be split between VMs and burst nodes. Install a newer build, or remove the burst pools")
	}
	if cm, message := override.Problem(); message != "" {
		ps.problemf(sources.EventOverrideUnreadable, "", cm, "%s", message)
	}
}

// problemf adds a problem with the code and the formatted message. key tells it from other problems with the code.
// regarding is the object that the problem is about, or nil.
func (ps *Problems) problemf(code, key string, regarding runtime.Object, format string, args ...any) {
	ps.current = append(ps.current, problem{id: code + "\n" + key, regarding: regarding, code: code, message: fmt.Sprintf(format, args...)})
}

// findOthers finds nodes that are in a pool of this installation, but have the gate taint of another installation.
func (ps *Problems) findOthers(byPool [][]*v1.Node) {
	type overlap struct{ pool, other string }
	found := map[overlap]*v1.Node{}
	for i, nodes := range byPool {
		for _, node := range nodes {
			other := ps.pools.OtherOf(node)
			o := overlap{ps.pools.At(i).Name, other}
			if other != "" && (found[o] == nil || node.Name < found[o].Name) { // one node is enough
				found[o] = node
			}
		}
	}
	for _, o := range slices.SortedFunc(maps.Keys(found), func(a, b overlap) int { return cmp.Or(cmp.Compare(a.pool, b.pool), cmp.Compare(a.other, b.other)) }) {
		ps.problemf("NodeInTwoInstallations", o.pool+"\n"+o.other, found[o], "pool %s: node %s has the gate taint of another installation, %s, so installation %s does not use the node. List each node in one installation only. If the other installation is gone, "+
			"remove its taint with pool-priority-controller cleanup --taint-only --installation=%s", o.pool, found[o].Name, o.other, ps.pools.Installation(), o.other)
	}
}

// findWithoutGateTaint finds nodes of burst pools that have lacked the gate taint for gateTaintGrace.
func (ps *Problems) findWithoutGateTaint(byPool [][]*v1.Node, now time.Time) {
	withoutGateTaint := map[string]time.Time{}
	ps.Due = time.Time{}
	for i := range ps.pools.Burst() {
		var found *v1.Node // the first by name
		n := 0
		for _, node := range byPool[i] {
			if !ps.gated || pool.HasGateTaint(node) {
				continue
			}
			since := cmp.Or(ps.withoutGateTaint[node.Name], now)
			withoutGateTaint[node.Name] = since
			if end := since.Add(gateTaintGrace); now.Before(end) {
				ps.Due = nodegroups.Earliest(ps.Due, end)
				continue
			}
			n++
			if found == nil || node.Name < found.Name {
				found = node
			}
		}
		if found == nil {
			continue
		}
		nodes := "node " + found.Name
		if n > 1 {
			nodes += fmt.Sprintf(" and %d more", n-1)
		}
		ps.problemf("GateTaintMissing", ps.pools.At(i).Name, found, "pool %s: for more than %s the gate taint %s has been missing on %s. Until it is back, autoscalers add no VM for pods that tolerate the other taints of the node. "+
			"Check that the controller runs. If the controller may not change the node, its log and an event GateTaintDenied on the node show why", ps.pools.At(i).Name, gateTaintGrace, configv1.GateTaintKey, nodes)
	}
	ps.withoutGateTaint = withoutGateTaint
}

// findRefusing finds burst pools whose providers refuse pods. Package providers writes the events about them.
func (ps *Problems) findRefusing(view *nodegroups.View) {
	for i := range ps.pools.Burst() {
		if p := &view.Pools[i].Provider; p.State == breaker.Refusing || p.State == breaker.HalfOpen {
			name := ps.pools.At(i).Name
			ps.problemf(providers.EventRefuses, name, nil, "%s", providers.Complaint(name, p))
		}
	}
}

// findDenied finds pools to whose nodes admission rules deny bindings.
func (ps *Problems) findDenied(view *nodegroups.View) {
	for i := range view.Pools {
		if d := view.Pools[i].Denied; d != nil {
			name, pods := ps.pools.At(i).Name, "pods whose binding was denied"
			if d.All {
				pods = "all pods"
			}
			ps.problemf("BindingsDenied", name, nil, "pool %s: an admission rule denies bindings to the pool's nodes: %s. For five minutes after each denial, %s do not use the pool. Exempt the scheduler from the rule, or leave out the pool", name, d.Message, pods)
		}
	}
}

// findVirtual finds regular pools whose selectors match nodes of a virtual kubelet. The scheduler places no pod on such
// a node, even if a burst pool's selector matches the node, too. findVirtual also finds burst nodes that lack the label of
// virtual kubelets.
func (ps *Problems) findVirtual(byPool [][]*v1.Node) {
	for i := range ps.pools.Regular() {
		if found := slices.IndexFunc(byPool[i], pool.IsVirtual); found >= 0 {
			name := ps.pools.At(i).Name
			ps.problemf("VirtualNodeInRegularPool", name, byPool[i][found], "the nodeSelector of the regular pool %s matches the virtual-kubelet node %s, so no pod is placed on this node. "+
				"Select a label that only the pool's VMs have, or add the expression {key: type, operator: NotIn, values: [virtual-kubelet]}", name, byPool[i][found].Name)
		}
	}
	for i := range ps.pools.Burst() {
		if found := slices.IndexFunc(byPool[i], ps.pools.LacksLabel); found >= 0 {
			name := ps.pools.At(i).Name
			ps.problemf("VirtualNodeLabelMissing", name, byPool[i][found], "pool %s: the virtual-kubelet node %s lacks the label type=virtual-kubelet. The scheduler places no more pods on the node. Set the label, and find out who removed it", name, byPool[i][found].Name)
		}
	}
}

// findUntolerated finds burst pools whose nodes have taints that neither the pool nor a waiting pod tolerates.
func (ps *Problems) findUntolerated(anyHeld func(func(*v1.Pod, string) bool) bool, view *nodegroups.View) {
	for i, p := range ps.pools.Burst() {
		taint := view.Pools[i].Untolerated(p.Tolerations())
		if taint != nil && anyHeld(func(pod *v1.Pod, code string) bool {
			return gate.Lookup(code).Kind == gate.InVain && view.Pools[i].Untolerated(append(p.Tolerations(), pod.Spec.Tolerations...)) != nil
		}) {
			ps.problemf("UntoleratedTaint", p.Name, nil, "pool %s: pods wait that none of its nodes takes: the nodes have the taint %s, which neither these pods nor the pool tolerate. "+
				"If pods may run there, tolerate the taint in the pool's field burst.tolerations or, if its effect is NoExecute, in the pods", p.Name, taint.ToString())
		}
	}
}

// findTemplates finds node templates in the configuration that contradict the nodes.
func (ps *Problems) findTemplates(view *nodegroups.View) {
	for i := range ps.pools.Regular() {
		for k := range view.Pools[i].Groups {
			g := &view.Pools[i].Groups[k]
			difference := nodegroups.Contradiction(ps.pools.At(i).Template(g.Name), g.NodeTemplates)
			if difference == "" {
				continue
			}
			name := "pool " + ps.pools.At(i).Name
			if g.Name != "" {
				name += ", node group " + g.Name
			}
			ps.problemf("TemplateContradictsNodes", name, nil, "%s: the nodeTemplate and the nodes differ: %s. Correct the nodeTemplate, which the scheduler uses while it knows no node", name, difference)
		}
	}
}

// findNotServing finds node groups that count as full for some pods, because they have not served these pods.
func (ps *Problems) findNotServing(declines *gate.Declines, view *nodegroups.View, now time.Time) {
	notServing := declines.NotServing(now)
	for i := range ps.pools.Regular() {
		for k := range view.Pools[i].Groups {
			if g, name := &view.Pools[i].Groups[k], ps.pools.At(i).Name; notServing(name, g) {
				ps.problemf("NotServing", name+"\n"+g.Name, nil, "pool %s: node group %s counts as full for some pods. They waited longer than a node should take, and no new node that they would fit took a pod. "+
					"This ends when one does, or when the group's limits change. Look at the group's newest nodes and at the autoscaler's log", name, cmp.Or(g.Name, "without a name"))
			}
		}
	}
}

// findSharedNodes finds a node that may be in several of the cluster autoscaler's node groups.
func (ps *Problems) findSharedNodes(from *sources.Sources) {
	if node, groups, status := from.Shared(); node != "" {
		names := strings.Join(groups, ", ")
		ps.problemf("InSeveralNodeGroups", names, status, "node %s has no providerID, and its labels match all of the node groups %s. The scheduler counts the node for each of these groups", node, names)
	}
}

// findStuck finds nodes of pools that the cluster autoscaler marked for removal and did not remove.
func (ps *Problems) findStuck(names []string, byPool [][]*v1.Node) {
	for _, node := range slices.Concat(byPool...) {
		if slices.Contains(names, node.Name) {
			ps.problemf("NodeStuckTerminating", node.Name, node, "the cluster autoscaler marked node %s for removal more than 15 minutes ago, and has not removed it. No pod can use the node, and the scheduler does not expect "+
				"the removal any more. Remove the node, or its taint ToBeDeletedByClusterAutoscaler", node.Name)
		}
	}
}

// findOverlaps finds nodes that the selectors of several pools match. An overlap may be a mistake. It may also be
// intended, for example if the last pool selects all remaining nodes.
func (ps *Problems) findOverlaps(byPool [][]*v1.Node) {
	for _, o := range ps.pools.Overlaps(slices.Concat(byPool...)) {
		ps.problemf("InSeveralPools", o.Pools, o.Node, "%s", o.String())
	}
}

// List returns the messages of the current problems. codes has 1 for their codes, and 0 for others that have an alert.
func (ps *Problems) List() (messages []string, codes map[string]float64) {
	codes = map[string]float64{"BindingsDenied": 0, "ReturnUnfinished": 0, "VirtualNodeLabelMissing": 0}
	for _, p := range ps.current {
		messages, codes[p.code] = append(messages, p.message), 1
	}
	return messages, codes
}

// Report logs the problems that were not logged yet. If events is set, Report also writes one event for each problem
// that is about an object.
func (ps *Problems) Report(logger klog.Logger, events bool) {
	logged, told := map[string]bool{}, map[string]bool{}
	for _, p := range ps.current {
		logged[p.id] = true
		if !ps.logged[p.id] {
			logger.Error(nil, "Problem with an object that the scheduler reads", "problem", p.message, "reason", p.code, "object", describe(p.regarding))
		}
		if !events || p.regarding == nil {
			continue
		}
		told[p.id] = true
		if !ps.told[p.id] {
			ps.recorder.Eventf(p.regarding, nil, v1.EventTypeWarning, p.code, "Judging", "%s", p.message)
		}
	}
	ps.logged, ps.told = logged, told
}

// ReportEmpty logs, once for each pool without nodes, that the pool's selector may be wrong.
func (ps *Problems) ReportEmpty(logger klog.Logger, view *nodegroups.View) {
	for i := range view.Pools {
		if view.Pools[i].Nodes == 0 && !ps.empty[i] {
			ps.empty[i] = true
			logger.Info("No node matches the pool's nodeSelector. This is normal for a pool that is scaled to zero. In any other pool, correct the selector",
				"pool", ps.pools.At(i).Name, "nodeSelector", ps.pools.At(i).NodeSelector)
		}
	}
}

func describe(obj runtime.Object) string {
	if obj == nil {
		return "none"
	}
	return klog.KObj(obj.(klog.KMetadata)).String()
}
