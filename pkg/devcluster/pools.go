package devcluster

import (
	"context"
	"errors"
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

	"poolpriority.dev/scheduler/pkg/devcluster/virtualnode"
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
	// Nodes is the number of VMs at the start; Min and Max are the autoscaler's bounds.
	Nodes int `json:"nodes"`
	Min   int `json:"min"`
	Max   int `json:"max"`
	// CPU and Memory are what a VM offers to pods.
	CPU    resource.Quantity `json:"cpu"`
	Memory resource.Quantity `json:"memory"`
	// Labels and Taints are added to those that AKS sets.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Priority is that of the autoscaler's priority expander: the highest grows first.
	Priority int `json:"priority,omitempty"`
	// BootDelay is how long a VM takes from its order to its Node.
	BootDelay metav1.Duration `json:"bootDelay,omitempty"`
}

// Group is the name of the pool's scale set, the autoscaler's node group.
func (p *Pool) Group() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.Name)) // it never fails
	return fmt.Sprintf("aks-%s-%08d-vmss", p.Name, h.Sum32()%1e8)
}

// Node is a node of the pool.
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

// PoolManager is a pool's scale set: it makes VMs and takes them away, as the cloud does.
type PoolManager struct {
	Pool
	client kubernetes.Interface

	mu      sync.Mutex
	serial  int
	vms     map[string]bool // by name; false while the VM boots
	refusal error
}

func newPoolManager(pool Pool, client kubernetes.Interface) *PoolManager {
	return &PoolManager{Pool: pool, client: client, vms: map[string]bool{}}
}

// Target is the number of VMs that were ordered and not taken away.
func (m *PoolManager) Target() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.vms)
}

// Refuse makes orders fail with the message, as a quota does; an empty one ends that.
func (m *PoolManager) Refuse(message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refusal = nil
	if message != "" {
		m.refusal = errors.New(message)
	}
}

// Grow orders n VMs. It returns at once; their Nodes come after the boot delay.
func (m *PoolManager) Grow(ctx context.Context, n int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refusal != nil {
		return m.refusal
	}
	for range n {
		name := fmt.Sprintf("%s%06d", m.Group(), m.serial)
		m.serial++
		m.vms[name] = false
		time.AfterFunc(m.BootDelay.Duration, func() { m.boot(ctx, name) })
	}
	return nil
}

func (m *PoolManager) boot(ctx context.Context, name string) {
	m.mu.Lock()
	_, wanted := m.vms[name]
	m.mu.Unlock()
	if !wanted || ctx.Err() != nil {
		return
	}
	for {
		_, err := m.client.CoreV1().Nodes().Create(ctx, m.Node(name), metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second): // a kubelet, too, tries to register until it can
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, wanted := m.vms[name]; wanted {
		m.vms[name] = true
	}
}

// Delete takes a VM away, with its Node.
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

// startNodes brings up the pools' first nodes, the virtual node and the autoscaler.
func (c *Cluster) startNodes(ctx context.Context) error {
	for _, pool := range c.options.Pools {
		delay := pool.BootDelay
		pool.BootDelay.Duration = 0
		m := newPoolManager(pool, c.Client)
		c.Pools = append(c.Pools, m)
		if err := m.Grow(ctx, pool.Nodes); err != nil {
			return err
		}
		m.BootDelay = delay
	}
	if c.options.VirtualNode {
		ready, failed := make(chan struct{}), make(chan error, 1)
		c.run(func() { failed <- virtualnode.Run(ctx, c.Client, func() { close(ready) }) })
		select {
		case <-ready:
		case err := <-failed:
			return err
		}
	}
	if err := c.waitForNodes(ctx); err != nil {
		return err
	}
	if c.options.Autoscaler == nil {
		return nil
	}
	autoscaler, err := newAutoscaler(c.Config, *c.options.Autoscaler, c.Pools)
	if err != nil {
		return err
	}
	c.Autoscaler = autoscaler
	return autoscaler.Start(ctx)
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
	err := poll(ctx, time.Minute, c.Failed, func() error {
		nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for i := range nodes.Items {
			if nodeIsReady(&nodes.Items[i]) {
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

// nodeIsReady reports whether the node is ready and the taints that say otherwise are gone. Source: the cluster
// autoscaler's utils/kubernetes/ready.go, which looks at both.
func nodeIsReady(node *corev1.Node) bool {
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeDiskPressure, corev1.TaintNodeNetworkUnavailable} {
		if hasTaint(node, taint) {
			return false
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func hasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// run runs a part of the cluster in this process; Stop waits for its end.
func (c *Cluster) run(f func()) {
	done := make(chan struct{})
	c.running = append(c.running, done)
	go func() {
		defer close(done)
		f()
	}()
}
