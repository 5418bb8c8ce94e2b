// Package virtualnode is the node of AKS's virtual-node add-on: the real virtual-kubelet, with a connector that handles
// pods as azure-aci v1.6.4 does. Package azure simulates Azure. The simulated Azure runs on while the connector is
// stopped.
package virtualnode

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	vk "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"poolpriority.dev/scheduler/test/devcluster/azure"
)

// Name is the name that AKS's virtual-node add-on gives its node.
const Name = "virtual-node-aci-linux"

// DefaultPollInterval is the interval at which a connector polls its pods' groups. In azure-aci, the interval is 5 s.
const DefaultPollInterval = 200 * time.Millisecond

// Options configure a virtual node. The zero value means the node of AKS's add-on, with a new region.
type Options struct {
	// Name is the name of the Node; the default is the constant Name.
	Name string
	// Labels are added to those of AKS's add-on. Virtual nodes v2 have the label virtualization=virtualnode2.
	Labels map[string]string
	// PollInterval is the interval at which the connector polls its pods' groups; the default is DefaultPollInterval.
	PollInterval time.Duration
	// LeaseDuration is the duration of the Node's lease, in whole seconds; the default is 40 s. The connector renews
	// the lease four times in this duration.
	LeaseDuration time.Duration
}

// Node is a virtual node: a connector that can be stopped and started, and the region of Azure that it talks to.
type Node struct {
	client  kubernetes.Interface
	options Options

	azure *azure.Region

	mu   sync.Mutex
	stop func() // nil while the connector does not run
}

// New returns a virtual node whose connector does not run yet.
func New(client kubernetes.Interface, options Options) *Node {
	options.Name = cmp.Or(options.Name, Name)
	options.PollInterval = cmp.Or(options.PollInterval, DefaultPollInterval)
	options.LeaseDuration = cmp.Or(options.LeaseDuration, 40*time.Second)
	return &Node{client: client, options: options, azure: azure.NewRegion()}
}

// Name returns the name of the Node.
func (n *Node) Name() string { return n.options.Name }

// Azure returns the region that the pods run in. Tests may change the region's settings at any time. The region runs on
// while the connector is stopped.
func (n *Node) Azure() *azure.Region { return n.azure }

// Start starts the connector, and returns when the connector serves the Node and its pods. If the Node does not exist,
// the connector creates it. The connector runs until Stop is called or the context ends.
func (n *Node) Start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop != nil {
		return fmt.Errorf("the connector of %s runs already", n.Name())
	}
	ctx, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = n.run(ctx, func() { close(ready) })
	}()
	select {
	case <-ready:
	case <-ended:
		cancel()
		return err
	}
	n.stop = func() {
		cancel()
		<-ended
	}
	return nil
}

// Stop stops the connector as if it were killed. Groups run on, and the statuses of their pods do not change. The Node
// becomes NotReady if its lease is not renewed for the node-lifecycle controller's grace period (50 s; see
// Options.NodeGrace in package devcluster).
func (n *Node) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop != nil {
		n.stop()
		n.stop = nil
	}
}

// Restart stops the connector if it runs, and starts a new connector without the state of the old one. If the Node was
// deleted, the new connector creates it again. A running connector does not create a deleted Node again.
func (n *Node) Restart(ctx context.Context) error {
	n.Stop()
	return n.Start(ctx)
}

// object returns the Node of AKS's add-on, with its labels, taint and capacity. It has no providerID, zone,
// architecture label or ephemeral storage.
func (n *Node) object() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("10000"),
		corev1.ResourceMemory: resource.MustParse("4Ti"),
		corev1.ResourcePods:   resource.MustParse("5000"),
	}
	labels := map[string]string{
		"type":                  "virtual-kubelet",
		"kubernetes.io/role":    "agent",
		corev1.LabelOSStable:    "linux",
		"beta.kubernetes.io/os": "linux",
		corev1.LabelHostname:    n.Name(),
		"alpha.service-controller.kubernetes.io/exclude-balancer": "true",
		corev1.LabelNodeExcludeBalancers:                          "true",
	}
	maps.Copy(labels, n.options.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name(), Labels: labels},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			NodeInfo:   corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now()}},
		},
	}
}

// run registers the node and serves it until the context ends. When the node and its pods are served, it calls ready.
// If the node cannot be served, it returns an error.
func (n *Node) run(ctx context.Context, ready func()) error {
	const resync = time.Minute
	pods := informers.NewSharedInformerFactoryWithOptions(n.client, resync, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.Name()).String()
	}))
	others := informers.NewSharedInformerFactory(n.client, resync)
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.client.CoreV1().Events("")})
	podController, err := vk.NewPodController(vk.PodControllerConfig{
		PodClient:         n.client.CoreV1(),
		PodInformer:       pods.Core().V1().Pods(),
		ConfigMapInformer: others.Core().V1().ConfigMaps(),
		SecretInformer:    others.Core().V1().Secrets(),
		ServiceInformer:   others.Core().V1().Services(),
		EventRecorder:     broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "virtual-kubelet", Host: n.Name()}),
		Provider: &connector{
			node: n.Name(), azure: n.Azure(), interval: n.options.PollInterval, pods: pods.Core().V1().Pods().Lister(),
			secrets: others.Core().V1().Secrets().Lister(), configMaps: others.Core().V1().ConfigMaps().Lister(),
		},
		SyncPodsFromKubernetesRateLimiter:    onlyFailures(),
		DeletePodsFromKubernetesRateLimiter:  onlyFailures(),
		SyncPodStatusFromProviderRateLimiter: onlyFailures(),
	})
	if err != nil {
		return fmt.Errorf("making the virtual node's pod controller: %w", err)
	}
	nodeController, err := vk.NewNodeController(vk.NewNaiveNodeProvider(), n.object(), n.client.CoreV1().Nodes(),
		vk.WithNodeEnableLeaseV1(n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease), int32(n.options.LeaseDuration/time.Second)))
	if err != nil {
		return fmt.Errorf("making the virtual node: %w", err)
	}
	for _, factory := range []informers.SharedInformerFactory{pods, others} {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	return serve(ctx, podController, nodeController, ready)
}

// serve runs the controllers until the context or one of them ends.
func serve(ctx context.Context, podController *vk.PodController, nodeController *vk.NodeController, ready func()) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	running.Go(func() { _ = podController.Run(ctx, 20) })
	running.Go(func() { _ = nodeController.Run(ctx) })
	select {
	case <-podController.Ready():
	case <-podController.Done():
		return fmt.Errorf("running the virtual node's pods: %w", podController.Err())
	}
	select {
	case <-nodeController.Ready():
	case <-nodeController.Done():
		return fmt.Errorf("running the virtual node: %w", nodeController.Err())
	}
	ready()
	var err error
	select {
	case <-podController.Done():
		err = podController.Err()
	case <-nodeController.Done():
		err = nodeController.Err()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the virtual node has ended: %w", err)
}

// onlyFailures returns a rate limiter that delays failed items as virtual-kubelet's default does: by 5 ms, doubled each
// time, up to 1000 s. The default also limits all items to ten a second after the first hundred. In tests, this limit
// would only take time.
func onlyFailures() workqueue.TypedRateLimiter[any] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[any](5*time.Millisecond, 1000*time.Second)
}

// FailedStart returns those of the pods whose creation was refused. The connector never updates the status of such a
// pod again.
func FailedStart(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Status.Reason != reasonProviderFailed })
}
