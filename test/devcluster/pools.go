package devcluster

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
	"poolpriority.dev/scheduler/test/devcluster/virtualnode"
)

const (
	kwokAnnotation, kwokFake = "kwok.x-k8s.io/node", "fake"

	// AgentPoolLabel and ModeLabel are AKS's labels for a node's agent pool and the pool's mode.
	AgentPoolLabel, ModeLabel = "kubernetes.azure.com/agentpool", "kubernetes.azure.com/mode"
	legacyAgentPoolLabel      = "agentpool"
)

// Pool describes a node pool of VMs, as an AKS agent pool of type VMSS.
type Pool struct {
	Name string `json:"name"`
	// Mode is user or system.
	Mode string `json:"mode"`
	// Nodes is the number of VMs at the start. Min and Max limit the number of VMs that the autoscaler may set.
	Nodes int `json:"nodes"`
	Min   int `json:"min"`
	Max   int `json:"max"`
	// CPU and Memory are the allocatable resources of a VM.
	CPU    resource.Quantity `json:"cpu"`
	Memory resource.Quantity `json:"memory"`
	// Labels and Taints are added to those that AKS sets.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Priority is the pool's priority in the autoscaler's priority expander: the pool with the highest priority grows
	// first.
	Priority int `json:"priority,omitempty"`
	// BootDelay is the time from the order of a VM to the registration of its Node.
	BootDelay metav1.Duration `json:"bootDelay,omitempty"`
	// StartupTaint is the key of a taint with effect NoSchedule. A new Node has this taint for the time StartupFor. If
	// StartupTaint is "", new Nodes have no such taint.
	StartupTaint string          `json:"startupTaint,omitempty"`
	StartupFor   metav1.Duration `json:"startupFor,omitempty"`
}

// Group returns the name of the pool's scale set, the autoscaler's node group.
func (p *Pool) Group() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.Name)) // it never fails
	return fmt.Sprintf("aks-%s-%08d-vmss", p.Name, h.Sum32()%1e8)
}

// Node returns a node of the pool with this name.
func (p *Pool) Node(name string) *corev1.Node {
	labels := map[string]string{
		AgentPoolLabel: p.Name, legacyAgentPoolLabel: p.Name, ModeLabel: p.Mode,
		corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		corev1.LabelInstanceTypeStable: "Standard_D2s_v5", corev1.LabelTopologyRegion: "westeurope", corev1.LabelTopologyZone: "westeurope-1",
	}
	maps.Copy(labels, p.Labels)
	allocatable := corev1.ResourceList{
		corev1.ResourceCPU: p.CPU, corev1.ResourceMemory: p.Memory,
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("120Gi"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, Annotations: map[string]string{kwokAnnotation: kwokFake}},
		Spec:       corev1.NodeSpec{Taints: slices.Clone(p.Taints), ProviderID: "azure:///" + name},
		Status:     corev1.NodeStatus{Capacity: allocatable, Allocatable: allocatable},
	}
}

// LoadPools reads a list of pools from a YAML file.
func LoadPools(path string) ([]Pool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the pools: %w", err)
	}
	var pools []Pool
	if err := yaml.UnmarshalStrict(data, &pools); err != nil {
		return nil, fmt.Errorf("reading the pools in %s: %w", path, err)
	}
	for i, p := range pools {
		if p.Name == "" || p.CPU.IsZero() || p.Memory.IsZero() || p.Nodes > p.Max || p.Min > p.Max {
			return nil, fmt.Errorf("reading the pools in %s: [%d]: name, cpu and memory are needed, and nodes and min at most max", path, i)
		}
	}
	return pools, nil
}

// PoolManager is a pool's scale set: it creates and deletes VMs, as the cloud does.
type PoolManager struct {
	Pool
	life   context.Context // ends with the cluster: VMs boot even if the autoscaler has ended
	client kubernetes.Interface

	mu     sync.Mutex
	serial int
	vms    map[string]vmState
}

// vmState is a VM's state in its life cycle.
type vmState int

const (
	booting vmState = iota
	registered
)

func newPoolManager(life context.Context, pool Pool, client kubernetes.Interface) *PoolManager {
	return &PoolManager{Pool: pool, life: life, client: client, vms: map[string]vmState{}}
}

// Target returns the number of ordered VMs without those that were deleted.
func (m *PoolManager) Target() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.vms)
}

