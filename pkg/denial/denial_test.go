package denial

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// answered returns an error of the API server with the code.
func answered(code int32, message string) error {
	return fmt.Errorf("changing: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: message}})
}

func TestIs(t *testing.T) {
	nodes := schema.GroupResource{Resource: "nodes"}
	rbac := apierrors.NewForbidden(nodes, "n", errors.New(`User "system:serviceaccount:a:b" cannot patch resource "nodes" in API group "" at the cluster scope`))
	for _, tc := range []struct {
		name                 string
		err                  error
		denied, withoutRight bool
	}{
		{"nothing", nil, false, false},
		{"no answer", errors.New("connection refused"), false, false},
		{"RBAC", rbac, true, true},
		{"a policy", answered(http.StatusUnprocessableEntity, "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no"), true, false},
		{"a webhook", answered(http.StatusForbidden, `admission webhook "w" denied the request: no`), true, false},
		{"a webhook without a code", answered(http.StatusBadRequest, `admission webhook "w" denied the request without explanation`), true, false},
		{"a webhook with a code of its own", answered(http.StatusNotAcceptable, `admission webhook "w" denied the request: no`), true, false},
		{"a webhook with side effects", answered(http.StatusBadRequest, `admission webhook "w" does not support dry run`), false, false},
		{"a webhook that does not answer", apierrors.NewInternalError(errors.New(`failed calling webhook "w"`)), false, false},
		{"a conflict", apierrors.NewConflict(nodes, "n", errors.New("changed")), false, false},
		{"gone", apierrors.NewNotFound(nodes, "n"), false, false},
		{"throttled", apierrors.NewTooManyRequests("later", 1), false, false},
	} {
		if got := Is(tc.err); got != tc.denied {
			t.Errorf("%s: denied: %v, want %v", tc.name, got, tc.denied)
		}
		if got := WithoutRight(tc.err); got != tc.withoutRight {
			t.Errorf("%s: without the right: %v, want %v", tc.name, got, tc.withoutRight)
		}
	}
}
