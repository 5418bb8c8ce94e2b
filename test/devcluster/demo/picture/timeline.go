// Package picture draws what was seen of pods, VMs and the gate while a load was put on a cluster. It knows numbers and nothing of Kubernetes.
package picture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxPools is how many pools a picture has room to name.
const maxPools = 12

// Gate says what is known of the gate of the burst pools at a time.
type Gate string

// The states of the gate.
const (
	NotAsked Gate = ""
	Closed   Gate = "closed"
	Open     Gate = "open"
)

// Timeline is what was seen of one or more runs. It is what demo.json holds.
type Timeline struct {
	// Title and Note stand above the picture.
	Title string `json:"title"`
	Note  string `json:"note,omitempty"`
	Runs  []Run  `json:"runs"`
}

// Run is one cluster, and what happened there.
type Run struct {
	// Title says what the cluster's scheduler is.
	Title string `json:"title"`
	// Load says what was asked of it: runs with the same one can be compared.
	Load string `json:"load"`
	// Gated says that the scheduler has a gate.
	Gated bool   `json:"gated"`
	Pools []Pool `json:"pools"` // in order, the most preferred first
	// Seconds is how long was looked.
	Seconds float64 `json:"seconds"`
	Steps   []Step  `json:"steps"` // in the order of time
	// Wrong are the placements while a better pool had room or could grow, as the referee saw them, in the order of time.
	Wrong []Placement `json:"wrong"`
}

// Pool is a node pool.
type Pool struct {
	Name string `json:"name"`
	// MaxVMs is what the pool can grow to; 0 is a virtual node, which has no VMs.
	MaxVMs int `json:"maxVMs,omitempty"`
}

// Step is how things stood from a time on until the next step.
type Step struct {
	// Seconds is the time since the first replica was asked for.
	Seconds  float64 `json:"seconds"`
	Replicas int     `json:"replicas"` // asked for
	Pods     []int   `json:"pods"`     // bound to a node of each pool
	VMs      []int   `json:"vms"`      // of each pool, registered as nodes
	Pending  int     `json:"pending"`
	Gate     Gate    `json:"gate,omitempty"`
	// Reason is why the gate is in that state, as the scheduler says it.
	Reason string `json:"reason,omitempty"`
}

// Placement is a pod that was put in a pool.
type Placement struct {
	Seconds float64 `json:"seconds"`
	// Pool is the pool's place in the order; -1 is none of them.
	Pool int `json:"pool"`
	// Why says what was wrong with it.
	Why []string `json:"why,omitempty"`
}

// Read reads a timeline as Write wrote it.
func Read(data []byte) (Timeline, error) {
	var t Timeline
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&t); err != nil {
		return Timeline{}, fmt.Errorf("reading a timeline: %w", err)
	}
	return t, t.check()
}

// Write returns the timeline as JSON, in lines.
func Write(t Timeline) ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return nil, fmt.Errorf("writing a timeline: %w", err)
	}
	return append(data, '\n'), nil
}

// SameLoad is the timeline of the runs whose load is that of the first.
func (t Timeline) SameLoad() Timeline {
	all := t.Runs
	t.Runs = nil
	for _, r := range all {
		if r.Load == all[0].Load {
			t.Runs = append(t.Runs, r)
		}
	}
	return t
}

func (t Timeline) check() error {
	if len(t.Runs) == 0 {
		return errors.New("the timeline has no runs")
	}
	for i, r := range t.Runs {
		if err := r.check(); err != nil {
			return fmt.Errorf("runs[%d]: %w", i, err)
		}
	}
	return nil
}

func (r *Run) check() error {
	switch {
	case len(r.Pools) == 0 || len(r.Pools) > maxPools:
		return fmt.Errorf("pools: there are %d, and a picture has room for 1 to %d", len(r.Pools), maxPools)
	case r.Seconds <= 0:
		return fmt.Errorf("seconds: %v is no time to look for", r.Seconds)
	case len(r.Steps) == 0:
		return errors.New("steps: there are none")
	}
	for i, s := range r.Steps {
		switch {
		case s.Seconds < 0 || s.Seconds > r.Seconds || i > 0 && s.Seconds < r.Steps[i-1].Seconds:
			return fmt.Errorf("steps[%d].seconds: %v is not after the step before, or not before %v", i, s.Seconds, r.Seconds)
		case len(s.Pods) != len(r.Pools) || len(s.VMs) != len(r.Pools):
			return fmt.Errorf("steps[%d]: there are figures of %d and %d pools, not of %d", i, len(s.Pods), len(s.VMs), len(r.Pools))
		case s.Replicas < 0 || s.Pending < 0 || anyNegative(s.Pods) || anyNegative(s.VMs):
			return fmt.Errorf("steps[%d]: a figure is below 0", i)
		case s.Gate != NotAsked && s.Gate != Closed && s.Gate != Open:
			return fmt.Errorf("steps[%d].gate: %q is neither closed nor open", i, s.Gate)
		}
	}
	for i, p := range r.Wrong {
		if p.Pool < -1 || p.Pool >= len(r.Pools) || p.Seconds < 0 || p.Seconds > r.Seconds {
			return fmt.Errorf("wrong[%d]: pool %d, %v s: there is no such pool, or it was not looked then", i, p.Pool, p.Seconds)
		}
	}
	return nil
}

func anyNegative(numbers []int) bool {
	for _, n := range numbers {
		if n < 0 {
			return true
		}
	}
	return false
}

// last is how things stood in the end.
func (r *Run) last() Step { return r.Steps[len(r.Steps)-1] }

// Summary is a run in figures.
type Summary struct {
	Replicas int // asked for in the end
	VMs      int // the most that there were at a time
	MaxVMs   int
	Virtual  int // pods on virtual nodes in the end
	Wrong    int // placements
}

// Summary returns the run's figures.
func (r *Run) Summary() Summary {
	s := Summary{Replicas: r.last().Replicas, Wrong: len(r.Wrong)}
	for i, p := range r.Pools {
		s.MaxVMs += p.MaxVMs
		if p.MaxVMs == 0 {
			s.Virtual += r.last().Pods[i]
		}
	}
	for _, step := range r.Steps {
		s.VMs = max(s.VMs, sum(step.VMs))
	}
	return s
}

func sum(numbers []int) int {
	total := 0
	for _, n := range numbers {
		total += n
	}
	return total
}
