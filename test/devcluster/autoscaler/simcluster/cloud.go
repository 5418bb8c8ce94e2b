package simcluster

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// cloud executes the autoscaler's orders.
type cloud struct{ *Cluster }

// Grow orders n VMs.
func (c cloud) Grow(name string, n int) error {
	g := c.groups[name]
	if g.Fault.Refusal != "" {
		return errors.New(g.Fault.Refusal)
	}
	c.orders = append(c.orders, Order{At: c.now, Group: name, Nodes: n})
	for range n {
		if g.Fault.NoVM {
			c.raise(name)
			continue
		}
		vm := c.order(name, vm{group: name, errorCode: g.Fault.ErrorCode})
		if !g.Fault.NeverRegisters && g.Fault.ErrorCode == "" {
			c.after(c.bootTime(g.Group), nodeRegisters, vm)
		}
	}
	return nil
}

// Delete deletes VMs without a Node.
func (c cloud) Delete(group string, instances []string) error {
	for _, name := range instances {
		c.forget(name)
	}
	c.lower(group, len(instances))
	return nil
}

// Lower lowers the target by n nodes for which no VM exists. Like Grow, it also changes the cached target.
func (c cloud) Lower(name string, n int) error {
	c.lower(name, n)
	g := c.groups[name]
	g.cached -= n
	c.groups[name] = g
	return nil
}

// order creates a VM, which raises the target. It returns the VM's name.
func (c *Cluster) order(name string, v vm) string {
	g := c.raise(name)
	vm := fmt.Sprintf("%s%06d", name, g.serial)
	c.vms[vm] = v
	return vm
}

// raise raises the group's target by one. It also raises the target that the autoscaler has cached, because the
// autoscaler's own orders update its cache.
func (c *Cluster) raise(name string) group {
	g := c.groups[name]
	g.target++
	g.cached++
	g.serial++
	c.groups[name] = g
	return g
}

func (c *Cluster) lower(name string, n int) {
	g := c.groups[name]
	g.target -= n
	c.groups[name] = g
}

func (c *Cluster) bootTime(g Group) time.Duration {
	if g.Jitter == 0 {
		return g.Boot
	}
	return g.Boot + time.Duration(rand.New(&c.random).Int64N(int64(g.Jitter)))
}

// register creates the VM's Node. With atOnce, the Node is ready at once, because it is one of the cluster's first
// nodes.
func (c *Cluster) register(name string, atOnce bool) {
	v, ok := c.vms[name]
	if !ok || v.deleting {
		return
	}
	g := c.groups[v.group]
	node := g.Template.DeepCopy()
	node.Name, node.UID, node.CreationTimestamp = name, types.UID(name), metav1.NewTime(c.now)
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	node.Labels[corev1.LabelHostname] = name
	if node.Spec.ProviderID == "" {
		node.Spec.ProviderID = "azure:///" + name
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: node.CreationTimestamp}}
	node.Spec.Taints = append(node.Spec.Taints, noSchedule(corev1.TaintNodeNotReady))
	if g.StartupTaint != "" && !atOnce {
		node.Spec.Taints = append(node.Spec.Taints, noSchedule(g.StartupTaint))
	}
	c.nodes[name] = node
	if atOnce || g.ReadyAfter == 0 {
		c.ready(name)
		return
	}
	c.after(g.ReadyAfter, nodeReady, name)
}

func (c *Cluster) ready(name string) {
	c.SetReady(name, true)
	if g := c.groups[c.vms[name].group]; g.StartupTaint != "" {
		c.after(g.StartupFor, startupOver, name)
	}
}

// SetReady sets whether the node is ready, and adds or removes the taint for nodes that are not ready.
func (c *Cluster) SetReady(name string, ready bool) {
	c.UpdateNode(name, func(node *corev1.Node) {
		condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(c.now)}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
		if ready {
			condition.Status = corev1.ConditionTrue
		} else {
			node.Spec.Taints = append(node.Spec.Taints, noSchedule(corev1.TaintNodeNotReady))
		}
		node.Status.Conditions = []corev1.NodeCondition{condition}
	})
}

