// Package karpenter derives the status of pools from Karpenter's NodePools, including those of AKS node
// auto-provisioning.
package karpenter

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// Resource is the API resource of NodePools.
var Resource = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodepools"}

// resourceNodes is the resource name for the number of nodes in a NodePool's limits and status. Source:
// sigs.k8s.io/karpenter/pkg/utils/resources, Node.
const resourceNodes corev1.ResourceName = "nodes"

// nodePool has the fields of a NodePool that this package reads. Source: sigs.k8s.io/karpenter/pkg/apis/v1, NodePool.
type nodePool struct {
	Metadata struct {
		Name              string       `json:"name"`
		Generation        int64        `json:"generation,omitempty"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp,omitempty"`
	} `json:"metadata"`
	Spec struct {
		Template struct {
			Metadata struct {
				Labels map[string]string `json:"labels,omitempty"`
			} `json:"metadata,omitempty"`
			Spec struct {
				Taints       []corev1.Taint                   `json:"taints,omitempty"`
				Requirements []corev1.NodeSelectorRequirement `json:"requirements,omitempty"`
			} `json:"spec"`
		} `json:"template"`
		Limits   resources `json:"limits,omitempty"`
		Replicas *int64    `json:"replicas,omitempty"`
	} `json:"spec"`
	Status struct {
		Resources  resources          `json:"resources,omitempty"`
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status,omitempty"`
}

// resources maps names of resources to quantities. Decoding rejects quantities with huge exponents, because arithmetic
// with them is slow.
type resources map[corev1.ResourceName]resource.Quantity

// hugeExponent matches quantities that the API accepts and that take minutes to compare, such as 1e100000000.
var hugeExponent = regexp.MustCompile(`[eE][+-]?[0-9.]{3,}`)

// UnmarshalJSON implements json.Unmarshaler.
func (l *resources) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	for name, value := range raw {
		if hugeExponent.Match(value) {
			return fmt.Errorf("%s has a quantity with a large exponent, %.20s; write the quantity with a suffix, such as 10Gi", name, value)
		}
	}
	return json.Unmarshal(data, (*map[corev1.ResourceName]resource.Quantity)(l))
}

// decode reads an object of the kind, in version karpenter.sh/v1, from its JSON.
func decode[T any](object []byte, kind string) (*T, error) {
	var found metav1.TypeMeta
	if err := json.Unmarshal(object, &found); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	if want := Resource.GroupVersion().String(); found.APIVersion != want || found.Kind != kind {
		return nil, fmt.Errorf("it is a %q of %q, and a %s of %s is needed", found.Kind, found.APIVersion, kind, want)
	}
	decoded := new(T)
	if err := json.Unmarshal(object, decoded); err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	return decoded, nil
}

// nodes returns the number of the NodePool's ordered nodes, including ordered nodes without a Node object. If the
// NodePool has replicas, nodes returns at least maxNodes.
func (n *nodePool) nodes() int64 {
	counted := n.Status.Resources[resourceNodes]
	if n.Spec.Replicas != nil {
		return max(counted.Value(), int64(*n.maxNodes()))
	}
	return counted.Value()
}

// maxNodes returns the NodePool's maximum number of nodes, the lower of its limit and its replicas; nil if it has
// neither.
func (n *nodePool) maxNodes() *int {
	replicas := n.Spec.Replicas
	limit, limited := n.Spec.Limits[resourceNodes]
	switch {
	case limited && (replicas == nil || limit.Value() < *replicas):
		return ptr.To(int(limit.Value()))
	case replicas != nil:
		return ptr.To(int(*replicas))
	}
	return nil
}

// remaining returns the amount of each resource that the NodePool may still order; nil without limits.
func (n *nodePool) remaining() corev1.ResourceList {
	if len(n.Spec.Limits) == 0 {
		return nil
	}
	left := make(corev1.ResourceList, len(n.Spec.Limits))
	for name, limit := range n.Spec.Limits {
		quantity := limit.DeepCopy()
		quantity.Sub(n.Status.Resources[name])
		left[name] = quantity
	}
	return left
}

// cpuLabels are the providers' labels for the number of a node's CPUs. A NodePool can have requirements on these
// labels.
var cpuLabels = []string{"karpenter.azure.com/sku-cpu", "karpenter.k8s.aws/instance-cpu", "karpenter.kwok.sh/instance-cpu"}

