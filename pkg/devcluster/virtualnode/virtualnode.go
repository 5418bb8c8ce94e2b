// Package virtualnode is the node of AKS's virtual-node add-on: the real virtual-kubelet, with a provider that keeps pods in memory
// instead of running them as Azure container instances.
package virtualnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
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
)

// Name is the name that AKS's virtual-node add-on gives its node.
const Name = "virtual-node-aci-linux"

// virtualNode is AKS's virtual node: its name, labels, taint and capacity. It has no providerID, zone or ephemeral storage.
func virtualNode() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("10000"),
		corev1.ResourceMemory: resource.MustParse("4Ti"),
		corev1.ResourcePods:   resource.MustParse("5000"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name,
			Labels: map[string]string{
				"type":                  "virtual-kubelet",
				"kubernetes.io/role":    "agent",
				corev1.LabelOSStable:    "linux",
				"beta.kubernetes.io/os": "linux",
				corev1.LabelHostname:    Name,
				"alpha.service-controller.kubernetes.io/exclude-balancer": "true",
				corev1.LabelNodeExcludeBalancers:                          "true",
			},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "virtual-kubelet.io/provider", Value: "azure", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			NodeInfo:   corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastTransitionTime: metav1.Now()}},
		},
	}
}

// Run registers the node and serves it until the context ends. It calls ready once the node and its pods are served, and returns an
// error if that cannot be.
func Run(ctx context.Context, client kubernetes.Interface, ready func()) error {
	const resync = time.Minute
	pods := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", Name).String()
	}))
	others := informers.NewSharedInformerFactory(client, resync)
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	podController, err := vk.NewPodController(vk.PodControllerConfig{
		PodClient:         client.CoreV1(),
		PodInformer:       pods.Core().V1().Pods(),
		ConfigMapInformer: others.Core().V1().ConfigMaps(),
		SecretInformer:    others.Core().V1().Secrets(),
		ServiceInformer:   others.Core().V1().Services(),
		EventRecorder:     broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "virtual-kubelet", Host: Name}),
		Provider:          &memoryProvider{pods: map[string]*corev1.Pod{}},
		// By default it begins and ends ten pods a second, once it has had a hundred.
		SyncPodsFromKubernetesRateLimiter:    onlyFailures(),
		DeletePodsFromKubernetesRateLimiter:  onlyFailures(),
		SyncPodStatusFromProviderRateLimiter: onlyFailures(),
	})
	if err != nil {
		return fmt.Errorf("making the virtual node's pod controller: %w", err)
	}
	nodeController, err := vk.NewNodeController(vk.NewNaiveNodeProvider(), virtualNode(), client.CoreV1().Nodes(),
		vk.WithNodeEnableLeaseV1(client.CoordinationV1().Leases(corev1.NamespaceNodeLease), 40))
	if err != nil {
		return fmt.Errorf("making the virtual node: %w", err)
	}
	pods.Start(ctx.Done())
	others.Start(ctx.Done())
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

// onlyFailures limits nothing but what is tried again.
func onlyFailures() workqueue.TypedRateLimiter[any] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[any](5*time.Millisecond, time.Minute)
}

// memoryProvider is a virtual-kubelet provider whose pods run at once and do nothing.
type memoryProvider struct {
	mu     sync.Mutex
	pods   map[string]*corev1.Pod
	notify func(*corev1.Pod)
}

var _ vk.PodLifecycleHandler = &memoryProvider{}
var _ vk.PodNotifier = &memoryProvider{}

func key(namespace, name string) string { return namespace + "/" + name }

func (m *memoryProvider) CreatePod(_ context.Context, pod *corev1.Pod) error {
	now := metav1.Now()
	created := pod.DeepCopy()
	created.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now}
	for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodScheduled} {
		created.Status.Conditions = append(created.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	for _, container := range pod.Spec.Containers {
		created.Status.ContainerStatuses = append(created.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	m.store(created)
	return nil
}

func (m *memoryProvider) store(pod *corev1.Pod) {
	m.mu.Lock()
	m.pods[key(pod.Namespace, pod.Name)] = pod
	notify := m.notify
	m.mu.Unlock()
	notify(pod.DeepCopy())
}

func (m *memoryProvider) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.pods[key(pod.Namespace, pod.Name)]; ok {
		updated := pod.DeepCopy()
		updated.Status = known.Status
		m.pods[key(pod.Namespace, pod.Name)] = updated
	}
	return nil
}

// DeletePod reports a terminal status, without which the deletion would never finish.
func (m *memoryProvider) DeletePod(_ context.Context, pod *corev1.Pod) error {
	m.mu.Lock()
	known, ok := m.pods[key(pod.Namespace, pod.Name)]
	delete(m.pods, key(pod.Namespace, pod.Name))
	notify := m.notify
	m.mu.Unlock()
	if !ok {
		return errdefs.NotFoundf("pod %s/%s", pod.Namespace, pod.Name)
	}
	now := metav1.Now()
	deleted := known.DeepCopy()
	deleted.Status.Phase = corev1.PodSucceeded
	for i := range deleted.Status.ContainerStatuses {
		deleted.Status.ContainerStatuses[i].Ready = false
		deleted.Status.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Deleted", FinishedAt: now}}
	}
	notify(deleted)
	return nil
}

func (m *memoryProvider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pod, ok := m.pods[key(namespace, name)]; ok {
		return pod.DeepCopy(), nil
	}
	return nil, errdefs.NotFoundf("pod %s/%s", namespace, name)
}

func (m *memoryProvider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := m.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

func (m *memoryProvider) GetPods(context.Context) ([]*corev1.Pod, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(m.pods))
	for _, pod := range m.pods {
		pods = append(pods, pod.DeepCopy())
	}
	return pods, nil
}

func (m *memoryProvider) NotifyPods(_ context.Context, notify func(*corev1.Pod)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notify = notify
}
