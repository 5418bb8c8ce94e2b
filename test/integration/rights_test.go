package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// notAJob returns the owner for pods whose Job finalizer must stay. The Job controller removes this finalizer from its
// own pods and from pods without an owner.
func (e *env) notAJob() []metav1.OwnerReference {
	e.Helper()
	var account *corev1.ServiceAccount
	e.Eventually(20*time.Second, func() string {
		var err error
		if account, err = e.Client.CoreV1().ServiceAccounts(namespace).Get(e.ctx, "default", metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ServiceAccount", Name: account.Name, UID: account.UID, Controller: ptr.To(true)}}
}

// TestRights: each rule of our own roles is needed. Without the rule, the API server forbids a request of the scheduler
// or of the controller. (All other tests check that the rules are enough: the logs of our binaries must not say
// "forbidden".)
func TestRights(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.rbac, e.refused = returnRBAC, true
	e.args = []string{"--authentication-skip-lookup=false"} // as in a cluster
	const config = "testdata/rights.yaml"
	node := e.nodesOf("userpool")[0].Name
	e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	e.schedule(config, suite.UserTier(1), suite.VirtualTier())
	controller := e.controlServing(config)
	e.waitGated(true)
	must.NoError(t, e.ApplyFile(e.ctx, filepath.Join(*bin, bufferCRD)))
	e.buffer(1, &suite.Deployment("spare", 1, "100m").Spec.Template)
	must.Do(t)(e.dynamic().Resource(devcluster.CapacityBuffers).Namespace(namespace).Patch(e.ctx, "spare", types.MergePatchType, []byte(`{"status": {"podTemplateRef": {"name": "spare"}, "replicas": 1,
		"conditions": [{"type": "ReadyForProvisioning", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": "2026-11-26T00:00:00Z"}]}}`), metav1.PatchOptions{}, "status"))
	// The first pod should return from the burst pool but must not be evicted. The second pod has a changed deletion
	// cost.
	e.Create(suite.Deployment("web", 1, "100m"))
	e.Lands(20*time.Second, "web", map[string]int{"aci": 1})
	must.Do(t)(e.Client.PolicyV1().PodDisruptionBudgets(namespace).Create(e.ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}, metav1.CreateOptions{}))
	e.updateNode(node, func(n *corev1.Node) { n.Spec.Unschedulable = false })
	e.Create(suite.Deployment("changed", 1, "100m"))
	e.Lands(20*time.Second, "changed", map[string]int{"userpool": 1})
	must.Do(t)(e.Client.CoreV1().Pods(namespace).Patch(e.ctx, e.Pods("changed")[0].Name, types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+scalein.CostAnnotation+`":"7"}}}`), metav1.PatchOptions{}))

	// The deletion cost of this pod is removed before each start.
	e.Create(suite.Deployment("bare", 1, "100m"))
	e.Lands(20*time.Second, "bare", map[string]int{"userpool": 1})
	bare := e.Pods("bare")[0].Name

	ours := []*devcluster.Component{e.scheduler, controller}
	// refusedWithout restarts the scheduler and the controller without the rule, and waits until one of their requests
	// is forbidden.
	refusedWithout := func(t *testing.T, rule rbacv1.PolicyRule) {
		for _, lease := range []string{devcluster.SchedulerName, devcluster.ControllerName} {
			if err := e.Client.CoordinationV1().Leases(devcluster.SchedulerNamespace).Delete(e.ctx, lease, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		if err := e.Client.CoreV1().ConfigMaps(devcluster.SchedulerNamespace).Delete(e.ctx, "pool-priority-status", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		must.Do(t)(e.Client.CoreV1().Pods(namespace).Patch(e.ctx, bare, types.MergePatchType,
			[]byte(`{"metadata":{"annotations":{"`+scalein.CostAnnotation+`":null,"`+scalein.OwnCostAnnotation+`":null}}}`), metav1.PatchOptions{}))
		for _, c := range ours {
			must.NoError(t, os.Truncate(c.Log(), 0))
			must.NoError(t, c.Restart())
		}
		defer func() {
			for _, c := range ours {
				c.Stop()
			}
		}()
		e.of(t).Eventually(25*time.Second, func() string {
			_, _, _ = e.scrape(controller, e.Config.BearerToken) // makes the controller check the token and the right of the client
			for _, c := range ours {
				log, err := os.ReadFile(c.Log())
				if err != nil {
					return err.Error()
				}
				for _, line := range strings.Split(string(log), "\n") {
					for _, resource := range rule.Resources {
						kind, _, _ := strings.Cut(resource, "/")
						if strings.Contains(line, "forbidden") && strings.Contains(line, kind) {
							return ""
						}
					}
				}
			}
			return fmt.Sprintf("nothing was refused without %v", rule)
		})
	}
	for _, c := range ours {
		c.Stop()
	}
	// once removes each rule of the role in turn, and runs refusedWithout.
	once := func(name string, rules []rbacv1.PolicyRule, update func(rules []rbacv1.PolicyRule) error) {
		for i, rule := range rules {
			t.Run(fmt.Sprintf("%s without %s of %s", name, strings.Join(rule.Verbs, ","), strings.Join(rule.Resources, ",")), func(t *testing.T) {
				must.NoError(t, update(append(append([]rbacv1.PolicyRule{}, rules[:i]...), rules[i+1:]...)))
				refusedWithout(t, rule)
			})
		}
		must.NoError(t, update(rules))
	}
	n := 0
	clusterRoles := must.Get(e.Client.RbacV1().ClusterRoles().List(e.ctx, metav1.ListOptions{}))(t)
	for _, role := range clusterRoles.Items {
		if strings.HasPrefix(role.Name, "pool-priority") {
			n += len(role.Rules)
			once(role.Name, role.Rules, func(rules []rbacv1.PolicyRule) error {
				_, err := e.Client.RbacV1().ClusterRoles().Update(e.ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Rules: rules}, metav1.UpdateOptions{})
				return err
			})
		}
	}
	roles := must.Get(e.Client.RbacV1().Roles(metav1.NamespaceAll).List(e.ctx, metav1.ListOptions{}))(t)
	for _, role := range roles.Items {
		if strings.HasPrefix(role.Name, "pool-priority") {
			n += len(role.Rules)
			once(role.Name, role.Rules, func(rules []rbacv1.PolicyRule) error {
				_, err := e.Client.RbacV1().Roles(role.Namespace).Update(e.ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Rules: rules}, metav1.UpdateOptions{})
				return err
			})
		}
	}
	if n < 16 {
		t.Errorf("%d rules were tried", n)
	}
}
