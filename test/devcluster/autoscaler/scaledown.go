package autoscaler

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// scaleDown records which VMs are unneeded, and begins to remove those that have been unneeded for long enough.
func (l *loop) scaleDown() error {
	if l.options.UnneededTime == 0 {
		return nil
	}
	l.looked = l.now
	placed, err := l.withBuffers()
	if err != nil {
		return err
	}
	unneeded := map[string]time.Time{}
	for _, g := range l.groups {
		for _, node := range g.nodes {
			is, err := l.isUnneeded(node, placed)
			if err != nil {
				return err
			}
			if !is {
				continue
			}
			unneeded[node.Name] = l.now
			if since, ok := l.unneeded[node.Name]; ok {
				unneeded[node.Name] = since
			}
		}
	}
	l.unneeded = unneeded
	if l.cooling() {
		return nil
	}
	return l.remove(placed)
}

// cooling reports whether no VM may be removed now, because of a recent scale-up or removal. Source:
// isScaleDownInCooldown.
func (l *loop) cooling() bool {
	o := l.options
	return l.holdOff || l.scaledUp.Add(o.DelayAfterAdd).After(l.now) || l.removed.Add(o.DelayAfterDelete).After(l.now) ||
		l.removalFailed.Add(o.DelayAfterFailure).After(l.now)
}

// isUnneeded reports whether the VM is little used and all its pods would fit on other nodes.
func (l *loop) isUnneeded(node *corev1.Node, placed []*corev1.Pod) (bool, error) {
	if _, leaving := l.removing[node.Name]; leaving || !started(node) {
		return false, nil
	}
	own, others := divide(placed, node.Name)
	if utilization(node, own) >= l.options.Utilization {
		return false, nil
	}
	return l.fitElsewhere(own, others, []string{node.Name})
}

// divide returns the pods of the node, without those of DaemonSets, and all pods of other nodes.
func divide(placed []*corev1.Pod, node string) (own, others []*corev1.Pod) {
	for _, pod := range placed {
		switch {
		case pod.Spec.NodeName != node:
			others = append(others, pod)
		case !ownedByDaemonSet(pod):
			own = append(own, pod)
		}
	}
	return own, others
}

// fitElsewhere reports whether the pods may be evicted and fit on nodes that are not in without. others are the pods
// that stay on their nodes.
func (l *loop) fitElsewhere(pods, others []*corev1.Pod, without []string) (bool, error) {
	var moved []*corev1.Pod
	for _, pod := range pods {
		if !movable(pod) {
			return false, nil
		}
		moved = append(moved, on(pod, ""))
	}
	nodes := slices.DeleteFunc(l.destinations(), func(node *corev1.Node) bool { return slices.Contains(without, node.Name) })
	unfit, err := placeAll(l.simulator.Snapshot(nodes, others), moved)
	return err == nil && len(unfit) == 0, err
}

// remove begins to remove VMs that have been unneeded for long enough: first empty VMs, then VMs with pods.
func (l *loop) remove(placed []*corev1.Pod) error {
	r := &removal{loop: l, placed: placed}
	for _, drain := range []bool{false, true} {
		for _, g := range l.groups {
			for _, node := range g.nodes {
				if err := r.consider(g, node, drain); err != nil {
					return err
				}
			}
		}
	}
	if len(r.leaving) > 0 {
		l.removed = l.now
		l.recalculate()
		l.result.Again = true
	}
	return nil
}

// removal chooses the VMs that one loop removes.
type removal struct {
	*loop
	placed  []*corev1.Pod
	leaving []string // the nodes chosen in this loop
}

// drains returns the number of VMs with pods that are being removed.
func (r *removal) drains() (n int) {
	for _, drain := range r.removing {
		if drain {
			n++
		}
	}
	return n
}

// consider chooses the node if it has been unneeded for long enough, the limits allow another removal, and the pods
// still fit elsewhere. With drain, it considers nodes with pods only. Without drain, it considers nodes without pods
// only.
func (r *removal) consider(g *group, node *corev1.Node, drain bool) error {
	own, others := divide(r.placed, node.Name)
	since, ok := r.unneeded[node.Name]
	if !ok || r.now.Sub(since) < r.options.UnneededTime || (len(own) > 0) != drain {
		return nil
	}
	if len(r.removing) >= r.options.ParallelRemovals || (drain && r.drains() >= r.options.ParallelDrains) || g.current-r.leavingOf(g) <= g.Min {
		return nil
	}
	fit, err := r.fitElsewhere(own, others, append(r.leaving, node.Name))
	if err != nil || !fit {
		return err
	}
	r.leaving = append(r.leaving, node.Name)
	r.removing[node.Name] = drain
	delete(r.unneeded, node.Name)
	r.result.Remove = append(r.result.Remove, Removal{Group: g.Name, Node: node.Name})
	return nil
}

// leavingOf returns the number of the group's VMs that are being removed and still count in the target.
func (r *removal) leavingOf(g *group) (n int) {
	for _, i := range g.Instances {
		if _, leaving := r.removing[i.Name]; leaving {
			n++
		}
	}
	return n
}
