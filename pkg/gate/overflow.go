package gate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// arrivalMemory is how long after a node has become usable no pod overflows. Until then, held pods that fit the node may
// not be bound yet, and they would count against the nodes that are still on their way.
const arrivalMemory = time.Minute

// maxSizes is how many different requests of pods count against upcoming nodes. Pods with other requests do not count.
const maxSizes = 100

// Queued is a held pod.
type Queued struct {
	Pod *corev1.Pod
	*Assessment
	// Counts is set if the pod waits for a node, and if it does not depend on other pods, on volumes, on resource claims or
	// on a gang which nodes it can use.
	Counts bool
}

// Overflow returns the pods of the queue for which upcoming nodes have no room. The queue is in the order in which the
// scheduler tries the pods. All node groups that such a pod can use have ordered as many nodes as they may have, or have
// been Unknown for UnknownGrace. Overflow does not pack pods onto nodes. It counts seats and resources, and it counts
// only pods that keep the pod from a node even if they do not fit themselves: they precede the pod, can use the same
// nodes, and request no more of any resource. So it may miss pods, but no packing that serves earlier pods first has room
// for a pod that it returns. Next is when the result changes without an event; zero if it does not.
func (r *Rule) Overflow(queue []Queued, view *nodegroups.View, now time.Time) (pods map[types.UID]bool, next time.Time) {
	type class struct {
		*competition
		size amounts
		full bool // then it is also full for the next pods of the class, because full pods take no room
	}
	pods = map[types.UID]bool{}
	repelled := repelledBy(queue)
	classes, competitions := map[*Assessment]*class{}, map[string]*competition{}
	for _, p := range queue {
		c, known := classes[p.Assessment]
		if !known {
			key, upcoming, from := r.upcoming(p.Assessment, view)
			c = &class{size: amountsOf(p.requests)}
			if now.Before(from) {
				next, upcoming = nodegroups.Earliest(next, from), nil
			}
			if upcoming != nil {
				key += alike.Filter(p.Pod, nil)
				if competitions[key] == nil {
					competitions[key] = &competition{upcoming: upcoming}
				}
				c.competition = competitions[key]
			}
			c.size[corev1.ResourcePods] = 1
			classes[p.Assessment] = c
		}
		if c.competition == nil {
			continue
		}
		if c.full = c.full || c.isFull(c.size); c.full {
			pods[p.Pod.UID] = true
		} else if p.Counts && !aci.HasHostPorts(p.Pod) && !repelled(p.Pod) {
			c.take(c.size)
		}
	}
	return pods, next
}

// repelledBy returns a function that reports whether a required anti-affinity of a pod in the queue may keep the pod from
// a node. It takes each anti-affinity for one of all namespaces.
func repelledBy(queue []Queued) func(pod *corev1.Pod) bool {
	selectors := map[string]labels.Selector{}
	for i := range queue {
		if a := queue[i].Pod.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
			for _, term := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				if selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector); err == nil {
					selectors[selector.String()] = selector
				}
			}
		}
	}
	all := slices.Collect(maps.Values(selectors))
	return func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(all, func(s labels.Selector) bool { return s.Matches(labels.Set(pod.Labels)) })
	}
}

// upcoming returns the nodes that the pods of the Assessment can use and that are not usable yet, and a key of the node
// groups that the pods can use. It returns nil if one of these groups may order more nodes, or if the nodes' sizes are
// not known. The nodes count from the time from.
func (r *Rule) upcoming(a *Assessment, view *nodegroups.View) (key string, nodes []upcomingNodes, from time.Time) {
	for i := range a.applicable {
		for k := range a.applicable[i] {
			g := &view.Pools[i].Groups[k]
			if !a.applicable[i][k].none() {
				continue
			}
			key, from = key+fmt.Sprintf("%d/%d ", i, k), nodegroups.Latest(from, g.LastArrival.Add(arrivalMemory))
			if g.State == nodegroups.Unknown && !g.IsGrowing() {
				from = nodegroups.Latest(from, g.Since.Add(r.UnknownGrace)) // then it counts as Full
				continue
			}
			if !g.AtMaximum || g.MaxNodes == nil {
				return "", nil, time.Time{}
			}
			n := g.Missing()
			if n == 0 {
				continue
			}
			if g.Open || g.Nodes == 0 { // templates of earlier nodes may be out of date
				return "", nil, time.Time{}
			}
			of := upcomingNodes{n: int64(n)}
			for t := range g.NodeTemplates {
				of.templates = append(of.templates, amountsOf(g.NodeTemplates[t].Allocatable))
			}
			nodes = append(nodes, of)
		}
	}
	return key, nodes, from
}

// amounts are amounts of resources, CPU in thousandths.
type amounts map[corev1.ResourceName]int64

func amountsOf(list corev1.ResourceList) amounts {
	a := make(amounts, len(list)+1)
	for name, quantity := range list {
		if a[name] = quantity.Value(); name == corev1.ResourceCPU {
			a[name] = quantity.MilliValue()
		}
	}
	return a
}

// within reports whether no amount exceeds the amount of the same resource in most.
func (a amounts) within(most amounts) bool {
	for name, n := range a {
		if n > most[name] {
			return false
		}
	}
	return true
}

// upcomingNodes are n nodes, each of which has one of the templates.
type upcomingNodes struct {
	n         int64
	templates []amounts
}

// most returns how much of the resource the nodes have at most.
func (u *upcomingNodes) most(name corev1.ResourceName) int64 {
	var most int64
	for _, t := range u.templates {
		have, listed := t[name]
		if !listed {
			return math.MaxInt32 * 1_000_000 // unknown
		}
		most = max(most, have)
	}
	return u.n * most
}

// seats returns how many pods of the size the nodes have room for at most, if they have no other pods.
func (u *upcomingNodes) seats(size amounts) int64 {
	var most int64
	for _, t := range u.templates {
		seats := int64(math.MaxInt32)
		for name, n := range size {
			if have, listed := t[name]; listed && n > 0 {
				seats = min(seats, have/n)
			}
		}
		most = max(most, seats)
	}
	return u.n * most
}

// competition has the upcoming nodes that a set of pods can use, and the requests of those pods that need them.
type competition struct {
	upcoming []upcomingNodes
	sizes    []amounts
	counts   []int64 // of the pods of each size
}

// take adds a pod of the size.
func (c *competition) take(size amounts) {
	for i := range c.sizes {
		if size.within(c.sizes[i]) && c.sizes[i].within(size) {
			c.counts[i]++
			return
		}
	}
	if len(c.sizes) < maxSizes {
		c.sizes, c.counts = append(c.sizes, size), append(c.counts, 1)
	}
}

// isFull reports whether the nodes have no room for a pod of the size beside the pods that were taken.
func (c *competition) isFull(size amounts) bool {
	var seats, equal int64
	for i := range c.upcoming {
		seats += c.upcoming[i].seats(size)
	}
	used := amounts{}
	for i, taken := range c.sizes {
		if !taken.within(size) {
			continue
		}
		if size.within(taken) {
			equal += c.counts[i]
		}
		for name, n := range taken {
			used[name] += n * c.counts[i]
		}
	}
	if equal >= seats {
		return true
	}
	for name, n := range size {
		var have int64
		for i := range c.upcoming {
			have += c.upcoming[i].most(name)
		}
		if n > 0 && have-used[name] < n {
			return true
		}
	}
	return false
}
