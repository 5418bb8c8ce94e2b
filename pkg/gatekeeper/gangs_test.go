package gatekeeper

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gate"
	testcompat "poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
)

// member returns a pending pod of the group that testcompat.JoinPodGroup names.
func (w *world) member(name string) *v1.Pod {
	p := withCondition(pod(name), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	testcompat.JoinPodGroup(p)
	return p
}

// group returns a PodGroup with this specification.
func group(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
		"metadata": map[string]any{"name": "group", "namespace": "default"}, "spec": spec}}
}

func policy(name string) map[string]any { return map[string]any{name: map[string]any{}} }

// TestGangs: no pod of a gang bursts, and one event for each gang says so. A PodGroup with the policy basic lets its pods
// burst. A build that does not see which pods belong to PodGroups reports a problem.
func TestGangs(t *testing.T) {
	client := fake.NewClientset()
	client.Resources = []*metav1.APIResourceList{
		{GroupVersion: "scheduling.x-k8s.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "podgroups", Kind: "PodGroup", Namespaced: true}}},
		{GroupVersion: "scheduling.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "priorityclasses", Kind: "PriorityClass"}}},
		{GroupVersion: "scheduling.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "podgroups", Kind: "PodGroup", Namespaced: true}}},
	}
	resource := schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1beta1", Resource: "podgroups"}
	w := newWorldOf(t, client, func(*configv1.PoolPriorityArgs) {}, nil)
	dynamic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "PodGroupList"})
	w.config.Dynamic = dynamic
	w.setStatus(3, 3)
	w.run()
	w.Lead()
	for _, name := range []string{"a", "b"} {
		p := w.member(name)
		w.addPod(p)
		w.verdict(p, gate.ReasonGroupNotHeld.Code)
		d := w.Decide(p, Snapshot{}, gate.Wait{})
		w.Hold(klog.Background(), p, &d, nil, false)
	}
	told := 0
	for len(w.recorder.Events) > 0 {
		if strings.HasPrefix(<-w.recorder.Events, "Warning GroupNotHeld the pods of group ") {
			told++
		}
	}
	if told != 1 {
		t.Errorf("%d events on the pods of the gang", told)
	}
	if !compat.SeesPodGroups {
		w.are(map[string]float64{"problem{PodGroupsIgnored}": 1})
		return
	}
	w.eventually(func() string {
		if !slices.ContainsFunc(dynamic.Actions(), func(a clienttesting.Action) bool { return a.Matches("watch", "podgroups") }) {
			return "PodGroups are not watched"
		}
		return ""
	})
	must.Do(t)(dynamic.Resource(resource).Namespace("default").Create(t.Context(), group(map[string]any{"schedulingPolicy": policy("basic")}), metav1.CreateOptions{}))
	w.activates("b", "the pod of a basic group is not requeued")
}

// TestGang: a group is a gang unless its PodGroup is known to have the policy basic and no parent.
func TestGang(t *testing.T) {
	w := newWorld(t)
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	for _, tc := range []struct {
		name  string
		spec  map[string]any // nil: there is no PodGroup
		basic bool
	}{
		{"no PodGroup", nil, false},
		{"a gang", map[string]any{"schedulingPolicy": policy("gang")}, false},
		{"basic", map[string]any{"schedulingPolicy": policy("basic")}, true},
		{"a policy of a later version", map[string]any{"schedulingPolicy": policy("other")}, false},
		{"a part of a CompositePodGroup", map[string]any{"schedulingPolicy": policy("basic"), "parentCompositePodGroupName": "whole"}, false},
	} {
		if w.groups.Store(&store); tc.spec != nil {
			must.NoError(t, store.Add(group(tc.spec)))
		}
		if got := w.gang(w.member("p")); (got == "") != (tc.basic && compat.SeesPodGroups) {
			t.Errorf("%s: the gang is %q", tc.name, got)
		}
		if got := w.gang(pod("p")); got != "" {
			t.Errorf("%s: the gang of a pod in no group is %q", tc.name, got)
		}
	}
}
