package providers

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/test/must"
)

// newProviders returns Providers of the leader, for the pools user and aci. Each pool has one node: vm and virtual.
func newProviders(t *testing.T, change func(*Config)) (*Providers, *events.FakeRecorder) {
	t.Helper()
	matching := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	pools, err := pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("agentpool", "userpool"), Fixed: &configv1.FixedSource{}},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}},
	}})
	must.NoError(t, err)
	client := fake.NewClientset()
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	nodes := []*v1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "vm", Labels: map[string]string{"agentpool": "userpool"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "virtual", Labels: map[string]string{"type": "virtual-kubelet"}}},
	}
	for _, node := range nodes {
		must.NoError(t, core.Nodes().Informer().GetIndexer().Add(node))
	}
	recorder := events.NewFakeRecorder(100)
	config := Config{Pools: pools, Client: client, Nodes: core.Nodes().Lister(), Pods: core.Pods().Lister(), Recorder: recorder, Clock: clock.RealClock{},
		Leading: func() bool { return true }, Changed: func() {}}
	change(&config)
	p := New(config)
	p.Follow([][]*v1.Node{nodes[:1], nodes[1:]})
	return p, recorder
}

// TestTemplateIsReportedInObserve: in mode Observe, the event does not say that pods are held back.
func TestTemplateIsReportedInObserve(t *testing.T) {
	p, recorder := newProviders(t, func(config *Config) { config.Observed = true })
	web := pod("web-1")
	web.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: ptr.To(true)}}
	web.Spec.NodeName = "virtual"
	web.Status = v1.PodStatus{Phase: v1.PodPending, Reason: refusal.ReasonProviderFailed, Message: "ACI does not support providing args without specifying the command."}
	p.See(web)
	select {
	case event := <-recorder.Events:
		for _, want := range []string{"BurstRefused", "no other pod of this template could burst to this pool", "Unsupported: ACI does not support providing args"} {
			if !strings.Contains(event, want) {
				t.Errorf("%q lacks %q", event, want)
			}
		}
	default:
		t.Error("it is not told")
	}
}

// TestRunsDifferently: for each owner, one event lists the features of its pods that a burst pool ignores.
func TestRunsDifferently(t *testing.T) {
	leads := false
	p, recorder := newProviders(t, func(config *Config) { config.Leading = func() bool { return leads } })
	yes := true
	bound := func(name, node, owner string, plain bool) *v1.Pod {
		p := pod(name)
		p.Spec.NodeName = node
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "uid-" + pod(owner).UID, Controller: &yes}}
		}
		p.Spec.Containers = []v1.Container{{Name: "c"}}
		if !plain {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", SubPath: "a"}}
		}
		return p
	}
	nothing := func(*pool.Pool) []string { return nil }
	p.WarnOfDifferences(bound("standby", "virtual", "web", false), nothing) // this scheduler is not the leader yet
	leads = true
	for _, tc := range []struct {
		pod  *v1.Pod
		want bool
	}{
		{bound("plain", "virtual", "plain", true), false},
		{bound("on-a-vm", "vm", "web", false), false},
		{bound("gone", "gone", "web", false), false},
		{bound("first", "virtual", "web", false), true},
		{bound("second", "virtual", "web", false), false},
		{bound("of-another", "virtual", "api", false), true},
		{bound("bare", "virtual", "", false), true},
	} {
		p.WarnOfDifferences(tc.pod, nothing)
		select {
		case event := <-recorder.Events:
			if !tc.want || !strings.Contains(event, "Warning RunsDifferently in burst pool aci, Azure Container Instances runs the pod without subPath") {
				t.Errorf("%s: %s", tc.pod.Name, event)
			}
		default:
			if tc.want {
				t.Errorf("%s: no event", tc.pod.Name)
			}
		}
	}
	p.WarnOfDifferences(bound("selected", "virtual", "selected", true), func(in *pool.Pool) []string { return []string{"the NetworkPolicy of " + in.Name} })
	if event, want := <-recorder.Events, "in burst pool aci, Azure Container Instances runs the pod without the NetworkPolicy of aci"; !strings.Contains(event, want) {
		t.Errorf("event %q, want %q", event, want)
	}
}

// TestBurstsOften: an owner that bursts more than ten times in an hour gets one event. Pods that burst together count once,
// and pods that end by themselves never.
func TestBurstsOften(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ends  v1.RestartPolicy
		every time.Duration
		pods  int
		want  int // events
	}{
		{"replaced every five minutes", v1.RestartPolicyAlways, 5 * time.Minute, 11, 1},
		{"ten times", v1.RestartPolicyAlways, 5 * time.Minute, 10, 0},
		{"for two hours", v1.RestartPolicyAlways, 5 * time.Minute, 25, 2},
		{"too rarely", v1.RestartPolicyAlways, 7 * time.Minute, 30, 0},
		{"grows", v1.RestartPolicyAlways, time.Second, 200, 0},
		{"ends by itself", v1.RestartPolicyNever, 5 * time.Minute, 30, 0},
	} {
		clock := testingclock.NewFakeClock(time.Now())
		p, recorder := newProviders(t, func(config *Config) { config.Clock = clock })
		for range tc.pods {
			bound := pod("web")
			bound.Spec.NodeName, bound.Spec.RestartPolicy, bound.OwnerReferences = "virtual", tc.ends, []metav1.OwnerReference{{Kind: "X", Name: "web", UID: "web", Controller: ptr.To(true)}}
			p.WarnOfDifferences(bound, func(*pool.Pool) []string { return nil })
			clock.Step(tc.every)
		}
		if got := len(recorder.Events); got != tc.want || got > 0 && !strings.Contains(<-recorder.Events, "Normal BurstsOften the pod's owner has burst to pool aci more than 10 times") {
			t.Errorf("%s: %d events, want %d", tc.name, got, tc.want)
		}
	}
}

// TestSizeOfFailedPods: the breaker knows the size of a pod that has failed, which is not billed any more.
func TestSizeOfFailedPods(t *testing.T) {
	p, _ := newProviders(t, func(*Config) {})
	failed := pod("failed")
	failed.Status.Phase = v1.PodFailed
	failed.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("31")}}}}
	if got := p.podOf(1, failed); got.Billed.MilliCPU != 31000 || got.MilliCPU != 0 {
		t.Errorf("the pod is of size %+v, and %d mCPU are billed", got.Billed, got.MilliCPU)
	}
}
