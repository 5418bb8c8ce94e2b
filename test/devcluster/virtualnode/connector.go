package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vk "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"poolpriority.dev/scheduler/test/devcluster/azure"
)

// connector is a provider of virtual-kubelet that behaves as azure-aci does. At each call of GetPod, it gets the pod's
// group from Azure. If it cannot read the group, GetPod fails, and virtual-kubelet treats the pod as missing.
type connector struct {
	node       string
	azure      *azure.Region
	interval   time.Duration
	pods       corelisters.PodLister
	secrets    corelisters.SecretLister
	configMaps corelisters.ConfigMapLister

	mu     sync.Mutex
	notify func(*corev1.Pod)
	quiet  map[types.UID]time.Time // until when virtual-kubelet is not notified of a pod
}

var _ vk.PodLifecycleHandler = &connector{}
var _ vk.PodNotifier = &connector{}

func groupName(namespace, pod string) string { return namespace + "-" + pod }

// CreatePod sends a PUT of the pod's group. If azure-aci would refuse the pod itself, CreatePod returns an error
// instead.
func (c *connector) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	spec, err := c.spec(pod)
	if err != nil {
		return err
	}
	c.beQuiet(pod.UID, time.Hour)
	err = c.azure.Put(ctx, spec)
	if err != nil {
		c.beQuiet(pod.UID, time.Second)
	} else {
		c.beQuiet(pod.UID, 0)
	}
	return err
}

// beQuiet stops notifications about the pod for the time d, in which the pod is created or its refusal is written. If
// Azure has created the group although it refused the PUT, a notification in this time would overwrite the refusal.
// With azure-aci this is rare, because it polls only every 5 s.
func (c *connector) beQuiet(pod types.UID, d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quiet == nil {
		c.quiet = map[types.UID]time.Time{}
	}
	if c.quiet[pod] = time.Now().Add(d); d == 0 {
		delete(c.quiet, pod)
	}
}

func (c *connector) isQuiet(pod types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.quiet[pod])
}

// UpdatePod does nothing: a group cannot be changed.
func (c *connector) UpdatePod(context.Context, *corev1.Pod) error { return nil }

// DeletePod deletes the group and reports the pod's running containers as terminated. Without this report, the deletion
// would never finish.
func (c *connector) DeletePod(_ context.Context, pod *corev1.Pod) error {
	c.azure.Delete(groupName(pod.Namespace, pod.Name))
	known, err := c.pods.Pods(pod.Namespace).Get(pod.Name)
	if err != nil {
		return nil // the pod was deleted from Kubernetes
	}
	ended := known.DeepCopy()
	terminate(&ended.Status, 0, "PodDeleted", "The pod was deleted")
	c.tell(ended)
	return nil
}

// terminate marks the running containers as terminated.
func terminate(status *corev1.PodStatus, code int32, reason, message string) {
	for i := range status.ContainerStatuses {
		s := &status.ContainerStatuses[i]
		if s.State.Running == nil {
			continue
		}
		s.Ready = false
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Reason: reason, Message: message, StartedAt: s.State.Running.StartedAt, FinishedAt: metav1.Now(), ContainerID: s.ContainerID,
		}}
	}
}

// group gets the group from Azure. If the response has no instanceView of the group, it fails.
func (c *connector) group(namespace, name string) (azure.Group, error) {
	g, err := c.azure.Get(groupName(namespace, name))
	if refusal := (&azure.Error{}); errors.As(err, &refusal) && refusal.Status == http.StatusNotFound {
		return g, errdefs.NotFoundf("container group %s is not found", name)
	} else if err != nil {
		return g, err
	}
	if g.View == azure.ViewNone {
		return g, fmt.Errorf("InstanceView cannot be nil for container group %s", g.Name)
	}
	return g, nil
}

// GetPod returns the pod with the status that it has in Azure. While the containers have no instanceView, GetPod fails.
// If the pod was deleted from Kubernetes, GetPod returns a pod that has only a name, so that virtual-kubelet deletes
// the group.
func (c *connector) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	g, err := c.group(namespace, name)
	if err != nil {
		return nil, err
	}
	pod, err := c.pods.Pods(namespace).Get(name)
	if err != nil {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}, nil
	}
	status, err := statusOf(&g, pod)
	if err != nil {
		return nil, err
	}
	pod = pod.DeepCopy()
	pod.Status = *status
	return pod, nil
}

// GetPodStatus returns the status of the pod that GetPod returns.
func (c *connector) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := c.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods returns the pods of this node's groups. It leaves out groups that it cannot read.
func (c *connector) GetPods(ctx context.Context) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	for _, name := range c.azure.List() {
		g, err := c.azure.Get(name)
		if err != nil || g.Node != c.node {
			continue
		}
		if pod, err := c.GetPod(ctx, g.Namespace, g.Pod); err == nil {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// NotifyPods starts to watch the pods' groups, and calls notify for changed pods until the context ends.
func (c *connector) NotifyPods(ctx context.Context, notify func(*corev1.Pod)) {
	c.mu.Lock()
	c.notify = notify
	c.mu.Unlock()
	go c.track(ctx)
}

func (c *connector) tell(pod *corev1.Pod) {
	c.mu.Lock()
	notify := c.notify
	c.mu.Unlock()
	notify(pod)
}
