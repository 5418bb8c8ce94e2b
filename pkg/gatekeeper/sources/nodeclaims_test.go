package sources

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	watchapi "k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/test/must"
)

// failingClaim returns a NodeClaim of the NodePool "default" that Karpenter fails to launch.
func failingClaim(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
		"metadata": map[string]any{"name": name, "uid": name, "labels": map[string]any{nodegroups.KarpenterNodePoolLabel: "default"}},
		"spec":     map[string]any{"expireAfter": "Never"},
		"status": map[string]any{"nodeName": "", "conditions": []any{
			map[string]any{"type": "Launched", "status": "Unknown", "reason": "LaunchFailed", "message": "no quota", "lastTransitionTime": "2026-11-21T10:00:00Z"},
		}},
	}}
}

func fakeNodeClaims(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{karpenter.NodeClaimResource: "NodeClaimList"}, objects...)
}

// TestWatchNodeClaims: NodeClaims are passed to the launches, and Changed is called.
func TestWatchNodeClaims(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	client := fakeNodeClaims(failingClaim("a"))
	watching := make(chan struct{}, 10) // objects created between list and watch are not delivered
	client.PrependWatchReactor("*", func(clienttesting.Action) (bool, watchapi.Interface, error) {
		w, err := client.Tracker().Watch(karpenter.NodeClaimResource, metav1.NamespaceAll)
		watching <- struct{}{}
		return true, w, err
	})
	launches, changed := karpenter.NewLaunches(), make(chan struct{}, 10)
	watchNodeClaims(ctx, &Config{Dynamic: client, Now: time.Now, Changed: func() { changed <- struct{}{} }}, "default", launches)
	for _, want := range []string{"NodeClaim a: LaunchFailed: no quota", "NodeClaim b: LaunchFailed: no quota"} {
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("nothing changed")
		}
		if got := launches.Memory(); got.Message != want || got.Failing.IsZero() {
			t.Errorf("%+v, want %q", got, want)
		}
		if want[10] == 'a' {
			<-watching
			must.Do(t)(client.Resource(karpenter.NodeClaimResource).Create(ctx, failingClaim("b"), metav1.CreateOptions{}))
		}
	}
}

// TestWatchNodeClaimsRefused: if reading NodeClaims is forbidden, this is logged once and is no error.
func TestWatchNodeClaimsRefused(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	others := 0
	handle := whenRefused("may not list and watch NodeClaims", func(context.Context, *cache.Reflector, error) { others++ })
	refused := apierrors.NewForbidden(karpenter.NodeClaimResource.GroupResource(), "", nil)
	for _, err := range []error{apierrors.NewNotFound(karpenter.NodeClaimResource.GroupResource(), ""), refused, refused} {
		handle(klog.NewContext(t.Context(), logger), nil, err)
	}
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); strings.Count(log, "may not list and watch NodeClaims") != 1 || others != 1 {
		t.Errorf("said:\n%s, and %d other errors", log, others)
	}
	client := fakeNodeClaims()
	client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
	watchNodeClaims(klog.NewContext(t.Context(), logger), &Config{Dynamic: client, Now: time.Now}, "default", karpenter.NewLaunches())
	must.Eventually(t, "the refusal is logged", func() bool {
		return strings.Contains(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "so it does not notice failed launches")
	})
}

// TestTrimNodeClaim: for the launches, a trimmed NodeClaim is equivalent to the whole NodeClaim.
func TestTrimNodeClaim(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	whole := failingClaim("a")
	whole.SetDeletionTimestamp(&now)
	trimmed := must.Get(trimNodeClaim(whole.DeepCopy()))(t)
	got := trimmed.(*unstructured.Unstructured)
	if _, ok := got.Object["spec"]; ok || got.GetName() != "a" {
		t.Errorf("kept %v", got.Object)
	}
	memory := func(c *unstructured.Unstructured) karpenter.LaunchMemory {
		data := must.Get(c.MarshalJSON())(t)
		l := karpenter.NewLaunches()
		if _, err := l.Observe(data, false, now.Time); err != nil {
			t.Error(err)
		}
		return l.Memory()
	}
	if diff := cmp.Diff(memory(whole), memory(got)); diff != "" {
		t.Errorf("(-whole,+trimmed):\n%s", diff)
	}
	other := cache.DeletedFinalStateUnknown{Obj: &corev1.Node{}}
	if kept, err := trimNodeClaim(other); err != nil || kept.(cache.DeletedFinalStateUnknown).Obj != other.Obj {
		t.Errorf("another object became %v: %v", kept, err)
	}
}
