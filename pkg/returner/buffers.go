package returner

import (
	"context"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/capacitybuffer"
	"poolpriority.dev/scheduler/pkg/nodegroups"
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
	request amounts
	count   int64
	on      []int // the positions in rooms.nodes of the nodes that the pods may use
}

// amounts are amounts of resources in the units of NodeResourcesFit.
type amounts map[corev1.ResourceName]int64

func amountsOf(r fwk.Resource, pods int) amounts {
	a := amounts{corev1.ResourceCPU: r.GetMilliCPU(), corev1.ResourceMemory: r.GetMemory(), corev1.ResourceEphemeralStorage: r.GetEphemeralStorage(), corev1.ResourcePods: int64(pods)}
	maps.Copy(a, r.GetScalarResources())
	return a
}

// less returns the amounts that are left if n pods take what each requests.
func (a amounts) less(n int64, request amounts) amounts {
	left := maps.Clone(a)
	for name, of := range request {
		left[name] -= n * of
	}
	return left
}

// pods returns for how many pods with this request the amounts suffice.
func (a amounts) pods(request amounts) int64 {
	n := int64(math.MaxInt64)
	for name, of := range request {
		if of > 0 {
			n = min(n, max(0, a[name]/of))
		}
	}
	return n
}

// packing is how the pods of the buffers fit by their requests.
type packing struct {
	pods       int64
	free, left []amounts // without and beside these pods, by the position in rooms.nodes
}

// addBuffer adds a buffer to the round, if the autoscaler keeps VMs for it. It keeps none if the buffer's pods fit a
// burst node.
func (r *rooms) addBuffer(ctx context.Context, from *capacitybuffer.Buffer, template *corev1.PodTemplateSpec) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: from.Namespace, Name: from.Name}, Spec: template.Spec}
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A CapacityBuffer is ignored", "capacityBuffer", klog.KObj(pod))
		return
	}
	b := &buffer{request: amountsOf(info.CalculateResource().Resource, 1), count: int64(from.Status.Replicas)}
	if slices.ContainsFunc(r.burst, func(node fwk.NodeInfo) bool { return suits(node, pod) && freeOn(node).pods(b.request) > 0 }) {
		return
	}
	for i, node := range r.nodes {
		if suits(node, pod) {
			b.on = append(b.on, i)
		}
	}
	r.buffers = append(r.buffers, b)
}

// freeOn returns what the node's pods leave.
func freeOn(node fwk.NodeInfo) amounts {
	return amountsOf(node.GetAllocatable(), node.GetAllocatable().GetAllowedPodNumber()).less(1, amountsOf(node.GetRequested(), len(node.GetPods())))
}

// suits reports whether the node may accept the pod if no other pod uses the node.
func suits(node fwk.NodeInfo, pod *corev1.Pod) bool {
	return nodegroups.Suits(node.Node(), resource.PodRequests(pod, resource.PodResourcesOptions{}), nodeaffinity.GetRequiredNodeAffinity(pod), pod.Spec.Tolerations)
}

// pack places the pods of the buffers, each on the first node with enough of all resources.
func (r *rooms) pack(free []amounts) *packing {
	p := &packing{free: free, left: slices.Clone(free)}
	for _, b := range r.buffers {
		missing := b.count
		for k := 0; k < len(b.on) && missing > 0; k++ {
			i := b.on[k]
			if n := min(missing, p.left[i].pods(b.request)); n > 0 {
				p.left[i] = p.left[i].less(n, b.request)
				p.pods, missing = p.pods+n, missing-n
			}
		}
	}
	return p
}

// isWanted reports whether the pod of the move may take room that a buffer wants: on one of the pool's nodes that the
// scheduler may choose, fewer pods of the buffers fit beside the pod than without it.
func (r *rooms) isWanted(ctx context.Context, state fwk.CycleState, m *move, allowed *fwk.PreFilterResult) bool {
	if r.packing == nil {
		free := make([]amounts, len(r.nodes))
		for i, node := range r.nodes {
			free[i] = freeOn(r.latest(node))
		}
		r.packing = r.pack(free)
	}
	pod := m.pod.GetPod().DeepCopy()
	pod.Spec.NodeName = ""
	requests, request := resource.PodRequests(pod, resource.PodResourcesOptions{}), amountsOf(m.pod.CalculateResource().Resource, 1)
	to := slices.IndexFunc(r.nodes, func(node fwk.NodeInfo) bool { return node.Node().Name == m.to })
	for i, free := range r.packing.free {
		if r.ranks[i] != r.ranks[to] || r.packing.left[i].pods(request) > 0 {
			continue
		}
		if fits, err := r.fits(ctx, state, pod, requests, allowed, r.latest(r.nodes[i])); err == nil && !fits {
			continue
		}
		beside := slices.Clone(r.packing.free)
		beside[i] = free.less(1, request)
		if r.pack(beside).pods < r.packing.pods {
			return true // the buffers' pods of this node fit nowhere else
		}
	}
	return false
}
