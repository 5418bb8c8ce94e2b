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
	// askTimeout is how long the API server may take to say what became of a pod, and asks how often it is asked.
	askTimeout, asks = 5 * time.Second, 5
	// maxVanished bounds how many pods are asked about: of thousands that end before they start, some tell enough.
	maxVanished = 500
)

// vanished are pods on burst nodes that the scheduler's informer lost sight of before they had started. It knows no
// pods that have ended, and says of one that has only that it is gone: without its last status, which tells whether the
// provider refused it. That is how pods with restartPolicy Never are refused. Until it is known, such a pod counts as
// one of which the provider has not said anything.
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

// add has the pod asked about, if it may have ended, and reports whether it may.
func (v *vanished) add(pod *v1.Pod) bool {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || refusal.Began(pod) || v.queue.Len() >= maxVanished {
		return false
	}
	v.queue.Add(vanishedPod{pod.Namespace, pod.Name, pod.UID})
	return true
}

// run asks what became of the pods, until the context ends, and hands over those that have ended and the UIDs of all
// others.
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
