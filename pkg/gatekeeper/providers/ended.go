package providers

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/workqueue"

	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// askTimeout bounds one read of a pod's last status, and asks bounds how often a failed read is retried.
	askTimeout, asks = 5 * time.Second, 5
	// maxVanished bounds how many pods are queued. If thousands of pods end before they start, reading a few of them is
	// enough.
	maxVanished = 500
)

// vanished reads the last status of pods that were bound to a burst node, and left the scheduler's informer before they
// had started. The informer leaves out pods that have ended. It reports such a pod as deleted, without the pod's last
// status. A pod with restartPolicy Never ends when the provider refuses it, and only its last status shows the refusal.
// Until this status has been read, the pod counts as neither refused nor started.
type vanished struct {
	pods  typedcorev1.PodsGetter
	queue workqueue.TypedRateLimitingInterface[vanishedPod]
}

type vanishedPod struct {
	namespace, name string
	uid             types.UID
}

func newVanished(pods typedcorev1.PodsGetter) *vanished {
	return &vanished{pods: pods, queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[vanishedPod](100*time.Millisecond, 10*time.Second))}
}

// add queues a read of the pod's last status, and reports whether it did. It queues nothing if the pod was deleted or
// has begun to run, or if the queue is full.
func (v *vanished) add(pod *v1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || refusal.Began(pod) || v.queue.Len() >= maxVanished {
		return false
	}
	v.queue.Add(vanishedPod{pod.Namespace, pod.Name, pod.UID})
	return true
}

// run reads the last status of the queued pods until the context ends. It calls ended with each pod that still exists.
// It calls gone with the UID of each pod that does not exist any more or cannot be read.
func (v *vanished) run(ctx context.Context, ended func(*v1.Pod), gone func(types.UID)) {
	defer context.AfterFunc(ctx, v.queue.ShutDown)()
	for {
		key, quit := v.queue.Get()
		if quit {
			return
		}
		pod, err := v.ask(ctx, key)
		switch {
		case err == nil && pod.UID == key.uid:
			ended(pod)
		case err != nil && !apierrors.IsNotFound(err) && v.queue.NumRequeues(key) < asks:
			v.queue.AddRateLimited(key)
			v.queue.Done(key)
			continue
		default:
			gone(key.uid)
		}
		v.queue.Forget(key)
		v.queue.Done(key)
	}
}

func (v *vanished) ask(ctx context.Context, key vanishedPod) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return v.pods.Pods(key.namespace).Get(ctx, key.name, metav1.GetOptions{})
}
