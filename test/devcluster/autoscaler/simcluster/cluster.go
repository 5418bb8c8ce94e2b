// Package simcluster simulates a cluster without processes: a cloud with node groups, nodes, pods, a scheduler that
// binds pods to VMs, and the simulated autoscaler. The clock moves from event to event. One seed determines everything
// random. A clone behaves as the original would, so a test can try what would happen.
package simcluster

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// Options describe a cluster.
type Options struct {
	// Seed determines everything random: boot times, and the order of groups of the same priority.
	Seed uint64
	// Start is the cluster's time at the beginning. If it is zero, a fixed date is used.
	Start time.Time
	// Groups are the node groups, with the number of their first nodes.
	Groups []Group
	// Autoscaler has the autoscaler's flags. If it is empty, autoscaler.Real is used.
	Autoscaler autoscaler.Options
	// LoopTime is the time from a loop's start until its status is written. The recorded loops took 0.03 to 0.4 s. In a
	// large cluster, a loop takes seconds.
	LoopTime time.Duration
	// PodTriggers starts a loop at once when a pod becomes unschedulable, as --frequent-loops-enabled does. Newer
	// versions of the autoscaler set this flag by default. With or without PodTriggers, a loop follows at once after a
	// loop that did something.
	PodTriggers bool
	// DeleteDelay (--node-delete-delay-after-taint) is the time from a node's taint to the deletion of its VM. The real
	// autoscaler's default is 5 s. If the node has pods, DrainTime is added.
	DeleteDelay, DrainTime time.Duration
	// Linger is how long a Node still exists after the cloud has accepted the deletion of its VM and lowered the
	// target. On Azure, Linger is minutes. With the kwok provider, it is 0.
	Linger time.Duration
	// SizeCache is how long the autoscaler uses a target before it reads it again. The autoscaler's own orders change
	// the cached target, and deletions do not. On Azure, SizeCache is up to a minute. With 0, each loop reads the
	// target.
	SizeCache time.Duration
	// SchedulerDelay is the time from a change to the scheduler's next cycle.
	SchedulerDelay time.Duration
	// VirtualNode adds a virtual node with AKS's taint and the gate taint.
	VirtualNode bool
	// Choose chooses one of the nodes that a pod fits on, also the virtual node, and returns its name. It gets all pods. If
	// it is nil, the scheduler takes the first VM.
	Choose func(pod *corev1.Pod, nodes []*corev1.Node, pods []*corev1.Pod) string
}

// GateTaint and ProviderTaint are the keys of the virtual node's taints.
const (
	GateTaint, ProviderTaint = "poolpriority.dev/gate", "virtual-kubelet.io/provider"
	// VirtualNode is the name of the virtual node, as on AKS.
	VirtualNode = "virtual-node-aci-linux"
)

// Group is a node group of the cloud.
type Group struct {
	Name            string
	Min, Max, Nodes int
	// Priority is the group's priority for the priority expander.
	Priority int
	// Template is a node of the group, with its labels, lasting taints and allocatable resources.
	Template *corev1.Node
	// Boot is the time from the order to the Node. A random time below Jitter is added. ReadyAfter is the time from the
	// Node until it is ready.
	Boot, Jitter, ReadyAfter time.Duration
	// StartupTaint is the key of a taint. New nodes keep this taint until StartupFor after they became ready. If
	// StartupTaint is "", new nodes have no such taint.
	StartupTaint string
	StartupFor   time.Duration
	Fault        Fault
	// Unhealthy makes the group unhealthy for the autoscaler.
	Unhealthy bool
}

// Fault is what goes wrong when a group grows.
type Fault struct {
	// Refusal is the error with which the cloud refuses orders. With "", the cloud accepts them.
	Refusal string
	// NeverRegisters orders VMs that never become nodes.
	NeverRegisters bool
	// NoVM raises the target without creating a VM, as a stockout on Azure does.
	NoVM bool
	// ErrorCode is the error of VMs that cannot be created.
	ErrorCode string
}

// Order is an order that the cloud accepted.
type Order struct {
	At    time.Time
	Group string
	Nodes int
}

// Write is a status that the autoscaler wrote.
type Write struct {
	At, Begun time.Time // when it was written, and when its loop began
	Status    autoscaler.Status
}

// Event is an event NotTriggerScaleUp on a pod.
type Event struct {
	At      time.Time
	Message string
}

