package poolpriority

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/test/must"
)

// world of a rollout: a Deployment of 4 replicas, a surge of 2, whose old pods fill one node of 4 CPU.
type rolling struct {
	*harness
	clock      *testingclock.FakeClock // the plugin's
	deployment *appsv1.Deployment
	serial     int
	last       *v1.Pod // that retry tried
	kind       string  // of the owner of the ReplicaSets
	// followsRollouts says that the configuration has rollouts followed.
	followsRollouts bool
}

func owner(kind, name string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
}

func newRolling(t *testing.T, maxUnavailable int32) *rolling {
	t.Helper()
	return newRollingWith(t, aks(t), maxUnavailable)
}

func newRollingWith(t *testing.T, cfg *schedconfig.KubeSchedulerConfiguration, maxUnavailable int32) *rolling {
	t.Helper()
	w := &rolling{harness: newHarness(t, cfg), clock: testingclock.NewFakeClock(time.Now()), kind: "Deployment"}
	w.plugin.clock = w.clock
	w.followsRollouts = *pluginArgs(cfg).ScaleIn.HoldSurge
	w.deployment = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(int32(4)), Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{
			MaxSurge: ptr.To(intstr.FromInt32(2)), MaxUnavailable: ptr.To(intstr.FromInt32(maxUnavailable))}}}}
	w.addNodes(userNode("user-1"), virtualNode("virtual"))
	w.setCapacity(nodegroups.Full, nodegroups.Full)
	w.replicas("old", 1, 4)
	w.replicas("new", 2, 2)
	w.deploy(w.deployment, "new")
	for i := range 4 {
		p := pod(fmt.Sprintf("old-%d", i))
		p.OwnerReferences = owner("ReplicaSet", "old")
		w.place(p.Obj(), "user-1")
	}
	return w
}

// deploy writes the Deployment, and waits until the gatekeeper has heard of it, by a pod of the ReplicaSet.
func (w *rolling) deploy(d *appsv1.Deployment, replicaSet string) {
	w.Helper()
	if w.followsRollouts {
		w.watches("deployments")
	}
	deployments := w.client.AppsV1().Deployments("default")
	_, err := deployments.Create(w.ctx, d, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = deployments.Update(w.ctx, d, metav1.UpdateOptions{})
	}
	must.NoError(w, err)
	if !w.followsRollouts {
		return
	}
	p := pod("p")
	p.OwnerReferences = owner("ReplicaSet", replicaSet)
	must.Eventually(w, "the gatekeeper has heard of Deployment "+d.Name, func() bool {
		status := w.plugin.gatekeeper.Rollout(p.Obj())
		return status.Of != nil && (!d.Spec.Paused || !status.Of.GoesOn(-100))
	})
}

func (w *rolling) replicas(name string, revision, n int32) {
	w.Helper()
	w.replicasOf("web", name, revision, n)
}

func (w *rolling) replicasOf(deployment, name string, revision, n int32) {
	w.Helper()
	must.NoError(w, w.shared.Apps().V1().ReplicaSets().Informer().GetIndexer().Add(&appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name), OwnerReferences: owner(w.kind, deployment),
			Annotations: map[string]string{"deployment.kubernetes.io/revision": fmt.Sprint(revision)}},
		Spec: appsv1.ReplicaSetSpec{Replicas: &n},
	}))
}

// try schedules a new pod of the ReplicaSet. It returns the node, or what the gate holds the pod for.
func (w *rolling) try(replicaSet string, changes ...func(*st.PodWrapper)) string {
	w.Helper()
	w.serial++
	p := pod(fmt.Sprintf("pod-%d", w.serial))
	p.OwnerReferences = owner("ReplicaSet", replicaSet)
	for _, change := range changes {
		change(p)
	}
	return w.retry(p.Obj())
}

