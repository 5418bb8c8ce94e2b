// Package published is the format of the ConfigMap in which the scheduler's leader publishes the state of the pools.
// People and tools read the ConfigMap, and the next leader starts from it.
package published

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/returnplan"
)

const (
	// MemoryKey is the ConfigMap's key that holds the Memory, which only the next leader reads.
	MemoryKey = "memory"

	// Heartbeat is the longest time between two writes of the ConfigMap by the same leader.
	Heartbeat = time.Minute
)

// Status is the published state. View and Memory are published under separate keys.
type Status struct {
	View   *View
	Memory Memory
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
	// Heirs has who continues the waiting of deleted pods.
	Heirs Heirs `json:"heirs,omitzero"`
	// Returns has the pauses of Return, by the workload's UID.
	Returns map[types.UID]returnplan.Pause `json:"returns,omitempty"`
}

// Heirs has the held pods that were deleted lately, by alike.Heir, and for how long the pods had waited whose waiting other
// pods continue, by the UIDs of the latter.
type Heirs struct {
	Deleted   map[string][]Deleted        `json:"deleted,omitempty"`
	Inherited map[types.UID]time.Duration `json:"inherited,omitempty"`
}

// Deleted is a held pod that was deleted. At is when it was deleted, and Waited is for how long it had lacked resources.
type Deleted struct {
	At     time.Time     `json:"at"`
	Waited time.Duration `json:"waited"`
}

// Override is the operator's override and the UID of its ConfigMap. The override may have expired.
type Override struct {
	UID types.UID `json:"uid,omitempty"`
	gate.Override
}

// Encode returns the ConfigMap's data. It has no View if s.View is nil.
func (s *Status) Encode() (map[string]string, error) {
	memory, err := json.Marshal(s.Memory)
	if err != nil {
		return nil, fmt.Errorf("encoding the memory: %w", err)
	}
	data := map[string]string{MemoryKey: string(memory)}
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
	c.Memory.Heirs = Heirs{}
	if v := c.View; v != nil {
		v.Usage, v.Held, v.Waits, v.LeftOut = nil, Held{Total: min(v.Held.Total, 1)}, nil, nil
	}
	return c
}

// Decode reads the ConfigMap. It drops fields that only a newer version knows. If the value of ViewKey or MemoryKey
// cannot be read, Decode returns an error and the part of the other key. The View is nil if it cannot be read or does not
// exist.
func Decode(cm *corev1.ConfigMap) (*Status, error) {
	s := &Status{}
	var errs []error
	if data := cm.Data[ViewKey]; data != "" {
		var err error
		if s.View, err = DecodeView([]byte(data)); err != nil {
			errs = append(errs, fmt.Errorf("ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err))
		}
	}
	if data := cm.Data[MemoryKey]; data != "" {
		if err := json.Unmarshal([]byte(data), &s.Memory); err != nil {
			s.Memory = Memory{}
			errs = append(errs, fmt.Errorf("ConfigMap %s/%s: reading key %q: %w", cm.Namespace, cm.Name, MemoryKey, err))
		}
	}
	return s, errors.Join(errs...)
}
