package azure

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/test/must"
)

// clocked returns a region whose groups are in transition for 20 s, and a function that advances its clock.
func clocked() (*Region, func(time.Duration)) {
	r := NewRegion()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	r.now = func() time.Time { return now }
	r.SetPutTime(0)
	r.SetCreateTime(20 * time.Second)
	return r, func(d time.Duration) { now = now.Add(d) }
}

// group returns the spec of the pod's group, with one container.
func group(pod string, cpu float64) Spec {
	return Spec{Name: "default-" + pod, Namespace: "default", Pod: pod, UID: types.UID(pod), Containers: []Container{{Name: "web", CPU: cpu, Memory: 1.5}}}
}

func code(err error) string {
	if refusal := (&Error{}); errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

func mustPut(t *testing.T, r *Region, spec Spec) {
	t.Helper()
	must.NoError(t, r.Put(context.Background(), spec))
}

func TestTransition(t *testing.T) {
	r, pass := clocked()
	mustPut(t, r, group("web", 1))
	pass(19 * time.Second)
	if g, err := r.Get("default-web"); err != nil || g.State != Pending {
		t.Errorf("before the create time: %+v, %v", g, err)
	}
	if err := r.Put(context.Background(), group("web", 1)); code(err) != CodeTransitioning {
		t.Errorf("a second PUT in transition: %v", err)
	}
	pass(time.Second)
	if g, err := r.Get("default-web"); err != nil || g.State != Running {
		t.Errorf("after the create time: %+v, %v", g, err)
	}
	mustPut(t, r, group("web", 1))
	var statuses []int
	for _, p := range r.Puts() {
		statuses = append(statuses, p.Status)
	}
	if diff := cmp.Diff([]int{201, 409, 200}, statuses); diff != "" {
		t.Errorf("statuses (-want,+got):\n%s", diff)
	}
	if diff := cmp.Diff(map[types.UID]int{"web": 3}, r.PutsByPod()); diff != "" {
		t.Errorf("PUTs (-want,+got):\n%s", diff)
	}
	if n := len(r.Groups()); n != 1 {
		t.Errorf("%d groups were made, want 1", n)
	}
}

func TestGetOfYoungGroups(t *testing.T) {
	for _, tc := range []struct {
		name  string
		set   func(*Region)
		after time.Duration
		code  string
		view  InstanceView
	}{
		{"by default the connector cannot read it", func(*Region) {}, 0, "", ViewGroup},
		{"with the containers' view", func(r *Region) { r.SetInstanceView(ViewWaiting) }, 0, "", ViewWaiting},
		{"without the containers' view", func(r *Region) { r.SetInstanceView(ViewGroup) }, 0, "", ViewGroup},
		{"without any view", func(r *Region) { r.SetInstanceView(ViewNone) }, 0, "", ViewNone},
		{"a group that runs has every view", func(r *Region) { r.SetInstanceView(ViewNone) }, 20 * time.Second, "", ViewWaiting},
		{"lagging", func(r *Region) { r.SetGetLag(2 * time.Second) }, time.Second, CodeNotFound, 0},
		{"after the lag", func(r *Region) { r.SetGetLag(2 * time.Second) }, 2 * time.Second, "", ViewGroup},
		{"throttled", func(r *Region) { r.SetGetThrottle(15 * time.Second) }, 14 * time.Second, CodeTooManyRequests, 0},
		{"no more throttled", func(r *Region) { r.SetGetThrottle(15 * time.Second) }, 15 * time.Second, "", ViewGroup},
		{"all throttled", func(r *Region) { r.ThrottleGets(time.Minute) }, 30 * time.Second, CodeTooManyRequests, 0},
		{"all no more throttled", func(r *Region) { r.ThrottleGets(time.Minute) }, time.Minute, "", ViewWaiting},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, pass := clocked()
			mustPut(t, r, group("web", 1))
			tc.set(r)
			pass(tc.after)
			g, err := r.Get("default-web")
			if code(err) != tc.code || g.View != tc.view {
				t.Errorf("got view %v and %v", g.View, err)
			}
		})
	}
}

func TestQuota(t *testing.T) {
	r, pass := clocked()
	r.SetQuota(2)
	mustPut(t, r, group("a", 1))
	once := group("b", 1)
	once.RestartPolicy, once.RunsFor = corev1.RestartPolicyNever, time.Second
	mustPut(t, r, once)
	err := r.Put(context.Background(), group("c", 0.5))
	if code(err) != CodeQuotaReached || !strings.Contains(err.Error(), "Limit: '2', Usage: '2' Requested: '0.5'.") {
		t.Errorf("over the quota: %v", err)
	}
	pass(21 * time.Second) // b has ended
	mustPut(t, r, group("c", 0.5))
	r.Delete("default-a")
	mustPut(t, r, group("d", 1.5))
	if r.Cores() != 2 {
		t.Errorf("%g cores are used, want 2", r.Cores())
	}
	r.SetQuota(NoQuota)
	mustPut(t, r, group("e", 1000))
}

