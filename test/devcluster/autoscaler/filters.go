package autoscaler

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// Filters is a Simulator. It checks resources, node selectors, required node affinity, cordons and taints. It ignores
// topology spread constraints, pod affinity and volumes.
type Filters struct{}

// Snapshot returns a snapshot of the nodes, with the pods that run on them.
func (Filters) Snapshot(nodes []*corev1.Node, pods []*corev1.Pod) Snapshot {
	s := &filtered{byName: map[string]*seats{}}
	for _, node := range nodes {
		s.AddNode(node)
	}
	for _, pod := range pods {
		if seats := s.byName[pod.Spec.NodeName]; seats != nil {
			seats.take(requests(pod))
		}
	}
	return s
}

// Admits reports whether the pod would fit on the node if the node were empty. It ignores the node's conditions.
func (Filters) Admits(node *corev1.Node, pod *corev1.Pod) bool {
	return newSeats(node).fits(pod, requests(pod))
}

type filtered struct {
	seats  []*seats
	byName map[string]*seats
}

// seats is a node and its free resources.
type seats struct {
	node *corev1.Node
	free map[corev1.ResourceName]int64
}

func newSeats(node *corev1.Node) *seats {
	s := &seats{node: node, free: map[corev1.ResourceName]int64{}}
	for name, quantity := range node.Status.Allocatable {
		s.free[name] = quantity.MilliValue()
	}
	return s
}

// requests returns the pod's requests in thousandths. Each pod requests one unit of the resource pods.
func requests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	wanted := map[corev1.ResourceName]int64{corev1.ResourcePods: 1000}
	var all corev1.ResourceList
	if s := &pod.Spec; len(s.Containers) == 1 && s.InitContainers == nil && s.Overhead == nil && s.Resources == nil {
		all = s.Containers[0].Resources.Requests // PodRequests takes ten times as long
	} else {
		all = resource.PodRequests(pod, resource.PodResourcesOptions{})
	}
	for name, quantity := range all {
		wanted[name] = quantity.MilliValue()
	}
	return wanted
}

func (s *seats) take(wanted map[corev1.ResourceName]int64) {
	for name, n := range wanted {
		s.free[name] -= n
	}
}

func (s *seats) fits(pod *corev1.Pod, wanted map[corev1.ResourceName]int64) bool {
	for name, n := range wanted {
		if n > 0 && n > s.free[name] {
			return false
		}
	}
	if !tolerated(s.node, pod) {
		return false
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(s.node)
	return match && err == nil
}

func tolerated(node *corev1.Node, pod *corev1.Pod) bool {
	taints := node.Spec.Taints
	if node.Spec.Unschedulable {
		taints = append(slices.Clip(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), taints, pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, false)
	return !untolerated
}

func (s *filtered) Len() int { return len(s.seats) }

func (s *filtered) Fits(pod *corev1.Pod, from int) (string, error) {
	wanted := requests(pod)
	for _, seats := range s.seats[from:] {
		if seats.fits(pod, wanted) {
			return seats.node.Name, nil
		}
	}
	return "", nil
}

// Reasons runs the filters in kube-scheduler's order, with its texts.
func (s *filtered) Reasons(pod *corev1.Pod, i int) ([]string, error) {
	node, wanted := s.seats[i], requests(pod)
	if !tolerated(node.node, pod) {
		return []string{"node(s) had untolerated taint(s)"}, nil
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node.node); !match || err != nil {
		return []string{"node(s) didn't match Pod's node affinity/selector"}, err
	}
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		switch n := wanted[name]; {
		case n == 0 || n <= node.free[name]:
		case name == corev1.ResourcePods:
			reasons = append(reasons, "Too many pods")
		default:
			reasons = append(reasons, fmt.Sprintf("Insufficient %s", name))
		}
	}
	return reasons, nil
}

func (s *filtered) Place(pod *corev1.Pod, node string) error {
	seats := s.byName[node]
	if seats == nil {
		return fmt.Errorf("placing pod %s/%s: no node %s", pod.Namespace, pod.Name, node)
	}
	seats.take(requests(pod))
	return nil
}

func (s *filtered) AddNode(node *corev1.Node) {
	seats := newSeats(node)
	s.seats = append(s.seats, seats)
	s.byName[node.Name] = seats
}

func (s *filtered) RemoveLast() {
	last := len(s.seats) - 1
	delete(s.byName, s.seats[last].node.Name)
	s.seats = s.seats[:last]
}
