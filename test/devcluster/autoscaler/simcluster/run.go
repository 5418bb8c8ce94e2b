package simcluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// Start starts a new autoscaler. It keeps no state of an earlier one, such as backoffs or cached group sizes. It writes
// Initializing, and its first loop begins a scan interval later. If an autoscaler is running, Start does nothing.
func (c *Cluster) Start() {
	if c.autoscaler != nil {
		return
	}
	c.autoscaler = autoscaler.New(c.options.Autoscaler)
	for name, g := range c.groups {
		g.cachedAt = time.Time{}
		c.groups[name] = g
	}
	c.write(autoscaler.NotRunning(), c.now)
	c.after(c.options.Autoscaler.ScanInterval, loopBegins, "")
}

// Kill ends the autoscaler as SIGKILL does. The status stays, and the nodes that the autoscaler was removing keep their
// taints.
func (c *Cluster) Kill() {
	c.autoscaler, c.looping, c.triggered = nil, false, false
	c.cancel(loopBegins, loopEnds, drainBegins, vmDeleted)
}

// Stop ends the autoscaler gracefully: it deletes its status.
func (c *Cluster) Stop() {
	c.Kill()
	c.written = nil
}

// Running reports whether the autoscaler is running.
func (c *Cluster) Running() bool { return c.autoscaler != nil }

// beginLoop runs a loop at once. Its status is written later, when the loop ends.
func (c *Cluster) beginLoop() {
	c.looping, c.begun = true, c.now
	result, err := c.autoscaler.Loop(c.world(), autoscaler.Filters{}, cloud{c}, c.now)
	if err != nil {
		panic(fmt.Sprintf("a filter that cannot fail failed: %v", err))
	}
	for _, name := range result.Untaint {
		c.removeTaint(name, autoscaler.ToBeDeletedTaint)
	}
	for _, removal := range result.Remove {
		c.UpdateNode(removal.Node, func(node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
				Key: autoscaler.ToBeDeletedTaint, Value: fmt.Sprint(c.now.Unix()), Effect: corev1.TaintEffectNoSchedule,
			})
		})
		c.after(c.options.DeleteDelay, drainBegins, removal.Node)
	}
	for _, u := range result.Unhelped {
		c.said[u.Pod.UID] = Event{c.now, u.Message}
	}
	c.pending, c.again = result.Status, result.Again
	c.after(c.options.LoopTime, loopEnds, "")
}

func (c *Cluster) endLoop() {
	c.write(c.pending, c.begun)
	c.last = *c.written
	c.loops++
	wait := c.options.Autoscaler.ScanInterval
	if c.again || c.triggered {
		wait = 0
	}
	c.looping, c.triggered = false, false
	c.after(wait, loopBegins, "")
}

func (c *Cluster) write(status autoscaler.Status, begun time.Time) {
	if c.written == nil {
		c.made++
	}
	c.writes++
	c.written = &Write{At: c.now, Begun: begun, Status: status}
}

// changed starts a cycle of the scheduler after SchedulerDelay. If a cycle is due already, changed does nothing.
func (c *Cluster) changed() {
	if !slices.ContainsFunc(c.events, func(e event) bool { return e.kind == schedulerLooks }) {
		c.after(c.options.SchedulerDelay, schedulerLooks, "")
	}
}

// schedule binds pods to VMs that they fit on, and marks the other pods as unschedulable. Pods of a higher priority come
// first. Of the VMs, those of the group with the highest priority come first, unless Options.Choose chooses. Pods that
// name a scheduler are ignored.
func (c *Cluster) schedule() {
	nodes, pods := c.Nodes(), InOrder(c.Pods())
	nodes = slices.DeleteFunc(nodes, func(node *corev1.Node) bool {
		return node.Name == VirtualNode && c.options.Choose == nil || !autoscaler.Ready(node)
	})
	snapshot := autoscaler.Filters{}.Snapshot(nodes, pods)
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0 || pod.Spec.SchedulerName != "" {
			continue
		}
		name, _ := snapshot.Fits(pod, 0) // Filters never fails
		if name != "" {
			if c.options.Choose != nil {
				name = c.options.Choose(pod, fitting(snapshot, pod, nodes), c.Pods())
			}
			_ = snapshot.Place(pod, name)
		}
		c.settle(pod, name)
	}
}

// InOrder sorts pods, oldest first, in the order in which the scheduler tries them: by priority.
func InOrder(pods []*corev1.Pod) []*corev1.Pod {
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Compare(ptr.Deref(b.Spec.Priority, 0), ptr.Deref(a.Spec.Priority, 0))
	})
	return pods
}

// fitting returns the nodes of the snapshot that the pod fits on.
func fitting(snapshot autoscaler.Snapshot, pod *corev1.Pod, nodes []*corev1.Node) (fit []*corev1.Node) {
	next := "" // fits, and stands at i or later
	for i, node := range nodes {
		if i == 0 || next == nodes[i-1].Name {
			next, _ = snapshot.Fits(pod, i)
		}
		if next == node.Name {
			fit = append(fit, node)
		}
	}
	return fit
}

// settle binds the pod to the node. If node is "", it marks the pod as unschedulable. A pod that is marked already is
// left unchanged.
func (c *Cluster) settle(pod *corev1.Pod, node string) {
	if node == "" && len(pod.Status.Conditions) > 0 {
		return
	}
	pod = pod.DeepCopy()
	if node != "" {
		bind(pod, node, c.now)
	} else {
		pod.Status.Conditions = []corev1.PodCondition{unschedulable(c.now)}
		c.trigger()
	}
	c.pods[pod.Name] = pod
}

// trigger starts a loop because a pod became unschedulable.
func (c *Cluster) trigger() {
	switch {
	case !c.options.PodTriggers || c.autoscaler == nil:
	case c.looping:
		c.triggered = true
	default:
		c.cancel(loopBegins)
		c.after(0, loopBegins, "")
	}
}

func bind(pod *corev1.Pod, node string, now time.Time) {
	pod.Spec.NodeName, pod.Status.Phase, pod.Status.NominatedNodeName = node, corev1.PodRunning, ""
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}}
}

func unschedulable(now time.Time) corev1.PodCondition {
	return corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(now),
	}
}
