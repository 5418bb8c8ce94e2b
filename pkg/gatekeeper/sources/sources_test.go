package sources

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups/clusterautoscaler"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// TestNodePoolsOfOtherPools: a pool of the cluster autoscaler knows the NodePools that are the source of later pools.
func TestNodePoolsOfOtherPools(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	args := &configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"mode": "user"}}, ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}},
		{Name: "nap", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"karpenter.sh/nodepool": "default"}}, Karpenter: &configv1.KarpenterSource{NodePool: "default"}},
	}}
	configv1.SetDefaults_PoolPriorityArgs(args)
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{karpenter.Resource: "NodePoolList", karpenter.NodeClaimResource: "NodeClaimList"})
	s := must.Get(New(ctx, &Config{Args: args, Pools: must.Get(pool.ListOf(args))(t), Client: fake.NewClientset(), Dynamic: dynamic, Now: time.Now, Changed: func() {}}))(t)
	if got := s.byPool[0].(clusterautoscaler.Source).NodePools; len(got) != 1 || !got["default"] {
		t.Errorf("NodePools %v, want default", got)
	}
}
