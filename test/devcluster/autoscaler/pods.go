package autoscaler

import (
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"
)

const (
	// ScaleUpDelay is the pod annotation with the age below which the autoscaler ignores the pod.
	ScaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	safeToEvict  = "cluster-autoscaler.kubernetes.io/safe-to-evict"

	// expendable is the priority below which a pod triggers no scale-up and takes no capacity
	// (--expendable-pods-priority-cutoff).
	expendable = -10
)

// pods returns the pods that take capacity of nodes, and the unschedulable pods, oldest first. A pod that is nominated
// to an existing node counts as placed on it. Since 1.36, a pod that is nominated to any other node is ignored. Source:
// utils/kubernetes/listers.go, ArrangePodsBySchedulability.
func (l *loop) pods() (placed, pending []*corev1.Pod) {
	exists := map[string]bool{}
	for _, node := range l.world.Nodes {
		exists[node.Name] = true
	}
	for _, pod := range l.world.Pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || isExpendable(pod):
		case pod.Spec.NodeName != "":
			if exists[pod.Spec.NodeName] {
				placed = append(placed, pod)
			}
		case pod.DeletionTimestamp != nil || l.options.Minor < 36 && !slices.ContainsFunc(pod.Status.Conditions, isUnschedulable):
		case exists[pod.Status.NominatedNodeName]:
			placed = append(placed, on(pod, pod.Status.NominatedNodeName))
		case pod.Status.NominatedNodeName != "" && l.options.Minor >= 36 || !slices.ContainsFunc(pod.Status.Conditions, isUnschedulable):
		default:
			pending = append(pending, pod)
		}
	}
	sort.SliceStable(pending, func(i, j int) bool {
		if t, u := pending[i].CreationTimestamp, pending[j].CreationTimestamp; !t.Equal(&u) {
			return t.Before(&u)
		}
		return pending[i].Name < pending[j].Name
	})
	return placed, pending
}

// withBuffers returns the pods that take capacity of nodes, and the pods of CapacityBuffers on the nodes where they fit.
// Source: filterOutSchedulable places both in the snapshot in which scale-down looks for unneeded nodes.
func (l *loop) withBuffers() ([]*corev1.Pod, error) {
	placed, _ := l.pods()
	snapshot := l.simulator.Snapshot(l.destinations(), placed)
	for _, pod := range l.world.Buffers {
		node, err := snapshot.Fits(pod, 0)
		if err == nil && node != "" {
			err = snapshot.Place(pod, node)
			placed = append(placed, on(pod, node))
		}
		if err != nil {
			return nil, err
		}
	}
	return placed, nil
}

// buffers reports whether the pod is of a CapacityBuffer. The autoscaler writes no events on such pods.
func (l *loop) buffers(pod *corev1.Pod) bool { return slices.Contains(l.world.Buffers, pod) }

func on(pod *corev1.Pod, node string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

func isExpendable(pod *corev1.Pod) bool {
	return pod.Spec.Priority != nil && *pod.Spec.Priority < expendable
}

func isUnschedulable(c corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

// old returns the pods that are old enough for a scale-up. A pod's annotation can raise the minimum age of the option,
// but not lower it. Source: filterOutYoungPods.
func (l *loop) old(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool {
		delay := l.options.NewPodDelay
		if own, err := time.ParseDuration(pod.Annotations[ScaleUpDelay]); err == nil {
			delay = max(delay, own)
		}
		return delay > 0 && l.now.Sub(pod.CreationTimestamp.Time) <= delay
	})
}

// tooNew reports whether all pods are so young that the autoscaler waits for more pods. Source: allPodsAreNew.
func (l *loop) tooNew(pods []*corev1.Pod) bool {
	return !slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
		return !pod.CreationTimestamp.Add(l.options.PodBatch).After(l.now)
	})
}

func ownedByDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// movable reports whether the autoscaler may evict the pod.
func movable(pod *corev1.Pod) bool {
	if say := pod.Annotations[safeToEvict]; say != "" {
		return say == "true"
	}
	return metav1.GetControllerOf(pod) != nil
}

// utilization returns the share of the node's CPU or memory that the pods request, whichever is larger.
func utilization(node *corev1.Node, pods []*corev1.Pod) float64 {
	var cpu, memory float64
	for _, pod := range pods {
		requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
		cpu += requests.Cpu().AsApproximateFloat64()
		memory += requests.Memory().AsApproximateFloat64()
	}
	return max(cpu/node.Status.Allocatable.Cpu().AsApproximateFloat64(), memory/node.Status.Allocatable.Memory().AsApproximateFloat64())
}
