// Package published is the format of the ConfigMap in which the scheduler's leader publishes the state of the pools.
// People and tools read the ConfigMap, and the next leader starts from it.
package published

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

const (
	// StatusKey is the ConfigMap's key that holds the Status without its Memory and View. People read this key.
	StatusKey = "status"
	// MemoryKey is the ConfigMap's key that holds the Memory. The next leader starts from the Memory.
	MemoryKey = "memory"

	// Heartbeat is the longest time between two writes of the ConfigMap by the same leader.
	Heartbeat = time.Minute
)

// Status is the published state.
type Status struct {
	// Pools are the regular pools, most preferred first.
	Pools []Pool `json:"pools"`
	// BurstPools are the burst pools, in the order of the list.
	BurstPools []BurstPool `json:"burstPools,omitempty"`
	// Override is the operator's override of the gate, if any.
	Override gate.Override `json:"override,omitzero"`
	// Problems lists mistakes that the user can fix, one sentence for each.
	Problems []string `json:"problems,omitempty"`
	// LeftOut counts the entries that Fit left out, such as "230 refusals". They are details (usage figures, declines and
	// templates of the View), waits (View.Waits), refusals (Memory.BurstPools) and clocks (Memory.Unschedulable).
	LeftOut []string `json:"leftOut,omitempty"`
	// Memory and View are published under separate keys. Decode does not set View; DecodeView decodes it.
	Memory Memory `json:"-"`
	View   *View  `json:"-"`
}

// Pool is the state of a regular pool.
type Pool struct {
	Name string `json:"name"`
	// State is the pool's state. Reason, Message and Detail are the code, the sentence and the detail of the state's
	// reason.
	State   nodegroups.State `json:"state"`
	Reason  string           `json:"reason"`
	Message string           `json:"message"`
	Detail  string           `json:"detail,omitempty"`
	// Since is when the pool entered the state.
	Since time.Time `json:"since"`
	// Nodes is the number of the pool's nodes.
	Nodes int `json:"nodes"`
	// Groups are the pool's node groups.
	Groups []Group `json:"groups,omitempty"`
}

// BurstPool is the state of a burst pool.
type BurstPool struct {
	Name string `json:"name"`
	// State is the state of the pool's provider.
	State breaker.State `json:"state"`
	// Since is when the provider last began to refuse pods, or last began to accept pods again; empty if it never
	// refused a pod.
	Since time.Time `json:"since,omitzero"`
	// Until is when a Refusing pool becomes half-open.
	Until time.Time `json:"until,omitzero"`
	// Code, Message and Refused are Code, Message and Failed of breaker.Status.
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Refused int    `json:"refused,omitempty"`
	// Nodes is the number of the pool's nodes.
	Nodes int `json:"nodes"`
}

// OfBurst returns the published state of a burst pool.
func OfBurst(name string, p *nodegroups.Pool) BurstPool {
	j := &p.Provider
	return BurstPool{Name: name, State: cmp.Or(j.State, breaker.Open), Since: utc(j.Since), Until: utc(j.Until), Code: j.Code, Message: j.Message, Refused: j.Failed, Nodes: p.Nodes}
}

// utc returns the time in UTC. A zero time stays zero.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

// Group is the state of a node group.
type Group struct {
	// Name is the group's name in the pool's source; empty for nodes in no group, and for a pool without groups.
	Name string `json:"name,omitempty"`
	// State, Reason and Detail are as in Pool.
	State  nodegroups.State `json:"state"`
	Reason string           `json:"reason"`
	Detail string           `json:"detail,omitempty"`
	// Since is when the group entered the state. LastActivity is as in nodegroups.Group.
	Since        time.Time `json:"since"`
	LastActivity time.Time `json:"moved"`
	// Nodes is the number of the group's nodes, and Starting is the number of its nodes that are not usable yet.
	Nodes    int `json:"nodes"`
	Starting int `json:"starting,omitempty"`
	// Newest is when the newest node of the group was created.
	Newest time.Time `json:"newest,omitzero"`
	// Before is the last state that the source reported for the group, other than Unknown, with the reason. Before is
	// empty if State and Reason already show this state.
	Before string `json:"before,omitempty"`
}

// Of returns the published state of a regular pool.
func Of(name string, p *nodegroups.Pool) Pool {
	s := Pool{Name: name, State: p.State, Reason: p.Reason.Code, Message: p.Reason.Sentence, Detail: p.Reason.Detail, Since: p.Since, Nodes: p.Nodes}
	for i := range p.Groups {
		g := &p.Groups[i]
		published := Group{Name: g.Name, State: g.State, Reason: g.Reason.Code, Detail: g.Reason.Detail, Since: g.Since, LastActivity: g.LastActivity, Nodes: g.Nodes, Starting: g.Starting, Newest: g.Newest}
		if as := published.restored(); as.Settled != g.Settled {
			published.Before = g.Settled
		}
		s.Groups = append(s.Groups, published)
	}
	return s
}

