package alike

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestTemplate(t *testing.T) {
	of := func(kind, revision, image string) string {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", OwnerReferences: []metav1.OwnerReference{{Kind: kind, UID: "u", Controller: ptr.To(true)}}}}
		if revision != "" {
			p.Labels = map[string]string{"controller-revision-hash": revision}
		}
		p.Spec.Containers = []corev1.Container{{Image: image, VolumeMounts: []corev1.VolumeMount{{Name: fmt.Sprint("kube-api-access-", time.Now().UnixNano())}}}}
		return Template(p)
	}
	if a, b := of("ReplicaSet", "", "x"), of("ReplicaSet", "", "y"); a != "ns/u" || a != b {
		t.Errorf("ReplicaSet: %q, %q", a, b)
	}
	if a, b := of("StatefulSet", "1", "x"), of("StatefulSet", "2", "x"); a != "ns/u/1" || b != "ns/u/2" {
		t.Errorf("StatefulSet: %q, %q", a, b)
	}
	if a, b, c := of("Workflow", "", "x"), of("Workflow", "", "x"), of("Workflow", "", "y"); a != b || a == c {
		t.Errorf("Workflow: %q, %q, %q", a, b, c)
	}
	if got := Template(&corev1.Pod{}); got != "" {
		t.Errorf("a bare pod: %q", got)
	}
}

func TestNearby(t *testing.T) {
	of := func(app, index string, all bool) string {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{"app": app, "apps.kubernetes.io/pod-index": index}}}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: "zone", MatchLabelKeys: []string{"app"}}}
		return Nearby(p, all)
	}
	if of("a", "0", false) != of("a", "1", false) {
		t.Error("a label that no rule reads counts")
	}
	if of("a", "0", false) == of("b", "0", false) || of("a", "0", true) == of("a", "1", true) {
		t.Error("a label that a rule may read does not count")
	}
}
