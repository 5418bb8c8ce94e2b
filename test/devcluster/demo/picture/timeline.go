// Package picture draws pods, VMs and the gate over time while a load runs on a cluster. It knows numbers and nothing
// of Kubernetes.
package picture

import "slices"

// The states of the gate. A gate that no pod has asked has none.
const Closed, Open = "closed", "open"

// Timeline is what was seen of the runs. It is what demo.json holds.
type Timeline struct {
	// Title and Note stand above the picture.
	Title string `json:"title"`
	Note  string `json:"note,omitempty"`
	Runs  []Run  `json:"runs"`
}

// Run is one cluster, and what happened there.
type Run struct {
	// Title names the cluster's scheduler.
	Title string `json:"title"`
	// Load names the workload: runs with the same one can be compared.
	Load string `json:"load"`
	// Gated says that the scheduler has a gate.
	Gated bool `json:"gated"`
	// Pools are in order, the most preferred first: two of VMs, and the virtual node.
	Pools []Pool `json:"pools"`
	// Seconds is how long the run took.
	Seconds float64 `json:"seconds"`
	// Steps are in the order of time. There is at least one.
	Steps []Step `json:"steps"`
	// Wrong are the placements while a better pool had room or could grow, in the order of time. The referee saw them.
	Wrong []Placement `json:"wrong"`
}

// Pool is a node pool.
type Pool struct {
	Name string `json:"name"`
	// MaxVMs is what the pool can grow to; 0 is a virtual node, which has no VMs.
	MaxVMs int `json:"maxVMs,omitempty"`
}

// Step is the state of the cluster from a time on until the next step. Pods and VMs have a number for each pool.
type Step struct {
	// Seconds is the time since the first replica was asked for.
	Seconds  float64 `json:"seconds"`
	Replicas int     `json:"replicas"` // asked for
	Pods     []int   `json:"pods"`     // bound to a node of the pool
	VMs      []int   `json:"vms"`      // registered as nodes
	Pending  int     `json:"pending"`
	Gate     string  `json:"gate,omitempty"`
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

// SameLoad is the timeline of the runs that have the first run's load.
func (t Timeline) SameLoad() Timeline {
	load := t.Runs[0].Load
	t.Runs = slices.DeleteFunc(slices.Clone(t.Runs), func(r Run) bool { return r.Load != load })
	return t
}

// Summary is a run in figures.
type Summary struct {
	Replicas int // asked for in the end
	VMs      int // the most that there were at a time
	MaxVMs   int
	Virtual  int // pods on the virtual node in the end
	Wrong    int // placements
}

// Summary returns the run's figures.
func (r *Run) Summary() Summary {
	last := r.last()
	s := Summary{Replicas: last.Replicas, Virtual: last.Pods[len(last.Pods)-1], Wrong: len(r.Wrong)}
	for _, p := range r.Pools {
		s.MaxVMs += p.MaxVMs
	}
	for _, step := range r.Steps {
		s.VMs = max(s.VMs, sum(step.VMs))
	}
	return s
}

// last is the state in the end.
func (r *Run) last() Step { return r.Steps[len(r.Steps)-1] }

func sum(numbers []int) int {
	total := 0
	for _, n := range numbers {
		total += n
	}
	return total
}
