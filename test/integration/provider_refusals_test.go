package integration

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/devcluster/azure"
	"poolpriority.dev/scheduler/test/devcluster/virtualnode"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

const refusingConfig = "testdata/refusing.yaml"

// startRefusing brings up a cluster with one VM of two CPUs, the virtual node, scheduler and controller.
func startRefusing(t *testing.T) *env {
	t.Helper()
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20))
	e.leastRights()
	e.schedule(refusingConfig, suite.UserTier(1), suite.VirtualTier())
	e.control(refusingConfig)
	e.waitGated(true)
	return e
}

// runs returns "" if exactly want of the app's pods are on the virtual node and all of these are ready. Otherwise it
// returns an error text.
func (e *env) runs(app string, want int) string {
	ready, stuck := 0, 0
	for _, p := range e.Pods(app) {
		switch on := p.Spec.NodeName == devcluster.VirtualNodeName; {
		case on && podutil.IsPodReady(&p):
			ready++
		case on:
			stuck++
		}
	}
	if ready != want || stuck > 0 {
		return fmt.Sprintf("%d pods of %s run on the virtual node, want %d; %d are there and do not; %s", ready, app, want, stuck, e.Said(app))
	}
	return ""
}

// nothingTwice checks that each of the pods has had at most one container group, and that no group runs without a
// running pod.
func (e *env) nothingTwice(pods []corev1.Pod) {
	e.Helper()
	groups := e.VirtualNode.Azure().Groups()
	made := map[string]int{}
	for _, g := range groups {
		made[string(g.UID)]++
	}
	for _, p := range pods {
		if n := made[string(p.UID)]; n > 1 {
			e.Errorf("pod %s had %d container groups", p.Name, n)
		}
	}
	if orphans := azure.Orphans(groups, pods); len(orphans) > 0 {
		e.Errorf("%d container groups run that no pod knows of: %+v", len(orphans), orphans[0])
	}
}

// publishes waits until the first burst pool is published with the state and the code.
func (e *env) publishes(state breaker.State, code string) {
	e.Helper()
	e.Eventually(20*time.Second, func() string {
		s, err := e.published()
		if err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(s.View.Args.Pools, func(p configv1.Pool) bool { return p.Burst != nil })
		if p := s.View.Capacity.Pools[i].Provider; cmp.Or(p.State, breaker.Open) != state || p.Code != code {
			return fmt.Sprintf("published: %+v, want %s %s", p, state, code)
		}
		return ""
	})
}

// TestQuota: 20 pods burst at once, and the quota allows 11. Within a minute, 11 pods run, and the other nine are
// evicted and held with the reason. When the quota is removed, these nine burst after the next probe. No pod is stuck,
// and no pod runs twice. (In TestQuotaOfAJob, the leader is killed meanwhile.)
func TestQuota(t *testing.T) {
	t.Parallel()
	e := startRefusing(t)
	region := e.VirtualNode.Azure()
	region.SetQuota(11)
	e.Create(suite.Deployment("web", 22, "1"))
	e.Eventually(time.Minute, func() string {
		if got := e.Placed("web"); !suite.Equal(got, map[string]int{"userpool": 2, "aci": 11, "": 9}) {
			return fmt.Sprintf("pods by pool: %v", got)
		}
		return e.runs("web", 11)
	})
	if said := e.Said("web"); !strings.Contains(said, "whose provider refuse") {
		t.Errorf("a pod that was refused was told %q", said)
	}
	e.publishes("Refusing", azure.CodeQuotaReached)
	if got := e.Events("BurstEvicted"); len(got) == 0 || !strings.Contains(got[0], azure.CodeQuotaReached) {
		t.Errorf("events of pods that were taken back: %q", got)
	}
	region.SetQuota(azure.NoQuota)
	e.Eventually(3*time.Minute, func() string { return e.runs("web", 20) })
	e.nothingTwice(e.Pods("web"))
	e.publishes("Open", "")
}

// TestQuotaOfAJob: a Job with a backoffLimit of 3 makes more pods at once than the quota allows. The scheduler binds
// two of them at a time. The provider refuses no more pods than the backoffLimit allows, and the Job completes. In one
// case, refused pods fail for good, and the leader is killed after the first refusal. In the other case, refused pods
// are evicted, and the Job replaces a pod only after it has failed.
func TestQuotaOfAJob(t *testing.T) {
	for _, tc := range []struct {
		policy corev1.RestartPolicy
		killed bool
	}{{corev1.RestartPolicyNever, true}, {corev1.RestartPolicyOnFailure, false}} {
		t.Run(fmt.Sprintf("%s, leader killed %v", tc.policy, tc.killed), func(t *testing.T) {
			t.Parallel()
			e := startRefusing(t)
			region := e.VirtualNode.Azure()
			region.SetQuota(11)
			e.createJob(20, tc.policy)
			if tc.killed {
				e.Eventually(time.Minute, func() string {
					if !slices.ContainsFunc(region.Puts(), func(p azure.Put) bool { return p.Code == azure.CodeQuotaReached }) {
						return "no pod is refused"
					}
					return ""
				})
				e.scheduler.Kill()
				must.NoError(t, e.scheduler.Restart())
			}
			if failed := e.completes(4 * time.Minute); failed == 0 {
				t.Error("no pod failed: the quota was not reached")
			}
		})
	}
}

