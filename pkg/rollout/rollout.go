// Package rollout computes whether a rollout, such as a Deployment's, will free capacity for its new pods by deleting old
// pods. The package has no side effects. It uses the same arithmetic as the Deployment controller (reconcileOldReplicaSets in
// pkg/controller/deployment/rolling.go).
package rollout

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/refusal"
)

const (
	// revisionAnnotation numbers a Deployment's ReplicaSets, and argoRevision those of an Argo Rollout. The newest
	// ReplicaSet has the highest number.
	revisionAnnotation, argoRevision = "deployment.kubernetes.io/revision", "rollout.argoproj.io/revision"
	// deadlineExceeded is the reason in a Deployment's condition Progressing if its rollout makes no progress
	// (TimedOutReason in pkg/controller/deployment/util).
	deadlineExceeded = "ProgressDeadlineExceeded"

	// defaultDeadline is the API's default of progressDeadlineSeconds. It also applies to Deployments without a
	// deadline.
	defaultDeadline = 600 * time.Second
	// defaultGrace is the API's default of terminationGracePeriodSeconds.
	defaultGrace = 30
)

// Rollout is a Deployment, or another owner of ReplicaSets, whose newest ReplicaSet replaces the pods of its other
// ReplicaSets.
type Rollout struct {
	// New is the key of the newest ReplicaSet (refusal.KeyOf).
	New types.UID
	// Old maps the key of each other ReplicaSet of the owner to its spec.replicas.
	Old map[types.UID]int
	// Wanted is spec.replicas of the newest ReplicaSet.
	Wanted int
	// Replacing is set if old ReplicaSets still have pods that are not terminating.
	Replacing bool
	// Grace is the longest termination grace period of the owner's pods.
	Grace time.Duration
	// Deadline is how long the rollout may go without progress; 0 for an owner of which only the ReplicaSets are known.
	Deadline time.Duration

	spare   int  // the sum of spec.replicas of all ReplicaSets, minus the number of pods that must be available
	stopped bool // the controller deletes no old pod before a new pod is available, or no old pod at all
}

// Of returns the rollout of the Deployment d as OfOwner does. It returns nil if d does not use rolling updates.
func Of(d *appsv1.Deployment, all []*appsv1.ReplicaSet, own types.UID) *Rollout {
	if s := d.Spec.Strategy.Type; s != "" && s != appsv1.RollingUpdateDeploymentStrategyType {
		return nil
	}
	r := OfOwner(d, all, own)
	if r == nil {
		return nil
	}
	unavailable := maxUnavailable(d)
	r.spare -= replicas(d.Spec.Replicas) - unavailable
	r.stopped = unavailable == 0 || d.Spec.Paused || isStuck(d)
	r.Deadline = defaultDeadline
	if s := d.Spec.ProgressDeadlineSeconds; s != nil && *s != math.MaxInt32 {
		r.Deadline = time.Duration(*s) * time.Second
	}
	return r
}

// OfOwner returns the rollout of an owner of which only the ReplicaSets are known, such as an Argo Rollout. It may pause at
// any time, so new pods count only on old pods that are terminating. own is the UID of the ReplicaSet with the new pods.
// OfOwner returns nil if own is not the owner's newest ReplicaSet, or if the owner has no other ReplicaSet. all may contain
// ReplicaSets of other owners.
func OfOwner(owner metav1.Object, all []*appsv1.ReplicaSet, own types.UID) *Rollout {
	r := &Rollout{New: refusal.KeyOf(owner.GetNamespace(), own), Old: map[types.UID]int{}, stopped: true}
	var newest *appsv1.ReplicaSet
	for _, rs := range all {
		if !metav1.IsControlledBy(rs, owner) {
			continue
		}
		if newest == nil || cmp.Or(cmp.Compare(revision(rs), revision(newest)), rs.CreationTimestamp.Compare(newest.CreationTimestamp.Time)) > 0 {
			newest = rs
		}
		if rs.UID != own {
			r.Old[refusal.KeyOf(owner.GetNamespace(), rs.UID)] = replicas(rs.Spec.Replicas)
			r.Replacing = r.Replacing || replicas(rs.Spec.Replicas) > 0 || rs.Status.Replicas > 0
		}
		if rs.UID == own || replicas(rs.Spec.Replicas) > 0 || rs.Status.Replicas > 0 {
			r.Grace = max(r.Grace, time.Duration(ptr.Deref(rs.Spec.Template.Spec.TerminationGracePeriodSeconds, defaultGrace))*time.Second)
		}
		r.spare += replicas(rs.Spec.Replicas)
	}
	if newest == nil || newest.UID != own || len(r.Old) == 0 {
		return nil
	}
	r.Wanted = replicas(newest.Spec.Replicas)
	return r
}

// GoesOn reports whether the Deployment controller will delete old pods while the given number of new pods are pending.
// The controller deletes old pods only if there are more pods than must be available, without counting pending pods. If
// maxUnavailable is 0, the rollout waits for the new pods.
func (r *Rollout) GoesOn(pending int) bool { return r.Replacing && !r.stopped && r.spare-pending > 0 }

// Newest returns the highest revision of the ReplicaSets of each controller, by its key (refusal.OwnerOf).
func Newest(all []*appsv1.ReplicaSet) map[types.UID]int64 {
	newest := map[types.UID]int64{}
	for _, rs := range all {
		of := refusal.OwnerOf(rs)
		newest[of] = max(newest[of], revision(rs))
	}
	return newest
}

// Ends reports whether a rollout of the Deployment d will end the ReplicaSet rs of d. newest is the highest revision of
// d's ReplicaSets. A paused rollout may go on for days, and one past its deadline for ever, so they end nothing.
func Ends(d *appsv1.Deployment, rs *appsv1.ReplicaSet, newest int64) bool {
	return revision(rs) < newest && !d.Spec.Paused && !isStuck(d)
}

func replicas(n *int32) int {
	return int(ptr.Deref(n, 1))
}

// revision returns 0 if the revision is unknown.
func revision(rs *appsv1.ReplicaSet) int64 {
	n, _ := strconv.ParseInt(cmp.Or(rs.Annotations[revisionAnnotation], rs.Annotations[argoRevision]), 10, 64)
	return n
}

func isStuck(d *appsv1.Deployment) bool {
	return slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == deadlineExceeded
	})
}

// maxUnavailable returns how many pods may be unavailable. A percentage is rounded down. If maxUnavailable and maxSurge
// are both 0, the rollout could make no progress. In that case, the result is 1.
func maxUnavailable(d *appsv1.Deployment) int {
	wanted := replicas(d.Spec.Replicas)
	surge, unavailable := intstr.FromString("25%"), intstr.FromString("25%") // the API's defaults
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil {
		surge, unavailable = *intstr.ValueOrDefault(rolling.MaxSurge, surge), *intstr.ValueOrDefault(rolling.MaxUnavailable, unavailable)
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&unavailable, wanted, false)
	if err != nil {
		return 0 // the API server rejects such a Deployment
	}
	if s, err := intstr.GetScaledValueFromIntOrPercent(&surge, wanted, true); n == 0 && err == nil && s == 0 {
		n = 1
	}
	return min(n, wanted)
}
