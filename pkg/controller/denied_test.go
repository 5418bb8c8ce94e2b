package controller

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"poolpriority.dev/scheduler/test/must"
)

// answered returns an error of the API server with the code.
func answered(code int32, message string) error {
	return fmt.Errorf("changing: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: message}})
}

// nodeClient returns a client with the nodes. It rejects a patch that gives a node two taints with the same key and
// effect. For any other patch, answer returns the error, or nil if the patch is allowed.
func nodeClient(answer func(dryRun bool) error, nodes ...client.Object) client.Client {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(nodes...).
		WithInterceptorFuncs(interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			of := map[string]bool{}
			for _, taint := range o.(*corev1.Node).Spec.Taints {
				if of[taint.Key+string(taint.Effect)] {
					return fmt.Errorf("%s twice", taint.ToString())
				}
				of[taint.Key+string(taint.Effect)] = true
			}
			o2 := client.PatchOptions{}
			if err := answer(len(o2.ApplyOptions(opts).DryRun) > 0); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		}}).Build()
}

// TestGateTaintDenied: a denied change is reported in an event and tried again with backoff, however often the node's
// status changes. It is made when it is no longer denied.
func TestGateTaintDenied(t *testing.T) {
	denial, patches := answered(http.StatusForbidden, `admission webhook "w" denied the request: nodes are not to be edited`), 0
	c := nodeClient(func(bool) error { patches++; return denial }, node("virtual", map[string]string{"type": "virtual-kubelet"}))
	recorder, clock := record.NewFakeRecorder(100), clocktesting.NewFakeClock(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC))
	r := &GateTaint{Client: c, Pools: pools(t), Recorder: recorder, Clock: clock}
	var tried []time.Duration
	began := clock.Now()
	once := func() {
		t.Helper()
		before := patches
		result := must.Get(r.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "virtual"}}))(t)
		if patches > before {
			tried = append(tried, clock.Since(began))
		}
		if denial != nil && result.RequeueAfter <= 0 {
			t.Error("it is not tried again")
		}
	}
	for clock.Since(began) < time.Hour {
		once()
		clock.SetTime(clock.Now().Add(time.Second))
	}
	if len(tried) < 12 || len(tried) > 20 || tried[1] != 10*time.Second || tried[2] != 30*time.Second || tried[len(tried)-1]-tried[len(tried)-2] != 5*time.Minute {
		t.Errorf("tried after %v, want ever later up to 5 min", tried)
	}
	if got := len(recorder.Events); got != len(tried) {
		t.Errorf("%d events, want one for each try", got)
	}
	if event := <-recorder.Events; !strings.HasPrefix(event, "Warning GateTaintDenied") || !strings.Contains(event, "nodes are not to be edited") || !strings.Contains(event, "exempt the controller's ServiceAccount") {
		t.Errorf("the event says %q", event)
	}
	denial = nil
	clock.SetTime(clock.Now().Add(5 * time.Minute))
	once()
	got := &corev1.Node{}
	if err := c.Get(context.Background(), client.ObjectKey{Name: "virtual"}, got); err != nil || !r.InLine(got) {
		t.Errorf("%v, taints %v, once it was let pass", err, got.Spec.Taints)
	}
	if r.backoffs().denials.Get("virtual") > 0 {
		t.Error("the denial is remembered")
	}
}

// TestTry: the controller tests a change by a dry run, on a burst node if there is one.
func TestTry(t *testing.T) {
	vm, burst := node("vm", map[string]string{"mode": "user"}), map[string]string{"type": "virtual-kubelet"}
	for _, tc := range []struct {
		name  string
		nodes []corev1.Node
		want  string
	}{
		{"no node", nil, ""},
		{"only a VM", []corev1.Node{*vm}, ""},
		{"a burst node", []corev1.Node{*vm, *node("virtual", burst, other)}, "virtual"},
		{"a burst node with the taint", []corev1.Node{*vm, *node("virtual", burst, gateTaint)}, "virtual"},
		{"a burst node with another installation's", []corev1.Node{*node("theirs", burst, another), *vm}, ""},
		{"only nodes with another installation's", []corev1.Node{*node("theirs", burst, another)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dry, wet := 0, 0
			var objects []client.Object
			for i := range tc.nodes {
				objects = append(objects, tc.nodes[i].DeepCopy())
			}
			c := nodeClient(func(dryRun bool) error {
				if dryRun {
					dry++
				} else {
					wet++
				}
				return answered(http.StatusForbidden, "no")
			}, objects...)
			recorder := record.NewFakeRecorder(10)
			r := &GateTaint{Client: c, Pools: pools(t), Recorder: recorder, Clock: clocktesting.NewFakeClock(time.Now())}
			must.NoError(t, r.try(context.Background()))
			if want := min(1, len(tc.want)); dry != want || wet != 0 || len(recorder.Events) != want {
				t.Errorf("%d dry runs, %d real ones, %d events, want a dry run on %q", dry, wet, len(recorder.Events), tc.want)
			}
			if node, _ := pools(t).GateTaintTrial(tc.nodes); node != nil && node.Name != tc.want {
				t.Errorf("on %s, want %q", node.Name, tc.want)
			}
		})
	}
}
