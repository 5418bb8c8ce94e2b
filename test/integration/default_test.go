package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/suite"
)

// TestBesideTheDefaultScheduler: with the default scheduler on the same cluster, its pods do not get onto the virtual node, though they
// tolerate it, once it has the gate taint, and its lease is its own.
func TestBesideTheDefaultScheduler(t *testing.T) {
	t.Parallel()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.control("testdata/fixed.yaml")
	e.waitGated(true)
	e.schedule("testdata/fixed.yaml", suite.UserTier(1), suite.VirtualTier())
	s, err := e.StartScheduler(e.ctx, filepath.Join(*bin, devcluster.SchedulerName), "testdata/default-scheduler.yaml", e.rbac)
	suite.NoError(t, err)
	e.Cleanup(s.Stop)
	lease := func() string {
		lease, err := e.Client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(e.ctx, "kube-scheduler", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	var holder string
	e.Eventually(20*time.Second, func() string {
		if holder = lease(); holder == "" {
			return "the default scheduler does not lead"
		}
		return ""
	})
	asDefault := func(t *corev1.PodTemplateSpec) { t.Spec.SchedulerName = corev1.DefaultSchedulerName }
	e.Create(suite.Deployment("theirs", 2, "500m", suite.ToleratesVirtualNode, asDefault))
	e.Lands(20*time.Second, "theirs", map[string]int{"userpool": 2})
	e.Create(suite.Deployment("ours", 4, "500m"))
	e.Lands(20*time.Second, "ours", map[string]int{"userpool": 2, "aci": 2})
	e.Create(suite.Deployment("more", 3, "500m", suite.ToleratesVirtualNode, asDefault))
	e.Lands(20*time.Second, "more", map[string]int{"": 3})
	e.Stays(4*time.Second, func() string {
		if got := e.Placed("more"); !suite.Equal(got, map[string]int{"": 3}) {
			return fmt.Sprintf("the default scheduler's pods: %v", got)
		}
		return ""
	})
	if now := lease(); now != holder {
		t.Errorf("the default scheduler's lease went from %q to %q", holder, now)
	}
}
