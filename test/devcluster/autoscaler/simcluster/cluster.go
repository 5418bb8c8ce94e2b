// Package simcluster is a cluster without processes: a cloud with node groups, nodes, pods, a scheduler that binds what
// fits on VMs, and the simulated autoscaler, under a clock that moves from event to event. All chance comes from one
// seed, and a copy of a cluster goes on as the original would, so that a test can ask what would have happened.
package simcluster

import (
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

// Options say what a cluster is made of.
type Options struct {
	// Seed is the source of all chance: boot times, and the order of groups of one priority.
	Seed uint64
	// Start is the time at which the cluster begins; zero is a time of no meaning.
	Start time.Time
	// Groups are the node groups, with their first nodes.
	Groups []Group
	// Autoscaler are the autoscaler's flags; autoscaler.Real is the default.
	Autoscaler autoscaler.Options
	// LoopTime is what a loop takes: its status is written so long after its start. The recorded ones took 0.03 to 0.4
	// s, a large cluster's take seconds.
	LoopTime time.Duration
	// PodTriggers starts a loop at once when a pod becomes unschedulable, as frequent-loops-enabled does, which newer
	// versions have on by default. A productive loop is followed by the next in any case.
	PodTriggers bool
	// DeleteDelay is the time between a node's taint and its VM's deletion, node-delete-delay-after-taint; the real
	// one's default is 5 s. DrainTime is what a drain takes beyond that.
	DeleteDelay, DrainTime time.Duration
	// Linger is how long a Node stays after its VM's deletion was accepted and the target fell. Azure: minutes; the
	// kwok provider: 0.
	Linger time.Duration
	// SizeCache is how long the autoscaler believes a target before it asks the cloud again. Its own orders it knows,
	// deletions it does not. Azure: up to a minute; 0 asks in each loop.
	SizeCache time.Duration
	// SchedulerDelay is how long the scheduler takes to look at a change.
	SchedulerDelay time.Duration
	// VirtualNode adds a virtual node with AKS's taint and GateTaint.
	VirtualNode bool
}

// GateTaint and ProviderTaint are the virtual node's.
const (
	GateTaint, ProviderTaint = "poolpriority.dev/gate", "virtual-kubelet.io/provider"
	// VirtualNode is the virtual node's name, AKS's.
	VirtualNode = "virtual-node-aci-linux"
)

// Group is a node group of the cloud's.
type Group struct {
	Name            string
	Min, Max, Nodes int
	// Priority is that of the priority expander.
	Priority int
	// Template is a node of the group: labels, lasting taints, allocatable.
	Template *corev1.Node
	// Boot is the time from the order to the Node, Jitter what chance adds at most, ReadyAfter the time from the Node
	// until it is ready.
	Boot, Jitter, ReadyAfter time.Duration
	// StartupTaint is on new nodes until StartupFor after they became ready; "" is none.
	StartupTaint string
	StartupFor   time.Duration
	Fault        Fault
	// Unhealthy makes the autoscaler take the group for an unhealthy one.
	Unhealthy bool
}

// Fault is what goes wrong when a group grows.
type Fault struct {
	// Refusal is the cloud's answer to an order; "" accepts it.
	Refusal string
	// NeverRegisters makes VMs that never become nodes.
	NeverRegisters bool
	// NoVM raises the target, and no VM is made: how a stockout looks on Azure.
	NoVM bool
	// ErrorCode makes VMs that the cloud says have failed, for this reason.
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

// Cluster is a virtual cluster. Objects that it returns are never changed: it replaces them.
type Cluster struct {
	options Options
	now     time.Time
	random  rand.PCG
	events  []event // by time, then by order of making
	serial  int

	nodes  map[string]*corev1.Node
	pods   map[string]*corev1.Pod
	groups map[string]group
	vms    map[string]vm
	orders []Order

	autoscaler *autoscaler.Autoscaler // nil when it is not running
	made       int                    // how often the ConfigMap was made
	writes     int
	loops      int
	written    *Write // what the ConfigMap says; nil when there is none
	last       Write
	pending    autoscaler.Status // of the loop that is running
	begun      time.Time
	looping    bool
	again      bool // the next loop follows at once
	triggered  bool // a pod became unschedulable during a loop
	unhealthy  bool
}

// group is a group's state.
type group struct {
	Group
	target, cached int
	cachedAt       time.Time
	serial         int
}

// vm is a VM's state. One whose Node is gone is forgotten.
type vm struct {
	group     string
	deleting  bool
	errorCode string
}

// New returns a cluster with the groups' first nodes ready and the autoscaler just started.
func New(options Options) *Cluster {
	if options.Start.IsZero() {
		options.Start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if options.Autoscaler == (autoscaler.Options{}) {
		options.Autoscaler = autoscaler.Real()
	}
	if options.Autoscaler.Seed == 0 {
		options.Autoscaler.Seed = options.Seed
	}
	c := &Cluster{
		options: options, now: options.Start, random: *rand.NewPCG(options.Seed, 1),
		nodes: map[string]*corev1.Node{}, pods: map[string]*corev1.Pod{}, groups: map[string]group{}, vms: map[string]vm{},
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

// Clone returns a copy that goes on as the original would and shares nothing that changes.
func (c *Cluster) Clone() *Cluster {
	d := *c
	d.events, d.orders = slices.Clone(c.events), slices.Clone(c.orders)
	d.nodes, d.pods, d.groups, d.vms = maps.Clone(c.nodes), maps.Clone(c.pods), maps.Clone(c.groups), maps.Clone(c.vms)
	if c.autoscaler != nil {
		d.autoscaler = c.autoscaler.Clone()
	}
	return &d
}

// Now is the cluster's time.
func (c *Cluster) Now() time.Time { return c.now }

// Loops is how many loops have ended with a status, over all autoscalers that ran.
func (c *Cluster) Loops() int { return c.loops }

// Orders are the orders that the cloud has accepted, oldest first.
func (c *Cluster) Orders() []Order { return slices.Clone(c.orders) }

// ConfigMap is the autoscaler's status; nil when there is none. Its UID changes when it is made anew, its resource
// version with each write.
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

// Written is what the ConfigMap says, and how often it was made; nil when there is none.
func (c *Cluster) Written() (*Write, int) {
	if c.written == nil {
		return nil, 0
	}
	w := *c.written
	return &w, c.made
}

// Writes is how often the ConfigMap was written, and so what changes with it; it saves rendering one to see that.
func (c *Cluster) Writes() int { return c.writes }

// LastWrite is the last status that a loop wrote.
func (c *Cluster) LastWrite() Write { return c.last }

// Target is the size that the cloud knows the group to have.
func (c *Cluster) Target(name string) int { return c.groups[name].target }

// Groups are the groups as they are set now, by name.
func (c *Cluster) Groups() []Group {
	var result []Group
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		result = append(result, c.groups[name].Group)
	}
	return result
}

// SetGroup changes a group: its faults, its limits, whether it is healthy.
func (c *Cluster) SetGroup(name string, change func(*Group)) {
	g := c.groups[name]
	change(&g.Group)
	c.groups[name] = g
}

// SetUnhealthy makes the autoscaler take the cluster for an unhealthy one, or ends that.
func (c *Cluster) SetUnhealthy(unhealthy bool) { c.unhealthy = unhealthy }

// Nodes are the nodes, those of the group that grows first before others, the virtual node last.
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

// GroupOf is the name of the group that the node belongs to, "" for the virtual node.
func (c *Cluster) GroupOf(node string) string { return c.vms[node].group }

// Pods are the pods, oldest first.
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

// Pending are the pods that the scheduler looked at and found no VM for, oldest first.
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

// UpdatePod changes a copy of the pod and puts it in the pod's place.
func (c *Cluster) UpdatePod(name string, change func(*corev1.Pod)) {
	if pod := c.pods[name]; pod != nil {
		pod = pod.DeepCopy()
		change(pod)
		c.pods[name] = pod
		c.changed()
	}
}

// UpdateNode changes a copy of the node and puts it in the node's place.
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

// Hold makes the pod pending again, wherever it is.
func (c *Cluster) Hold(pod string) {
	c.UpdatePod(pod, func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{unschedulable(c.now)}
	})
}

// LoseVM takes a VM away, as the eviction of a spot VM does: the Node is gone and the target falls at once.
func (c *Cluster) LoseVM(node string) {
	if v, ok := c.vms[node]; ok && !v.deleting {
		c.lower(v.group, 1)
		c.forget(node)
	}
}

// Fits reports whether an empty node of the group would take the pod. By the group's template, which is what the
// autoscaler goes by.
func (c *Cluster) Fits(pod *corev1.Pod, group string) bool {
	return autoscaler.Filters{}.Admits(c.groups[group].Template, pod)
}

// Ahead makes the named pods pending in a copy of the cluster, lets it run until so many loops more have ended and at
// least so much time has passed, and returns the orders made meanwhile. Nothing bursts in the copy.
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
