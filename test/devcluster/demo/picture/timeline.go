// Package picture draws pods, VMs and the gate over time while a load runs on a cluster. It draws numbers and does not
// depend on Kubernetes.
package picture

import "slices"

// The states of the gate. The gate has no state before it has decided for a pod.
const Closed, Open = "closed", "open"

// Timeline has the observations of all runs. It is the content of demo.json.
type Timeline struct {
	// Title and Note are the two lines at the top of the picture.
	Title string `json:"title"`
	Note  string `json:"note,omitempty"`
	Runs  []Run  `json:"runs"`
}

// Run has the observations of one load on one cluster.
type Run struct {
	// Title names the cluster's scheduler.
	Title string `json:"title"`
	// Load is the name of the workload. Runs with the same Load can be compared.
	Load string `json:"load"`
	// Gated is set if the scheduler has a gate.
	Gated bool `json:"gated"`
	// Pools are the pools, the most preferred first. There are two pools of VMs, and the virtual node.
	Pools []Pool `json:"pools"`
	// Seconds is how long the run took.
	Seconds float64 `json:"seconds"`
	// Steps are in the order of time. A run has at least one step.
	Steps []Step `json:"steps"`
	// Wrong are the placements that the referee found wrong, because a better pool had room or could grow. They are in
	// the order of time.
	Wrong []Placement `json:"wrong"`
}

// Pool is a node pool.
type Pool struct {
	Name string `json:"name"`
	// MaxVMs is the largest number of VMs that the pool can have; 0 for a virtual node, which has no VMs.
	MaxVMs int `json:"maxVMs,omitempty"`
}

// Step is the state of the cluster from a time on until the next step. Pods and VMs have a number for each pool.
type Step struct {
	// Seconds is the time since the demo first requested a replica.
	Seconds  float64 `json:"seconds"`
	Replicas int     `json:"replicas"` // asked for
	Pods     []int   `json:"pods"`     // bound to a node of the pool
	VMs      []int   `json:"vms"`      // registered as nodes
	Pending  int     `json:"pending"`
	Gate     string  `json:"gate,omitempty"`
	// Reason is why the gate is in that state, in the words of the demo's table.
	Reason string `json:"reason,omitempty"`
}

// Placement is the placement of a pod in a pool.
type Placement struct {
	Seconds float64 `json:"seconds"`
	// Pool is the index of the pool in the order; -1 is a node in no pool.
	Pool int `json:"pool"`
	// Why says what was wrong with the placement.
	Why []string `json:"why,omitempty"`
}

// SameLoad returns the timeline of the runs that have the first run's load.
func (t Timeline) SameLoad() Timeline {
	load := t.Runs[0].Load
	t.Runs = slices.DeleteFunc(slices.Clone(t.Runs), func(r Run) bool { return r.Load != load })
	return t
}

// Summary has the figures of a run.
type Summary struct {
	Replicas int // asked for in the end
	VMs      int // the most at any time
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

// last returns the last step.
func (r *Run) last() Step { return r.Steps[len(r.Steps)-1] }

func sum(numbers []int) int {
	total := 0
	for _, n := range numbers {
		total += n
	}
	return total
}
