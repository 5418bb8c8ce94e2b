package gatekeeper

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// world is a gatekeeper with a fake clock and a fake API server, but without a scheduler.
type world struct {
	*Gatekeeper
	testing.TB
	clock    *testingclock.FakeClock
	client   *fake.Clientset
	recorder *events.FakeRecorder

	runs bool // run has returned: the watches deliver all writes

	mu        sync.Mutex
	activated []string // pods, by namespace/name, for which the gate was open when they were requeued
}

// newWorld returns a world that does not run yet. Its pools are user (cluster autoscaler), system (fixed) and aci
// (burst).
func newWorld(t testing.TB, objects ...runtime.Object) *world {
	t.Helper()
	return newWorldWith(t, func(*configv1.PoolPriorityArgs) {}, objects...)
}

// newWorldWith is like newWorld, but change may change the arguments before they are used.
func newWorldWith(t testing.TB, change func(*configv1.PoolPriorityArgs), objects ...runtime.Object) *world {
	t.Helper()
	return newWorldOf(t, fake.NewClientset(objects...), change, nil)
}

func matching(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// newWorldOf is like newWorldWith, but uses this client. All reactors of the client must be set already, because the
// override's informer lists at once. If rules is nil, burst pools use breaker.NewRules.
func newWorldOf(t testing.TB, client *fake.Clientset, change func(*configv1.PoolPriorityArgs), rules func(time.Duration) breaker.Rules) *world {
	t.Helper()
	args := &configv1.PoolPriorityArgs{Pools: []configv1.Pool{
		{Name: "user", NodeSelector: matching("agentpool", "userpool"), ClusterAutoscaler: &configv1.ClusterAutoscalerSource{}},
		{Name: "system", NodeSelector: matching("agentpool", "systempool"), Fixed: &configv1.FixedSource{}},
		{Name: "aci", NodeSelector: matching("type", "virtual-kubelet"), Burst: &configv1.Burst{}},
	}}
	change(args)
	configv1.SetDefaults_PoolPriorityArgs(args)
	must.NoError(t, configv1.Validate(args).ToAggregate())
	pools, err := pool.ListOf(args)
	must.NoError(t, err)
	w := &world{
		TB: t, clock: testingclock.NewFakeClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)),
		client: client, recorder: events.NewFakeRecorder(100),
	}
	w.Gatekeeper, err = New(klog.NewContext(t.Context(), klog.Background().V(9)), Config{
		Args: args, Pools: pools, Client: w.client, Informers: informers.NewSharedInformerFactory(w.client, 0), Recorder: w.recorder, Clock: w.clock, Refusals: rules,
		Activate: func(_ klog.Logger, pods map[string]*v1.Pod) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for name, pod := range pods { // the others are requeued because the gatekeeper has just started
				if d := w.Decide(pod, Snapshot{}, gate.Wait{}); d.Opens() {
					w.activated = append(w.activated, name)
				}
			}
		},
	})
	must.NoError(t, err)
	return w
}

// run starts the informers and the gatekeeper, as a scheduler would. From then on, the clock advances by itself.
func (w *world) run(watched ...string) {
	w.config.Informers.Start(w.Context().Done())
	w.config.Informers.WaitForCacheSync(w.Context().Done())
	go w.Gatekeeper.Run(w.Context())
	for _, resource := range append(watched, "deployments", "replicasets", "pods", "nodes", "configmaps") {
		w.hears(resource)
	}
	w.runs = true
	go func() {
		for w.Context().Err() == nil {
			time.Sleep(time.Millisecond)
			w.clock.Step(20 * time.Millisecond)
		}
	}()
}

// hears waits until the resource is watched. The fake client's watch does not deliver objects that were written between
// the list and the watch.
func (w *world) hears(resource string) {
	w.Helper()
	want := 1
	if resource == "configmaps" && slices.ContainsFunc(w.config.Args.Pools, func(p configv1.Pool) bool { return p.ClusterAutoscaler != nil }) {
		want++ // the autoscaler's status and the override
	}
	w.eventually(func() string {
		n := 0
		for _, a := range w.client.Actions() {
			if a.Matches("watch", resource) {
				n++
			}
		}
		if n < want {
			return fmt.Sprintf("%d of %d watch %s", n, want, resource)
		}
		return ""
	})
}

// eventually waits until check returns "", for at most 30 s of real time or, if that is longer, 10 min of the clock,
// which is slow on a busy machine.
func (w *world) eventually(check func() string) {
	w.Helper()
	deadline, until := time.Now().Add(30*time.Second), w.clock.Now().Add(10*time.Minute)
	for ; ; time.Sleep(2 * time.Millisecond) {
		complaint := check()
		if complaint == "" {
			return
		}
		if time.Now().After(deadline) && (!w.runs || w.clock.Now().After(until)) {
			w.Fatal(complaint)
		}
	}
}

