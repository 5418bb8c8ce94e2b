package virtualnode

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"poolpriority.dev/scheduler/test/devcluster/azure"
	"poolpriority.dev/scheduler/test/must"
)

// rig is a virtual node on a fake API.
type rig struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	node   *Node
}

// newRig starts a virtual node whose groups are in transition for a second, and waits until it watches pods.
func newRig(t *testing.T) *rig {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{T: t, ctx: ctx, client: fake.NewClientset()}
	watching := make(chan struct{})
	var once sync.Once
	r.client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := r.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		once.Do(func() { close(watching) })
		return true, w, err
	})
	r.node = New(r.client, Options{PollInterval: 20 * time.Millisecond})
	r.node.Azure().SetPutTime(time.Millisecond)
	r.node.Azure().SetCreateTime(time.Second)
	must.NoError(t, r.node.Start(ctx))
	t.Cleanup(func() {
		r.node.Stop()
		cancel()
	})
	<-watching
	return r
}

func (r *rig) create(change func(*corev1.Pod, *corev1.Container)) {
	r.Helper()
	must.Do(r)(r.client.CoreV1().Pods("default").Create(r.ctx, onePod(change), metav1.CreateOptions{}))
}

func (r *rig) pod() *corev1.Pod {
	r.Helper()
	p := must.Get(r.client.CoreV1().Pods("default").Get(r.ctx, "web", metav1.GetOptions{}))(r)
	return p
}

// tolerate adds a toleration to the pod, as other components may do.
func (r *rig) tolerate() {
	r.Helper()
	p := r.pod()
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: "added", Operator: corev1.TolerationOpExists})
	must.Do(r)(r.client.CoreV1().Pods("default").Update(r.ctx, p, metav1.UpdateOptions{}))
}

func (r *rig) eventually(what string, check func() bool) {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%s: not after 10 s; the pod is %+v, the PUTs %+v", what, r.pod().Status, r.node.Azure().Puts())
		}
	}
}

func (r *rig) put(status int) func() bool {
	return func() bool {
		for _, p := range r.node.Azure().Puts() {
			if p.Status == status {
				return true
			}
		}
		return false
	}
}

func (r *rig) phase(phase corev1.PodPhase) func() bool {
	return func() bool { return r.pod().Status.Phase == phase }
}

// refused waits until the pod was refused with the code.
func (r *rig) refused(code string) {
	r.Helper()
	r.eventually("refused with "+code, func() bool {
		s := r.pod().Status
		return s.Reason == reasonProviderFailed && strings.Contains(s.Message, "ERROR CODE: "+code)
	})
}

func (r *rig) orphans() []azure.Group {
	return azure.Orphans(r.node.Azure().Groups(), []corev1.Pod{*r.pod()})
}

func plain(*corev1.Pod, *corev1.Container) {}

func TestRuns(t *testing.T) {
	r := newRig(t)
	r.node.Azure().SetInstanceView(azure.ViewWaiting)
	r.create(plain)
	r.eventually("waiting", func() bool {
		s := r.pod().Status
		return s.Phase == corev1.PodPending && len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Waiting != nil
	})
	r.tolerate() // harmless, since the group can be read
	r.eventually("running", r.phase(corev1.PodRunning))
	if s := r.pod().Status; s.PodIP == "" || !s.ContainerStatuses[0].Ready || len(s.Conditions) != 3 {
		t.Errorf("status: %+v", s)
	}
	if n := len(r.node.Azure().Puts()); n != 1 {
		t.Errorf("%d PUTs, want 1", n)
	}
}

// TestFailedStart: if a pod changes while its group cannot be read, virtual-kubelet creates the pod again. Azure
// refuses the second PUT. The connector then no longer updates the pod, although the group runs.
func TestFailedStart(t *testing.T) {
	for name, set := range map[string]func(*azure.Region){
		"no view":             func(a *azure.Region) { a.SetInstanceView(azure.ViewNone) },
		"no containers' view": func(a *azure.Region) { a.SetInstanceView(azure.ViewGroup) },
		"lagging":             func(a *azure.Region) { a.SetGetLag(800 * time.Millisecond) },
		"throttled":           func(a *azure.Region) { a.SetGetThrottle(800 * time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			for policy, phase := range map[corev1.RestartPolicy]corev1.PodPhase{corev1.RestartPolicyAlways: corev1.PodPending, corev1.RestartPolicyNever: corev1.PodFailed} {
				r := newRig(t)
				set(r.node.Azure())
				r.create(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.RestartPolicy = policy })
				r.eventually("created", r.put(201))
				r.tolerate()
				r.refused(azure.CodeTransitioning)
				r.eventually("the group runs", func() bool { return len(r.orphans()) == 1 })
				time.Sleep(200 * time.Millisecond)
				if s := r.pod().Status; s.Phase != phase || s.Reason != reasonProviderFailed || len(FailedStart([]corev1.Pod{*r.pod()})) != 1 {
					t.Errorf("%s: the pod is %s: %s", policy, s.Phase, s.Reason)
				}
			}
		})
	}
}

// TestRefusedThenMade: when the reason for a refusal is gone, a retry by virtual-kubelet makes the group, but the pod's
// status does not show it.
func TestRefusedThenMade(t *testing.T) {
	r := newRig(t)
	r.node.Azure().Refuse(azure.CodeStockout)
	r.create(plain)
	r.refused(azure.CodeStockout)
	r.eventually("tried again", func() bool { return len(r.node.Azure().Puts()) >= 6 })
	r.node.Azure().Accept()
	r.eventually("the group runs", func() bool { return len(r.orphans()) == 1 })
	if p := r.pod(); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s", p.Status.Phase)
	}
	puts := r.node.Azure().Puts()
	for i := 1; i < len(puts)-1; i++ { // on the fake API, the first refusal also changes the pod's spec, which causes another try
		if apart, least := puts[i+1].At.Sub(puts[i].At), 10*time.Millisecond<<i; apart < least {
			t.Errorf("tries %d and %d are %v apart, want %v at least", i, i+1, apart, least)
		}
	}
}

