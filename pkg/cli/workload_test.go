package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// TestNewPods: explain and lint judge what the API server makes of a workload's pods, and say what they judged.
func TestNewPods(t *testing.T) {
	sidecar := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "tap", Image: "tap", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}})
	}
	admits := func(p *corev1.Pod) *apierrors.StatusError { sidecar(p); return nil }
	refuses := func(*corev1.Pod) *apierrors.StatusError {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("exceeded quota: team"))
	}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-7d4b9", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Controller: ptr.To(true)}}}}
	const cannot, may = "Privileged", "would be let into aci"
	for _, tc := range []struct {
		name    string
		created func(*corev1.Pod) *apierrors.StatusError
		pods    []*corev1.Pod
		explain string // what explain says of a new pod
		by      string // what was judged
		skipped string // what lint says that it has not checked
	}{
		{name: "by the newest pod", created: refuses, explain: cannot, by: "its newest pod, b",
			pods: []*corev1.Pod{pod("a", 2*time.Hour), pod("b", time.Hour, on(time.Hour, userNode, "user", "1"), sidecar), pod("c", time.Minute, func(p *corev1.Pod) { p.OwnerReferences = nil })}},
		{name: "without what the controller adds to a pod in a burst pool", explain: may, by: "its newest pod, a", pods: []*corev1.Pod{pod("a", time.Hour, recorded(time.Hour, open))}},
		{name: "without pods, by a dry run", created: admits, explain: cannot, by: "a dry run of a new pod"},
		{name: "a dry run that fails", created: refuses, explain: may, by: `its template: a dry run of a new pod fails: pods is forbidden: exceeded quota: team`, skipped: "new pods of 1 workload, such as Deployment default/web (judged by the template): a dry run"},
		{name: "without the right to create pods", explain: may, by: "its template: you may not create pods in its namespace", skipped: "(judged by the template): you may not"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newServer(t, full(t).published(0), deployment(), replicaSet)
			s.created = tc.created
			for _, p := range tc.pods {
				s.put(p)
			}
			for _, args := range [][]string{{"explain", "deploy/web"}, {"explain", "deploy/web", "--status=none/none"}} {
				if got := s.run(args...); !strings.Contains(got, tc.by) || len(args) == 2 && !strings.Contains(got, tc.explain) || strings.Contains(got, configv1.GateTaintKey) {
					t.Error(got)
				}
			}
			got := s.run("lint")
			if finds := strings.Contains(got, "CannotBurst"); finds != (tc.explain == cannot) || finds && !strings.Contains(got, "(judged by "+tc.by+")") || !strings.Contains(got, tc.skipped) || tc.skipped == "" && strings.Contains(got, "new pods") {
				t.Error(got)
			}
		})
	}
}
