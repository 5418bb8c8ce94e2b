package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const (
	returnConfig = "testdata/return.yaml" // stableFor 3s, 30 evictions a minute, 1 pod of a workload at a time
	returnRBAC   = "testdata/return"
)

// watchEvictions records when pods of the app are evicted. It fails the test if fewer than least pods of the app are
// ready. stop ends the watch and returns the recorded times.
func (e *env) watchEvictions(app string, least int) (stop func() []time.Time) {
	e.Helper()
	list := must.Get(e.Client.CoreV1().Pods(namespace).List(e.ctx, metav1.ListOptions{LabelSelector: "app=" + app}))(e)
	watcher := must.Get(e.Client.CoreV1().Pods(namespace).Watch(e.ctx, metav1.ListOptions{LabelSelector: "app=" + app, ResourceVersion: list.ResourceVersion}))(e)
	ready := map[types.UID]bool{}
	note := func(p *corev1.Pod) {
		ready[p.UID] = p.DeletionTimestamp == nil && podutil.IsPodReady(p)
	}
	for i := range list.Items {
		note(&list.Items[i])
	}
	seen := map[types.UID]bool{}
	var at []time.Time
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range watcher.ResultChan() {
			p, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if note(p); event.Type == "DELETED" {
				delete(ready, p.UID)
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI" && !seen[p.UID] {
					seen[p.UID] = true
					at = append(at, time.Now())
				}
			}
			n := 0
			for _, is := range ready {
				if is {
					n++
				}
			}
			if n < least {
				e.Errorf("%d pods of %s are ready, the PodDisruptionBudget asks for %d", n, app, least)
			}
		}
	}()
	return func() []time.Time {
		watcher.Stop()
		<-done
		return at
	}
}

func annotated(key, value string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) { t.Annotations = map[string]string{key: value} }
}

// TestReturn: after the VM pool has grown, burst pods return to VMs, within the rate and the PodDisruptionBudgets. Pods
// that opted out and pods that fit on no VM are not evicted.
func TestReturn(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 5, 20))
	e.rbac = returnRBAC
	e.leastRights()
	e.schedule(returnConfig, suite.UserTier(1), suite.VirtualTier())
	e.control(returnConfig)
	e.waitGated(true)
	e.Create(suite.Deployment("web", 8, "500m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "aci": 4})
	stay := map[string]func(*corev1.PodTemplateSpec){
		"opted-out-1": annotated("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
		"opted-out-2": annotated("karpenter.sh/do-not-disrupt", "true"),
		"opted-out-3": annotated("poolpriority.dev/return", "Never"),
		"elsewhere":   suite.Selects("disk", "none"), // no VM has this label
		"blocked":     func(*corev1.PodTemplateSpec) {},
		"single":      func(*corev1.PodTemplateSpec) {}, // without a PodDisruptionBudget
	}
	for name, change := range stay {
		d := suite.Deployment(name, 1, "100m", endsFast, change)
		if name == "elsewhere" {
			d.Spec.Template.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
		}
		e.Create(d)
		e.Lands(20*time.Second, name, map[string]int{"aci": 1})
	}
	budget := func(app string, value intstr.IntOrString) {
		t.Helper()
		must.Do(t)(e.Client.PolicyV1().PodDisruptionBudgets(namespace).Create(e.ctx, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: app},
			Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &value, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		}, metav1.CreateOptions{}))
		e.Eventually(20*time.Second, func() string {
			pdb, err := e.Client.PolicyV1().PodDisruptionBudgets(namespace).Get(e.ctx, app, metav1.GetOptions{})
			if err != nil || pdb.Status.ObservedGeneration == 0 {
				return fmt.Sprint("the PodDisruptionBudget is not looked at yet: ", err)
			}
			return ""
		})
	}
	e.Eventually(20*time.Second, func() string { return e.notReady("web") })
	budget("web", intstr.FromInt32(1))
	budget("blocked", intstr.FromInt32(0))
	e.Keeps(8*time.Second, "web", map[string]int{"userpool": 4, "aci": 4}) // no VM has free capacity
	stop := e.watchEvictions("web", 7)
	grown := time.Now()
	e.pool("userpool").Grow(2)
	e.Lands(60*time.Second, "web", map[string]int{"userpool": 8})
	took := time.Since(grown)
	at := stop()
	if len(at) != 4 {
		t.Errorf("%d pods were evicted, want 4", len(at))
	}
	for i := range at {
		if since := at[i].Sub(grown); since < 3*time.Second {
			t.Errorf("evicted %v after the pool began to grow, before stableFor", since)
		}
		if i > 0 && at[i].Sub(at[i-1]) < 1500*time.Millisecond {
			t.Errorf("two evictions within %v, at 30 a minute", at[i].Sub(at[i-1]))
		}
	}
	t.Logf("4 pods came home in %v", took.Round(time.Second))
	e.eventOn(namespace, "Pod", "", "Returning")
	if said := e.eventOn(namespace, "Pod", e.Pods("single")[0].Name, "NotReturned"); !strings.Contains(said, "only ready pod") {
		t.Error(said)
	}
	e.Stays(6*time.Second, func() string {
		for name := range stay {
			if got := e.Placed(name); !suite.Equal(got, map[string]int{"aci": 1}) {
				return fmt.Sprintf("%s: %v", name, got)
			}
		}
		return ""
	})
	if log := string(e.checkLogOf(e.scheduler)); !strings.Contains(log, "its eviction was refused") || !strings.Contains(log, `pod="default/blocked-`) {
		t.Error("the scheduler's log does not say that an eviction was refused")
	}
	must.Do(t)(e.Client.PolicyV1().PodDisruptionBudgets(namespace).Patch(e.ctx, "blocked", types.MergePatchType, []byte(`{"spec":{"maxUnavailable":1}}`), metav1.PatchOptions{}))
	e.Lands(90*time.Second, "blocked", map[string]int{"userpool": 1})
}