// Restored returns the pool's state as the next leader uses it until its own first sync.
func (p *Pool) Restored() nodegroups.Pool {
	r := nodegroups.Pool{State: p.State, Since: p.Since, Nodes: p.Nodes}
	for i := range p.Groups {
		r.Groups = append(r.Groups, p.Groups[i].restored())
	}
	return r
}

func (g *Group) restored() nodegroups.Group {
	return nodegroups.Restored(g.Name, g.State, g.Reason, nodegroups.Group{Since: g.Since, LastActivity: g.LastActivity, Nodes: g.Nodes, Starting: g.Starting, Newest: g.Newest, Settled: g.Before})
}

// Memory has the facts that the next leader cannot read from any other API object.
type Memory struct {
	// Written is when the Memory was written, by the leader's clock. While there is a leader that can write, the Memory
	// is at most a minute old.
	Written           time.Time                   `json:"written"`
	ClusterAutoscaler clusterautoscaler.Memory    `json:"clusterAutoscaler,omitzero"`
	NodePools         map[string]karpenter.Memory `json:"nodePools,omitempty"`
	// BurstPools has the memory of burst pools whose providers refused pods, by the pool's name.
	BurstPools map[string]breaker.Memory `json:"burstPools,omitempty"`
	// Override is the last override that the leader could read.
	Override Override `json:"override,omitzero"`
	// Unschedulable has the times since which pods have been unschedulable, by the pod's UID. It has only pods whose
	// conditions do not show this time, for example because the pods had scheduling gates.
	Unschedulable map[types.UID]time.Time `json:"unschedulable,omitempty"`
	// Ignored has the times at which autoscalers last ignored held pods, by the pod's UID.
	Ignored map[types.UID]time.Time `json:"ignored,omitempty"`
}

// Override is the operator's override and the UID of its ConfigMap. The override may have expired.
type Override struct {
	UID types.UID `json:"uid,omitempty"`
	gate.Override
}

// notInYAML matches characters that JSON may have and YAML must escape. A provider's message can have them.
var notInYAML = regexp.MustCompile(`[\x{7f}-\x{9f}\x{feff}\x{fffe}\x{ffff}]`)

// Encode returns the ConfigMap's data.
func (s *Status) Encode() (map[string]string, error) {
	status, err := yaml.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding the status: %w", err)
	}
	memory, err := json.Marshal(s.Memory) // Decode also reads JSON, and JSON is faster to encode
	if err != nil {
		return nil, fmt.Errorf("encoding the memory: %w", err)
	}
	memory = notInYAML.ReplaceAllFunc(memory, func(r []byte) []byte { return fmt.Appendf(nil, `\u%04x`, []rune(string(r))[0]) })
	data := map[string]string{StatusKey: string(status), MemoryKey: string(memory)}
	if s.View != nil {
		view, err := s.View.Encode(s.Memory.Written)
		if err != nil {
			return nil, fmt.Errorf("encoding the view: %w", err)
		}
		data[ViewKey] = string(view)
	}
	return data, nil
}

// Quiet returns the status without the fields that change at every evaluation of the pools. It also drops the time of
// the last write.
func (s *Status) Quiet() *Status {
	c := *s
	c.Memory.Written = time.Time{}
	if c.View != nil {
		c.View = c.View.quiet()
	}
	return &c
}

// Decisive returns the Quiet status without figures on which neither a decision nor the next leader depends. Whether any
// pod is held stays: otherwise tools would say for a while that no pod waits.
func (s *Status) Decisive() *Status {
	c := s.Quiet()
	c.LeftOut = nil
	if v := c.View; v != nil {
		v.Usage, v.Held, v.Waits, v.LeftOut = nil, Held{Total: min(v.Held.Total, 1)}, nil, nil
	}
	return c
}

// Decode reads the ConfigMap. It drops fields that only a newer version knows. If the value of StatusKey or MemoryKey
// cannot be parsed, Decode returns an error and the part of the other key.
func Decode(cm *corev1.ConfigMap) (*Status, error) {
	s := &Status{}
	var errs []error
	if err := yaml.Unmarshal([]byte(cm.Data[StatusKey]), s); err != nil {
		s = &Status{}
		errs = append(errs, fmt.Errorf("reading key %q of ConfigMap %s/%s: %w", StatusKey, cm.Namespace, cm.Name, err))
	}
	if err := yaml.Unmarshal([]byte(cm.Data[MemoryKey]), &s.Memory); err != nil {
		s.Memory = Memory{}
		errs = append(errs, fmt.Errorf("reading key %q of ConfigMap %s/%s: %w", MemoryKey, cm.Namespace, cm.Name, err))
	}
	return s, errors.Join(errs...)
}