// Cluster is a simulated cluster. It never changes an object that it has returned. It replaces the object by a changed
// copy.
type Cluster struct {
	options Options
	now     time.Time
	random  rand.PCG
	events  []event // sorted by time, then by age
	serial  int

	nodes  map[string]*corev1.Node
	pods   map[string]*corev1.Pod
	groups map[string]group
	vms    map[string]vm
	orders []Order

	autoscaler *autoscaler.Autoscaler // nil when it is not running
	made       int                    // how often the ConfigMap was created
	writes     int
	loops      int
	written    *Write // the content of the ConfigMap; nil if there is none
	last       Write
	said       map[types.UID]Event // the last event of each pod for which no group was grown
	pending    autoscaler.Status   // the status of the running loop
	begun      time.Time
	looping    bool
	again      bool // the next loop follows at once
	triggered  bool // a pod became unschedulable during the running loop
	unhealthy  bool
}

// group is the state of a node group.
type group struct {
	Group
	target, cached int
	cachedAt       time.Time
	serial         int
}

// vm is the state of a VM. It is dropped when the Node is deleted.
type vm struct {
	group     string
	deleting  bool
	errorCode string
}

// New returns a cluster in which the groups' first nodes are ready and the autoscaler has just started.
func New(options Options) *Cluster {
	options.Start = cmp.Or(options.Start, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	options.Autoscaler = cmp.Or(options.Autoscaler, autoscaler.Real())
	options.Autoscaler.Seed = cmp.Or(options.Autoscaler.Seed, options.Seed)
	c := &Cluster{
		options: options, now: options.Start, random: *rand.NewPCG(options.Seed, 1),
		nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}, groups: map[string]group{}, vms: map[string]vm{},
		said: map[types.UID]Event{},
	}
	for _, spec := range options.Groups {
		c.groups[spec.Name] = group{Group: spec}
		for range spec.Nodes {
			c.register(c.order(spec.Name, vm{group: spec.Name}), true)
		}
	}
	if options.VirtualNode {
		c.nodes[VirtualNode] = virtualNode(c.now)
	}
	c.Start()
	return c
}

// Clone returns an independent copy, which goes on as the original would.
func (c *Cluster) Clone() *Cluster {
	d := *c
	d.events, d.orders = slices.Clone(c.events), slices.Clone(c.orders)
	d.nodes, d.pods, d.groups, d.vms = maps.Clone(c.nodes), maps.Clone(c.pods), maps.Clone(c.groups), maps.Clone(c.vms)
	d.said = maps.Clone(c.said)
	if c.autoscaler != nil {
		d.autoscaler = c.autoscaler.Clone()
	}
	return &d
}

// Event returns the last event NotTriggerScaleUp on the pod; the zero value if there is none.
func (c *Cluster) Event(pod types.UID) Event { return c.said[pod] }

// Now returns the cluster's time.
func (c *Cluster) Now() time.Time { return c.now }

// Loops returns how many loops have ended with a status. It counts the loops of the current autoscaler and of all
// earlier autoscalers.
func (c *Cluster) Loops() int { return c.loops }

// Orders returns the orders that the cloud has accepted, oldest first.
func (c *Cluster) Orders() []Order { return slices.Clone(c.orders) }

// ConfigMap returns the ConfigMap with the autoscaler's status; nil if there is none. If the ConfigMap is created anew,
// its UID changes. Each write changes its resource version.
func (c *Cluster) ConfigMap() *corev1.ConfigMap {
	if c.written == nil {
		return nil
	}
	cm, err := c.written.Status.ConfigMap(c.written.Begun)
	if err != nil {
		panic(fmt.Sprintf("a status that was just made cannot be written: %v", err))
	}
	cm.UID, cm.ResourceVersion = types.UID(fmt.Sprint("status-", c.made)), fmt.Sprint(c.writes)
	return cm
}

// Written returns the content of the ConfigMap, and how often the ConfigMap was created. If the ConfigMap does not
// exist, the content is nil.
func (c *Cluster) Written() (*Write, int) {
	if c.written == nil {
		return nil, 0
	}
	w := *c.written
	return &w, c.made
}

// Writes returns how often the ConfigMap was written. With this number, a test sees that the ConfigMap has changed
// without rendering it.
func (c *Cluster) Writes() int { return c.writes }

// LastWrite returns the last status that a loop wrote.
func (c *Cluster) LastWrite() Write { return c.last }

// Target returns the group's size as the cloud knows it.
func (c *Cluster) Target(name string) int { return c.groups[name].target }

// Groups returns the groups with their current settings, sorted by name.
func (c *Cluster) Groups() []Group {
	var result []Group
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		result = append(result, c.groups[name].Group)
	}
	return result
}

// SetGroup changes a group's settings, such as its faults, its limits or its health.
func (c *Cluster) SetGroup(name string, change func(*Group)) {
	g := c.groups[name]
	change(&g.Group)
	c.groups[name] = g
}