// wasActivated reports whether the pod was requeued with an open gate. If it was, wasActivated drops all recorded pods.
func (w *world) wasActivated(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.activated, "default/"+name)
	if i >= 0 {
		w.activated = nil
	}
	return i >= 0
}

// activates waits until the pod is requeued with an open gate. It fails the test with the complaint if it never is.
func (w *world) activates(name, complaint string) {
	w.Helper()
	w.eventually(func() string {
		if w.wasActivated(name) {
			return ""
		}
		return complaint
	})
}

// setStatus writes the cluster autoscaler's status: one group of the pool user with these numbers of ready nodes and
// ordered nodes, and a maximum of 3. It writes to the tracker, so that it does not wait for calls of the fake client.
func (w *world) setStatus(ready, target int) {
	w.Helper()
	if !w.runs {
		w.hears("configmaps")
	}
	cm := &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-autoscaler-status", Namespace: "kube-system",
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/last-updated": fmt.Sprint(w.clock.Now(), target)}},
		Data: map[string]string{"status": fmt.Sprintf(`
autoscalerStatus: Running
clusterWide: {health: {status: Healthy, lastTransitionTime: "2026-11-21T09:00:00Z"}}
nodeGroups:
- name: aks-userpool-12345678-vmss
  health: {status: Healthy, nodeCounts: {registered: {ready: %d}}, cloudProviderTarget: %d, minSize: 0, maxSize: 3}
  scaleUp: {status: NoActivity}
`, ready, target)},
	}
	configMaps := v1.SchemeGroupVersion.WithResource("configmaps")
	if err := w.client.Tracker().Update(configMaps, cm, cm.Namespace); err == nil {
		return
	}
	must.NoError(w.TB, w.client.Tracker().Create(configMaps, cm, cm.Namespace))
}

// addPod creates the pod, and waits until the gatekeeper's lister has it.
func (w *world) addPod(p *v1.Pod) {
	w.Helper()
	must.Do(w.TB)(w.client.CoreV1().Pods(p.Namespace).Create(w.Context(), p, metav1.CreateOptions{}))
	w.eventually(func() string {
		if _, err := w.pods.Pods(p.Namespace).Get(p.Name); err != nil {
			return err.Error()
		}
		return ""
	})
}

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)}}
}

// withCondition gives the pod the condition PodScheduled.
func withCondition(p *v1.Pod, status v1.ConditionStatus, reason string, since time.Time) *v1.Pod {
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}}
	return p
}

// TestRun: a pod is held while a better pool can grow, and requeued once no better pool can. The pools' states are
// published.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.setStatus(1, 1)
	w.run()
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now()) // without the condition, the pod would be requeued
	w.addPod(p)
	w.Lead()
	decide := func() gate.Verdict { return w.Decide(p, Snapshot{}, gate.Wait{}).Burst[2] }
	w.eventually(func() string {
		if v := decide(); v.Open || v.Reason.Code != gate.ReasonCanGrow.Code || strings.Contains(v.Reason.Detail, "starting") {
			return fmt.Sprintf("while the pool can grow: %+v", v)
		}
		return ""
	})
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	w.Gatekeeper.Failed(p, true)
	w.Hold(klog.Background(), p, &d, nil, false)
	if _, held := w.held.Lookup("p"); !held {
		t.Fatal("the pod is not held")
	}
	w.setStatus(3, 3)
	w.activates("p", "the pod is not requeued when the pool is full")
	if v := decide(); !v.Open {
		t.Errorf("when the pool is full: %+v", v)
	}
	w.eventually(func() string {
		cm, err := w.client.CoreV1().ConfigMaps("pool-priority-system").Get(t.Context(), "pool-priority-status", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(cm.Data["view"], `"state":"Full"`) {
			return "published: " + cm.Data["view"]
		}
		return ""
	})

	// A deleted pod is forgotten, whether its deletion arrives as an event or Hold does not find it in the lister.
	must.NoError(t, w.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	w.eventually(func() string {
		if _, held := w.held.Lookup("p"); held {
			return "a deleted pod is held"
		}
		return ""
	})
	w.eventually(func() string {
		w.Hold(klog.Background(), p, &d, nil, false)
		if _, held := w.held.Lookup("p"); held {
			return "a pod that was deleted in mid-cycle is held"
		}
		return ""
	})
}

// TestPublishingDelaysNoPod: held pods are requeued while a write of the published state hangs.
func TestPublishingDelaysNoPod(t *testing.T) {
	client, hangs, end := fake.NewClientset(), make(chan bool, 1), make(chan bool)
	client.PrependReactor("patch", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		hangs <- true
		<-end // the reactor holds the fake client's lock: all other calls hang, too
		return true, nil, errors.New("too late")
	})
	defer close(end)
	w := newWorldOf(t, client, func(*configv1.PoolPriorityArgs) {}, nil)
	w.setStatus(1, 1)
	w.run()
	p := withCondition(pod("p"), v1.ConditionFalse, v1.PodReasonUnschedulable, w.clock.Now())
	w.addPod(p)
	w.verdict(p, gate.ReasonCanGrow.Code)
	d := w.Decide(p, Snapshot{}, gate.Wait{})
	w.Hold(klog.Background(), p, &d, nil, false)
	w.Lead()
	<-hangs
	w.setStatus(3, 3)
	w.activates("p", "the pod is not requeued when the pool is full")
}