// leastCPU returns the smallest number of CPUs that a node of the NodePool can have; zero if unknown. leastCPU
// evaluates requirements on CPUs. It also evaluates requirements on instance types if own, the list of the NodePool's
// nodes, has a node of each type. (Memory is not compared: Karpenter only estimates a node's memory, and the real node
// has another amount.)
func (n *nodePool) leastCPU(own []*corev1.Node) resource.Quantity {
	byType := map[string]resource.Quantity{}
	for _, node := range own {
		byType[node.Labels[corev1.LabelInstanceTypeStable]] = node.Status.Capacity[corev1.ResourceCPU]
	}
	var most resource.Quantity
	atLeast := func(q resource.Quantity) {
		if q.Cmp(most) > 0 {
			most = q
		}
	}
	for key, values := range n.choices() {
		switch {
		case slices.Contains(cpuLabels, key):
			atLeast(least(values, cpus))
		case key == corev1.LabelInstanceTypeStable:
			atLeast(least(values, func(name string) resource.Quantity { return byType[name] }))
		}
	}
	for _, r := range n.Spec.Template.Spec.Requirements {
		if r.Operator == corev1.NodeSelectorOpGt && len(r.Values) == 1 && slices.Contains(cpuLabels, r.Key) {
			if q := cpus(r.Values[0]); !q.IsZero() || r.Values[0] == "0" {
				q.Add(resource.MustParse("1"))
				atLeast(q)
			}
		}
	}
	return most
}

// least returns the smallest quantity that the function of returns for the values; zero if there are no values.
func least(values []string, of func(string) resource.Quantity) resource.Quantity {
	var smallest resource.Quantity
	for i, value := range values {
		if q := of(value); i == 0 || q.Cmp(smallest) < 0 {
			smallest = q
		}
	}
	return smallest
}

// cpus parses the value of a label in cpuLabels. It returns zero if the value is not a number.
func cpus(value string) resource.Quantity {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		n = 0
	}
	return *resource.NewQuantity(n, resource.DecimalSI)
}

// choices returns the labels that every node of the NodePool has, each with its possible values.
func (n *nodePool) choices() map[string][]string {
	choices := map[string][]string{}
	for _, r := range n.Spec.Template.Spec.Requirements {
		if r.Operator != corev1.NodeSelectorOpIn {
			continue
		}
		values := r.Values
		if others, ok := choices[r.Key]; ok {
			values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !slices.Contains(others, v) })
		}
		choices[r.Key] = values
	}
	for key, value := range n.Spec.Template.Metadata.Labels {
		choices[key] = []string{value}
	}
	choices[nodegroups.KarpenterNodePoolLabel] = []string{n.Metadata.Name}
	return choices
}

// exhausted returns the limit that keeps Karpenter from ordering any node for the NodePool; "" if there is no such
// limit. own are the NodePool's nodes. Karpenter orders a node only if the node's resources fit within the remaining
// limits. If a limit is exceeded, Karpenter orders no node at all. Every node has CPU and memory, and counts as one
// node. If nothing remains of one of these, Karpenter can therefore order no node. (Before 1.11, it ordered one more
// node than the limit on nodes.) Source: sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling,
// addToNewNodeClaim and filterByRemainingResources.
func (n *nodePool) exhausted(own []*corev1.Node) string {
	left := n.remaining()
	for _, name := range slices.Sorted(maps.Keys(left)) {
		have := left[name]
		if have.Sign() < 0 || have.IsZero() && (name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == resourceNodes) {
			return n.describe(name)
		}
	}
	have, limited := left[corev1.ResourceCPU]
	if cpu := n.leastCPU(own); limited && cpu.Cmp(have) > 0 {
		return fmt.Sprintf("%s, and a node has at least %s", n.describe(corev1.ResourceCPU), cpu.String())
	}
	return ""
}

func (n *nodePool) describe(name corev1.ResourceName) string {
	used, limit := n.Status.Resources[name], n.Spec.Limits[name]
	return fmt.Sprintf("%s: %s of %s", name, used.String(), limit.String())
}

// notReady returns why the NodePool is not ready; "" if it is. Karpenter does not use a NodePool that is not ready.
func (n *nodePool) notReady() string {
	ready := meta.FindStatusCondition(n.Status.Conditions, "Ready")
	switch {
	case ready == nil:
		return "it has no Ready condition"
	case ready.Status == metav1.ConditionTrue:
		return ""
	}
	return fmt.Sprintf("Ready is %s: %s", ready.Status, ready.Message)
}