// createJob creates a Job for the virtual node. The Job creates all its pods at once. Each pod requests one CPU and
// runs for 25 s. At most three pods may fail.
func (e *env) createJob(pods int32, policy corev1.RestartPolicy) {
	e.Helper()
	template := suite.Deployment("job", 1, "1").Spec.Template
	template.Annotations = map[string]string{virtualnode.RunsForAnnotation: "25s"}
	template.Spec.RestartPolicy = policy
	template.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: namespace},
		Spec: batchv1.JobSpec{Parallelism: &pods, Completions: &pods, BackoffLimit: ptr.To[int32](3), Template: template,
			PodReplacementPolicy: ptr.To(batchv1.TerminatingOrFailed)}}
	if policy == corev1.RestartPolicyOnFailure {
		job.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
	}
	must.Do(e)(e.Client.BatchV1().Jobs(namespace).Create(e.ctx, job, metav1.CreateOptions{}))
}

// completes waits until the Job is complete, and returns the number of its failed pods.
func (e *env) completes(within time.Duration) (failed int32) {
	e.Helper()
	e.Eventually(within, func() string {
		job, err := e.Client.BatchV1().Jobs(namespace).Get(e.ctx, "job", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range job.Status.Conditions {
			if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
				e.Fatalf("the Job failed: %s", c.Message)
			}
			if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
				failed = job.Status.Failed
				return ""
			}
		}
		return fmt.Sprintf("%d pods have succeeded, %d failed; %s", job.Status.Succeeded, job.Status.Failed, e.Said("job"))
	})
	return failed
}

// TestBurstPoolsInTurn: the first burst pool refuses 100 pods, which all run in the second burst pool within 3 minutes.
// When the first has recovered, it is used again.
func TestBurstPoolsInTurn(t *testing.T) {
	t.Parallel()
	e := startRefusing(t)
	must.Do(t)(e.AddVirtualNode(e.ctx, virtualnode.Options{Name: "virtualnode-0", Labels: map[string]string{"virtualization": "virtualnode2"}}))
	on := func(app, node string) int {
		n := 0
		for _, p := range e.Pods(app) {
			if p.Spec.NodeName == node && podutil.IsPodReady(&p) {
				n++
			}
		}
		return n
	}
	region := e.VirtualNode.Azure()
	region.Refuse(azure.CodeStockout)
	e.Create(suite.Deployment("web", 102, "1")) // 2 on the VM
	e.Eventually(3*time.Minute, func() string {
		if n := on("web", "virtualnode-0"); n != 100 {
			return fmt.Sprintf("%d pods run on the second virtual node, want 100; %s", n, e.Said("web"))
		}
		return ""
	})
	region.Accept()
	// Each new pod may be the probe after the backoff.
	e.Eventually(3*time.Minute, func() string {
		e.Scale("web", int32(len(e.Pods("web"))+1)) //nolint:gosec // a few
		time.Sleep(5 * time.Second)
		if n := on("web", devcluster.VirtualNodeName); n < 2 {
			return fmt.Sprintf("%d pods run on the first virtual node again, want 2", n)
		}
		return ""
	})
}

// TestVirtualNodeGoesAndComes: while the virtual node's connector is down, its pods stay, and new pods wait. Then the
// Node is deleted, and the restarted connector creates it again. Pods burst again. (TestNewBurstNodeWaitsForItsTaint in
// package poolpriority: not before the new Node has the gate taint.)
func TestVirtualNodeGoesAndComes(t *testing.T) {
	t.Parallel()
	e := startWith(t, devcluster.Options{Pools: []devcluster.Pool{vms("userpool", "user", 1, 1, 1, 20)}, NodeGrace: 4 * time.Second})
	e.schedule(refusingConfig, suite.UserTier(1), suite.VirtualTier())
	e.control(refusingConfig)
	e.waitGated(true)
	e.Create(suite.Deployment("web", 8, "1", endsFast))
	e.Eventually(30*time.Second, func() string { return e.runs("web", 6) })

	e.VirtualNode.Stop()
	e.Eventually(30*time.Second, func() string { return e.isReady(e.VirtualNode.Name(), corev1.ConditionUnknown) })
	e.Scale("web", 10)
	e.Lands(20*time.Second, "web", map[string]int{"userpool": 2, "aci": 6, "": 2})
	e.Keeps(5*time.Second, "web", map[string]int{"userpool": 2, "aci": 6, "": 2})
	must.NoError(t, e.VirtualNode.Restart(e.ctx))
	e.Eventually(30*time.Second, func() string { return e.runs("web", 8) })
	e.nothingTwice(e.Pods("web"))

	e.VirtualNode.Stop()
	must.NoError(t, e.Client.CoreV1().Nodes().Delete(e.ctx, e.VirtualNode.Name(), metav1.DeleteOptions{}))
	e.Eventually(3*time.Minute, func() string { // the pods of the deleted Node are garbage-collected and replaced
		waiting := 0
		for _, p := range e.Pods("web") {
			if p.Spec.NodeName == "" {
				waiting++
			}
		}
		if waiting != 8 {
			return fmt.Sprintf("%d pods wait for the virtual node, want 8", waiting)
		}
		return ""
	})
	must.NoError(t, e.VirtualNode.Restart(e.ctx))
	e.Eventually(time.Minute, func() string { return e.runs("web", 8) })
	e.nothingTwice(e.Pods("web"))
}
