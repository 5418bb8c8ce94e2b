package returner

import (
	"context"
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
const harmToBuffers = "a CapacityBuffer wants the capacity"

// templateOf returns the pod template of the buffer; nil if the buffer is for a workload of another kind.
func (r *Returner) templateOf(ctx context.Context, b *capacitybuffer.Buffer) (*corev1.PodTemplateSpec, error) {
	cached := metav1.GetOptions{ResourceVersion: "0"}
	switch from := b.Spec.ScalableRef; {
	case b.Status.PodTemplateRef != nil:
		found, err := r.Client.CoreV1().PodTemplates(b.Namespace).Get(ctx, b.Status.PodTemplateRef.Name, cached)
		if err != nil {
			return nil, err
		}
		return &found.Template, nil
	case from == nil:
	case from.Kind == "Deployment":
		found, err := r.deployments.Deployments(b.Namespace).Get(from.Name)
		if err != nil {
			return nil, err
		}
		return &found.Spec.Template, nil
	case from.Kind == "ReplicaSet":
		found, err := r.replicaSets.ReplicaSets(b.Namespace).Get(from.Name)
		if err != nil {
			return nil, err
		}
		return &found.Spec.Template, nil
	case from.Kind == "StatefulSet":
		found, err := r.sets.StatefulSets(b.Namespace).Get(from.Name)
		if err != nil {
			return nil, err
		}
		return &found.Spec.Template, nil
	}
	return nil, nil
}

// readBuffers adds the CapacityBuffers of the cluster to the round. Without the right to read them, there are none.
func (r *Returner) readBuffers(ctx context.Context) error {
	buffers, err := r.listBuffers(ctx)
	for i := 0; i < len(buffers) && err == nil; i++ {
		var template *corev1.PodTemplateSpec
		if !buffers[i].IsActive() {
			continue
		}
		if template, err = r.templateOf(ctx, &buffers[i]); template != nil {
			r.seats.addBuffer(ctx, &buffers[i], template)
		} else if apierrors.IsNotFound(err) {
			err = nil // then the autoscaler has no pods for the buffer either
		}
	}
	if apierrors.IsForbidden(err) {
		r.forbidden.Do(func() {
			klog.FromContext(ctx).Error(err, "Pods that return may take the capacity that CapacityBuffers want. The scheduler needs the rights of manifests/components/return")
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

// packing is where the pods of the buffers fit.
type packing struct {
	pods  int
	nodes map[string]fwk.NodeInfo // the nodes with such pods, by name
}

// addBuffer adds a buffer to the round, if the autoscaler keeps VMs for it. It keeps none if the buffer's pods fit a burst
// node. Karpenter ignores the volumes of these pods.
func (r *rooms) addBuffer(ctx context.Context, from *capacitybuffer.Buffer, template *corev1.PodTemplateSpec) {
	logger := klog.FromContext(ctx).WithValues("capacityBuffer", klog.KRef(from.Namespace, from.Name))
	pod := &corev1.Pod{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.UID, pod.Spec.NodeName, pod.Spec.Volumes = from.Namespace, "capacity-buffer-"+from.Name, from.UID, "", nil
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		logger.Error(err, "A CapacityBuffer is ignored")
		return
	}
	b := &buffer{pod: info, requests: resource.PodRequests(pod, resource.PodResourcesOptions{}), count: from.Status.Replicas, state: framework.NewCycleState()}
	var status *fwk.Status
	if b.allowed, status, _ = r.framework.RunPreFilterPlugins(ctx, b.state, pod); !status.IsSuccess() {
		logger.V(2).Info("A CapacityBuffer is ignored, because no node can run its pods", "reason", status.Message())
		return
	}
	for _, node := range r.burst {
		if fits, err := r.fits(ctx, b.state, pod, b.requests, b.allowed, node); err == nil && fits {
			return
		}
	}
	r.buffers = append(r.buffers, b)
}

// pack places the pods of the buffers beside all others, each on the first node on which it fits. It counts affinity and
// topology spread between these pods and those that move as they were at the beginning of the round.
func (r *rooms) pack(ctx context.Context) (*packing, error) {
	p := &packing{nodes: map[string]fwk.NodeInfo{}}
	for _, b := range r.buffers {
		state := b.state.Clone()
		for i, left := 0, b.count; i < len(r.nodes) && left > 0; {
			name := r.nodes[i].Node().Name
			node, ok := p.nodes[name]
			if !ok {
				node = r.latest(r.nodes[i])
			}
			if fits, err := r.fits(ctx, state, b.pod.GetPod(), b.requests, b.allowed, node); err != nil {
				return nil, err
			} else if !fits {
				i++
				continue
			}
			if !ok {
				node = node.Snapshot()
				p.nodes[name] = node
			}
			node.AddPodInfo(b.pod)
			if status := r.framework.RunPreFilterExtensionAddPod(ctx, state, b.pod.GetPod(), b.pod, node); !status.IsSuccess() {
				return nil, status.AsError()
			}
			left, p.pods = left-1, p.pods+1
		}
	}
	return p, nil
}

// isWanted reports whether the pod of the move may take room that a buffer wants: on one of the pool's nodes that the
// scheduler may choose, fewer pods of the buffers fit beside the pod than without it.
func (r *rooms) isWanted(ctx context.Context, state fwk.CycleState, m *move, allowed *fwk.PreFilterResult) (wanted bool, err error) {
	if r.packing == nil {
		if r.packing, err = r.pack(ctx); err != nil {
			return false, err
		}
	}
	before := r.packing
	pod := m.pod.GetPod().DeepCopy()
	pod.Spec.NodeName = ""
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	to := slices.IndexFunc(r.nodes, func(node fwk.NodeInfo) bool { return node.Node().Name == m.to })
	for i, node := range r.nodes {
		name := node.Node().Name
		filled, ok := before.nodes[name]
		if !ok || r.ranks[i] != r.ranks[to] {
			continue
		}
		fits, err := r.fits(ctx, state, pod, requests, allowed, r.latest(node))
		if err == nil && fits {
			fits, err = r.fits(ctx, state, pod, requests, allowed, filled)
			wanted = !fits
		}
		if err == nil && wanted { // the buffers' pods on this node may fit elsewhere
			kept, was := r.kept[name]
			with := r.latest(node).Snapshot()
			with.AddPodInfo(m.pod)
			r.kept[name] = with
			var after *packing
			if after, err = r.pack(ctx); err == nil {
				wanted = after.pods < before.pods
			}
			if delete(r.kept, name); was {
				r.kept[name] = kept
			}
		}
		if err != nil || wanted {
			return wanted, err
		}
	}
	return false, nil
}
