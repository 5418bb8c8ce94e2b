// Package autoscaler decides as the cluster autoscaler does: it is handed nodes, pods, the cloud's node groups and the
// time, and says what to order, what to remove and what the status reads. It knows no API server and no clock and
// starts nothing, so that a copy of it can be asked what would happen.
//
// It is written from the recorded runs of cluster-autoscaler 1.35 and from the rules in its sources, of versions up to
// that one and not all of the same; they are named where they matter: core/static_autoscaler.go,
// clusterstate/clusterstate.go, utils/backoff, loop/trigger.go.
package autoscaler

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Options are the autoscaler's flags. Real returns the real one's defaults; a zero field means what its comment says.
type Options struct {
	// ScanInterval is the time between two loops unless the first did something (Result.Again).
	ScanInterval time.Duration
	// UnneededTime is how long a VM must have been unneeded to be removed; 0 removes none.
	UnneededTime time.Duration
	// DelayAfterAdd, DelayAfterDelete and DelayAfterFailure are how long nothing is removed after a scale-up of any
	// group, after a removal began, and after one failed.
	DelayAfterAdd, DelayAfterDelete, DelayAfterFailure time.Duration
	// InitialBackoff is how long a group is left alone that failed to grow. Each failure after that doubles it, to at
	// most MaxBackoff; BackoffReset after the last failure it starts anew.
	InitialBackoff, MaxBackoff, BackoffReset time.Duration
	// ForgetOnSuccess forgets a group's back-offs when a scale-up of it ends well, as older autoscalers did.
	ForgetOnSuccess bool
	// MaxNodeProvisionTime is how long a VM may take to register; then it is given up.
	MaxNodeProvisionTime time.Duration
	// MaxNodeStartupTime is how long after its creation a Node that is not ready counts as one that starts, and not as
	// unready.
	MaxNodeStartupTime time.Duration
	// NewPodDelay is the age, new-pod-scale-up-delay, below which pods are ignored; their annotation may ask for more.
	NewPodDelay time.Duration
	// PodBatch is how old the oldest pending pod must be for anything to be ordered; the real one waits for more to
	// come.
	PodBatch time.Duration
	// Utilization is the share of requested CPU or memory below which a VM may be unneeded.
	Utilization float64
	// UnreadyShare and OkUnready: the cluster is unhealthy when more than OkUnready nodes are, and more than this share
	// of all.
	UnreadyShare float64
	OkUnready    int
	// ParallelRemovals and ParallelDrains bound the VMs that are being removed at a time, and those among them with
	// pods.
	ParallelRemovals, ParallelDrains int
	// Seed orders groups of one priority, as the random expander does; 0 takes them by name.
	Seed uint64
}

// Real returns the real one's defaults. Source: config/flags.
func Real() Options {
	return Options{
		ScanInterval: 10 * time.Second, UnneededTime: 10 * time.Minute,
		DelayAfterAdd: 10 * time.Minute, DelayAfterDelete: 10 * time.Second, DelayAfterFailure: 3 * time.Minute,
		InitialBackoff: 5 * time.Minute, MaxBackoff: 30 * time.Minute, BackoffReset: 3 * time.Hour,
		MaxNodeProvisionTime: 15 * time.Minute, MaxNodeStartupTime: 15 * time.Minute, PodBatch: 2 * time.Second,
		Utilization: 0.5, UnreadyShare: 0.45, OkUnready: 3, ParallelRemovals: 10, ParallelDrains: 1,
	}
}

// World is what a loop sees at its start. The loop changes nothing in it.
type World struct {
	Nodes  []*corev1.Node
	Pods   []*corev1.Pod
	Groups []Group
	// Unhealthy makes the cluster unhealthy whatever its nodes are like.
	Unhealthy bool
}

// Group is a node group as the cloud describes it.
type Group struct {
	Name     string
	Min, Max int
	// Priority is that of the priority expander: the highest grows first.
	Priority int
	// Target is the size that the cloud gives, which may be a cached one.
	Target int
	// Template is what a new node will be like, without its passing taints. Its name does not matter.
	Template *corev1.Node
	// Instances are the VMs of the group.
	Instances []Instance
	// Unhealthy makes the group unhealthy whatever its nodes are like.
	Unhealthy bool
}

