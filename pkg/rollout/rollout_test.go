package rollout

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	deploymentutil "k8s.io/kubernetes/pkg/controller/deployment/util"
	"k8s.io/utils/ptr"
)

// deployment returns a Deployment with 20 replicas, a maxSurge of 5 pods and this maxUnavailable.
func deployment(unavailable string, changes ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(int32(20)),
		Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge: ptr.To(intstr.FromString("25%")), MaxUnavailable: ptr.To(intstr.Parse(unavailable))}},
	}}
	for _, change := range changes {
		change(d)
	}
	return d
}

func replicaSet(name, revision string, wanted int32, owner types.UID) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: map[string]string{revisionAnnotation: revision},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: owner, Controller: ptr.To(true)}}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &wanted},
	}
}

func TestOf(t *testing.T) {
	old, newest := replicaSet("old", "9", 20, "web"), replicaSet("new", "10", 5, "web")
	slow := replicaSet("slow", "8", 1, "web")
	slow.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To(int64(300))
	past := replicaSet("past", "7", 0, "web")
	past.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To(int64(3600))
	for _, tc := range []struct {
		name string
		d    *appsv1.Deployment
		all  []*appsv1.ReplicaSet
		own  types.UID
		want bool
	}{
		{"the newest of two", deployment("25%"), []*appsv1.ReplicaSet{newest, old}, "new", true},
		{"an older one", deployment("25%"), []*appsv1.ReplicaSet{newest, old}, "old", false},
		{"the only one", deployment("25%"), []*appsv1.ReplicaSet{newest}, "new", false},
		{"the only one of this Deployment", deployment("25%"), []*appsv1.ReplicaSet{newest, replicaSet("other", "1", 5, "other")}, "new", false},
		{"one that is not known", deployment("25%"), []*appsv1.ReplicaSet{old}, "new", false},
		{"no rolling update", deployment("25%", func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }), []*appsv1.ReplicaSet{newest, old}, "new", false},
	} {
		if got := Of(tc.d, tc.all, tc.own) != nil; got != tc.want {
			t.Errorf("%s: a rollout: %t, want %t", tc.name, got, tc.want)
		}
	}
	if r := Of(deployment("25%"), []*appsv1.ReplicaSet{old, newest}, "new"); r.Grace != 30*time.Second || r.Deadline != 600*time.Second || r.Wanted != 5 {
		t.Errorf("%+v", r)
	}
	if r := Of(deployment("25%", func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = ptr.To(int32(60)) }),
		[]*appsv1.ReplicaSet{old, newest, slow, past}, "new"); r.Grace != 300*time.Second || r.Deadline != time.Minute {
		t.Errorf("%+v", r)
	}
}

