package autoscaler

import (
	corev1 "k8s.io/api/core/v1"
)

// Simulator determines which pods fit on which nodes.
type Simulator interface {
	// Snapshot returns a snapshot of the nodes, with the pods that run on them.
	Snapshot(nodes []*corev1.Node, pods []*corev1.Pod) Snapshot
}

// Snapshot is a set of nodes with pods. Further pods can be placed on the nodes.
type Snapshot interface {
	// Len returns the number of nodes.
	Len() int
	// Fits returns the name of the first node that the pod fits on, or "". It starts with the node at the index from.
	Fits(pod *corev1.Pod, from int) (string, error)
	// Reasons returns the reasons of the first filter that rejects the pod on the node with the index i.
	Reasons(pod *corev1.Pod, i int) ([]string, error)
	// Place puts the pod on the node.
	Place(pod *corev1.Pod, node string) error
	// AddNode adds an empty node at the end. RemoveLast removes the last node.
	AddNode(node *corev1.Node)
	RemoveLast()
}

// placeAll places each pod on the first node that it fits on. It returns the pods that fit on no node.
func placeAll(s Snapshot, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	var unfit []*corev1.Pod
	for _, pod := range pods {
		node, err := s.Fits(pod, 0)
		if err == nil && node != "" {
			err = s.Place(pod, node)
		}
		if err != nil {
			return nil, err
		}
		if node == "" {
			unfit = append(unfit, pod)
		}
	}
	return unfit, nil
}

// fill adds at most room new nodes, and places pods on them. It returns the placed pods and the number of new nodes.
// The new nodes stay in the snapshot.
func fill(s Snapshot, pods []*corev1.Pod, room int, template func(int) *corev1.Node) (helped []*corev1.Pod, count int, err error) {
	from := s.Len()
	for _, pod := range pods {
		node, err := s.Fits(pod, from)
		if err != nil {
			return nil, 0, err
		}
		if node == "" && count < room {
			if node, err = fitsOnNew(s, pod, template(count)); err != nil {
				return nil, 0, err
			}
			if node != "" {
				count++
			}
		}
		if node == "" {
			continue
		}
		helped = append(helped, pod)
		if err := s.Place(pod, node); err != nil {
			return nil, 0, err
		}
	}
	return helped, count, nil
}

// If the pod fits on the node, fitsOnNew adds the node and returns its name. Otherwise it returns "".
func fitsOnNew(s Snapshot, pod *corev1.Pod, node *corev1.Node) (string, error) {
	s.AddNode(node)
	name, err := s.Fits(pod, s.Len()-1)
	if name == "" {
		s.RemoveLast()
	}
	return name, err
}