// SetUnhealthy sets whether the cluster is unhealthy for the autoscaler.
func (c *Cluster) SetUnhealthy(unhealthy bool) { c.unhealthy = unhealthy }

// Nodes returns the nodes, sorted by the priority of their groups, the highest first. The virtual node is the last.
func (c *Cluster) Nodes() []*corev1.Node {
	return slices.SortedFunc(maps.Values(c.nodes), func(a, b *corev1.Node) int {
		if p, q := c.rank(a.Name), c.rank(b.Name); p != q {
			return q - p
		}
		return strings.Compare(a.Name, b.Name)
	})
}

func (c *Cluster) rank(node string) int {
	if node == VirtualNode {
		return -1 << 31
	}
	return c.groups[c.vms[node].group].Priority
}

// GroupOf returns the name of the node's group; "" for the virtual node.
func (c *Cluster) GroupOf(node string) string { return c.vms[node].group }

// Pods returns the pods, oldest first.
func (c *Cluster) Pods() []*corev1.Pod {
	return slices.SortedFunc(maps.Values(c.pods), func(a, b *corev1.Pod) int {
		if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// Pod returns the pod, or nil.
func (c *Cluster) Pod(name string) *corev1.Pod { return c.pods[name] }

// Pending returns the pods for which the scheduler has found no VM, oldest first.
func (c *Cluster) Pending() []*corev1.Pod {
	return slices.DeleteFunc(c.Pods(), func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" || len(pod.Status.Conditions) == 0 })
}

// AddPod creates the pod now. Its name must be new.
func (c *Cluster) AddPod(pod *corev1.Pod) {
	pod = pod.DeepCopy()
	pod.CreationTimestamp = metav1.NewTime(c.now)
	if pod.UID == "" {
		c.serial++
		pod.UID = types.UID(fmt.Sprint("pod-", c.serial))
	}
	c.pods[pod.Name] = pod
	c.changed()
}

// DeletePod removes the pod at once.
func (c *Cluster) DeletePod(name string) {
	delete(c.pods, name)
	c.changed()
}

// UpdatePod replaces the pod by a changed copy.
func (c *Cluster) UpdatePod(name string, change func(*corev1.Pod)) {
	if pod := c.pods[name]; pod != nil {
		pod = pod.DeepCopy()
		change(pod)
		c.pods[name] = pod
		c.changed()
	}
}

// UpdateNode replaces the node by a changed copy.
func (c *Cluster) UpdateNode(name string, change func(*corev1.Node)) {
	if node := c.nodes[name]; node != nil {
		node = node.DeepCopy()
		change(node)
		c.nodes[name] = node
		c.changed()
	}
}

// Burst binds the pending pod to the virtual node.
func (c *Cluster) Burst(pod string) {
	c.UpdatePod(pod, func(p *corev1.Pod) { bind(p, VirtualNode, c.now) })
}

// Hold makes the pod pending and unschedulable, even if it runs on a node.
func (c *Cluster) Hold(pod string) {
	c.UpdatePod(pod, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{unschedulable(c.now)}
	})
}

// LoseVM deletes a VM, as the eviction of a spot VM does. Its Node is deleted and the target falls at once.
func (c *Cluster) LoseVM(node string) {
	if v, ok := c.vms[node]; ok && !v.deleting {
		c.lower(v.group, 1)
		c.forget(node)
	}
}

// RecreateVM deletes a VM and its Node. The target stays, and the cloud makes the VM anew, as a scale set of spot VMs does.
func (c *Cluster) RecreateVM(node string) {
	if v, ok := c.vms[node]; ok && !v.deleting {
		c.forget(node)
		c.vms[node] = v
		c.after(c.bootTime(c.groups[v.group].Group), nodeRegisters, node)
	}
}

// Fits reports whether the pod would fit on an empty node of the group. It uses the group's template, as the autoscaler
// does.
func (c *Cluster) Fits(pod *corev1.Pod, group string) bool {
	return autoscaler.Filters{}.Admits(c.groups[group].Template, pod)
}

// Ahead makes the named pods pending in a clone of the cluster. The clone runs until this many further loops have ended
// and at least this much time has passed. Ahead returns the orders that the clone's cloud accepted. No pod bursts in
// the clone.
func (c *Cluster) Ahead(pods []string, loops int, atLeast time.Duration) []Order {
	d := c.Clone()
	for _, name := range pods {
		d.Hold(name)
	}
	known, until := len(d.orders), d.now.Add(atLeast)
	for ended := d.loops + loops; d.autoscaler != nil && (d.loops < ended || d.now.Before(until)); {
		d.Step()
	}
	return d.orders[known:]
}
