package lease

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// rightsGrace is how long a starting process waits for missing rights. The process waits because its RBAC objects
	// may be created a moment after the process starts. While it waits, it checks its rights every rightsRetry.
	rightsGrace, rightsRetry = 10 * time.Second, time.Second
	// rightsInterval is the time between two checks of Watch.
	rightsInterval = 30 * time.Second
)

// Rights checks the RBAC rights that a process needs for its lease. Without these rights, leader election would retry
// for ever. The process would then be a Ready standby that can never become the leader.
type Rights struct {
	// Client must not be fenced by a Leadership.
	Client kubernetes.Interface
	// Namespace and Name are the lease's namespace and name.
	Namespace, Name string
	Clock           clock.Clock
}

// Await returns nil when the process has the rights, or if they cannot be checked. After 10 s without the rights, Await
// returns an error that lists the missing rights.
func (r *Rights) Await(ctx context.Context) error {
	for begun := r.Clock.Now(); ; {
		err := r.missing(ctx)
		if err == nil || r.Clock.Since(begun) >= rightsGrace {
			return err
		}
		klog.FromContext(ctx).Error(err, "Waiting for the right to the leader's lease")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.Clock.After(rightsRetry):
		}
	}
}

// Watch calls lost once two checks in a row, 30 s apart, have found that rights are missing. Watch returns after the
// call of lost, or when the context ends.
func (r *Rights) Watch(ctx context.Context, lost func(error)) {
	for inARow := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-r.Clock.After(rightsInterval):
		}
		err := r.missing(ctx)
		if err == nil {
			inARow = 0
			continue
		}
		klog.FromContext(ctx).Error(err, "The right to the leader's lease is gone")
		if inARow++; inARow == 2 {
			lost(err)
			return
		}
	}
}

// missing returns an error that lists the missing rights. It returns nil if no right is missing or if the rights cannot
// be checked.
func (r *Rights) missing(ctx context.Context) error {
	var verbs []string
	for _, verb := range []string{"get", "update", "create"} {
		if r.denied(ctx, verb) {
			verbs = append(verbs, verb)
		}
	}
	if len(verbs) == 0 {
		return nil
	}
	return fmt.Errorf(`leases.coordination.k8s.io %q is forbidden: this process may not %s this lease in the namespace %s. The manifests give the process rights to one lease in its own namespace. `+
		`Check resourceName and resourceNamespace of leaderElection in the configuration`, r.Name, strings.Join(verbs, " or "), r.Namespace)
}

// denied reports whether the process lacks the right to the verb on its lease. If the right cannot be checked, denied
// returns false. A missing right to create counts only if the lease does not exist.
func (r *Rights) denied(ctx context.Context, verb string) bool {
	attributes := &authorizationv1.ResourceAttributes{Group: coordinationv1.GroupName, Resource: "leases", Namespace: r.Namespace, Name: r.Name, Verb: verb}
	if verb == "create" {
		attributes.Name = "" // the API server authorizes create without a name
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
	answer, err := r.Client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil || answer.Status.Allowed || answer.Status.EvaluationError != "" {
		return false
	}
	if verb == "create" {
		_, err := r.Client.CoordinationV1().Leases(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
	return true
}