// Grow orders n VMs, and returns at once. The VMs register their Nodes after the boot delay.
func (m *PoolManager) Grow(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range n {
		name := fmt.Sprintf("%s%06d", m.Group(), m.serial)
		m.serial++
		m.vms[name] = booting
		time.AfterFunc(m.BootDelay.Duration, func() { m.boot(name) })
	}
}

func (m *PoolManager) boot(name string) {
	if !m.Owns(name) {
		return
	}
	node := m.Node(name)
	if m.StartupTaint != "" {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: m.StartupTaint, Effect: corev1.TaintEffectNoSchedule})
	}
	if !m.try(func() error {
		_, err := m.client.CoreV1().Nodes().Create(m.life, node, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}) {
		return
	}
	m.mu.Lock()
	if _, wanted := m.vms[name]; wanted {
		m.vms[name] = registered
	}
	m.mu.Unlock()
	if m.StartupTaint != "" {
		time.AfterFunc(m.StartupFor.Duration, func() { m.endStartup(name) })
	}
}

// endStartup removes the startup taint, as a DaemonSet does when it has prepared the node.
func (m *PoolManager) endStartup(name string) {
	nodes := m.client.CoreV1().Nodes()
	m.try(func() error {
		node, err := nodes.Get(m.life, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == m.StartupTaint })
		_, err = nodes.Update(m.life, node, metav1.UpdateOptions{})
		return err
	})
}

// try calls f until it succeeds, as a kubelet retries its registration. It reports whether f succeeded before the
// cluster ended.
func (m *PoolManager) try(f func() error) bool {
	for f() != nil {
		select {
		case <-m.life.Done():
			return false
		case <-time.After(time.Second):
		}
	}
	return true
}

// Delete deletes a VM and its Node. The target falls at once.
func (m *PoolManager) Delete(ctx context.Context, name string) error {
	m.mu.Lock()
	delete(m.vms, name)
	m.mu.Unlock()
	if err := m.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting node %s: %w", name, err)
	}
	return nil
}

// Owns reports whether the VM is one of the pool's.
func (m *PoolManager) Owns(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.vms[name]
	return ok
}

// instances returns the VMs as the cloud lists them.
func (m *PoolManager) instances() []autoscaler.Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	var result []autoscaler.Instance
	for _, name := range slices.Sorted(maps.Keys(m.vms)) {
		result = append(result, autoscaler.Instance{Name: name})
	}
	return result
}

// startNodes brings up the pools' first nodes, the virtual node and the autoscaler.
func (c *Cluster) startNodes(ctx context.Context) error {
	for _, pool := range c.options.Pools {
		delay := pool.BootDelay
		pool.BootDelay.Duration = 0
		m := newPoolManager(ctx, pool, c.Client)
		c.Pools = append(c.Pools, m)
		m.Grow(pool.Nodes)
		m.BootDelay = delay
	}
	if c.options.VirtualNode {
		var err error
		if c.VirtualNode, err = c.AddVirtualNode(ctx, virtualnode.Options{}); err != nil {
			return err
		}
	}
	if err := c.waitForNodes(ctx); err != nil {
		return err
	}
	if c.options.Autoscaler == nil {
		return nil
	}
	var err error
	if c.Autoscaler, err = newAutoscaler(c.Config, *c.options.Autoscaler, c.Pools); err != nil {
		return err
	}
	return c.Autoscaler.Start(ctx)
}

// AddVirtualNode starts a virtual node, and returns when the node is ready for pods. The node runs until it or the
// cluster is stopped. Each virtual node must have a different name.
func (c *Cluster) AddVirtualNode(ctx context.Context, options virtualnode.Options) (*virtualnode.Node, error) {
	if options.LeaseDuration == 0 {
		options.LeaseDuration = c.leaseDuration()
	}
	n := virtualnode.New(c.Client, options)
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	c.virtual = append(c.virtual, n)
	return n, nil
}

// waitForNodes waits until all nodes that were ordered are ready, and pods can be created.
func (c *Cluster) waitForNodes(ctx context.Context) error {
	want := 0
	for _, m := range c.Pools {
		want += m.Target()
	}
	if c.options.VirtualNode {
		want++
	}
	err := poll(ctx, startTimeout, c.Failed, func() error {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for i := range nodes.Items {
			if autoscaler.Ready(&nodes.Items[i]) {
				ready++
			}
		}
		if ready < want {
			return fmt.Errorf("%d of %d nodes are ready", ready, want)
		}
		_, err = c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for the nodes: %w", err)
	}
	return nil
}
