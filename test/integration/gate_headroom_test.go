package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestHeadroom: three placeholders keep room on the VMs, and five pods come. Three of them preempt the placeholders. If
// no pool can grow, the other two burst. If a pool can grow, they wait for the VM, and nobody bursts. No other pod is
// preempted, although a PodDisruptionBudget protects the placeholders, and where no pool can grow, although others have
// a lower priority, too. Placeholders never burst.
func TestHeadroom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		most                   int
		state                  nodegroups.State
		class                  string         // of the five pods
		soon                   map[string]int // where the five pods are before a VM comes
		web, placeholders, old map[string]int // where the pods are in the end
	}{
		"no pool can grow": {2, nodegroups.Full, "web", map[string]int{"userpool": 3, "aci": 2}, map[string]int{"userpool": 3, "aci": 2}, map[string]int{"": 3}, map[string]int{"userpool": 5}},
		"one VM is left":   {3, nodegroups.CanGrow, "", map[string]int{"userpool": 3, "": 2}, map[string]int{"userpool": 5}, map[string]int{"userpool": 2, "": 1}, map[string]int{"userpool": 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			user := vms("userpool", "user", 2, 2, tc.most, 20)
			user.BootDelay = metav1.Duration{Duration: 20 * time.Second}
			e := start(t, fast(), user)
			e.schedule("testdata/aks-no-grace.yaml", suite.UserTier(tc.most), suite.VirtualTier())
			for class, priority := range map[string]int32{"placeholder": -10, "web": 100} {
				_, err := e.Client.SchedulingV1().PriorityClasses().Create(e.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: priority}, metav1.CreateOptions{})
				if !apierrors.IsAlreadyExists(err) {
					must.NoError(t, err)
				}
			}
			of := func(class string) func(*corev1.PodTemplateSpec) {
				return func(t *corev1.PodTemplateSpec) {
					t.Spec.PriorityClassName, t.Spec.TerminationGracePeriodSeconds = class, new(int64)
				}
			}
			e.Create(suite.Deployment("old", 5, "500m"))
			e.Create(suite.Deployment("placeholder", 3, "500m", of("placeholder")))
			e.Lands(20*time.Second, "old", map[string]int{"userpool": 5})
			e.Lands(20*time.Second, "placeholder", map[string]int{"userpool": 3})
			must.Do(t)(e.Client.PolicyV1().PodDisruptionBudgets(namespace).Create(e.ctx, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "placeholder", Namespace: namespace},
				Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &intstr.IntOrString{IntVal: 3}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "placeholder"}}}}, metav1.CreateOptions{}))
			old := map[types.UID]bool{}
			for _, p := range e.Pods("old") {
				old[p.UID] = true
			}
			e.sees(tc.state) // until then, the pool is Unknown, and with this configuration that opens the gate
			began := time.Now()
			e.Create(suite.Deployment("web", 5, "500m", of(tc.class)))
			e.Lands(15*time.Second, "web", tc.soon)
			t.Logf("%v after %v", tc.soon, time.Since(began).Round(time.Millisecond))
			e.Lands(60*time.Second, "web", tc.web)
			e.Lands(30*time.Second, "placeholder", tc.placeholders)
			e.Keeps(3*time.Second, "placeholder", tc.placeholders)
			e.Told("placeholder", gate.ReasonBelowPriority.Sentence)
			for _, p := range e.Pods("old") {
				if !old[p.UID] {
					t.Errorf("%s replaces a pod that was killed", p.Name)
				}
			}
			if got := fmt.Sprint(e.Placed("old")); got != fmt.Sprint(tc.old) {
				t.Errorf("the old pods are on %v", got)
			}
		})
	}
}
