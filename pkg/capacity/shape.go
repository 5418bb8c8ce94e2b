package capacity

import (
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// passingTaints are the keys, or with a trailing slash the key prefixes, of taints that come and go on a node that stays
// the kind of node it is: what controllers, the cloud and the autoscalers put there for a time.
var passingTaints = []string{
	"node.kubernetes.io/",
	"node.cloudprovider.kubernetes.io/",
	"startup-taint.cluster-autoscaler.kubernetes.io/",
	"ignore-taint.cluster-autoscaler.kubernetes.io/",
	"status-taint.cluster-autoscaler.kubernetes.io/",
	"node.cilium.io/agent-not-ready",
	"ToBeDeletedByClusterAutoscaler",
	"DeletionCandidateOfClusterAutoscaler",
	"karpenter.sh/",
}

// placeLabels are the labels that differ between nodes of one kind: a new node's value cannot be told from today's.
var placeLabels = map[string]bool{
	corev1.LabelHostname:                      true,
	corev1.LabelTopologyZone:                  true,
	corev1.LabelFailureDomainBetaZone:         true,
	"topology.disk.csi.azure.com/zone":        true,
	"kubernetes.azure.com/nodenetwork-id":     true,
	"kubernetes.azure.com/node-image-version": true,
}

// IsPlaceLabel reports whether the label says where a node is or which one it is, rather than what kind it is.
func IsPlaceLabel(key string) bool { return placeLabels[key] }

// LastingTaints returns the taints that keep pods out of nodes of this kind for good: cordons, conditions, startup
// taints and an autoscaler's marks are left out.
func LastingTaints(taints []corev1.Taint) []corev1.Taint {
	var lasting []corev1.Taint
	for _, taint := range taints {
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !matches(taint.Key, passingTaints) {
			lasting = append(lasting, taint)
		}
	}
	return lasting
}

// matches reports whether the key is one of the keys, or begins with one that ends with a slash.
func matches(key string, keys []string) bool {
	for _, k := range keys {
		if key == k || (strings.HasSuffix(k, "/") && strings.HasPrefix(key, k)) {
			return true
		}
	}
	return false
}

// settleTime is how long a node may take, once it is ready, to lose the taints that it started with and to report its
// devices: what puts and takes those is not known by name (CNI agents, AKS's nodeInitializationTaints).
const settleTime = 30 * time.Second

// Shapes returns the kinds of node among nodes at the time now, in a stable order, and when that changes by itself (zero:
// never). Of nodes that are starting, or ready for less than settleTime, only the labels count.
func Shapes(nodes []*corev1.Node, now time.Time) ([]Shape, time.Time) {
	byKey := map[string]*Shape{}
	var until time.Time
	for _, node := range nodes {
		shape := ShapeOf(node)
		if settled := readySince(node).Add(settleTime); IsStarting(node) || now.Before(settled) {
			shape.Taints, shape.Allocatable = nil, nil
			if !IsStarting(node) {
				until = Earliest(until, settled)
			}
		}
		key := shape.key()
		if known, ok := byKey[key]; ok {
			known.raise(shape.Allocatable)
		} else {
			byKey[key] = &shape
		}
	}
	keys := make([]string, 0, len(byKey))
	for key := range byKey {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	shapes := make([]Shape, len(keys))
	for i, key := range keys {
		shapes[i] = *byKey[key]
	}
	return shapes, until
}

// readySince is since when the node has been ready, if it is.
func readySince(node *corev1.Node) time.Time {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// ShapeOf returns the kind of the node.
func ShapeOf(node *corev1.Node) Shape {
	shape := Shape{
		Labels:      make(map[string]string, len(node.Labels)),
		Taints:      LastingTaints(node.Spec.Taints),
		Allocatable: node.Status.Allocatable.DeepCopy(),
	}
	for key, value := range node.Labels {
		if !IsPlaceLabel(key) {
			shape.Labels[key] = value
		}
	}
	return shape
}

// key is equal for shapes that differ in allocatable resources only.
func (s *Shape) key() string {
	parts := make([]string, 0, len(s.Labels)+len(s.Taints))
	for k, v := range s.Labels {
		parts = append(parts, k+"="+v)
	}
	for _, t := range s.Taints {
		parts = append(parts, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	sort.Strings(parts)
	return strings.Join(parts, "\n")
}

func (s *Shape) raise(other corev1.ResourceList) {
	if s.Allocatable == nil {
		s.Allocatable = corev1.ResourceList{}
	}
	for name, quantity := range other {
		if have, ok := s.Allocatable[name]; !ok || quantity.Cmp(have) > 0 {
			s.Allocatable[name] = quantity
		}
	}
}