// TestOfOwner: of an owner that is no Deployment, the newest ReplicaSet counts on old pods that are terminating already.
func TestOfOwner(t *testing.T) {
	argo := func(name, revision string, age time.Duration) *appsv1.ReplicaSet {
		rs := replicaSet(name, "", 5, "canary")
		rs.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0).Add(-age))
		rs.Annotations = map[string]string{argoRevision: revision}
		return rs
	}
	for _, tc := range []struct {
		name string
		all  []*appsv1.ReplicaSet
		want bool
	}{
		{"the newest by its revision, as after an undo", []*appsv1.ReplicaSet{argo("new", "10", time.Hour), argo("old", "9", time.Minute)}, true},
		{"an older one", []*appsv1.ReplicaSet{argo("new", "9", time.Minute), argo("old", "10", time.Hour)}, false},
		{"the newest by its age", []*appsv1.ReplicaSet{argo("new", "", time.Minute), argo("old", "", time.Hour)}, true},
		{"the only one", []*appsv1.ReplicaSet{argo("new", "1", time.Minute)}, false},
	} {
		r := OfOwner(&metav1.ObjectMeta{UID: "canary"}, tc.all, "new")
		if got := r != nil; got != tc.want || got && (r.GoesOn(0) || r.GoesOn(-100) || r.Deadline != 0 || r.Grace != 30*time.Second) {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
}

func TestGoesOn(t *testing.T) {
	for _, tc := range []struct {
		name     string
		d        *appsv1.Deployment
		old, new int32 // spec.replicas
		pending  int
		expect   bool
	}{
		{name: "the first surge", d: deployment("25%"), old: 20, new: 5, pending: 5, expect: true},
		{name: "the second, the first in its place", d: deployment("25%"), old: 15, new: 10, pending: 5, expect: true},
		{name: "no new pod finds a place", d: deployment("25%"), old: 15, new: 10, pending: 10},
		{name: "all but one find none", d: deployment("25%"), old: 15, new: 10, pending: 9, expect: true},
		{name: "none may be unavailable", d: deployment("0"), old: 20, new: 5, pending: 5},
		{name: "none may be unavailable, and one has a place", d: deployment("0"), old: 20, new: 5, pending: 4},
		{name: "one may be, as there is no surge", d: deployment("0", func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0)) }), old: 20, new: 0, expect: true},
		{name: "defaults", d: deployment("0", func(d *appsv1.Deployment) { d.Spec.Strategy = appsv1.DeploymentStrategy{} }), old: 20, new: 5, pending: 5, expect: true},
		{name: "paused", d: deployment("25%", func(d *appsv1.Deployment) { d.Spec.Paused = true }), old: 20, new: 5, pending: 5},
		{name: "no progress", d: deployment("25%", func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: deadlineExceeded}}
		}), old: 20, new: 5, pending: 5},
		{name: "the old ones are gone", d: deployment("25%"), old: 0, new: 20, pending: 1},
	} {
		r := Of(tc.d, []*appsv1.ReplicaSet{replicaSet("old", "1", tc.old, "web"), replicaSet("new", "2", tc.new, "web")}, "new")
		if got := r.GoesOn(tc.pending); got != tc.expect {
			t.Errorf("%s: goes on: %t, want %t", tc.name, got, tc.expect)
		}
	}
}

// TestAsTheController: maxUnavailable and the constants are those of the Deployment controller. The package has its own
// copies because the controller's package needs a client.
func TestAsTheController(t *testing.T) {
	for wanted := range int32(30) {
		for _, unavailable := range []string{"0", "1", "7", "50", "0%", "1%", "10%", "25%", "33%", "100%"} {
			for _, surge := range []string{"0", "3", "0%", "25%"} {
				d := deployment(unavailable, func(d *appsv1.Deployment) {
					d.Spec.Replicas = ptr.To(wanted)
					d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.Parse(surge))
				})
				if got, want := maxUnavailable(d), int(deploymentutil.MaxUnavailable(*d)); got != want {
					t.Errorf("%d replicas, maxUnavailable %s, maxSurge %s: %d may be unavailable, the controller says %d", wanted, unavailable, surge, got, want)
				}
			}
		}
	}
	if revisionAnnotation != deploymentutil.RevisionAnnotation || deadlineExceeded != deploymentutil.TimedOutReason {
		t.Error("the names differ")
	}
}

// TestEnds: which ReplicaSets a rollout ends.
func TestEnds(t *testing.T) {
	at := func(revision string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{revisionAnnotation: revision}}}
	}
	plain, paused, stuck := &appsv1.Deployment{}, &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Paused: true}}, &appsv1.Deployment{}
	stuck.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: deadlineExceeded}}
	for name, tc := range map[string]struct {
		of   *appsv1.Deployment
		rs   *appsv1.ReplicaSet
		want bool
	}{
		"an old one":        {plain, at("9"), true},
		"the newest":        {plain, at("10"), false},
		"paused":            {paused, at("9"), false},
		"past its deadline": {stuck, at("9"), false},
	} {
		if got := Ends(tc.of, tc.rs, 10); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
