package sources

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
)

// watchNodeClaims starts to watch the NodeClaims of the NodePool. It passes each added, changed or deleted NodeClaim to
// launches, and calls config.Changed when a NodeClaim changes launches. The right to list and watch NodeClaims is optional.
// Without this right, the scheduler does not notice failed launches, but everything else works. The informer retries until
// the right is granted.
func watchNodeClaims(ctx context.Context, config *Config, nodePool string, launches *karpenter.Launches) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "nodePool", nodePool)
	informer := dynamicinformer.NewFilteredDynamicInformer(config.Dynamic, karpenter.NodeClaimResource, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = nodegroups.KarpenterNodePoolLabel + "=" + nodePool }).Informer()
	process := func(obj any, gone bool) {
		if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = last.Obj
		}
		claim, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return
		}
		data, _ := claim.MarshalJSON() // does not fail
		changed, err := launches.Observe(data, gone, config.Now())
		if err != nil {
			logger.Error(err, "A NodeClaim cannot be read", "nodeClaim", claim.GetName())
		}
		if changed {
			config.Changed()
		}
	}
	const refused = "The scheduler may not list and watch NodeClaims, so it does not notice failed launches. A NodePool whose launches fail then declines a pod only after 5 minutes"
	others := func(context.Context, *cache.Reflector, error) {} // they are temporary, or affect the NodePool as well
	_ = informer.SetTransform(trimNodeClaim)                    // fails only after the informer was started
	start(klog.NewContext(ctx, logger), informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { process(obj, false) },
		UpdateFunc: func(_, obj any) { process(obj, false) },
		DeleteFunc: func(obj any) { process(obj, true) },
	}, whenRefused(refused, others))
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