func TestRefusal(t *testing.T) {
	r, _ := clocked()
	for _, tc := range []struct {
		code   string
		status int
	}{{CodeStockout, 409}, {CodeServerTimeout, 503}, {CodeTooManyRequests, 429}, {CodeQuotaReached, 409}, {"Whatever", 409}} {
		r.Refuse(tc.code)
		err := r.Put(context.Background(), group("web", 1))
		if refusal := (&Error{}); !errors.As(err, &refusal) || refusal.Code != tc.code || refusal.Status != tc.status {
			t.Errorf("%s: %v", tc.code, err)
		}
	}
	r.RefuseWith(Refusal{Status: 503, Code: CodeServerTimeout, Made: true, Match: func(s Spec) bool { return s.Pod == "made" }})
	if err := r.Put(context.Background(), group("made", 1)); code(err) != CodeServerTimeout {
		t.Error(err)
	}
	mustPut(t, r, group("other", 1))
	r.Accept()
	mustPut(t, r, group("web", 1))
	var made []string
	for _, g := range r.Groups() {
		made = append(made, g.Pod)
	}
	if diff := cmp.Diff([]string{"made", "other", "web"}, made); diff != "" {
		t.Errorf("groups (-want,+got):\n%s", diff)
	}
	if err := r.Put(context.Background(), group("made", 1)); code(err) != CodeTransitioning {
		t.Errorf("a group that was made although the answer was 503: %v", err)
	}
}

func TestLimits(t *testing.T) {
	r, _ := clocked()
	for _, tc := range []struct {
		name       string
		containers []Container
		message    string
	}{
		{"equal", []Container{{Name: "web", CPU: 0.5, Memory: 1, CPULimit: 0.5, MemoryLimit: 1}}, ""},
		{"above the container's, within the group's", []Container{{Name: "web", CPU: 0.5, CPULimit: 1}, {Name: "side", CPU: 0.5}}, ""},
		{"CPU", []Container{{Name: "web", CPU: 0.5, CPULimit: 2}}, "The 'Cpu' limit '2' in container 'web' is greater than the total request '0.5' of container group 'default-web'."},
		{"memory", []Container{{Name: "web", Memory: 1, MemoryLimit: 1.5}}, "The 'MemoryInGB' limit '1.5' in container 'web' is greater than the total request '1' of container group 'default-web'."},
	} {
		spec := group("web", 1)
		spec.Containers = tc.containers
		err := r.Put(context.Background(), spec)
		if refusal := (&Error{}); tc.message == "" && err != nil || tc.message != "" && (!errors.As(err, &refusal) || refusal.Status != 400 || refusal.Message != tc.message) {
			t.Errorf("%s: %v", tc.name, err)
		}
		r.Delete("default-web")
	}
}

// TestErrorText: the error's text is the text that the Azure SDK prints. Other code finds the error's code in this
// text.
func TestErrorText(t *testing.T) {
	want := `PUT https://management.azure.com/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/MC_devcluster/providers/Microsoft.ContainerInstance/containerGroups/default-web
--------------------------------------------------------------------------------
RESPONSE 409: 409 Conflict
ERROR CODE: ContainerGroupTransitioning
--------------------------------------------------------------------------------
{
  "error": {
    "code": "ContainerGroupTransitioning",
    "message": "The container group 'default-web' is still transitioning, please retry later."
  }
}
--------------------------------------------------------------------------------
`
	r, _ := clocked()
	mustPut(t, r, group("web", 1))
	if diff := cmp.Diff(want, r.Put(context.Background(), group("web", 1)).Error()); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
}

func TestEnd(t *testing.T) {
	for _, tc := range []struct {
		policy   corev1.RestartPolicy
		code     int32
		want     State
		restarts int32
	}{
		{corev1.RestartPolicyNever, 0, Succeeded, 0},
		{corev1.RestartPolicyNever, 3, Failed, 0},
		{corev1.RestartPolicyOnFailure, 0, Succeeded, 0},
		{corev1.RestartPolicyOnFailure, 3, Running, 2},
		{corev1.RestartPolicyAlways, 0, Running, 2},
	} {
		r, pass := clocked()
		spec := group("web", 1)
		spec.RestartPolicy, spec.RunsFor, spec.ExitCode = tc.policy, 10*time.Second, tc.code
		mustPut(t, r, spec)
		pass(20*time.Second + 25*time.Second)
		g := r.Groups()[0]
		if g.State != tc.want || g.Restarts != tc.restarts {
			t.Errorf("%s, exit code %d: %s after %d restarts", tc.policy, tc.code, g.State, g.Restarts)
		}
	}
}

func TestOrphans(t *testing.T) {
	r, pass := clocked()
	for _, pod := range []string{"seen", "lost", "gone", "deleted"} {
		mustPut(t, r, group(pod, 1))
	}
	pass(20 * time.Second)
	mustPut(t, r, group("young", 1))
	r.Delete("default-deleted")
	pod := func(name string, phase corev1.PodPhase) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: corev1.PodStatus{Phase: phase}}
	}
	var orphans []string
	for _, g := range Orphans(r.Groups(), []corev1.Pod{pod("seen", corev1.PodRunning), pod("lost", corev1.PodPending), pod("young", corev1.PodPending)}) {
		orphans = append(orphans, g.Pod)
	}
	if diff := cmp.Diff([]string{"lost", "gone"}, orphans, cmp.Transformer("set", func(s []string) map[string]bool {
		set := map[string]bool{}
		for _, name := range s {
			set[name] = true
		}
		return set
	})); diff != "" {
		t.Errorf("(-want,+got):\n%s", diff)
	}
}
