package providers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/refusal"
)

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

// TestVanished: the last status is read of pods that left the informer before they had started. The read is retried if
// the API server fails. Pods that were deleted or had started are not read.
func TestVanished(t *testing.T) {
	at := func(name string, phase v1.PodPhase) *v1.Pod {
		p := pod(name)
		p.Spec.NodeName, p.Status.Phase = "virtual", phase
		return p
	}
	refused := at("refused", v1.PodFailed)
	refused.Status.Reason = refusal.ReasonProviderFailed
	other := at("replaced", v1.PodFailed)
	other.UID = "another"
	client := fake.NewClientset(refused, at("succeeded", v1.PodSucceeded), at("ran", v1.PodFailed), at("deleted", v1.PodFailed), other)
	var failures atomic.Int32
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return failures.Add(1) <= 2, nil, errors.New("the API server is busy")
	})
	v := newVanished(client.CoreV1())
	deleted := at("deleted", v1.PodPending)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	for _, p := range []*v1.Pod{at("refused", v1.PodPending), at("succeeded", v1.PodPending), at("ran", v1.PodRunning), deleted, at("replaced", v1.PodPending), at("gone", v1.PodPending)} {
		if added, want := v.add(p), p != deleted && p.Name != "ran"; added != want {
			t.Errorf("it is asked about %s: %v, want %v", p.Name, added, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, gone, stopped := make(chan *v1.Pod), make(chan types.UID), make(chan struct{})
	go func() {
		defer close(stopped)
		v.run(ctx, func(p *v1.Pod) { ended <- p }, func(uid types.UID) { gone <- uid })
	}()
	got := map[string]bool{}
	for range 4 {
		select {
		case p := <-ended:
			got[p.Name] = true
		case uid := <-gone:
			got[string(uid)+" is gone"] = true
		case <-time.After(10 * time.Second):
			t.Fatalf("told of %v", got)
		}
	}
	for _, want := range []string{"refused", "succeeded", "replaced is gone", "gone is gone"} {
		if !got[want] {
			t.Errorf("told of %v, want %s", got, want)
		}
	}
	select {
	case p := <-ended:
		t.Errorf("told of %s, too", p.Name)
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	<-stopped
}

// TestVanishedIsStarting: a pod that left the informer counts as starting until its last status has been read.
func TestVanishedIsStarting(t *testing.T) {
	ps, _ := newProviders(t, func(*Config) {})
	p := pod("a")
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "sums", UID: "sums", Controller: ptr.To(true)}}
	p.Spec.RestartPolicy, p.Spec.NodeName, p.Status.Phase = v1.RestartPolicyNever, "virtual", v1.PodPending
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	check := func(when string, starting, refused int) {
		t.Helper()
		if job := ps.Pacing(1, "default/sums", nil, time.Now()).Owners["default/sums"]; len(job.Starting) != starting || len(job.Refused) != refused {
			t.Errorf("%s: %+v", when, job)
		}
	}
	ps.See(p)
	check("bound", 1, 0)
	ps.vanished.queue.ShutDown() // no last status is read
	ps.Deleted(p)
	check("while it is not known", 1, 0)
	p.Status.Phase, p.Status.Reason, p.Status.Message = v1.PodFailed, refusal.ReasonProviderFailed, `status code 409 error code "ContainerGroupQuotaReached": no cores`
	ps.ended(p)
	check("it was refused", 0, 1)
	if used := ps.Pacing(1, "sums", nil, time.Now()).Used.Pods; used != 0 {
		t.Errorf("it is still among %d pods in the pool", used)
	}
}

// TestSilentFailures: at a start, a pod that failed without a reason and a message may have run, so it was not refused.
func TestSilentFailures(t *testing.T) {
	failed := func(name, reason, message string) *v1.Pod {
		p := pod(name)
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "sums", UID: "sums", Controller: ptr.To(true)}}
		p.Spec.NodeName, p.Spec.RestartPolicy, p.CreationTimestamp = "virtual", v1.RestartPolicyNever, metav1.Now()
		p.Status = v1.PodStatus{Phase: v1.PodFailed, Reason: reason, Message: message}
		return p
	}
	ps, _ := newProviders(t, func(c *Config) {
		c.Client = fake.NewClientset(failed("silent", "", ""), failed("a", "NoCapacity", ""), failed("b", "", "no capacity"))
	})
	ps.Recall(t.Context(), [][]*v1.Node{nil, {{ObjectMeta: metav1.ObjectMeta{Name: "virtual"}}}})
	if job := ps.Pacing(1, "default/sums", nil, time.Now()).Owners["default/sums"]; len(job.Refused) != 2 {
		t.Errorf("want a and b refused, not silent: %+v", job)
	}
}