func (w *rolling) retry(p *v1.Pod) string {
	w.Helper()
	w.last = p
	state := framework.NewCycleState()
	node, err := w.scheduleIn(state, p)
	if err == nil {
		return node
	}
	c, readErr := readCycle(state)
	if readErr != nil || c.wait == nil || !strings.Contains(err.Error(), c.wait.Reason.Sentence) {
		w.Fatalf("pod %s was told %v (%v)", p.Name, err, readErr)
	}
	w.hold(p, &c.decision, c.wait) // as PostFilter does
	if c.wait.Reason.Code == gate.ReasonReplicaSetUnknown.Code {
		return "held for a moment"
	}
	return forRollout
}

// end has old pods end within the time.
func (w *rolling) end(within time.Duration, names ...string) {
	w.Helper()
	for _, name := range names {
		ending := w.bound[name].DeepCopy()
		ending.DeletionTimestamp = ptr.To(metav1.NewTime(time.Now().Add(within)))
		must.NoError(w, w.sched.Cache.UpdatePod(w.logger, w.bound[name], ending))
		w.bound[name] = ending
	}
}

func (w *rolling) expect(what, got, want string) {
	w.Helper()
	if got != want {
		w.Errorf("%s: %s, want %s", what, got, want)
	}
}

const forRollout = "held for the rollout"

