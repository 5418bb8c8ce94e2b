package returner

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/capacitybuffer"
)

// harmToBuffers is why a pod is not evicted that would take the room of a CapacityBuffer. The autoscaler would add a VM to
// refill the buffer, but Return adds no VM.
const harmToBuffers = "CapacityBuffers want the capacity"

// templateOf returns the pod template of the buffer; nil if it is not known.
func (r *Returner) templateOf(ctx context.Context, b *capacitybuffer.Buffer) (template *corev1.PodTemplateSpec, err error) {
	switch from := b.Spec.ScalableRef; {
	case b.Status.PodTemplateRef != nil:
		var found *corev1.PodTemplate
		if found, err = r.client.CoreV1().PodTemplates(b.Namespace).Get(ctx, b.Status.PodTemplateRef.Name, metav1.GetOptions{ResourceVersion: "0"}); err == nil {
			return &found.Template, nil
		}
	case from == nil:
	case from.Kind == "Deployment":
		if found, getErr := r.deployments.Deployments(b.Namespace).Get(from.Name); getErr == nil {
			return &found.Spec.Template, nil
		}
	case from.Kind == "ReplicaSet":
		if found, getErr := r.replicaSets.ReplicaSets(b.Namespace).Get(from.Name); getErr == nil {
			return &found.Spec.Template, nil
		}
	case from.Kind == "StatefulSet":
		found, getErr := r.client.AppsV1().StatefulSets(b.Namespace).Get(ctx, from.Name, metav1.GetOptions{ResourceVersion: "0"})
		if err = getErr; err == nil {
			return &found.Spec.Template, nil
		}
	}
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return nil, err
}

// leaveBuffers has the moves of this round leave the room that CapacityBuffers want. Without the right to read them, Return
// does not know this room.
func (r *Returner) leaveBuffers(ctx context.Context) error {
	if r.listBuffers == nil {
		return nil
	}
	buffers, err := r.listBuffers(ctx)
	for i := 0; i < len(buffers) && err == nil; i++ {
		var template *corev1.PodTemplateSpec
		if !buffers[i].IsActive() {
			continue
		} else if template, err = r.templateOf(ctx, &buffers[i]); err == nil && template != nil {
			err = r.seats.addBuffer(ctx, &buffers[i], template)
		}
	}
	if apierrors.IsForbidden(err) {
		r.forbidden.Do(func() {
			klog.FromContext(ctx).Error(err, "Pods that return may take the capacity that CapacityBuffers want. The controller needs the rights of manifests/components/return")
		})
		return nil
	}
	return err
}

// buffer has pods, all alike, for which an autoscaler keeps room.
type buffer struct {
	pod      fwk.PodInfo
	requests corev1.ResourceList
	count    int
	state    fwk.CycleState
	allowed  *fwk.PreFilterResult
}

// addBuffer adds a buffer to the round.
func (r *rooms) addBuffer(ctx context.Context, from *capacitybuffer.Buffer, template *corev1.PodTemplateSpec) error {
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName = from.Namespace, "capacity-buffer-"+from.Name, from.UID, ""
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return fmt.Errorf("reading the pods of CapacityBuffer %s/%s: %w", from.Namespace, from.Name, err)
	}
	b := &buffer{pod: info, requests: resource.PodRequests(pod, resource.PodResourcesOptions{}), count: from.Status.Replicas, state: framework.NewCycleState()}
	allowed, status, _ := r.framework.RunPreFilterPlugins(ctx, b.state, pod)
	if status.IsRejected() {
		return nil // no node has room
	}
	b.allowed = allowed
	r.buffers = append(r.buffers, b)
	return status.AsError()
}

// pack returns how many pods of the buffers fit beside all others. It counts affinity and topology spread between these
// pods and the moved pods as they were at the beginning of the round.
func (r *rooms) pack(ctx context.Context) (packed int, err error) {
	filled := map[string]fwk.NodeInfo{}
	for _, b := range r.buffers {
		left := b.count
		for i := 0; i < len(r.nodes) && left > 0; {
			name := r.nodes[i].Node().Name
			node, ok := filled[name]
			if !ok {
				node = r.latest(r.nodes[i])
			}
			if fits, err := r.fits(ctx, b.state, b.pod.GetPod(), b.requests, b.allowed, node); err != nil {
				return 0, err
			} else if !fits {
				i++
				continue
			}
			if !ok {
				node = node.Snapshot()
				filled[name] = node
			}
			node.AddPodInfo(b.pod)
			left, packed = left-1, packed+1
		}
	}
	return packed, nil
}

// isWanted reports whether the pod of the move may take room that a buffer wants: fewer pods of the buffers fit if the pod
// is on a node that the scheduler may choose. These are the nodes of m's pool with the highest score.
func (r *rooms) isWanted(ctx context.Context, state fwk.CycleState, m *move, allowed *fwk.PreFilterResult) (bool, error) {
	before, err := r.pack(ctx)
	if err != nil || before == 0 {
		return false, err
	}
	pod := m.pod.GetPod().DeepCopy()
	pod.Spec.NodeName = ""
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	to := slices.IndexFunc(r.nodes, func(node fwk.NodeInfo) bool { return node.Node().Name == m.to })
	var nodes []fwk.NodeInfo
	for i, node := range r.nodes {
		if r.ranks[i] != r.ranks[to] {
			continue
		}
		node = r.latest(node)
		if fits, err := r.fits(ctx, state, pod, requests, allowed, node); err != nil {
			return false, err
		} else if fits {
			nodes = append(nodes, node)
		}
	}
	if status := r.framework.RunPreScorePlugins(ctx, state, pod, nodes); !status.IsSuccess() {
		return false, status.AsError()
	}
	scores, status := r.framework.RunScorePlugins(ctx, state, pod, nodes)
	if !status.IsSuccess() {
		return false, status.AsError()
	}
	best := slices.MaxFunc(scores, func(a, b fwk.NodePluginScores) int { return cmp.Compare(a.TotalScore, b.TotalScore) }).TotalScore
	for i, node := range nodes {
		if scores[i].TotalScore < best {
			continue
		}
		name := node.Node().Name
		kept, was := r.kept[name]
		with := node.Snapshot()
		with.AddPodInfo(m.pod)
		r.kept[name] = with
		packed, err := r.pack(ctx)
		if delete(r.kept, name); was {
			r.kept[name] = kept
		}
		if err != nil || packed < before {
			return true, err
		}
	}
	return false, nil
}
