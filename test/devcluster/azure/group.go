package azure

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Spec is what a PUT asks for.
type Spec struct {
	// Name is the group's: the pod's namespace and name with a dash between.
	Name string
	// Node, Namespace, Pod and UID are tags: the connector's node, and the pod that the group is for.
	Node, Namespace, Pod string
	UID                  types.UID
	Containers           []Container
	RestartPolicy        corev1.RestartPolicy
	// RunsFor is how long a container takes to end by itself; 0 is for ever. ExitCode is what it ends with.
	RunsFor  time.Duration
	ExitCode int32
}

// Container is a container of a group, with requests and limits in cores and GB. A limit of 0 is none.
type Container struct {
	Name, Image           string
	CPU, Memory           float64
	CPULimit, MemoryLimit float64
}

// Cores is what the containers request together.
func (s *Spec) Cores() float64 {
	sum := 0.0
	for _, c := range s.Containers {
		sum += c.CPU
	}
	return sum
}

// Memory is what the containers request together, in GB.
func (s *Spec) Memory() float64 {
	sum := 0.0
	for _, c := range s.Containers {
		sum += c.Memory
	}
	return sum
}

// State is a group's.
type State string

const (
	// Pending groups are in transition: accepted, and not running yet.
	Pending State = "Pending"
	// Running groups do the work.
	Running State = "Running"
	// Succeeded and Failed groups have ended.
	Succeeded State = "Succeeded"
	// Failed groups have ended with an exit code other than 0.
	Failed State = "Failed"
)

// Group is a container group at a moment.
type Group struct {
	Spec
	State State
	// View is what a GET tells of a group in transition; of others it tells all.
	View     InstanceView
	Address  string
	Restarts int32
	// Made is when it was put, Started when it began to run or will.
	Made, Started time.Time
	// Ended and Deleted are zero if it has not.
	Ended, Deleted time.Time

	serial int
}

// at is the group as it is at the time.
func (g *Group) at(now time.Time) Group {
	is := *g
	switch {
	case now.Before(g.Started):
		is.State = Pending
		return is
	case g.RunsFor == 0 || now.Before(g.Started.Add(g.RunsFor)):
		is.State = Running
		return is
	}
	restarts := g.RestartPolicy == corev1.RestartPolicyAlways || g.RestartPolicy == corev1.RestartPolicyOnFailure && g.ExitCode != 0
	switch {
	case restarts:
		is.State, is.Restarts = Running, int32(now.Sub(g.Started)/g.RunsFor)
	case g.ExitCode == 0:
		is.State, is.Ended = Succeeded, g.Started.Add(g.RunsFor)
	default:
		is.State, is.Ended = Failed, g.Started.Add(g.RunsFor)
	}
	return is
}

// Billed is for how long the group has been paid for, at the time: since it was made, until it ended or was deleted.
func (g *Group) Billed(now time.Time) time.Duration {
	until := now
	for _, end := range []time.Time{g.Ended, g.Deleted} {
		if !end.IsZero() && end.Before(until) {
			until = end
		}
	}
	return until.Sub(g.Made)
}

// Ran reports whether the group did work: it runs or has run.
func (g *Group) Ran() bool { return g.State != Pending }

// Orphans returns the groups that run, and are paid for, while no pod says so: their pod is gone, or its phase is
// another.
func Orphans(groups []Group, pods []corev1.Pod) []Group {
	running := map[types.UID]bool{}
	for i := range pods {
		running[pods[i].UID] = pods[i].Status.Phase == corev1.PodRunning
	}
	var orphans []Group
	for _, g := range groups {
		if g.State == Running && g.Deleted.IsZero() && !running[g.UID] {
			orphans = append(orphans, g)
		}
	}
	return orphans
}

// Put is a PUT and its answer: the HTTP status, 201 if the group was made, and Azure's code if it was refused.
type Put struct {
	Spec
	At     time.Time
	Status int
	Code   string
}
