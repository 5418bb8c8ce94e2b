package refusal

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFailedBeforeItRan: a pod that failed before any container ran counts as refused, unless Kubernetes ended it.
func TestFailedBeforeItRan(t *testing.T) {
	ran := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.NewTime(time.Unix(1, 0))}}}
	for name, tc := range map[string]struct {
		status         corev1.PodStatus
		refused, began bool
	}{
		"it ran":            {corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{ran}}, false, true},
		"nothing of it ran": {corev1.PodStatus{Reason: "InsufficientCapacity"}, true, false},
		"it was evicted":    {corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}, false, false},
		"an init container": {corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{ran}}, false, true},
		"virtual-kubelet":   {corev1.PodStatus{Reason: ReasonProviderFailed, ContainerStatuses: []corev1.ContainerStatus{ran}}, true, false},
	} {
		tc.status.Phase = corev1.PodFailed
		pod := &corev1.Pod{Status: tc.status}
		if r, refused := Of(pod); refused != tc.refused || Began(pod) != tc.began {
			t.Errorf("%s: refused %v (%+v), began %v; want %v, %v", name, refused, r, Began(pod), tc.refused, tc.began)
		}
	}
}

// TestBoundAt: users can write the annotation, so impossible times do not count.
func TestBoundAt(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	made := now.Add(-time.Hour)
	for name, tc := range map[string]struct {
		node string
		said string
		want time.Time
	}{
		"the scheduler's":            {"aci", now.Add(-time.Minute).Format(time.RFC3339), now.Add(-time.Minute)},
		"by a clock that is ahead":   {"aci", now.Add(5 * time.Second).Format(time.RFC3339), now},
		"in the future":              {"aci", "2099-01-01T00:00:00Z", now},
		"before the pod was created": {"aci", "1999-01-01T00:00:00Z", made},
		"no time":                    {"aci", "yesterday", made},
		"of a pod without a node":    {"", now.Add(-time.Minute).Format(time.RFC3339), made},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(made), Annotations: map[string]string{BoundAtAnnotation: tc.said}}}
		pod.Spec.NodeName = tc.node
		if got := BoundAt(pod, now); !got.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
