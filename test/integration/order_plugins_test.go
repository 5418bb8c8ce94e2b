package integration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestGangAcrossPools: no pod of a gang of 10 runs until all can run. Then they fill the pools in order.
func TestGangAcrossPools(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 0, 2, 20), vms("systempool", "system", 2, 0, 2, 10))
	must.NoError(t, e.Apply(e.ctx, "testdata/coscheduling"))
	// The API server serves the CRD a moment after its creation.
	client := must.Get(dynamic.NewForConfig(e.Config))(t)
	groups := client.Resource(schema.GroupVersionResource{Group: "scheduling.x-k8s.io", Version: "v1alpha1", Resource: "podgroups"}).Namespace(namespace)
	gang := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
		"metadata": map[string]any{"name": "gang"},
		"spec":     map[string]any{"minMember": int64(10), "scheduleTimeoutSeconds": int64(30)},
	}}
	e.Eventually(15*time.Second, func() string {
		if _, err := groups.Create(e.ctx, gang, metav1.CreateOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	e.schedule(root+"/manifests/examples/coscheduling.yaml", suite.UserTier(0), suite.SystemTier(0))
	inGang := func(t *corev1.PodTemplateSpec) { t.Labels["scheduling.x-k8s.io/pod-group"] = "gang" }
	e.Create(suite.Deployment("gang", 9, "500m", inGang))
	e.Lands(10*time.Second, "gang", map[string]int{"": 9})
	e.Keeps(4*time.Second, "gang", map[string]int{"": 9})
	e.Scale("gang", 10)
	e.Lands(60*time.Second, "gang", map[string]int{"userpool": 4, "systempool": 6})
	e.RightOrder(10)
}

// TestPackingInsidePool: the strict order decides the pool, and NodeResourcesAllocatable then picks the smallest node
// in it.
func TestPackingInsidePool(t *testing.T) {
	t.Parallel()
	small, large := vms("small", "user", 2, 0, 2, 20), vms("large", "user", 2, 0, 2, 20)
	large.CPU, large.Memory = resource.MustParse("16"), resource.MustParse("64Gi")
	tiny := vms("systempool", "system", 1, 0, 1, 10)
	tiny.CPU = resource.MustParse("1") // the smallest node of all is in the less preferred pool
	e := start(t, nil, small, large, tiny)
	e.schedule(root+"/manifests/examples/packing.yaml", suite.UserTier(0), suite.SystemTier(0))
	e.Create(suite.Deployment("web", 6, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"small": 6})
	e.Scale("web", 12)
	e.Lands(20*time.Second, "web", map[string]int{"small": 8, "large": 4})
}
