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
	// triesAtOnce is how many times in a row a pod whose narrowed cycle failed is retried at once.
	triesAtOnce = 2
	// retryWidened is how long it then waits for a cycle that is not narrowed.
	retryWidened = time.Second
	// maxRetried bounds how many pods are remembered. Some of them may have been deleted.
	maxRetried = 1000
)

// retries counts, by pod, narrowed cycles in a row that failed although a node had been found feasible. A race with a
// nominated pod is over at the next try. A Filter that answers differently when it is asked twice in a cycle (by its
// state, a quota, chance) fails every time: trying again at once without end would keep the scheduler busy with this
// pod, which never got a node.
type retries struct{ *lru.Cache }

func newRetries() retries { return retries{lru.New(maxRetried)} }

// failed returns how many there were.
func (r retries) failed(uid types.UID) int {
	n, _ := r.Get(uid)
	count, _ := n.(int)
	return count
}

// exhausted reports whether the pod's next cycle is not to be narrowed.
func (r retries) exhausted(uid types.UID) bool { return r.failed(uid) > triesAtOnce }

// retry requeues a pod whose narrowed cycle failed: at once, or after several failures in a row later and without
// narrowing.
func (pl *PoolPriority) retry(logger klog.Logger, pod *v1.Pod) {
	n := pl.retries.failed(pod.UID) + 1
	if pl.retries.Add(pod.UID, n); n > triesAtOnce {
		logger.Info("A node that was feasible was rejected when it was asked about again, several times in a row: does a Filter plugin of the profile answer differently each time? The pod is tried in all pools",
			"pod", klog.KObj(pod), "tries", n)
		time.AfterFunc(retryWidened, func() { pl.activate(logger, pod) })
		return
	}
	logger.V(2).Info("The cluster changed while the pod was being scheduled, trying again", "pod", klog.KObj(pod))
	pl.activate(logger, pod)
}

// activate has the scheduler try the pod again.
func (pl *PoolPriority) activate(logger klog.Logger, pod *v1.Pod) {
	pl.handle.Activate(logger, map[string]*v1.Pod{cache.MetaObjectToName(pod).String(): pod})
}
