package command

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// TestTry: the dry run acts as the controller's account. It acts as the user only if that account has no rights or may
// not be impersonated.
func TestTry(t *testing.T) {
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "aci", NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "virtual-kubelet"}}, Burst: &configv1.Burst{}}}})
	must.NoError(t, err)
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}}}
	none := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "virtual", errors.New(`User "u" cannot patch resource "nodes" in API group "" at the cluster scope`))
	impersonate := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "a", errors.New(`User "u" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "n"`))
	policy := &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusForbidden, Message: `admission webhook "w" denied the request: no`}}
	for _, tc := range []struct {
		name         string
		nodes        []corev1.Node
		account, own error
		denied       bool
		want         string
	}{
		{"let pass", nodes, nil, errors.New("not asked"), false, "a dry run shows that account may put it on node virtual"},
		{"denied by a policy", nodes, policy, errors.New("not asked"), true, "account may not put it on node virtual: "},
		{"not installed", nodes, none, nil, false, "a dry run shows that you may put it on node virtual. It is unknown whether account may do so"},
		{"not to be acted as", nodes, impersonate, nil, false, "a dry run shows that you may put it on node virtual. It is unknown whether account may do so"},
		{"not installed, and denied by a policy", nodes, none, policy, true, "you may not put it on node virtual: "},
		{"not installed, and one may only read", nodes, none, none, false, "not known, because both dry runs were forbidden: account has no rights yet"},
		{"a webhook is down", nodes, apierrors.NewInternalError(errors.New("failed calling webhook")), nil, false, "not known: "},
		{"no node", nil, nil, nil, false, "not tried: there is no node"},
	} {
		answering := func(answer error) client.Client {
			return fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return answer
				},
			}).Build()
		}
		if got := try(context.Background(), answering(tc.account), answering(tc.own), "account", pools, tc.nodes); got.denied != tc.denied || !strings.HasPrefix(got.message, tc.want) {
			t.Errorf("%s: %+v, want denied %v, %q", tc.name, got, tc.denied, tc.want)
		}
	}
}
