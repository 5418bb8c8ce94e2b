package integration

import (
	"fmt"
	"net"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// asAny returns a client of the ServiceAccount, which need not exist. Unlike the administrator's, its requests are not
// exempt from priority and fairness.
func (e *env) asAny(account string) kubernetes.Interface {
	e.Helper()
	config := rest.CopyConfig(e.Config)
	config.QPS = -1
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + namespace + ":" + account, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	return must.Get(kubernetes.NewForConfig(config))(e)
}

// TestBusyAPIServer: while requests of other ServiceAccounts fill the priority level workload-low, the scheduler and the
// controller keep their leases for 20 s, and a pod is bound. Without our FlowSchemas, neither renews its lease within
// renewDeadline, 7 s, because the renewals wait among these requests: both processes end.
func TestBusyAPIServer(t *testing.T) {
	t.Parallel()
	e := startWith(t, devcluster.Options{Pools: []devcluster.Pool{vms("userpool", "user", 1, 1, 1, 20)},
		APIServerArgs: []string{"--max-requests-inflight=20", "--max-mutating-requests-inflight=10"}})
	must.NoError(t, e.ApplyFile(e.ctx, root+"/manifests/base/flowschema.yaml"))
	e.schedule("testdata/failover.yaml", suite.UserTier(1), suite.VirtualTier())
	controller := e.control("testdata/failover.yaml")
	renewed := func() string {
		for _, name := range []string{devcluster.SchedulerName, devcluster.ControllerName} {
			lease, err := e.Client.CoordinationV1().Leases(devcluster.SchedulerNamespace).Get(e.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if age := time.Since(lease.Spec.RenewTime.Time); *lease.Spec.LeaseTransitions > 0 || age > 7*time.Second {
				return fmt.Sprintf("the lease %s was renewed %v ago, and changed its holder %d times", name, age, *lease.Spec.LeaseTransitions)
			}
		}
		return ""
	}
	e.Eventually(20*time.Second, renewed)

	// Because of a webhook that never answers, each request takes 10 s, without using the CPU.
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	must.Do(t)(e.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(e.ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "silent"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "silent.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://" + silent.Addr().String())},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
			FailurePolicy: ptr.To(admissionv1.Ignore), SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			TimeoutSeconds: ptr.To(int32(10)), AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{}))
	must.Do(t)(e.Client.RbacV1().RoleBindings(namespace).Create(e.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts"}},
	}, metav1.CreateOptions{}))
	for i := range 400 {
		client := e.asAny(fmt.Sprint("busy-", i))
		go func() {
			for e.ctx.Err() == nil {
				_, _ = client.CoreV1().ConfigMaps(namespace).Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			}
		}()
	}
	time.Sleep(3 * time.Second)
	other, others := e.asAny("other"), make(chan error, 1)
	go func() {
		_, err := other.CoreV1().ConfigMaps(namespace).List(e.ctx, metav1.ListOptions{})
		others <- err
	}()
	e.Stays(20*time.Second, renewed)
	select {
	case err := <-others:
		t.Fatalf("the API server is not busy: it answered another ServiceAccount within 20 s: %v", err)
	default:
	}
	for _, c := range []*devcluster.Component{e.scheduler, controller} {
		must.NoError(t, c.Failed())
	}
	e.Create(suite.Deployment("web", 1, "100m"))
	e.Lands(10*time.Second, "web", map[string]int{"userpool": 1})
}
