// Package autoscaler simulates the decisions of the cluster autoscaler. From nodes, pods, the cloud's node groups and
// the time, it computes which nodes to order, which nodes to remove, and the status. It uses no API server, no clock
// and no goroutine, so a test can clone an autoscaler and see what the clone does.
//
// It follows the recorded runs of cluster-autoscaler 1.35, and the sources of that version, of earlier ones and of 1.36.
// Comments name the source files: core/static_autoscaler.go, clusterstate/clusterstate.go, utils/backoff,
// loop/trigger.go.
package autoscaler

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Options are the autoscaler's flags. Real returns the defaults of the real autoscaler. A field with the value zero has
// the meaning that its comment states, and does not select a default.
type Options struct {
	// ScanInterval is the time from the end of a loop to the start of the next loop. If a loop sets Result.Again, the
	// next loop follows at once.
	ScanInterval time.Duration
	// UnneededTime is how long a VM must be unneeded before the autoscaler removes it. With 0, no VM is removed.
	UnneededTime time.Duration
	// No VM is removed for DelayAfterAdd after a scale-up of any group, for DelayAfterDelete after a removal began, and
	// for DelayAfterFailure after a removal failed.
	DelayAfterAdd, DelayAfterDelete, DelayAfterFailure time.Duration
	// InitialBackoff is the duration of a group's first backoff. A failure after the end of a backoff doubles the
	// duration, up to MaxBackoff. When BackoffReset has passed since the last failure, the duration is InitialBackoff
	// again.
	InitialBackoff, MaxBackoff, BackoffReset time.Duration
	// MaxNodeProvisionTime is how long a VM may take to register. After that, the autoscaler deletes the VM.
	MaxNodeProvisionTime time.Duration
	// MaxNodeStartupTime is a limit for the age of Nodes that are not ready. A younger Node counts as not started, an
	// older Node as unready.
	MaxNodeStartupTime time.Duration
	// NewPodDelay (--new-pod-scale-up-delay) is the age below which pods are ignored. A pod's annotation can ask for a
	// higher age.
	NewPodDelay time.Duration
	// PodBatch is the minimum age of the oldest pending pod. While this pod is younger, the autoscaler orders no node,
	// because it waits for more pods.
	PodBatch time.Duration
	// A VM may be unneeded if its pods request less than the share Utilization of its CPU and of its memory.
	Utilization float64
	// The cluster or a group is unhealthy if the number of its unready nodes exceeds OkUnready, and their share of all
	// its nodes exceeds UnreadyShare.
	UnreadyShare float64
	OkUnready    int
	// ParallelRemovals limits the number of VMs that are being removed at a time. ParallelDrains limits the number of
	// such VMs with pods.
	ParallelRemovals, ParallelDrains int
	// Seed orders groups of the same priority at random, as the random expander does. With 0, they are ordered by name.
	Seed uint64
	// Minor is the minor version of cluster-autoscaler 1. Versions below 36 are alike.
	Minor int
}

// Real returns the defaults of the real autoscaler. Source: config/flags.
func Real() Options {
	return Options{
		ScanInterval: 10 * time.Second, UnneededTime: 10 * time.Minute,
		DelayAfterAdd: 10 * time.Minute, DelayAfterDelete: 10 * time.Second, DelayAfterFailure: 3 * time.Minute,
		InitialBackoff: 5 * time.Minute, MaxBackoff: 30 * time.Minute, BackoffReset: 3 * time.Hour,
		MaxNodeProvisionTime: 15 * time.Minute, MaxNodeStartupTime: 15 * time.Minute, PodBatch: 2 * time.Second,
		Utilization: 0.5, UnreadyShare: 0.45, OkUnready: 3, ParallelRemovals: 10, ParallelDrains: 1,
	}
}

// World is the cluster and the cloud at the start of a loop. The loop does not change it.
type World struct {
	Nodes  []*corev1.Node
	Pods   []*corev1.Pod
	Groups []Group
	// Buffers are the pods of CapacityBuffers. They exist only in the autoscaler.
	Buffers []*corev1.Pod
	// Unhealthy makes the cluster unhealthy, whatever the state of its nodes.
	Unhealthy bool
}

// Group is a node group as the cloud provider describes it.
type Group struct {
	Name     string
	Min, Max int
	// Priority is for the priority expander: the group with the highest priority grows first.
	Priority int
	// Target is the group's size that the cloud provider returns. It may come from a cache.
	Target int
	// Template is a new node of the group, without temporary taints. Its name does not matter.
	Template *corev1.Node
	// Instances are the VMs of the group.
	Instances []Instance
	// Unhealthy makes the group unhealthy, whatever the state of its nodes.
	Unhealthy bool
}

// Instance is a VM.
type Instance struct {
	// Name is also the name of the VM's Node.
	Name string
	// Deleting is set while the cloud deletes the VM. It will not register any more.
	Deleting bool
	// ErrorCode and ErrorMessage are the reason why the VM could not be created.
	ErrorCode, ErrorMessage string
}

