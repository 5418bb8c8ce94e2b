package nodegroups

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// settleTime is the longest time that a node takes to report its devices after it has become ready.
const settleTime = 30 * time.Second

// maxTemplates bounds the number of templates of a group. A group usually exceeds the bound because of labels that
// differ from node to node, such as a timestamp or an owner. Its templates leave these labels out.
const maxTemplates = 50

// templates returns the templates of the nodes, in a stable order, and when the templates next change without an event;
// zero if never. A node's allocatable resources count once the node is no longer starting and has been ready for
// settleTime. A node that is younger than the grace may still list more of them, such as a GPU (expected). templates is
// called often, with all nodes of a pool. Therefore it allocates memory for each template, but not for each node.
func (k *nodeSet) templates() ([]NodeTemplate, time.Time) {
	found, until := k.find(nil, maxTemplates)
	if len(found) > maxTemplates {
		varied := k.mostVaried()
		for n := 1; len(found) > maxTemplates && n < len(varied); n++ {
			found, until = k.find(varied[:n], maxTemplates)
		}
		if len(found) > maxTemplates {
			found, until = k.find(varied, math.MaxInt) // taints are never left out: if they differ on many nodes, the limit does not apply
		}
	}
	byKey := make(map[string]*NodeTemplate, len(found))
	for _, template := range found {
		byKey[template.key()] = template
	}
	templates := make([]NodeTemplate, 0, len(found))
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		templates = append(templates, *byKey[key])
	}
	return templates, until
}

// find returns the templates of the nodes, ignoring labels with the varied keys. It stops once it has found more
// templates than limit.
func (k *nodeSet) find(varied []string, limit int) ([]*NodeTemplate, time.Time) {
	varied = slices.Sorted(slices.Values(varied))
	byHash := map[uint64][]*NodeTemplate{}
	var found []*NodeTemplate
	var last *NodeTemplate
	until := k.until
	for _, node := range k.nodes {
		if len(found) > limit {
			return found, until
		}
		taints, allocatable := k.taints(node), node.Status.Allocatable
		if settled := readySince(node).Add(settleTime); IsStarting(node) || k.now.Before(settled) {
			allocatable = nil
			if !IsStarting(node) {
				until = Earliest(until, settled)
			}
		}
		if last == nil || !last.isOf(node.Labels, taints) { // usually, the node has the same template as the previous node
			last = nil
			hash := templateHash(node.Labels, taints, varied)
			for _, template := range byHash[hash] {
				if template.isOf(node.Labels, taints) {
					last = template
				}
			}
			if last == nil {
				last = newNodeTemplate(node.Labels, taints, varied)
				byHash[hash] = append(byHash[hash], last)
				found = append(found, last)
			}
		}
		last.raise(allocatable)
		last.add(k.devices)
		if late := node.CreationTimestamp.Add(k.grace); k.now.Before(late) && last.add(k.expected) {
			until = Earliest(until, late)
		}
	}
	return found, until
}

// add adds those of the resources that the template lacks, if it has any. It reports whether it added one.
func (s *NodeTemplate) add(resources corev1.ResourceList) (added bool) {
	for name, quantity := range resources {
		if have := s.Allocatable[name]; have.IsZero() && len(s.Allocatable) > 0 {
			s.Allocatable[name], added = quantity, true
		}
	}
	return added
}

// mostVaried returns the keys of the labels that have more than one value, except for place labels. The key with the
// most values comes first. A missing label counts as a value.
func (k *nodeSet) mostVaried() []string {
	values := map[string]sets.Set[string]{}
	for _, node := range k.nodes {
		for key := range node.Labels {
			if !IsPlaceLabel(key) {
				values[key] = sets.Set[string]{}
			}
		}
	}
	for key, found := range values {
		for _, node := range k.nodes {
			value, has := node.Labels[key]
			found.Insert(strconv.FormatBool(has) + value)
		}
	}
	maps.DeleteFunc(values, func(_ string, found sets.Set[string]) bool { return found.Len() == 1 })
	return slices.SortedFunc(maps.Keys(values), func(a, b string) int { return cmp.Or(values[b].Len()-values[a].Len(), strings.Compare(a, b)) })
}

// SettledTemplates returns the templates of the usable nodes that were created before the time before. If there are no
// such nodes, it returns the templates of the usable nodes that are at least firstGrace old at the time now.
func SettledTemplates(nodes []*corev1.Node, before, now time.Time) []NodeTemplate {
	pick := func(settled func(*corev1.Node) bool) []NodeTemplate {
		k := nodeSet{now: now}
		for _, node := range nodes {
			if !IsStarting(node) && settled(node) {
				k.nodes = append(k.nodes, node)
			}
		}
		templates, _ := k.templates()
		return templates
	}
	if templates := pick(func(n *corev1.Node) bool { return n.CreationTimestamp.Time.Before(before) }); len(templates) > 0 {
		return templates
	}
	return pick(func(n *corev1.Node) bool { return !now.Before(n.CreationTimestamp.Add(firstGrace)) })
}

