package poolpriority

import (
	"cmp"
	"context"
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// burstEventDelay is the shortest time from a binding to the event Burst, and the longest is twice as long. One event for
// each pod is one more request for each binding. On 2 CPUs, later events raise the throughput of 900 bindings from 0.89 to
// 0.95 of DefaultBinder's.
const burstEventDelay = 5 * time.Second

// Bind binds the pod as DefaultBinder does, and adds annotations for the scale-in order and for the reason of a burst.
// The API server copies the annotations of a Binding onto the pod, so a bound pod always has them. They need no extra
// API call. A scheduler whose lease has expired binds no pods.
func (pl *PoolPriority) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	ctx, cancel, err := pl.leadership.Bound(ctx)
	if err != nil {
		return fwk.AsStatus(err)
	}
	defer cancel()
	b := &toBind{state: state, pod: pod, node: nodeName}
	if err := pl.settle(ctx, b); err != nil {
		return fwk.AsStatus(err)
	}
	pl.prepare(b)
	if err := pl.send(ctx, b); err != nil {
		return fwk.AsStatus(err)
	}
	pl.sent(ctx, b)
	return nil
}

// toBind is a pod that is being bound.
type toBind struct {
	state  fwk.CycleState
	pod    *v1.Pod
	node   string
	placed placement // set by prepare
}

// prepare ends the counts of the pod's failures, warns of an unknown order, and keeps what is known of a held pod until it is
// bound.
func (pl *PoolPriority) prepare(b *toBind) {
	pl.retries.Remove(b.pod.UID)
	pl.roomTries.Remove(b.pod.UID)
	b.placed = pl.placementOf(b.state, b.pod, b.node)
	pl.warnOfOrder(b.pod)
	if pl.gatekeeper != nil {
		pl.gatekeeper.Held().Binding(b.pod.UID)
	}
}

// sent counts the pod, and writes the event Burst.
func (pl *PoolPriority) sent(ctx context.Context, b *toBind) {
	pod := b.pod
	pl.assumed.remove(pod.UID, time.Time{})
	b.placed.count(klog.FromContext(ctx), pod, b.node)
	if b.placed.burst != nil {
		recorder, message := pl.handle.EventRecorder(), refusal.Short(b.placed.burst.message, refusal.MaxEvent)
		reference := &v1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		time.AfterFunc(wait.Jitter(burstEventDelay, 1), func() {
			recorder.Eventf(reference, nil, v1.EventTypeNormal, "Burst", "Binding", "%s", message)
		})
	}
}

// Reserve records that the pod is assumed on the node, and which pods are assumed on better nodes. The cycle of a pod
// group also reserves nodes that its pods may not get. Its pods are not recorded.
func (pl *PoolPriority) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	if pl.gatekeeper != nil {
		pl.gatekeeper.Held().Reserved(pod.UID)
	}
	c, err := readCycle(state)
	node, gone := pl.nodes.Get(nodeName)
	if err != nil || gone != nil || !pl.strict || inPodGroupCycle(state) {
		return nil
	}
	rank, _ := pl.pools.RankOf(node)
	c.counted = pl.assumed.before(c.order, rank, c.began)
	pl.assumed.add(pod.UID, node, rank)
	return nil
}

// Unreserve runs if an assumed pod is not bound, for example because a Permit plugin rejected it. The pod fits its
// node, so it does not wait for a scale-up.
func (pl *PoolPriority) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	pl.assumed.remove(pod.UID, pl.clock.Now())
	if pl.gatekeeper != nil {
		pl.gatekeeper.Failed(pod, false)
	}
}

// PostBind records that the pod is bound, if an extender bound it.
func (pl *PoolPriority) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, _ string) {
	pl.assumed.remove(pod.UID, time.Time{})
}

// send sends the binding to the API server, and records whether an admission rule denied it.
func (pl *PoolPriority) send(ctx context.Context, b *toBind) error {
	err, i := pl.request(ctx, b), pool.None
	if b.placed.node != nil {
		i = pl.pools.Of(b.placed.node)
	}
	switch {
	case i == pool.None:
	case err == nil:
		pl.denied.Accept(i)
	case denial.OfBinding(err):
		pl.denied.Deny(i, b.pod, err, pl.clock.Now())
		if pl.gatekeeper != nil {
			pl.gatekeeper.BindingDenied()
		}
	}
	return err
}

// request makes the request of the binding.
func (pl *PoolPriority) request(ctx context.Context, b *toBind) error {
	binding := &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.pod.Namespace, Name: b.pod.Name, UID: b.pod.UID, Annotations: pl.annotations(b.pod, &b.placed)},
		Target:     v1.ObjectReference{Kind: "Node", Name: b.node},
	}
	if cacher := pl.handle.APICacher(); cacher != nil {
		finished, err := cacher.BindPod(binding)
		if err != nil {
			return err
		}
		return cacher.WaitOnFinish(ctx, finished)
	}
	klog.FromContext(ctx).V(3).Info("Attempting to bind pod to node", "pod", klog.KObj(b.pod), "node", klog.KRef("", b.node))
	return pl.binder.Pods(b.pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
}

// warnOfOrder writes an event on a pod whose order is unknown. Only one pod of each owner gets the event, unless there
// are more than maxRetried such owners.
func (pl *PoolPriority) warnOfOrder(pod *v1.Pod) {
	owner := cmp.Or(refusal.OwnerOf(pod), pod.UID)
	if _, known := pl.pools.OrderOf(pod.Annotations); known || pl.warned.count(owner) > 0 {
		return
	}
	pl.warned.Add(owner, 1)
	pl.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeWarning, "UnknownOrder", "Binding",
		"the configuration has no order %q (annotation %s): the pod uses the order of the list, and does not burst", pool.OrderValue(pod), pool.OrderAnnotation)
}

// annotations returns the annotations of the pod's Binding, or nil if the node is gone. It reads the pod from the
// lister, because the pod of the cycle lacks changes that were made after the pod was queued.
func (pl *PoolPriority) annotations(pod *v1.Pod, placed *placement) map[string]string {
	if placed.node == nil {
		return nil
	}
	annotations := map[string]string{}
	if pl.pools.IsBurstNode(placed.node) {
		annotations[refusal.BoundAtAnnotation] = pl.clock.Now().UTC().Format(time.RFC3339)
	}
	if placed.burst != nil {
		annotations[gate.DecisionAnnotation] = placed.burst.record.Encode()
	}
	if !pl.deletionCost {
		return annotations
	}
	if current, err := pl.pods.Pods(pod.Namespace).Get(pod.Name); err == nil && current.UID == pod.UID {
		pod = current
	}
	order, _ := scalein.Annotations(pl.pools, placed.node, pod.Annotations)
	maps.DeleteFunc(order, func(_, value string) bool { return value == "" }) // a Binding can only add annotations
	maps.Copy(annotations, order)
	return annotations
}