// TestStarting: before the first evaluation, the gatekeeper holds every pod. After Assume, it uses the given view.
func TestStarting(t *testing.T) {
	w := newWorld(t)
	asks := pod("asks")
	asks.Spec.NodeSelector = map[string]string{"type": "virtual-kubelet"}
	for _, p := range []*v1.Pod{pod("p"), asks} {
		d := w.Decide(p, Snapshot{}, gate.Wait{})
		if v := d.Burst[2]; v.Open || !v.Passes() || d.Regular[1].Reason != held.ReasonStarting {
			t.Errorf("before the first look: %+v", d)
		}
	}
	w.Assume(fullPools())
	if v := w.Decide(pod("p"), Snapshot{}, gate.Wait{}).Burst[2]; !v.Open {
		t.Errorf("with full pools: %+v", v)
	}
}

func fullPools() *nodegroups.View {
	full := nodegroups.Pool{Groups: []nodegroups.Group{{GroupStatus: nodegroups.GroupStatus{State: nodegroups.Full}}}}
	return &nodegroups.View{Pools: []nodegroups.Pool{full, full, {}}}
}

// TestCreatesBeforeTheView: a pod counts once in the burst pool's rate before the next view has it, although it has ended and
// the scheduler's snapshot may still have it.
func TestCreatesBeforeTheView(t *testing.T) {
	w := newWorldOf(t, fake.NewClientset(), func(args *configv1.PoolPriorityArgs) {
		args.Pools[2].Burst.Creates = configv1.BurstCreates{Per5Minutes: ptr.To[int32](2)}
	}, nil)
	w.Assume(fullPools())
	w.providers.Follow([][]*v1.Node{2: {{ObjectMeta: metav1.ObjectMeta{Name: "virtual-node"}}}})
	first := pod("first")
	first.Spec.NodeName = "virtual-node"
	w.providers.See(withCondition(first, v1.ConditionTrue, "", w.clock.Now()))
	w.providers.Gone(first.UID)
	notStarted := first
	snapshot := Snapshot{Burst: make([]aci.Use, 3), NotStarted: func(_ int, visit func(*v1.Pod)) { visit(notStarted) }}
	for _, notStarted = range []*v1.Pod{first, pod("second")} {
		if v := w.Decide(pod("next"), snapshot, gate.Wait{}).Burst[2]; v.Open != (notStarted == first) || !v.Open && v.Reason.Code != gate.ReasonCreateRate.Code {
			t.Errorf("with %s and one that the view lacks: %+v", notStarted.Name, v)
		}
	}
	if _, _, creates := w.uses(); len(creates[2]) != 1 {
		t.Errorf("for batches, the creates are %v", creates[2])
	}
}

// TestLongDelay: an event tells the first pod of each owner that the autoscaler ignores it for longer than holdLimit.
func TestLongDelay(t *testing.T) {
	for _, tc := range []struct {
		name  string
		limit time.Duration
		delay string
		want  string // the event; "" means none
	}{
		{"longer than holdLimit", time.Hour, "24h", "Warning DelayExceedsHoldLimit the cluster autoscaler ignores the pod for 24h0m0s (annotation " + gate.DelayAnnotation +
			"), so that it adds no VM for the pod before holdLimit (1h0m0s) lets the pod burst. If the pod is to get a VM, shorten the delay or raise capacity.holdLimit"},
		{"as long", time.Hour, "1h", ""},
		{"no duration", time.Hour, "for ever", ""},
		{"none", time.Hour, "", ""},
		{"no holdLimit", 0, "24h", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorldWith(t, func(args *configv1.PoolPriorityArgs) {
				args.Capacity.HoldLimit = &metav1.Duration{Duration: tc.limit}
			})
			w.config.Informers.Start(w.Context().Done())
			w.config.Informers.WaitForCacheSync(w.Context().Done())
			d := gate.Decision{Burst: make([]gate.Verdict, 3)}
			for _, name := range []string{"a", "b", "a"} {
				p := pod(name)
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web", UID: "web", Controller: ptr.To(true)}}
				if tc.delay != "" {
					p.Annotations = map[string]string{gate.DelayAnnotation: tc.delay}
				}
				must.NoError(t, w.config.Informers.Core().V1().Pods().Informer().GetIndexer().Add(p))
				w.Hold(klog.Background(), p, &d, nil, false)
			}
			var got []string
			for len(w.recorder.Events) > 0 {
				got = append(got, <-w.recorder.Events)
			}
			if want := slices.DeleteFunc([]string{tc.want}, func(s string) bool { return s == "" }); !slices.Equal(got, want) {
				t.Errorf("events %q, want %q", got, want)
			}
		})
	}
}