// Cloud executes the orders of a loop, while the loop runs.
type Cloud interface {
	// Grow orders n further VMs. An error means that the cloud refuses the order.
	Grow(group string, n int) error
	// Delete deletes VMs without a Node, and lowers the target by their number.
	Delete(group string, instances []string) error
	// Lower lowers the target by n nodes for which no VM exists.
	Lower(group string, n int) error
}

// Result is what a loop did, and what its caller must do.
type Result struct {
	// Status is the status to write when the loop ends.
	Status Status
	// Grown is the scale-up that the cloud accepted, if any.
	Grown *Growth
	// Remove are the VMs to remove. The caller taints their nodes before the loop ends. While further loops run, the
	// caller waits for the delay after the taint, drains each node, and deletes the VM. The deletion lowers the group's
	// target.
	Remove []Removal
	// Untaint are the nodes that an earlier autoscaler tainted for removal. The caller removes this taint before the
	// loop ends.
	Untaint []string
	// Unhelped are the pods that get an event because no group could be grown for them.
	Unhelped []Unhelped
	// Again is set if the next loop follows at once.
	Again bool
}

// Growth is an order that the cloud accepted. Pods are the pods for which the autoscaler ordered nodes.
type Growth struct {
	Group         string
	From, To, Max int
	Pods          []*corev1.Pod
}

// Unhelped is a pod for which no group could be grown, with the message of its event.
type Unhelped struct {
	Pod     *corev1.Pod
	Message string
}

// Removal is a VM to remove.
type Removal struct {
	Group, Node string
}

// Autoscaler is the state that an autoscaler keeps between loops. A restarted autoscaler has lost it.
type Autoscaler struct {
	options      Options
	random       rand.PCG
	ran          bool
	backoffs     map[string]backoff
	requests     map[string]request
	unregistered map[string]time.Time // by VM: when the autoscaler first saw it without a Node
	broken       map[string]bool      // VMs with an error, as of the last loop
	sizes        map[string]wrongSize
	unneeded     map[string]time.Time    // by node: since when
	removing     map[string]bool         // by node whose removal has begun: whether it had pods
	said         map[types.UID]time.Time // by pod: when its last event was written
	last         Status

	scaledUp, removed, removalFailed, looked time.Time
}

// New returns an autoscaler that has just started.
func New(options Options) *Autoscaler {
	return &Autoscaler{
		options: options, random: *rand.NewPCG(options.Seed, 0),
		backoffs: map[string]backoff{}, requests: map[string]request{}, unregistered: map[string]time.Time{},
		broken: map[string]bool{}, sizes: map[string]wrongSize{}, unneeded: map[string]time.Time{},
		removing: map[string]bool{}, said: map[types.UID]time.Time{},
	}
}

// Clone returns an independent copy. The copy decides as the original would.
func (a *Autoscaler) Clone() *Autoscaler {
	b := *a
	b.backoffs, b.requests, b.unregistered = maps.Clone(a.backoffs), maps.Clone(a.requests), maps.Clone(a.unregistered)
	b.broken, b.sizes, b.unneeded = maps.Clone(a.broken), maps.Clone(a.sizes), maps.Clone(a.unneeded)
	b.removing, b.said = maps.Clone(a.removing), maps.Clone(a.said)
	b.last.NodeGroups = slices.Clone(a.last.NodeGroups)
	return &b
}

// RemovalFailed records that the node could not be drained or deleted, and that its taint was removed. No VM is removed
// for DelayAfterFailure.
func (a *Autoscaler) RemovalFailed(node string, now time.Time) {
	delete(a.removing, node)
	a.removalFailed = now
}

// Loop runs one loop. If Loop returns an error, the caller writes no status, because a real loop that fails early
// writes no status.
func (a *Autoscaler) Loop(world World, simulator Simulator, cloud Cloud, now time.Time) (Result, error) {
	l := &loop{Autoscaler: a, world: world, simulator: simulator, cloud: cloud, now: now}
	l.cleanUp()
	l.register()
	err := l.act()
	l.result.Status = l.status()
	return l.result, err
}

// loop is one loop over a world.
type loop struct {
	*Autoscaler
	world     World
	simulator Simulator
	cloud     Cloud
	now       time.Time

	groups  []*group  // sorted by name
	total   readiness // of all nodes, also of those in no group
	holdOff bool      // no VM is removed in this loop
	result  Result
}

// act scales groups up or down, after the loop has read the state. Source: RunOnce.
func (l *loop) act() error {
	l.giveUpUnregistered() // even while the cluster is unhealthy
	if !l.clusterHealthy() {
		clear(l.unneeded)
		return nil
	}
	l.deleteBroken()
	if l.fixSizes() {
		return nil
	}
	done, err := l.scaleUp()
	if err != nil || done {
		return err
	}
	return l.scaleDown()
}

// cleanUp runs in the first loop only. It removes the taints of nodes that an earlier autoscaler was removing.
func (l *loop) cleanUp() {
	if l.ran {
		return
	}
	l.ran = true
	var nodes []*corev1.Node
	for _, node := range l.world.Nodes {
		if HasTaint(node, ToBeDeletedTaint) {
			l.result.Untaint = append(l.result.Untaint, node.Name)
			node = node.DeepCopy()
			node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == ToBeDeletedTaint })
		}
		nodes = append(nodes, node)
	}
	l.world.Nodes = nodes
}