// Instance is a VM.
type Instance struct {
	// Name is the name of its Node, too.
	Name string
	// Deleting says that the cloud is taking it away: no Node is expected of it any more.
	Deleting bool
	// Gone says that the cloud has it no more; only its Node is left.
	Gone bool
	// ErrorCode and ErrorMessage say why it could not be made.
	ErrorCode, ErrorMessage string
}

// Cloud takes orders while a loop runs.
type Cloud interface {
	// Grow orders n VMs more; an error is a refusal.
	Grow(group string, n int) error
	// Delete takes VMs away that never became nodes, and lowers the target by them.
	Delete(group string, instances []string) error
	// Lower lowers the target by n of which there are no VMs.
	Lower(group string, n int) error
}

// Result is what a loop did and what remains to be done.
type Result struct {
	// Status is to be written when the loop ends.
	Status Status
	// Grown is the group that was grown, if any.
	Grown *Growth
	// Failed is the group that refused to grow, if any.
	Failed *Failure
	// Remove are the nodes to taint before the loop ends. Beside the loops, each is then left for the delay after the
	// taint, drained and deleted, and its group's target falls.
	Remove []Removal
	// Untaint are nodes that carry the taint of an autoscaler that ran before; it comes off before the loop ends.
	Untaint []string
	// Unhelped are the pods that no group could be grown for, with the reason that their event gives.
	Unhelped       []*corev1.Pod
	UnhelpedReason string
	// Again says that the next loop follows at once.
	Again bool
}

// Growth is an order that the cloud accepted, and the pods that it was made for.
type Growth struct {
	Group         string
	From, To, Max int
	Pods          []*corev1.Pod
}

// Failure is an order that the cloud refused.
type Failure struct {
	Group, Message string
}

// Removal is a VM to remove. Drain says that it has pods.
type Removal struct {
	Group, Node string
	Drain       bool
}

// Autoscaler is what an autoscaler remembers from loop to loop. One that starts anew remembers nothing.
type Autoscaler struct {
	options      Options
	random       rand.PCG
	ran          bool
	backoffs     map[string]backoff
	requests     map[string]request
	unregistered map[string]time.Time // since when, by VM
	broken       map[string]bool      // VMs that could not be made and were seen
	sizes        map[string]wrongSize
	unneeded     map[string]time.Time // since when, by node
	removing     map[string]bool      // the nodes whose removal has begun, and whether they have pods
	last         Status

	scaledUp, removed, removalFailed, looked time.Time
}

// New returns an autoscaler that has just started.
func New(options Options) *Autoscaler {
	return &Autoscaler{
		options: options, random: *rand.NewPCG(options.Seed, 0),
		backoffs: map[string]backoff{}, requests: map[string]request{}, unregistered: map[string]time.Time{},
		broken: map[string]bool{}, sizes: map[string]wrongSize{}, unneeded: map[string]time.Time{},
		removing: map[string]bool{},
	}
}

// Clone returns a copy that shares nothing with the original and goes on as it would.
func (a *Autoscaler) Clone() *Autoscaler {
	b := *a
	b.backoffs, b.requests, b.unregistered = maps.Clone(a.backoffs), maps.Clone(a.requests), maps.Clone(a.unregistered)
	b.broken, b.sizes, b.unneeded = maps.Clone(a.broken), maps.Clone(a.sizes), maps.Clone(a.unneeded)
	b.removing = maps.Clone(a.removing)
	b.last.NodeGroups = slices.Clone(a.last.NodeGroups)
	return &b
}

// RemovalFailed says that the node could not be drained or deleted and that its taint is off. For DelayAfterFailure
// nothing is removed.
func (a *Autoscaler) RemovalFailed(node string, now time.Time) {
	delete(a.removing, node)
	a.removalFailed = now
}

// Loop is one pass. On an error there is no status to write, as after a real loop that fails early.
func (a *Autoscaler) Loop(world World, simulator Simulator, cloud Cloud, now time.Time) (Result, error) {
	l := &loop{Autoscaler: a, world: world, simulator: simulator, cloud: cloud, now: now}
	l.cleanUp()
	l.register()
	err := l.act()
	l.result.Status = l.status()
	return l.result, err
}

// loop is one pass over a world.
type loop struct {
	*Autoscaler
	world     World
	simulator Simulator
	cloud     Cloud
	now       time.Time

	groups  []*group  // by name
	total   readiness // of all nodes, those in no group too
	holdOff bool      // nothing is removed in this loop
	result  Result
}

// act does what a loop does once the state is known. Source: RunOnce.
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

// cleanUp has the taints removed that an autoscaler before this one left.
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
