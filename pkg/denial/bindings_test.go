package denial

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// answer returns the API server's answer to a binding.
func answer(code int32, message string) error {
	return fmt.Errorf("binding: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Reason: metav1.StatusReasonForbidden, Message: message}})
}

func TestOfBinding(t *testing.T) {
	terminating := apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("the namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"a webhook":                {answer(http.StatusForbidden, `admission webhook "nodes.example.com" denied the request: no`), true},
		"a policy":                 {answer(http.StatusUnprocessableEntity, "ValidatingAdmissionPolicy 'system-pools' with binding 'b' denied request: no"), true},
		"our own policy":           {answer(http.StatusUnprocessableEntity, "ValidatingAdmissionPolicy 'burst-scheduler-bindings' with binding 'burst-scheduler-bindings' denied request: the pool-priority scheduler may bind no pods of this namespace; leave out"), false},
		"RBAC":                     {answer(http.StatusForbidden, `pods "p" is forbidden: User "u" cannot create resource "pods/binding" in API group ""`), false},
		"the namespace terminates": {terminating, false},
		"the pod has a node":       {apierrors.NewConflict(corev1.Resource("pods/binding"), "p", errors.New("pod p is already assigned to node n")), false},
		"no answer":                {errors.New("connection refused"), false},
		"success":                  {nil, false},
	} {
		if got := OfBinding(tc.err); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestBindings(t *testing.T) {
	b, now := NewBindings(), time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	deny := func(uid, namespace string) {
		b.Deny(1, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Namespace: namespace}}, errors.New(strings.Repeat("no ", 400)), now)
	}
	out := func(want ...string) {
		t.Helper()
		var got []string
		for _, uid := range []types.UID{"a", "b", "other"} {
			switch left := b.LeftOut(uid, 3, false, now); {
			case slices.Equal(left, []bool{false, true, false}):
				got = append(got, string(uid))
			case left != nil:
				t.Errorf("%s leaves out %v", uid, left)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v leave out the pool, want %v", got, want)
		}
	}
	out()
	deny("a", "x")
	deny("b", "x")
	out("a", "b") // one namespace does not speak for others
	if d := b.Of(1, now); d == nil || d.All || len(d.Message) > maxMessage || !d.Until.Equal(now.Add(5*time.Minute)) || b.Of(0, now) != nil {
		t.Errorf("%+v", d)
	}
	b.Accept(1) // of a pod of another namespace
	now = now.Add(time.Minute)
	deny("b", "y")
	out("a", "b")
	deny("a", "z")
	out("a", "b", "other")
	if b.LeftOut("other", 3, true, now) != nil || b.LeftOut("a", 3, true, now) == nil {
		t.Error("the denials of others count as the pod's own")
	}
	now = now.Add(4 * time.Minute)
	out("a", "b", "other")
	now = now.Add(time.Minute)
	out()
	deny("a", "y") // the denial in z no longer counts
	out("a")
	if b.Accept(0); b.Of(0, now) != nil {
		t.Error("a success is taken for a denial")
	}
}
