package autoscaler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// scaleUp makes at most one order, for the pods that fit neither an existing node nor an upcoming node. It reports
// whether it made an order. After an order, the loop ends. Source: RunOnce and orchestrator.go.
func (l *loop) scaleUp() (done bool, err error) {
	placed, pending := l.pods()
	pending = append(pending, l.world.Buffers...)
	if len(pending) == 0 {
		return false, nil
	}
	snapshot := l.simulator.Snapshot(l.destinations(), placed)
	for _, g := range l.groups {
		for i := range l.upcoming(g) {
			snapshot.AddNode(g.node(fmt.Sprint("upcoming-", i)))
		}
	}
	unfit, err := placeAll(snapshot, pending)
	if err != nil {
		return false, err
	}
	unfit = l.old(unfit)
	switch {
	case len(unfit) == 0:
		return false, nil
	case l.tooNew(unfit):
		l.holdOff = true // no VM is removed either
		return false, nil
	}
	return l.expand(snapshot, unfit)
}

// upcoming returns the number of nodes that the autoscaler still expects. Since 1.36, it expects none of a group in
// backoff or without a scale-up. Source: GetUpcomingNodes.
func (l *loop) upcoming(g *group) int {
	if _, requested := l.requests[g.Name]; l.options.Minor >= 36 && (!requested || l.backedOff(g.Name)) {
		return 0
	}
	return g.upcoming()
}

// destinations returns the nodes that can run pods now. It leaves out starting nodes: upcoming nodes represent them.
func (l *loop) destinations() []*corev1.Node {
	return slices.DeleteFunc(slices.Clone(l.world.Nodes), func(node *corev1.Node) bool { return !started(node) || node.Spec.Unschedulable })
}

// node returns a new node of the group. It shares all fields of the template but its name and its labels.
func (g *group) node(suffix string) *corev1.Node {
	node := *g.Template
	node.Name = fmt.Sprintf("template-node-for-%s-%s", g.Name, suffix)
	node.Labels = map[string]string{}
	maps.Copy(node.Labels, g.Template.Labels)
	node.Labels[corev1.LabelHostname] = node.Name
	return &node
}

// expand considers the groups whose nodes could run one of the pods. It grows the group with the highest priority.
func (l *loop) expand(snapshot Snapshot, pods []*corev1.Pod) (done bool, err error) {
	skipped := map[string]int{}
	var rejected []*group
	for _, g := range l.byPriority() {
		if reason := l.skip(g); reason != "" {
			skipped[reason]++
			continue
		}
		helped, count, err := fill(snapshot, pods, g.Max-g.current, func(i int) *corev1.Node { return g.node(fmt.Sprint(i)) })
		if err != nil {
			return false, err
		}
		if count == 0 {
			rejected = append(rejected, g)
			continue
		}
		l.grow(g, helped, count)
		return true, nil
	}
	l.result.Unhelped, err = l.unhelped(snapshot, pods, skipped, rejected)
	return false, err
}

// eventInterval is the time in which the autoscaler's recorder lets one event of a kind on a pod pass, whatever the
// event's message. Source: utils/kubernetes/factory.go, getCustomSpamKeyFunc.
const eventInterval = 5 * time.Minute

// unhelped returns the pods that get an event because no group could be grown. skipped counts the groups that were not
// considered, by reason. Nodes of the rejected groups cannot run the pods. Source: eventing_scale_up_processor.go.
func (l *loop) unhelped(snapshot Snapshot, pods []*corev1.Pod, skipped map[string]int, rejected []*group) (unhelped []Unhelped, err error) {
	maps.DeleteFunc(l.said, func(_ types.UID, at time.Time) bool { return l.now.Sub(at) >= eventInterval })
	pods = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return l.buffers(pod) || !l.said[pod.UID].IsZero() })
	counts := make([]map[string]int, len(pods))
	for i := range counts {
		counts[i] = maps.Clone(skipped)
	}
	for _, g := range rejected {
		snapshot.AddNode(g.node("rejected"))
		for i, pod := range pods {
			reasons, err := snapshot.Reasons(pod, snapshot.Len()-1)
			if err != nil {
				return nil, err
			}
			for _, reason := range reasons {
				counts[i][reason]++
			}
		}
		snapshot.RemoveLast()
	}
	order := rand.New(rand.NewPCG(l.options.Seed, uint64(l.now.UnixNano()))) // not l.random, so that events do not change the orders
	for i, pod := range pods {
		l.said[pod.UID] = l.now
		unhelped = append(unhelped, Unhelped{pod, message(counts[i], order)})
	}
	return unhelped, nil
}

// byPriority sorts the groups as the priority expander does. With a seed, groups of the same priority are in random
// order.
func (l *loop) byPriority() []*group {
	groups := slices.Clone(l.groups)
	if l.options.Seed != 0 {
		rand.New(&l.random).Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
	}
	sort.SliceStable(groups, func(i, j int) bool { return groups[i].Priority > groups[j].Priority })
	return groups
}

// skip returns the real autoscaler's text for why the group must not be grown. If the group may be grown, it returns
// "".
func (l *loop) skip(g *group) string {
	switch {
	case !l.healthy(g):
		return "not ready for scale-up"
	case l.backedOff(g.Name):
		return "in backoff after failed scale-up"
	case g.current >= g.Max:
		return "max node group size reached"
	}
	return ""
}

func (l *loop) grow(g *group, pods []*corev1.Pod, count int) {
	if err := l.cloud.Grow(g.Name, count); err != nil {
		l.backOff(g.Name, "cloudProviderError", "failed to increase node group size: "+err.Error())
		return
	}
	l.result.Grown = &Growth{Group: g.Name, From: g.current, To: g.current + count, Max: g.Max, Pods: slices.DeleteFunc(slices.Clone(pods), l.buffers)}
	g.current += count
	l.requested(g.Name, count)
	l.scaledUp = l.now
	l.recalculate()
	l.result.Again = true
}

// message returns the message of an event. Its reasons are in random order.
func message(counts map[string]int, order *rand.Rand) string {
	var said []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		said = append(said, fmt.Sprintf("%d %s", counts[reason], reason))
	}
	order.Shuffle(len(said), func(i, j int) { said[i], said[j] = said[j], said[i] })
	return "pod didn't trigger scale-up: " + strings.Join(said, ", ")
}