// TestSurge goes through a rolling update: as many new pods wait as old pods leave, and the others burst.
func TestSurge(t *testing.T) {
	t.Run("no pod may be unavailable", func(t *testing.T) {
		w := newRolling(t, 0)
		w.expect("the surge, without which nothing goes on", w.try("new"), "virtual")
		w.expect("the surge, without which nothing goes on", w.try("new"), "virtual")
		w.replicas("old", 1, 2)
		w.replicas("new", 2, 4)
		w.end(20*time.Second, "old-0", "old-1")
		w.expect("the third", w.try("new"), forRollout)
		third := w.last
		w.expect("the fourth", w.try("new"), forRollout)
		w.expect("one too many", w.try("new"), "virtual")
		w.remove("old-0")
		w.expect("the third, again", w.retry(third), "user-1")
		w.clock.Step(time.Minute)
		w.expect("a pod, when the ending pods should be gone", w.try("new"), "virtual")
	})
	t.Run("one may be", func(t *testing.T) {
		w := newRolling(t, 1)
		w.expect("the first", w.try("new"), forRollout)
		w.expect("the second", w.try("new"), forRollout)
		w.deployment.Spec.Paused = true
		w.deploy(w.deployment, "new")
		w.expect("while the Deployment is paused", w.try("new"), "virtual")
	})
	t.Run("old pods that are about to be deleted", func(t *testing.T) {
		w := newRolling(t, 0)
		w.replicas("old", 1, 3)
		w.expect("the first", w.try("new"), forRollout)
		w.expect("the second, for which nobody goes", w.try("new"), "virtual")
		w = newRolling(t, 1) // 4 are there, 3 are wanted, one of which may go
		w.replicas("old", 1, 3)
		w.expect("the first", w.try("new"), forRollout)
		w.expect("the second", w.try("new"), forRollout)
	})
	t.Run("who is not held", func(t *testing.T) {
		w := newRolling(t, 1)
		w.expect("a pod of an old ReplicaSet", w.try("old"), "virtual")
		w.expect("a pod of nobody", w.try("new", func(p *st.PodWrapper) { p.OwnerReferences = nil }), "virtual")
		w.expect("one that is larger than the node", w.try("new", func(p *st.PodWrapper) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("5")
		}), "virtual")
		w.expect("one that may not be on the node", w.try("new", func(p *st.PodWrapper) {
			p.NodeAffinityNotIn(v1.LabelHostname, []string{"user-1"})
		}), "virtual")
		w.expect("a larger one that fits the node", w.try("new", func(p *st.PodWrapper) {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("3")
		}), forRollout)
		cfg := aks(t)
		*pluginArgs(cfg).ScaleIn.HoldSurge = false
		w = newRollingWith(t, cfg, 1)
		w.expect("with holdSurge: false", w.try("new"), "virtual")
	})
	t.Run("pods that do not end in time", func(t *testing.T) {
		w := newRolling(t, 0)
		w.replicas("old", 1, 0)
		w.end(time.Hour, "old-0", "old-2", "old-3")
		w.end(-time.Minute, "old-1")
		w.expect("in an hour, and a minute ago", w.try("new"), "virtual")
		w.end(-time.Second, "old-2")
		w.expect("a second ago", w.try("new"), forRollout)
	})
	t.Run("a ReplicaSet that is not known yet", func(t *testing.T) {
		w := newRolling(t, 0)
		p := pod("early")
		p.OwnerReferences = owner("ReplicaSet", "unknown")
		w.expect("a pod", w.retry(p.Obj()), "held for a moment")
	})
	t.Run("a scale-up after the rollout", func(t *testing.T) {
		w := newRolling(t, 1)
		w.replicas("old", 1, 0)
		for i := range 4 {
			w.bound[fmt.Sprintf("old-%d", i)].OwnerReferences[0].UID = "new"
		}
		w.expect("a pod", w.try("new"), "virtual")
	})
	t.Run("a ReplicaSet of which an old state is known", func(t *testing.T) {
		w := newRolling(t, 0) // the rollout is undone
		w.replicas("older", 0, 0)
		w.expect("a new pod of the ReplicaSet that is used again", w.try("older", func(p *st.PodWrapper) { p.Pod.CreationTimestamp = metav1.Now() }), "held for a moment")
	})
	t.Run("another rollout goes on", func(t *testing.T) {
		w := newRolling(t, 1)
		other := w.deployment.DeepCopy()
		other.Name, other.UID, other.Spec.Strategy.RollingUpdate.MaxUnavailable = "other", "other", ptr.To(intstr.FromInt32(0))
		w.replicasOf("other", "other-old", 1, 4)
		w.replicasOf("other", "other-new", 2, 2)
		w.deploy(other, "other-new")
		w.expect("a pod of the one that goes on by itself", w.try("new"), forRollout)
		w.expect("a pod that its own rollout waits for", w.try("other-new"), "virtual")
		w.end(20*time.Second, "old-0", "old-1")
		w.expect("a pod whose own rollout ends no pod", w.try("other-new"), "virtual")
	})
	t.Run("a rollout that goes on for too long", func(t *testing.T) {
		w := newRolling(t, 1)
		w.expect("a pod", w.try("new"), forRollout)
		held := w.last
		w.clock.Step(maxWait - time.Minute)
		w.expect("the pod, before maxWait", w.retry(held), forRollout)
		w.clock.Step(2 * time.Minute) // the gatekeeper's clock is not w.clock
		w.expect("the pod, after maxWait", w.retry(held), "virtual")
		w.clock.SetTime(time.Now())
		w.end(20*time.Second, "old-0")
		w.expect("another", w.try("new"), forRollout)
	})
	t.Run("an Argo Rollout", func(t *testing.T) {
		w := newRolling(t, 1)
		w.kind = "Rollout"
		w.replicas("old", 1, 4)
		w.replicas("new", 2, 2)
		w.expect("while the canary pauses", w.try("new"), "virtual")
		w.end(20*time.Second, "old-0")
		w.expect("the first", w.try("new"), forRollout)
		first := w.last
		w.expect("the second, for which no pod goes", w.try("new"), "virtual")
		w.expect("a pod of the old ReplicaSet", w.try("old"), "virtual")
		w.clock.Step(30*time.Second + endingSlack + time.Minute) // the gatekeeper's clock is not w.clock
		w.end(4*time.Minute, "old-1")
		w.expect("the first, after the grace period", w.retry(first), "virtual")
	})
	t.Run("waitLimit", func(t *testing.T) {
		w := newRolling(t, 1)
		w.plugin.pools.At(2).Burst.WaitLimit.Duration = time.Minute
		w.expect("one that has waited", w.try("new", func(p *st.PodWrapper) {
			p.Conditions([]v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, LastTransitionTime: metav1.NewTime(time.Now().Add(-2 * time.Minute))}})
		}), "virtual")
		w.expect("one that has not", w.try("new"), forRollout)
	})
}
