package sources

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// nodeClaims watches the NodeClaims of a NodePool. It passes each added, changed or deleted NodeClaim to launches.
type nodeClaims struct {
	config   *Config
	launches *karpenter.Launches
	logger   klog.Logger
	refused  sync.Once
}

// watchNodeClaims starts to watch the NodeClaims of the NodePool. It calls config.Changed when a NodeClaim changes
// launches. The right to list and watch NodeClaims is optional. Without this right, the scheduler does not notice
// failed launches, but everything else works. The informer retries until the right is granted.
func watchNodeClaims(ctx context.Context, config *Config, nodePool string, launches *karpenter.Launches) error {
	c := &nodeClaims{config: config, launches: launches, logger: klog.LoggerWithValues(klog.FromContext(ctx), "nodePool", nodePool)}
	informer := dynamicinformer.NewFilteredDynamicInformer(config.Dynamic, karpenter.NodeClaimResource, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = nodegroups.KarpenterNodePoolLabel + "=" + nodePool }).Informer()
	if err := c.follow(informer); err != nil {
		return fmt.Errorf("watching the NodeClaims of NodePool %s: %w", nodePool, err)
	}
	go informer.RunWithContext(ctx)
	return nil
}

func (c *nodeClaims) follow(informer cache.SharedIndexInformer) error {
	if err := informer.SetTransform(trimNodeClaim); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { c.fail(err) }); err != nil {
		return err
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.process(obj, false) },
		UpdateFunc: func(_, obj any) { c.process(obj, false) },
		DeleteFunc: func(obj any) { c.process(obj, true) },
	})
	return err
}

// fail logs once that reading NodeClaims is forbidden. Other failures are temporary, or affect the NodePool as well.
func (c *nodeClaims) fail(err error) {
	if apierrors.IsForbidden(err) {
		c.refused.Do(func() {
			c.logger.Info("The scheduler may not list and watch NodeClaims, so it does not notice failed launches. A NodePool whose launches fail then declines a pod only after 5 minutes", "err", err)
		})
	}
}

// process passes on a NodeClaim that was added, changed or deleted.
func (c *nodeClaims) process(obj any, gone bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	claim, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	observe := c.launches.Observe
	if gone {
		observe = c.launches.Gone
	}
	data, err := claim.MarshalJSON()
	changed := false
	if err == nil {
		changed, err = observe(data, c.config.Now())
	}
	if err != nil {
		c.logger.Error(err, "A NodeClaim cannot be read", "nodeClaim", claim.GetName())
	}
	if changed {
		c.config.Changed()
	}
}

// trimNodeClaim keeps only the fields of a NodeClaim that the scheduler reads. This saves memory, because a large
// cluster has thousands of NodeClaims.
func trimNodeClaim(obj any) (any, error) {
	claim, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	trimmed := &unstructured.Unstructured{Object: map[string]any{}}
	trimmed.SetAPIVersion(claim.GetAPIVersion())
	trimmed.SetKind(claim.GetKind())
	trimmed.SetName(claim.GetName())
	trimmed.SetUID(claim.GetUID())
	trimmed.SetResourceVersion(claim.GetResourceVersion())
	trimmed.SetDeletionTimestamp(claim.GetDeletionTimestamp())
	if conditions, ok, _ := unstructured.NestedFieldNoCopy(claim.Object, "status", "conditions"); ok {
		trimmed.Object["status"] = map[string]any{"conditions": conditions}
	}
	return trimmed, nil
}
