package azure

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Spec is the container group in the body of a PUT.
type Spec struct {
	// Name is the group's name: the pod's namespace and name, joined by a dash.
	Name string
	// Node, Namespace, Pod and UID are tags: the connector's node, and the pod that the group is for.
	Node, Namespace, Pod string
	UID                  types.UID
	Containers           []Container
	RestartPolicy        corev1.RestartPolicy
	// RunsFor is how long a container runs before it ends by itself; 0 is forever. ExitCode is its exit code.
	RunsFor  time.Duration
	ExitCode int32
}

// Container is a container of a group, with requests and limits in cores and GB. A limit of 0 means no limit.
type Container struct {
	Name, Image           string
	CPU, Memory           float64
	CPULimit, MemoryLimit float64
}

// Cores returns the sum of the containers' CPU requests.
func (s *Spec) Cores() float64 {
	sum := 0.0
	for _, c := range s.Containers {
		sum += c.CPU
	}
	return sum
}

// Memory returns the sum of the containers' memory requests in GB.
func (s *Spec) Memory() float64 {
	sum := 0.0
	for _, c := range s.Containers {
		sum += c.Memory
	}
	return sum
}

// State is the state of a group.
type State string

const (
	// Pending groups are in transition: accepted, and not running yet.
	Pending State = "Pending"
	// Running groups run their containers.
	Running State = "Running"
	// Succeeded groups have ended with the exit code 0.
	Succeeded State = "Succeeded"
	// Failed groups have ended with an exit code other than 0.
	Failed State = "Failed"
)

// Group is a container group at a point in time.
type Group struct {
	Spec
	State State
	// View is the instance view that a GET returns of a group in transition. It is complete for other groups.
	View     InstanceView
	Address  string
	Restarts int32
	// Made is when the group was made. Started is when it began to run, or will begin.
	Made, Started time.Time
	// Ended and Deleted are zero if the group has not ended or was not deleted.
	Ended, Deleted time.Time

	serial int
}

// at returns the group as it is at the time now.
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

// Orphans returns the groups that run and are billed although their pod does not exist or is not in the phase Running.
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

// Put is a PUT and its response. The HTTP status is 201 if the region created the group. Code is Azure's code if the
// region refused the PUT.
type Put struct {
	Spec
	At     time.Time
	Status int
	Code   string
}
