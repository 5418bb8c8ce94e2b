package virtualnode

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster/azure"
)

const (
	// reasonProviderFailed is virtual-kubelet's reason for a pod that could not be created.
	reasonProviderFailed = "ProviderFailed"

	reasonNotFound   = "NotFound"
	messageNotFound  = "The pod may have been deleted from the provider"
	exitCodeNotFound = -137
)

// track runs until the context ends. Once in each interval, it calls the method look.
func (c *connector) track(ctx context.Context) {
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	told := map[types.UID]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			told = c.look(told)
		}
	}
}

// look notifies virtual-kubelet of the pods whose group has changed since the last notification. told has a key of each
// group's state at the last notification; look returns the new keys. azure-aci notifies at each poll, and
// virtual-kubelet drops repetitions. At the short interval of tests, this would take much CPU time.
func (c *connector) look(told map[types.UID]string) map[types.UID]string {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return told
	}
	tells := make(map[types.UID]string, len(pods))
	for _, pod := range pods {
		if given(pod) || c.isQuiet(pod.UID) {
			continue
		}
		updated, says := c.fetch(pod)
		if updated == nil {
			continue
		}
		tells[pod.UID] = says
		// While a Node is NotReady, the node-lifecycle controller also sets the Node's pods to not ready. The
		// notification sets them to ready again.
		if told[pod.UID] != says || pod.Status.Phase != updated.Status.Phase || ready(&pod.Status) != ready(&updated.Status) {
			c.tell(updated)
		}
	}
	return tells
}

func ready(status *corev1.PodStatus) bool {
	return slices.ContainsFunc(status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// given reports whether azure-aci no longer polls the pod's group. This is so if the pod has ended, is being deleted,
// or could not be created.
func given(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.Status.Reason == reasonProviderFailed || pod.DeletionTimestamp != nil
}

// fetch returns the pod with the status that follows from its group, and a key of the group's state. If there is
// nothing to report, fetch returns nil.
func (c *connector) fetch(pod *corev1.Pod) (updated *corev1.Pod, says string) {
	g, err := c.group(pod.Namespace, pod.Name)
	if errdefs.IsNotFound(err) && pod.Status.Phase == corev1.PodRunning {
		updated = pod.DeepCopy()
		updated.Status.Phase, updated.Status.Reason, updated.Status.Message = corev1.PodFailed, reasonNotFound, messageNotFound
		terminate(&updated.Status, exitCodeNotFound, reasonNotFound, messageNotFound)
		return updated, reasonNotFound
	} else if err != nil {
		return nil, ""
	}
	status, err := statusOf(&g, pod)
	if err != nil {
		return nil, ""
	}
	updated = pod.DeepCopy()
	updated.Status = *status
	return updated, fmt.Sprint(g.UID, g.State, g.Restarts)
}

// statusOf returns the status that follows from the pod's group. As with azure-aci, it replaces the whole status. If
// the group is in transition or has failed, the pod has no conditions. Otherwise the last transition of Initialized and
// PodScheduled is the pod's creation. If the containers have no instanceView, statusOf fails.
func statusOf(g *azure.Group, pod *corev1.Pod) (*corev1.PodStatus, error) {
	if g.View != azure.ViewWaiting {
		return nil, fmt.Errorf("container %s properties InstanceView cannot be nil", g.Containers[0].Name)
	}
	status := &corev1.PodStatus{Phase: corev1.PodPhase(g.State), StartTime: ptr.To(metav1.NewTime(g.Made))}
	if g.State != azure.Pending {
		status.HostIP, status.PodIP, status.StartTime = hostIP, g.Address, ptr.To(metav1.NewTime(g.Started))
	}
	if g.State == azure.Running || g.State == azure.Succeeded {
		created := pod.CreationTimestamp
		status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(g.Started)},
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: created},
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: created},
		}
	}
	for _, container := range g.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: g.State == azure.Running, RestartCount: g.Restarts,
			State: containerState(g), ContainerID: "aci://" + g.Name + "/" + container.Name,
		})
	}
	return status, nil
}

const hostIP = "10.240.0.4"

func containerState(g *azure.Group) corev1.ContainerState {
	started := metav1.NewTime(g.Started)
	switch g.State {
	case azure.Running:
		return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
	case azure.Succeeded:
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: metav1.NewTime(g.Ended)}}
	case azure.Failed:
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Failed", ExitCode: g.ExitCode, StartedAt: started, FinishedAt: metav1.NewTime(g.Ended)}}
	}
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Waiting"}}
}
