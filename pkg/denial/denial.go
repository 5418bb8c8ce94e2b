// Package denial tells why the API server denies a change, and what the user can do. It remembers denied bindings.
package denial

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// Consequence describes the effect of a missing gate taint.
	Consequence = "without the gate taint, autoscalers add no VM for pods that tolerate the burst node's other taints"
	// rightsAdvice is the advice to users if RBAC denies a change. exemptionAdvice is the advice if an admission rule
	// denies it.
	rightsAdvice    = "give the controller the rights of manifests/rbac/write.yaml"
	exemptionAdvice = "an admission rule denies the change: exempt the controller's ServiceAccount from this rule. AKS's deployment safeguards have such a rule, " +
		"the policy \"Cannot Edit Individual Nodes\""
)

// Advice returns the consequence of a missing gate taint and the advice to the user. err is the error of the denied
// change.
func Advice(err error) string {
	if WithoutRight(err) {
		return Consequence + "; " + rightsAdvice
	}
	return Consequence + "; " + exemptionAdvice
}

// Is reports whether err is a denial by RBAC, an admission policy or a webhook. The API server would deny the same
// request again.
func Is(err error) bool {
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
	return apierrors.IsForbidden(err) && (strings.Contains(err.Error(), " cannot patch resource ") || strings.Contains(err.Error(), " cannot create resource ") || strings.Contains(err.Error(), " cannot impersonate resource "))
}