// SettlesAt returns when the next of the nodes will be firstGrace old; zero if all nodes already are.
func SettlesAt(nodes []*corev1.Node, now time.Time) time.Time {
	var next time.Time
	for _, node := range nodes {
		if at := node.CreationTimestamp.Add(firstGrace); at.After(now) {
			next = Earliest(next, at)
		}
	}
	return next
}

// newNodeTemplate returns the template of nodes with these labels and taints. Labels with the varied keys are left out.
func newNodeTemplate(labels map[string]string, taints []corev1.Taint, varied []string) *NodeTemplate {
	template := &NodeTemplate{Labels: make(map[string]string, len(labels)), Varied: varied, Taints: LastingTaints(taints)}
	for key, value := range labels {
		if !IsPlaceLabel(key) && !slices.Contains(varied, key) {
			template.Labels[key] = value
		}
	}
	return template
}

// isOf reports whether nodes with these labels and taints match the template.
func (s *NodeTemplate) isOf(labels map[string]string, taints []corev1.Taint) bool {
	n := 0
	for key, value := range labels {
		if known, ok := s.Labels[key]; ok && known == value {
			n++
		} else if ok || !IsPlaceLabel(key) && !slices.Contains(s.Varied, key) {
			return false
		}
	}
	if n != len(s.Labels) {
		return false
	}
	n = 0
	for i := range taints {
		if !lasts(&taints[i]) {
			continue
		}
		if !slices.ContainsFunc(s.Taints, func(t corev1.Taint) bool { return sameTaint(t, taints[i]) }) {
			return false
		}
		n++
	}
	return n == len(s.Taints)
}

var hashSeed = maphash.MakeSeed()

// templateHash returns a hash that is equal for all nodes of a template. The hash does not depend on the order of
// labels and taints.
func templateHash(labels map[string]string, taints []corev1.Taint, varied []string) uint64 {
	var sum uint64
	for key, value := range labels {
		if !IsPlaceLabel(key) && !slices.Contains(varied, key) {
			sum += maphash.String(hashSeed, key) ^ bits.RotateLeft64(maphash.String(hashSeed, value), 1)
		}
	}
	for i := range taints {
		if t := &taints[i]; lasts(t) {
			sum += maphash.String(hashSeed, t.Key) ^ bits.RotateLeft64(maphash.String(hashSeed, t.Value), 2)
		}
	}
	return sum
}

// key returns a string by which templates are compared and sorted.
func (s *NodeTemplate) key() string {
	parts := make([]string, 0, len(s.Labels)+len(s.Taints))
	for k, v := range s.Labels {
		parts = append(parts, k+"="+v)
	}
	for _, t := range s.Taints {
		parts = append(parts, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	parts = append(parts, s.Varied...)
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

func (s *NodeTemplate) raise(other corev1.ResourceList) {
	if s.Allocatable == nil {
		s.Allocatable = corev1.ResourceList{}
	}
	for name, quantity := range other {
		if have, ok := s.Allocatable[name]; !ok || quantity.Cmp(have) > 0 {
			s.Allocatable[name] = quantity.DeepCopy()
		}
	}
}

// Contradiction returns how the configured template differs from the first of the observed templates. It returns "" if
// the configured template matches any observed template, or if either side is missing.
func Contradiction(template *corev1.Node, templates []NodeTemplate) string {
	if template == nil || len(templates) == 0 {
		return ""
	}
	first := ""
	for i := range templates {
		difference := templates[i].contradicts(template)
		if difference == "" {
			return ""
		}
		first = cmp.Or(first, difference)
	}
	return first
}

// contradicts returns how the labels and taints of s differ from those of the configured template; "" if they do not
// differ. Labels that only s has are ignored.
func (s *NodeTemplate) contradicts(template *corev1.Node) string {
	for _, key := range slices.Sorted(maps.Keys(template.Labels)) {
		value := template.Labels[key]
		have, ok := s.Labels[key]
		if assumed := key == corev1.LabelOSStable || key == corev1.LabelArchStable; !ok && assumed || IsPlaceLabel(key) {
			continue
		}
		if have != value && !slices.Contains(s.Varied, key) {
			return fmt.Sprintf("label %s is %q, not %q", key, have, value)
		}
	}
	taints := LastingTaints(template.Spec.Taints)
	for _, taint := range taints {
		if !has(s.Taints, taint) {
			return fmt.Sprintf("no taint %s", taint.ToString())
		}
	}
	for _, taint := range s.Taints {
		if !has(taints, taint) {
			return fmt.Sprintf("taint %s, which the template lacks", taint.ToString())
		}
	}
	return ""
}
