package integration

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/scalein"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// endsFast sets a grace period of a second, because the virtual kubelet always waits for the whole grace period.
func endsFast(t *corev1.PodTemplateSpec) { t.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1)) }

// TestScaleInOrder: a scale-in deletes the pods of the burst pool first, then the pods of the system pool, then the
// pods of the user pool. This also holds while pods are being bound. A cost that the user set is kept. A pod has its
// cost as soon as it is bound.
func TestScaleInOrder(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.leastRights()
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	watcher := must.Get(e.Client.CoreV1().Pods(namespace).Watch(e.ctx, metav1.ListOptions{}))(t)
	var late atomic.Int32
	go func() {
		for event := range watcher.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && p.Spec.NodeName != "" && p.Annotations[scalein.CostAnnotation] == "" {
				late.Add(1)
			}
		}
	}()
	e.Create(suite.Deployment("web", 12, "500m", endsFast))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "aci": 4})
	e.Eventually(20*time.Second, func() string { return e.notReady("web") })
	for _, p := range e.Pods("web") {
		want := "2000 user"
		if p.Spec.NodeName == devcluster.VirtualNodeName {
			want = "-1000 aci"
		} else if strings.Contains(p.Spec.NodeName, "systempool") {
			want = "1000 system"
		}
		if got := p.Annotations[scalein.CostAnnotation] + " " + p.Annotations[scalein.PoolAnnotation]; got != want {
			t.Errorf("pod %s on %s has %q, want %q", p.Name, p.Spec.NodeName, got, want)
		}
	}
	e.Scale("web", 8)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4})
	e.Scale("web", 3)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 3})
	e.Remain(30*time.Second, "web", 3)

	// The scale-in comes while the burst pods are being bound.
	e.Scale("web", 12)
	e.Eventually(20*time.Second, func() string {
		if got := e.Placed("web"); got["aci"] == 0 {
			return fmt.Sprint(got)
		}
		return ""
	})
	e.Scale("web", 4)
	e.Remain(30*time.Second, "web", 4)
	if got := e.Placed("web"); got["aci"] > 0 { // which VM pods stay depends on which of them were ready
		t.Errorf("pods on the virtual node survived: %v", got)
	}
	e.Scale("web", 0)
	e.Remain(30*time.Second, "web", 0)

	e.Create(suite.Deployment("own", 1, "100m", func(t *corev1.PodTemplateSpec) {
		t.Annotations = map[string]string{scalein.CostAnnotation: "7"}
	}))
	e.Lands(20*time.Second, "own", map[string]int{"userpool": 1})
	if got := e.Pods("own")[0].Annotations[scalein.CostAnnotation]; got != "7" {
		t.Errorf("the user's cost is %q now, want 7", got)
	}
	watcher.Stop()
	if n := late.Load(); n > 0 {
		t.Errorf("%d times, a bound pod had no cost yet", n)
	}
}

// TestEditedList: when the list of pools is edited, running pods get the deletion costs of the new order, and new pods
// are placed in the new order.
func TestEditedList(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20), vms("systempool", "system", 1, 1, 1, 10))
	e.leastRights()
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.SystemTier(1), suite.VirtualTier())
	controller := e.control("testdata/fixed.yaml")
	e.waitGated(true)
	e.Create(suite.Deployment("web", 5, "500m"))
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 1})
	has := func(user, system string) {
		t.Helper()
		e.Eventually(20*time.Second, func() string {
			for _, p := range e.Pods("web") {
				want := user
				if strings.Contains(p.Spec.NodeName, "systempool") {
					want = system
				}
				if got := p.Annotations[scalein.CostAnnotation] + " " + p.Annotations[scalein.PoolAnnotation]; got != want {
					return fmt.Sprintf("pod %s on %s has %q, want %q", p.Name, p.Spec.NodeName, got, want)
				}
			}
			return ""
		})
	}
	has("2000 user", "1000 system")
	controller.Stop()
	e.scheduler.Stop()
	e.checkLog()
	e.schedule("testdata/edited.yaml", suite.SystemTier(1), suite.UserTier(1), suite.VirtualTier()) // system first, and user has another name
	e.control("testdata/edited.yaml")
	has("1000 users", "2000 system")
	e.Scale("web", 9)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 4, "systempool": 4, "aci": 1})
	e.Scale("web", 4)
	e.Lands(60*time.Second, "web", map[string]int{"systempool": 4})
}
