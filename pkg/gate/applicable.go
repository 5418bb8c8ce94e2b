package gate

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/alike"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// nodeNameField is the only field that a node selector term can match.
const nodeNameField = "metadata.name"

// mismatch is one reason why a node cannot run a pod. Its text is created only for display (String). An empty mismatch
// means that the node might run the pod.
type mismatch struct {
	what   string // selector, affinity, topology, taint or size; empty in an empty mismatch
	key    string // the key of the selector or of the topology, or the name of the resource
	value  string // the value of the selector
	taint  corev1.Taint
	asked  apiresource.Quantity
	offers apiresource.Quantity
}

const (
	mismatchSelector = "selector"
	mismatchAffinity = "affinity"
	mismatchTopology = "topology"
	mismatchTaint    = "taint"
	mismatchSize     = "size"
)

// Untolerated begins the detail of the reason NotApplicable if the pod would fit a node with one more toleration.
const Untolerated = "no toleration of the taint "

func (m *mismatch) String() string {
	switch m.what {
	case mismatchSelector:
		return "node selector " + m.key + "=" + m.value
	case mismatchAffinity:
		return "required node affinity"
	case mismatchTopology:
		return "topologyKey " + m.key
	case mismatchTaint:
		return Untolerated + m.taint.ToString()
	case mismatchSize:
		return fmt.Sprintf("requests %s %s, a node offers at most %s", m.asked.String(), m.key, m.offers.String())
	}
	return ""
}

// none reports whether the mismatch is empty.
func (m *mismatch) none() bool { return m.what == "" }

// notApplicable returns why none of the group's current and future nodes can run the pod with these requests. It
// returns an empty mismatch if one of these nodes might run the pod. It returns a taint only if there are only taints.
func notApplicable(pod *corev1.Pod, requests corev1.ResourceList, nodes iter.Seq[newNode]) mismatch {
	var first mismatch
	for n := range nodes {
		m := n.refuses(pod, requests)
		if m.none() {
			return m
		}
		if first.none() || first.what == mismatchTaint {
			first = m
		}
	}
	return first
}

// nodesOf iterates over the kinds of nodes that the group has or might get.
func nodesOf(p *pool.Pool, known *nodegroups.Group) iter.Seq[newNode] {
	return func(yield func(newNode) bool) {
		for i := range known.NodeTemplates {
			s := &known.NodeTemplates[i]
			if !yield(newNode{labels: s.Labels, taints: s.Taints, allocatable: s.Allocatable, varied: s.Varied}) {
				return
			}
		}
		if len(known.NodeTemplates) == 0 || known.Open {
			yield(futureNode(p, known))
		}
	}
}

// futureNode returns a node that the group could get. It combines the pool's nodeSelector, the labels and taints that
// the source reports for new nodes, and the configured nodeTemplate.
func futureNode(p *pool.Pool, known *nodegroups.Group) newNode {
	n := newNode{labels: knownLabels(p), open: true}
	if known.New != nil {
		n.choices, n.taints = known.New.Choices, known.New.Taints
	}
	template := p.Template(known.Name)
	if template == nil {
		return n
	}
	n.taints, n.allocatable, n.byTemplate = nodegroups.LastingTaints(template.Spec.Taints), template.Status.Allocatable, true
	maps.Copy(n.labels, template.Labels)
	n.choices = maps.Clone(n.choices)
	for key := range template.Labels {
		delete(n.choices, key) // the nodeTemplate has precedence over the source
	}
	// If a match expression has no value or several values, the node's value of that label is unknown.
	n.open = slices.ContainsFunc(p.NodeSelector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return len(r.Values) != 1 })
	return n
}

// knownLabels returns the labels for which the pool's selector allows only one value. Every node of the pool has these
// labels.
func knownLabels(p *pool.Pool) map[string]string {
	known := map[string]string{}
	maps.Copy(known, p.NodeSelector.MatchLabels)
	for _, req := range p.NodeSelector.MatchExpressions {
		if req.Operator == "In" && len(req.Values) == 1 {
			known[req.Key] = req.Values[0]
		}
	}
	return known
}

// asksForBurst reports whether only nodes of burst pools can satisfy the pod's node selector and required affinity. It
// returns true if the pod requires the label of virtual kubelets, because the scheduler uses no virtual kubelet outside
// of burst pools. It also returns true if a burst pool's nodeSelector only fixes values of labels, and the pod requires
// all of these values.
func (r *Rule) asksForBurst(pod *corev1.Pod) bool {
	if refusedWithout(pod, pool.VirtualKubeletLabel, pool.VirtualKubeletType) {
		return true
	}
	for i := range r.Pools.Burst() {
		known, selector := knownLabels(r.Pools.At(i)), r.Pools.At(i).NodeSelector
		asks := len(known) > 0 && len(known) == len(selector.MatchLabels)+len(selector.MatchExpressions)
		for key, value := range known {
			asks = asks && refusedWithout(pod, key, value)
		}
		if asks {
			return true
		}
	}
	return false
}

// refusedWithout reports whether the pod's node selector or required affinity requires the label with the value.
func refusedWithout(pod *corev1.Pod, key, value string) bool {
	m := newNode{open: true, notKey: key, notValue: value}.notSelected(pod)
	return !m.none()
}