func (c *Cluster) removeTaint(name, key string) {
	c.UpdateNode(name, func(node *corev1.Node) {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	})
}

func noSchedule(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}
}

// drain begins to drain the node. Its pods are deleted and replaced, and its VM is deleted when the drain is over.
func (c *Cluster) drain(node string) {
	var wait time.Duration
	if c.replacePods(node) {
		wait = c.options.DrainTime
	}
	c.after(wait, vmDeleted, node)
}

// replacePods deletes the node's pods, and creates new pods as the owners would. It reports whether the node had pods.
func (c *Cluster) replacePods(node string) bool {
	found := false
	for _, pod := range c.Pods() {
		if pod.Spec.NodeName != node {
			continue
		}
		found = true
		c.ReplacePod(pod)
	}
	return found
}

// ReplacePod deletes the pod, and creates a new pod as its owner would.
func (c *Cluster) ReplacePod(pod *corev1.Pod) {
	delete(c.pods, pod.Name)
	again := pod.DeepCopy()
	c.serial++
	again.Name, again.UID, again.Spec.NodeName, again.Status = fmt.Sprintf("%s-%d", pod.Name, c.serial), "", "", corev1.PodStatus{}
	c.AddPod(again)
}

// accept accepts the deletion of the node's VM. The target falls at once. The Node is deleted after Linger.
func (c *Cluster) accept(node string) {
	v, ok := c.vms[node]
	if !ok || v.deleting {
		return
	}
	v.deleting = true
	c.vms[node] = v
	c.lower(v.group, 1)
	if c.options.Linger == 0 {
		c.forget(node)
		return
	}
	c.after(c.options.Linger, nodeGone, node)
}

// forget deletes the VM and its Node. It replaces the pods that are still on the Node.
func (c *Cluster) forget(node string) {
	delete(c.vms, node)
	if c.nodes[node] == nil {
		return
	}
	delete(c.nodes, node)
	c.replacePods(node)
	c.changed()
}

// world returns the input of a loop.
func (c *Cluster) world() autoscaler.World {
	w := autoscaler.World{Nodes: c.Nodes(), Pods: c.Pods(), Unhealthy: c.unhealthy}
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		if c.options.SizeCache == 0 || g.cachedAt.IsZero() || c.now.Sub(g.cachedAt) >= c.options.SizeCache {
			g.cached, g.cachedAt = g.target, c.now
			c.groups[name] = g
		}
		w.Groups = append(w.Groups, autoscaler.Group{
			Name: name, Min: g.Min, Max: g.Max, Priority: g.Priority, Target: g.cached, Template: g.Template, Unhealthy: g.Unhealthy,
			Instances: c.instances(name),
		})
	}
	return w
}

func (c *Cluster) instances(group string) []autoscaler.Instance {
	var result []autoscaler.Instance
	for _, name := range slices.Sorted(maps.Keys(c.vms)) {
		if v := c.vms[name]; v.group == group {
			result = append(result, autoscaler.Instance{Name: name, Deleting: v.deleting, ErrorCode: v.errorCode, ErrorMessage: v.errorCode})
		}
	}
	return result
}

// virtualNode returns a virtual node like AKS's.
func virtualNode(now time.Time) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: VirtualNode, CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{
			"type": "virtual-kubelet", corev1.LabelHostname: VirtualNode, corev1.LabelOSStable: "linux",
		}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: ProviderTaint, Value: "azure", Effect: corev1.TaintEffectNoSchedule}, noSchedule(GateTaint),
		}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("10000"), corev1.ResourceMemory: resource.MustParse("4Ti"), corev1.ResourcePods: resource.MustParse("5000"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// NewNode returns a node with this CPU, 8 Gi of memory and room for 110 pods, as the template of a group.
func NewNode(cpu string, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

// NewPod returns a pod of a ReplicaSet that requests this CPU.
func NewPod(name, cpu string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "owner", Controller: ptr.To(true)},
		}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}
