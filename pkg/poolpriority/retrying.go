package poolpriority

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"
)

const (
	// triesAtOnce bounds how many times in a row a pod is retried at once after its narrowed cycle failed.
	triesAtOnce = 2
	// retryWidened is the delay before the next retry, whose cycle is not narrowed.
	retryWidened = time.Second
	// maxRetried bounds how many pods are remembered. They may include deleted pods.
	maxRetried = 1000
)

// retries counts, for each pod, consecutive narrowed cycles that failed although a feasible node had been found. After
// a race with a nominated pod, the next cycle succeeds. A Filter that answers differently when it is called twice in a
// cycle (because of its state, a quota or chance) makes every cycle fail. Without a limit, the retries of such a pod
// would keep the scheduler busy, and the pod would never get a node.
type retries struct{ *lru.Cache }

func newRetries() retries { return retries{lru.New(maxRetried)} }

// failed returns how many narrowed cycles of the pod have failed in a row.
func (r retries) failed(uid types.UID) int {
	n, _ := r.Get(uid)
	count, _ := n.(int)
	return count
}

// exhausted reports whether the pod's next cycle must not be narrowed.
func (r retries) exhausted(uid types.UID) bool { return r.failed(uid) > triesAtOnce }

// retry requeues a pod whose narrowed cycle failed. After more than triesAtOnce failures in a row it waits for
// retryWidened, and the next cycle is not narrowed.
func (pl *PoolPriority) retry(logger klog.Logger, pod *v1.Pod) {
	n := pl.retries.failed(pod.UID) + 1
	if pl.retries.Add(pod.UID, n); n > triesAtOnce {
		logger.Info("Several times in a row, a feasible node was rejected when it was filtered again. A Filter plugin of the profile may give changing answers. The pod is tried in all pools",
			"pod", klog.KObj(pod), "tries", n)
		time.AfterFunc(retryWidened, func() { pl.activate(logger, pod) })
		return
	}
	logger.V(2).Info("The cluster changed while the pod was being scheduled, trying again", "pod", klog.KObj(pod))
	pl.activate(logger, pod)
}

// activate requeues the pod.
func (pl *PoolPriority) activate(logger klog.Logger, pod *v1.Pod) {
	pl.handle.Activate(logger, map[string]*v1.Pod{cache.MetaObjectToName(pod).String(): pod})
}