// newNode is a node that a pool could get.
type newNode struct {
	labels      map[string]string
	taints      []corev1.Taint
	allocatable corev1.ResourceList // unknown if empty
	choices     map[string][]string // all possible values of a label, by the label's key
	varied      []string            // keys of labels with unknown values
	open        bool                // the node may also have labels that are not listed
	byTemplate  bool                // an operator listed the labels, and may have left out those that the platform sets
	// If notKey is not empty, the node may have any value of the label notKey except notValue.
	notKey, notValue string
	// needs are the keys of further labels that the pod needs (alike.TopologyKeys).
	needs []string
	// vmLabels are the keys of all labels that VMs are known to have. If it is not empty, an open node may have only
	// labels with these keys besides the listed ones.
	vmLabels map[string]bool
}

// refuses returns why the node cannot run the pod with the requests. It returns an empty mismatch if the node might run
// the pod.
func (n newNode) refuses(pod *corev1.Pod, requests corev1.ResourceList) mismatch {
	if m := n.notSelected(pod); !m.none() {
		return m
	}
	for _, key := range n.needs {
		if !n.matches(corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists}) {
			return mismatch{what: mismatchTopology, key: key}
		}
	}
	if taint, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), n.taints, pod.Spec.Tolerations, nil, true); untolerated {
		return mismatch{what: mismatchTaint, taint: taint}
	}
	return n.tooSmall(requests)
}

// notSelected returns which part of the pod's node selector and required affinity excludes the node, or an empty
// mismatch.
func (n newNode) notSelected(pod *corev1.Pod) mismatch {
	first := "" // the first key in sorted order, so that the message is always the same
	for key, value := range pod.Spec.NodeSelector {
		if (first == "" || key < first) && !n.matches(corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}) {
			first = key
		}
	}
	if first != "" {
		return mismatch{what: mismatchSelector, key: first, value: pod.Spec.NodeSelector[first]}
	}
	if required := alike.RequiredNodeAffinity(pod); required != nil && !slices.ContainsFunc(required.NodeSelectorTerms, n.matchesTerm) {
		return mismatch{what: mismatchAffinity}
	}
	return mismatch{}
}

func (n newNode) matchesTerm(term corev1.NodeSelectorTerm) bool {
	// A pod cannot select the name of a future node, because nobody knows that name yet.
	selectsName := func(req corev1.NodeSelectorRequirement) bool {
		return req.Key != nodeNameField || req.Operator != corev1.NodeSelectorOpNotIn
	}
	excludes := func(req corev1.NodeSelectorRequirement) bool { return !n.matches(req) }
	return len(term.MatchExpressions)+len(term.MatchFields) > 0 && // as everywhere in Kubernetes, an empty term matches nothing
		!slices.ContainsFunc(term.MatchFields, selectsName) && !slices.ContainsFunc(term.MatchExpressions, excludes)
}

// matches reports whether the node might satisfy the requirement. A label with an unknown value might satisfy the
// requirement.
func (n newNode) matches(req corev1.NodeSelectorRequirement) bool {
	if values, ok := n.choices[req.Key]; ok {
		return slices.ContainsFunc(values, func(value string) bool { return satisfies(req, value, true) })
	}
	value, has := n.labels[req.Key]
	if !has && slices.Contains(n.varied, req.Key) {
		return true
	}
	if !has {
		if req.Key == corev1.LabelHostname {
			// Every node has the host name label, but a pod cannot select the host name of a future node.
			return req.Operator == corev1.NodeSelectorOpExists || req.Operator == corev1.NodeSelectorOpNotIn
		}
		if req.Key == n.notKey && req.Operator == corev1.NodeSelectorOpIn {
			return slices.ContainsFunc(req.Values, func(v string) bool { return v != n.notValue })
		}
		if (n.open || n.byTemplate && ofPlatform(req.Key)) && len(n.vmLabels) == 0 || nodegroups.IsPlaceLabel(req.Key) {
			return true
		}
		if n.open && n.vmLabels[req.Key] {
			return req.Operator != corev1.NodeSelectorOpDoesNotExist
		}
	}
	return satisfies(req, value, has)
}

// ofPlatform reports whether Kubernetes or the cloud may set the label.
func ofPlatform(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return slices.ContainsFunc([]string{".kubernetes.io", ".k8s.io", ".azure.com"}, func(of string) bool { return strings.HasSuffix("."+domain, of) })
}

// satisfies reports whether a label with the value satisfies the requirement. If has is false, the node lacks the
// label.
func satisfies(req corev1.NodeSelectorRequirement, value string, has bool) bool {
	switch req.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(req.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(req.Values, value)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if !has || len(req.Values) != 1 {
			return false
		}
		have, err1 := strconv.ParseInt(value, 10, 64)
		want, err2 := strconv.ParseInt(req.Values[0], 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		return (req.Operator == corev1.NodeSelectorOpGt) == (have > want) && have != want
	default:
		return false
	}
}

// tooSmall returns a mismatch if a request exceeds the node's allocatable amount of the resource: the first in the order of
// the resources' names, so that the message is always the same.
func (n newNode) tooSmall(requests corev1.ResourceList) (first mismatch) {
	if len(n.allocatable) == 0 {
		return first
	}
	for name, request := range requests {
		have, listed := n.allocatable[name]
		if !request.IsZero() && (listed || aci.IsExtendedResource(name)) && request.Cmp(have) > 0 && (first.none() || string(name) < first.key) {
			first = mismatch{what: mismatchSize, key: string(name), asked: request, offers: have}
		}
	}
	return first
}
