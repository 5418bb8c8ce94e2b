package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// If the API server denies a change of a node, the controller retries with backoff. deniedRetry is the first
	// backoff, and maxDeniedRetry is the longest.
	deniedRetry, maxDeniedRetry = 10 * time.Second, 5 * time.Minute

	// ReasonGateTaintDenied is the reason of the event on a node whose taints the controller may not change.
	ReasonGateTaintDenied = "GateTaintDenied"

	// consequence describes the effect of a missing gate taint.
	consequence = "without the gate taint, autoscalers add no VM for pods that tolerate the burst node's other taints"
	// lasting describes the effect of a gate taint that the controller cannot remove. In mode Observe, the controller
	// has no right to change nodes.
	lasting = "the gate taint stays and hides the node from other schedulers. To remove the taint, run pool-priority-controller cleanup --taint-only with the right to edit nodes"
	// rightsAdvice is the advice to users if RBAC denies a change. exemptionAdvice is the advice if an admission rule
	// denies it.
	rightsAdvice    = "give the controller the rights of manifests/rbac/controller-write.yaml"
	exemptionAdvice = "an admission rule denies the change: exempt the controller's ServiceAccount from this rule. AKS's deployment safeguards have such a rule, " +
		"the policy \"Cannot Edit Individual Nodes\""
)

// DenialAdvice returns the consequence of a missing gate taint and the advice to the user. err is the error of the
// denied change.
func DenialAdvice(err error) string {
	if WithoutRight(err) {
		return consequence + "; " + rightsAdvice
	}
	return consequence + "; " + exemptionAdvice
}

// TryGateTaint tests by a dry run, which changes nothing, whether the client may put the gate taint on a node. It
// prefers a node of a burst pool. It returns the node of the dry run. If every node has another installation's gate
// taint, it returns nil.
func TryGateTaint(ctx context.Context, c client.Client, pools pool.List, nodes []corev1.Node) (*corev1.Node, error) {
	i := slices.IndexFunc(nodes, func(n corev1.Node) bool { return pools.IsBurstNode(n.Labels) && pools.OtherOf(&n) == "" })
	if i < 0 {
		i = slices.IndexFunc(nodes, func(n corev1.Node) bool { return pools.OtherOf(&n) == "" })
	}
	if i < 0 {
		return nil, nil
	}
	node := &nodes[i]
	tried := node.DeepCopy()
	tried.Spec.Taints = slices.DeleteFunc(tried.Spec.Taints, pools.Owns)
	// If the node already has the gate taint, the dry run removes the taint, because an admission rule might allow a
	// request that changes nothing.
	if !slices.ContainsFunc(node.Spec.Taints, pools.Owns) {
		tried.Spec.Taints = append(tried.Spec.Taints, pools.GateTaint())
	}
	// Without the optimistic lock, the patch would drop a taint that another component added meanwhile. A policy that
	// forbids such a removal would then deny the dry run.
	if err := c.Patch(ctx, tried, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}), client.DryRunAll); err != nil {
		return node, fmt.Errorf("trying by a dry run to put the gate taint on node %s: %w", node.Name, err)
	}
	return node, nil
}

// Denied reports whether err is a denial by RBAC, an admission policy or a webhook. The API server would deny the same
// request again.
func Denied(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	s := status.Status()
	if strings.Contains(s.Message, "does not support dry run") { // the webhook has side effects, so the dry run has no result
		return false
	}
	switch s.Code {
	case http.StatusBadRequest, http.StatusForbidden, http.StatusUnprocessableEntity: // webhooks; RBAC and other authorizers; admission policies
		return true
	}
	return strings.Contains(s.Message, "denied the request") // a webhook may return another status code
}

// WithoutRight reports whether RBAC denied the request. It returns false if an admission rule denied the request. The
// texts that it searches for are from k8s.io/apiserver, pkg/endpoints/handlers/responsewriters/errors.go.
func WithoutRight(err error) bool {
	return apierrors.IsForbidden(err) && (strings.Contains(err.Error(), " cannot patch resource ") || strings.Contains(err.Error(), " cannot impersonate resource "))
}

// backoff returns, by node name, the backoffs of the nodes for which the API server denied a change.
func (r *GateTaint) backoff() *flowcontrol.Backoff {
	r.once.Do(func() {
		r.denials = flowcontrol.NewBackOff(deniedRetry, maxDeniedRetry)
		r.denials.Clock = r.Clock
	})
	return r.denials
}

// try tests by one dry run whether the controller may put the gate taint on nodes. So the controller reports a denial
// before the first node needs a change. try always returns nil, because an error would end the controller.
func (r *GateTaint) try(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	err := r.Client.List(ctx, nodes)
	var node *corev1.Node
	if err == nil {
		node, err = TryGateTaint(ctx, r.Client, r.Pools, nodes.Items)
	}
	switch {
	case Denied(err) && node != nil:
		r.report(ctx, node, err)
	case err != nil:
		log.FromContext(ctx).Info("Cannot test whether the controller may put the gate taint on nodes", "answer", err.Error())
	}
	return nil
}

// report writes an event that the API server denied a change of the node. It returns the backoff before the next
// attempt.
func (r *GateTaint) report(ctx context.Context, node *corev1.Node, err error) time.Duration {
	r.backoff().Next(node.Name, r.Clock.Now())
	pause := r.backoff().Get(node.Name)
	advice := DenialAdvice(err)
	if !r.wants(node) {
		advice = lasting
	}
	log.FromContext(ctx).Error(err, "The controller may not change the gate taint of a node", "taint", configv1.GateTaintKey, "node", node.Name, "advice", advice, "again", pause)
	r.Recorder.Eventf(node, corev1.EventTypeWarning, ReasonGateTaintDenied, "%s", Short(err.Error()+"; "+advice))
	return pause
}

// Short shortens a message to the length that an event can hold (1,024 bytes).
func Short(message string) string {
	const most = 1000
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + " …"
}