func TestMadeThough503(t *testing.T) {
	r := newRig(t)
	r.node.Azure().RefuseWith(azure.Refusal{Status: 503, Code: azure.CodeServerTimeout, Made: true})
	r.create(func(p *corev1.Pod, _ *corev1.Container) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	r.refused(azure.CodeServerTimeout)
	r.eventually("the group runs", func() bool { return len(r.orphans()) == 1 })
	if p := r.pod(); p.Status.Phase != corev1.PodFailed {
		t.Errorf("the pod is %s", p.Status.Phase)
	}
}

// TestConnectorsOwnRefusal: a refusal by the connector itself is the pod's message, and Azure gets no PUT.
func TestConnectorsOwnRefusal(t *testing.T) {
	r := newRig(t)
	r.create(func(_ *corev1.Pod, c *corev1.Container) { c.Args = []string{"x"} })
	r.eventually("refused", func() bool { return r.pod().Status.Reason == reasonProviderFailed })
	if m := r.pod().Status.Message; !strings.HasPrefix(m, "ACI does not support providing args") {
		t.Errorf("message: %q", m)
	}
	if n := len(r.node.Azure().Puts()); n != 0 {
		t.Errorf("%d PUTs", n)
	}
}

func TestMissingSecret(t *testing.T) {
	r := newRig(t)
	r.create(func(_ *corev1.Pod, c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "x"}}}}
	})
	r.eventually("an event", func() bool {
		events := must.Get(r.client.CoreV1().Events("default").List(r.ctx, metav1.ListOptions{}))(t)
		for _, e := range events.Items {
			if strings.Contains(e.Message, `secret "none" not found`) {
				return true
			}
		}
		return false
	})
	if p := r.pod(); p.Status.Phase != "" || p.Status.Reason != "" { // the API server would have made it Pending
		t.Errorf("the pod is %q: %q", p.Status.Phase, p.Status.Reason)
	}
}

func TestEnds(t *testing.T) {
	for code, want := range map[string]corev1.PodPhase{"0": corev1.PodSucceeded, "3": corev1.PodFailed} {
		r := newRig(t)
		r.create(func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Annotations = map[string]string{RunsForAnnotation: "100ms", ExitCodeAnnotation: code}
		})
		r.eventually("exit code "+code, r.phase(want))
		if s := r.pod().Status.ContainerStatuses[0].State.Terminated; s == nil || (s.ExitCode == 0) != (code == "0") {
			t.Errorf("exit code %s: %+v", code, s)
		}
	}
}

// TestRestart: after a restart, a connector serves the running pods again. Only a restart creates a deleted Node again.
func TestRestart(t *testing.T) {
	r := newRig(t)
	r.create(plain)
	r.eventually("running", r.phase(corev1.PodRunning))
	r.node.Stop()
	if n := len(r.orphans()); n != 0 || r.node.Azure().Cores() != 1 {
		t.Errorf("the group did not survive the connector: %g cores, %d orphaned", r.node.Azure().Cores(), n)
	}
	must.NoError(t, r.client.CoreV1().Nodes().Delete(r.ctx, Name, metav1.DeleteOptions{}))
	must.NoError(t, r.node.Restart(r.ctx))
	if _, err := r.client.CoreV1().Nodes().Get(r.ctx, Name, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	time.Sleep(200 * time.Millisecond)
	if n := len(r.node.Azure().Puts()); n != 1 || r.pod().Status.Phase != corev1.PodRunning {
		t.Errorf("after the restart: %d PUTs, the pod is %s", n, r.pod().Status.Phase)
	}
	must.NoError(t, r.client.CoreV1().Nodes().Delete(r.ctx, Name, metav1.DeleteOptions{}))
	time.Sleep(300 * time.Millisecond)
	if _, err := r.client.CoreV1().Nodes().Get(r.ctx, Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node was made again: %v", err)
	}
	if err := r.node.Start(r.ctx); err == nil {
		t.Error("a connector that runs was started")
	}
}

func TestRestartInTransition(t *testing.T) {
	r := newRig(t)
	r.node.Azure().SetInstanceView(azure.ViewNone)
	r.create(plain)
	r.eventually("created", r.put(201))
	must.NoError(t, r.node.Restart(r.ctx))
	r.refused(azure.CodeTransitioning)
}

// TestGroupGone: a pod whose group is gone from Azure fails.
func TestGroupGone(t *testing.T) {
	r := newRig(t)
	r.create(plain)
	r.eventually("running", r.phase(corev1.PodRunning))
	r.node.Azure().Delete("default-web")
	r.eventually("failed", r.phase(corev1.PodFailed))
	if s := r.pod().Status; s.Reason != reasonNotFound {
		t.Errorf("reason %q", s.Reason)
	}
}

// TestDeleted: the deletion of a pod deletes its group, even while the group is in transition.
func TestDeleted(t *testing.T) {
	for _, view := range []azure.InstanceView{azure.ViewNone, azure.ViewWaiting} {
		r := newRig(t)
		r.node.Azure().SetInstanceView(view)
		r.create(plain)
		r.eventually("created", r.put(201))
		must.NoError(t, r.client.CoreV1().Pods("default").Delete(r.ctx, "web", metav1.DeleteOptions{}))
		for deadline := time.Now().Add(10 * time.Second); len(r.node.Azure().List()) > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the group is left over")
			}
		}
	}
}
