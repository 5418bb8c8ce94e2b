package providers

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
)

const (
	// recallTimeout bounds the time of Recall, and recallNodes bounds the number of nodes that Recall searches.
	recallTimeout, recallNodes = 10 * time.Second, 100
	// recallPage is the page size of each list of pods.
	recallPage = 500
)

// Recall finds pods on burst nodes that the provider refused while no scheduler was running. A refused pod with
// restartPolicy Never has failed, and the scheduler's informer leaves out failed pods. Suppose that a pool refuses pods
// of a Job just before the leader is killed. Without Recall, the new leader might send other pods of this Job to the
// pool. byPool has the nodes of each pool.
func (p *Providers) Recall(ctx context.Context, byPool [][]*v1.Node) {
	p.Follow(byPool)
	ctx, cancel := context.WithTimeout(ctx, recallTimeout)
	defer cancel()
	left := recallNodes
	for i := range p.config.Pools.Burst() {
		for _, node := range byPool[i][:min(left, len(byPool[i]))] {
			left--
			failed, err := p.failedOn(ctx, node.Name)
			if err != nil {
				klog.FromContext(ctx).Error(err, "The scheduler cannot list the failed pods on a burst node", "node", node.Name)
				return
			}
			p.recall(failed)
		}
	}
}

// failedOn returns the pods on the node that have failed with a reason or a message. Other pods may have run: some virtual
// kubelets do not report containers.
func (p *Providers) failedOn(ctx context.Context, node string) ([]v1.Pod, error) {
	var failed []v1.Pod
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return p.config.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
	})
	list.PageSize = recallPage
	options := metav1.ListOptions{FieldSelector: fields.SelectorFromSet(fields.Set{"spec.nodeName": node, "status.phase": string(v1.PodFailed)}).String()}
	err := list.EachListItem(ctx, options, func(obj runtime.Object) error {
		if pod := obj.(*v1.Pod); pod.Status.Phase == v1.PodFailed && pod.Status.Reason+pod.Status.Message != "" {
			failed = append(failed, *pod)
		}
		return nil
	})
	return failed, err
}
