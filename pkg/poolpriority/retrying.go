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
	// triesAtOnce bounds how many times in a row a pod is retried without delay after its narrowed cycle failed.
	triesAtOnce = 2
	// retryWidened is the delay before a pod is retried in a cycle that is not narrowed.
	retryWidened = time.Second
	// maxRetried bounds the number of pods in retries, including deleted pods.
	maxRetried = 1000
)

// retries counts, for each pod, consecutive narrowed cycles that failed although a feasible node had been found. If a
// nominated pod took the capacity, the next cycle does not fail in this way. If a Filter plugin gives different results
// for the same node in one cycle (because of its state, a quota or chance), every cycle fails. Without a limit, the
// retries of the pod would keep the scheduler busy, and the pod would never be bound.
type retries struct{ *lru.Cache }

func newRetries() retries { return retries{lru.New(maxRetried)} }

// count returns how many narrowed cycles of the pod have failed in a row, or how many bindings settle has refused.
func (r retries) count(uid types.UID) int {
	n, _ := r.Get(uid)
	count, _ := n.(int)
	return count
}

// exhausted reports whether the pod's next cycle must not be narrowed.
func (r retries) exhausted(uid types.UID) bool { return r.count(uid) > triesAtOnce }

// retry requeues a pod whose narrowed cycle failed. After more than triesAtOnce failures in a row, the pod waits for
// retryWidened, and its next cycle is not narrowed.
func (pl *PoolPriority) retry(logger klog.Logger, pod *v1.Pod) {
	n := pl.retries.count(pod.UID) + 1
	if pl.retries.Add(pod.UID, n); n > triesAtOnce {
		logger.Info("Filter has repeatedly rejected a node that it had accepted earlier in the same cycle. A Filter plugin of the profile may be inconsistent. The next cycle tries the nodes of all pools",
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
