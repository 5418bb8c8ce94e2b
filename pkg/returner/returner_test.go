package returner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	schedconfigv1 "k8s.io/kube-scheduler/config/v1"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/capacitybuffer"
	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/test/must"
)

var start = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

// cluster is a returner on a client that answers evictions as told.
type cluster struct {
	*testing.T
	*Returner
	ctx     context.Context
	clock   *clocktesting.FakeClock
	client  *fake.Clientset
	evicted []string
	answers map[string][]error // by pod; nil evicts it
	pauses  map[types.UID]returnplan.Pause
	problem string
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	data := must.ReadFile(t, "../../manifests/overlays/aks/config.yaml")
	profile, args, err := configv1.Load(data)
	must.NoError(t, err)
	args.Pools[2].Burst.Return = configv1.Return{Enabled: true, StableFor: &metav1.Duration{Duration: time.Minute}, MinAge: &metav1.Duration{}, EvictionsPerMinute: 600, PerWorkload: 100}
	args.Pools[2].Burst.Tolerations = append(args.Pools[2].Burst.Tolerations, corev1.Toleration{Key: "given", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	args.Pools[1].Return = args.Pools[2].Burst.Return.DeepCopy()
	args.Pools[1].Return.MinAge.Duration = 90 * time.Minute
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: args.Pools, Orders: []configv1.NamedOrder{{Name: "system-first", Pools: []string{"system", "user", "aci"}}}}))(t)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	c := &cluster{T: t, ctx: ctx, clock: clocktesting.NewFakeClock(start), client: fake.NewClientset(objects...), answers: map[string][]error{}}
	c.client.PrependReactor("create", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(k8stesting.CreateAction)
		if !ok || action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction := create.GetObject().(*policyv1.Eviction)
		if eviction.DeleteOptions == nil || eviction.DeleteOptions.Preconditions == nil || eviction.DeleteOptions.Preconditions.UID == nil {
			t.Error("an eviction without the pod's UID")
		}
		c.evicted = append(c.evicted, eviction.Name)
		if answers := c.answers[eviction.Name]; len(answers) > 0 {
			c.answers[eviction.Name] = answers[1:]
			return true, nil, answers[0]
		}
		return true, nil, nil
	})
	c.Returner = must.Get(newReturner(ctx, c.client, profile, pools, c.clock))(t)
	c.Report = func(pauses map[types.UID]returnplan.Pause, problem string) { c.pauses, c.problem = pauses, problem }
	c.hasBuffers("")
	for _, factory := range []informers.SharedInformerFactory{c.Informers, c.own} {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	return c
}

// newReturner returns a Returner whose informers have not been started yet.
func newReturner(ctx context.Context, client kubernetes.Interface, profile *schedconfigv1.KubeSchedulerProfile, pools pool.List, clock clock.PassiveClock) (*Returner, error) {
	completed, err := complete(profile)
	if err != nil {
		return nil, err
	}
	return New(ctx, Config{Pools: pools, Profile: completed, Informers: informers.NewSharedInformerFactory(client, 0), Client: client, Recorder: events.NewFakeRecorder(1000), Clock: clock})
}

// complete returns the profile with the scheduler's default plugins and their arguments.
func complete(profile *schedconfigv1.KubeSchedulerProfile) (*schedconfig.KubeSchedulerProfile, error) {
	p := *profile.DeepCopy()
	// kube-scheduler's scheme has no type for PoolPriority's arguments, and Returner does not use them.
	p.PluginConfig = slices.DeleteFunc(p.PluginConfig, func(c schedconfigv1.PluginConfig) bool { return c.Name == configv1.PluginName })
	config := &schedconfigv1.KubeSchedulerConfiguration{Profiles: []schedconfigv1.KubeSchedulerProfile{p}}
	scheme.Scheme.Default(config)
	completed := &schedconfig.KubeSchedulerConfiguration{}
	err := scheme.Scheme.Convert(config, completed, nil)
	return &completed.Profiles[0], err
}

// after runs rounds for the time and returns the pods whose eviction was asked for, in order.
func (c *cluster) after(d time.Duration) []string {
	c.evicted = nil
	for end := c.clock.Now().Add(d); c.clock.Now().Before(end); c.clock.Step(c.interval()) {
		c.safely(c.ctx)
	}
	return c.evicted
}

// seen waits until the cache has as many pods on the virtual node.
func (c *cluster) seen(pods int) {
	c.Helper()
	must.Eventually(c, fmt.Sprintf("%d pods are listed", pods), func() bool {
		listed, err := c.Returner.pods.List(labels.Everything())
		return err == nil && len(listed) == pods
	})
}

func (c *cluster) expect(what string, got []string, want ...string) {
	c.Helper()
	if !slices.Equal(got, want) {
		c.Errorf("%s: evictions of %v, want %v", what, got, want)
	}
}

func node(name, mode, cpu string) *st.NodeWrapper {
	return st.MakeNode().Name(name).Label("kubernetes.azure.com/mode", mode).Label(corev1.LabelHostname, name).
		Capacity(map[corev1.ResourceName]string{"cpu": cpu, "memory": "16Gi", "pods": "30"})
}

func virtual() *corev1.Node {
	return st.MakeNode().Name("virtual").Label("type", "virtual-kubelet").
		Capacity(map[corev1.ResourceName]string{"cpu": "10000", "memory": "4Ti", "pods": "5000"}).Obj()
}

// pod is a pod of 1 CPU on the virtual node; the first to be named is the oldest.
func pod(name string, age int) *st.PodWrapper {
	p := st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName("pool-priority-scheduler").Node("virtual").
		Req(map[corev1.ResourceName]string{"cpu": "1", "memory": "1Gi"}).CreationTimestamp(metav1.NewTime(start.Add(-time.Duration(age) * time.Hour)))
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs-" + name, UID: types.UID("rs-" + name), Controller: ptr.To(true)}}
	return p
}

// nominee is a pending pod that is nominated to the node.
func nominee(name, node string) *corev1.Pod {
	return pod(name, 0).Node("").NominatedNodeName(node).Obj()
}

// TestRoom: room is what the scheduler's filters say, kept for the pods that were chosen before, oldest first.
func TestRoom(t *testing.T) {
	c := newCluster(t, virtual(),
		node("user", "user", "2").Obj(),
		node("tainted", "user", "10").Taints([]corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}).Obj(),
		node("cordoned", "user", "10").Unschedulable(true).Obj(),
		node("excluded", "", "10").Label("type", "virtual-kubelet").Obj(),
		pod("third", 1).Obj(), pod("first", 3).Obj(), pod("second", 2).Obj(),
		pod("elsewhere", 9).NodeSelector(map[string]string{"type": "virtual-kubelet"}).Obj(),
		pod("large", 9).Req(map[corev1.ResourceName]string{"cpu": "3"}).Obj(),
		pod("others", 9).SchedulerName("default-scheduler").Obj(),
		pod("opted-out", 9).Annotation("poolpriority.dev/return", "Never").Obj(),
		pod("pending", 9).Node("").Obj(), pod("lost", 9).Node("gone").Obj(), nominee("nominated", "system"), node("system", "system", "1").Obj(),
	)
	c.expect("before stableFor", c.after(time.Minute))
	c.expect("after stableFor", c.after(c.interval()), "first", "second")
}

// TestSameOrder: nodes of a pool are tried in the same order in each round. In another order, the older pod would take
// the large node, and the younger pod would have no room in that round.
func TestSameOrder(t *testing.T) {
	c := newCluster(t, virtual(), node("a", "user", "2").Obj(), node("b", "user", "4").Obj(),
		pod("older", 2).Req(map[corev1.ResourceName]string{"cpu": "1"}).Obj(), pod("younger", 1).Req(map[corev1.ResourceName]string{"cpu": "3"}).Obj()) // besides the 1 CPU of each pod
	c.expect("before stableFor", c.after(time.Minute))
	c.expect("after stableFor", c.after(c.interval()), "older", "younger")
}

// TestStuckFirst: of pods on burst nodes, those that do not run go first, however young: those that the provider
// refused, and those that have not started. One that was refused is no healthy replacement, whatever its conditions
// say.
func TestStuckFirst(t *testing.T) {
	running := func(name string, age int) *corev1.Pod { return pod(name, age).Phase(corev1.PodRunning).Obj() }
	refused := pod("refused", 2).Phase(corev1.PodPending).Condition(corev1.PodReady, corev1.ConditionTrue, "").Obj()
	refused.Status.Reason = refusal.ReasonProviderFailed
	c := newCluster(t, virtual(), node("user", "user", "3").Obj(), running("old", 9), pod("young", 1).Phase(corev1.PodPending).Obj(), refused, running("older", 10))
	c.after(time.Minute)
	c.expect("after stableFor", c.after(c.interval()), "refused", "young", "older")
	if members := c.sync().members["default/rs-refused"]; len(members) != 1 || members[0].Ready {
		t.Errorf("the refused pod counts as ready: %+v", members)
	}
}

// TestAntiAffinity: what other pods say counts, also those for which room is kept.
func TestAntiAffinity(t *testing.T) {
	apart := func(name string, age int) *corev1.Pod {
		return pod(name, age).Label("app", "apart").PodAntiAffinityExists("app", corev1.LabelHostname, st.PodAntiAffinityWithRequiredReq).Obj()
	}
	c := newCluster(t, virtual(), node("user", "user", "10").Obj(), node("system", "system", "10").Obj(), apart("a", 3), apart("b", 2), apart("c", 1))
	c.expect("three that must be apart, and two nodes", c.after(time.Minute+c.interval()), "a", "b")
}

// TestOnTheWay: the room of a pod that was evicted and not replaced yet is not anybody else's.
func TestOnTheWay(t *testing.T) {
	c := newCluster(t, virtual(), node("user", "user", "1").Obj(), pod("first", 2).Obj(), pod("second", 1).Obj())
	c.after(time.Minute)
	c.expect("the oldest", c.after(c.interval()), "first")
	c.expect("for an hour, in which it is not replaced", c.after(time.Hour))
}

// TestGivenTolerations: what the pod was given for the burst pool, its replacement will not have.
func TestGivenTolerations(t *testing.T) {
	taint := corev1.Taint{Key: "given", Effect: corev1.TaintEffectNoSchedule}
	given := corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	with := func(p *st.PodWrapper) *corev1.Pod {
		p.Spec.Tolerations = append(p.Spec.Tolerations, given)
		return p.Obj()
	}
	template := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "rs-own", Namespace: "default", UID: "rs-own"}}
	template.Spec.Template.Spec.Tolerations = []corev1.Toleration{given}
	c := newCluster(t, virtual(), node("user", "user", "10").Taints([]corev1.Taint{taint}).Obj(), template,
		with(pod("given", 2)), with(pod("own", 1)))
	c.expect("after stableFor", c.after(time.Minute+c.interval()), "own")
}

// TestNextLeader: the next leader continues the pause after an eviction in vain.
func TestNextLeader(t *testing.T) {
	c := newCluster(t, virtual(), node("user", "user", "1").Obj(), pod("first", 2).Obj())
	c.after(time.Minute)
	c.expect("the pod", c.after(c.interval()), "first")
	again := pod("again", 9)
	again.OwnerReferences = pod("first", 0).OwnerReferences
	must.Do(t)(c.client.CoreV1().Pods("default").Create(c.ctx, again.Obj(), metav1.CreateOptions{}))
	c.seen(2)
	must.NoError(t, c.client.CoreV1().Pods("default").Delete(c.ctx, "first", metav1.DeleteOptions{}))
	c.seen(1)
	c.after(c.interval())
	want := map[types.UID]returnplan.Pause{"default/rs-first": {InARow: 1, Until: start.Add(time.Minute + c.interval() + time.Minute)}}
	if !maps.Equal(c.pauses, want) {
		t.Fatalf("the pauses are %v, want %v", c.pauses, want)
	}
	next := newCluster(t, virtual(), node("user", "user", "10").Obj(), again.Obj(), pod("other", 1).Obj())
	next.restore(c.pauses)
	next.expect("not the pod of the pause", next.after(time.Minute+next.interval()), "other")
	if !maps.Equal(next.pauses, want) {
		t.Errorf("the next leader's pauses are %v", next.pauses)
	}
}

// nodeLister lists nodes by a function.
type nodeLister struct {
	corelisters.NodeLister
	list func() ([]*corev1.Node, error)
}

func (l nodeLister) List(labels.Selector) ([]*corev1.Node, error) { return l.list() }

// TestUnfinished: a round that takes too long evicts nobody and is reported, and so is one that panics. The next round
// starts anew.
func TestUnfinished(t *testing.T) {
	c := newCluster(t, virtual(), node("user", "user", "10").Obj(), pod("a", 2).Obj(), pod("b", 1).Obj())
	fine := c.seats.listNodes
	for _, tc := range []struct {
		problem string
		list    func() ([]*corev1.Node, error)
	}{
		{"was cut short", func() ([]*corev1.Node, error) { c.clock.Step(searchFor + 1); return fine.List(labels.Everything()) }},
		{"the last round failed: its error", func() ([]*corev1.Node, error) { panic("no") }},
	} {
		c.seats.listNodes = nodeLister{fine, tc.list}
		if c.expect(tc.problem, c.after(2*time.Minute)); !strings.Contains(c.problem, tc.problem) {
			t.Errorf("%s: the problem is %q", tc.problem, c.problem)
		}
	}
	c.synced = func() bool { return false }
	if c.expect("without Deployments", c.after(2*time.Minute)); !strings.Contains(c.problem, "right to list and watch them") {
		t.Error(c.problem)
	}
	c.seats.listNodes, c.synced = fine, func() bool { return true }
	if c.expect("afterwards", c.after(time.Minute+c.interval()), "a", "b"); c.problem != "" {
		t.Error(c.problem)
	}
}

// TestAnswers: whatever the API server answers, others go on, and what was refused is tried again, ever later.
func TestAnswers(t *testing.T) {
	c := newCluster(t, virtual(), node("user", "user", "10").Obj(),
		pod("refused", 5).Obj(), pod("failing", 4).Obj(), pod("gone", 3).Obj(), pod("another", 2).Obj(), pod("fine", 1).Obj())
	pods := schema.GroupResource{Resource: "pods"}
	refused := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	c.answers = map[string][]error{
		"refused": {refused, refused, refused},
		"failing": {errors.New("connection refused")},
		"gone":    {apierrors.NewNotFound(pods, "gone")},
		"another": {apierrors.NewConflict(pods, "another", errors.New("the UID in the precondition does not match"))},
	}
	before, inVain := counted(t, resultRefused), counted(t, resultNotLanded)
	c.after(time.Minute)
	c.expect("the first time", c.after(c.interval()), "refused", "failing", "gone", "another", "fine")
	for _, name := range []string{"gone", "another", "fine"} {
		must.NoError(t, c.client.CoreV1().Pods("default").Delete(c.ctx, name, metav1.DeleteOptions{}))
	}
	c.seen(2)
	first := c.clock.Now()
	var times []time.Duration
	for range 1000 {
		for _, name := range c.after(c.interval()) {
			if name == "refused" {
				times = append(times, c.clock.Since(first))
			}
		}
	}
	if len(times) != 3 || times[2]-times[1] <= times[1]-times[0] {
		t.Errorf("the pod whose eviction was refused three times was tried again after %v, want three times with growing pauses", times)
	}
	t.Logf("the refused pod was tried again after %v", times)
	if got := counted(t, resultRefused) - before; got != 4 {
		t.Errorf("%v refused evictions are counted, want 4", got)
	}
	if got := counted(t, resultNotLanded) - inVain; got != 1 {
		t.Errorf("%v returns in vain are counted, want the 1 of the pod that nothing replaced", got)
	}
}

// registered has the counters count.
var registered = sync.OnceFunc(func() { legacyregistry.MustRegister(Metrics()...) })

// counted is how many returns have had the result.
func counted(t *testing.T, result string) float64 {
	t.Helper()
	registered()
	n := must.Get(testutil.GetCounterMetricValue(returns.WithLabelValues("aci", result)))(t)
	return n
}

// TestLanded: a pod that returned is counted once it is known that its replacement runs elsewhere.
func TestLanded(t *testing.T) {
	c := newCluster(t, virtual(), node("user", "user", "1").Obj(), pod("first", 2).Obj())
	before := counted(t, resultLanded)
	c.after(time.Minute)
	c.expect("the pod", c.after(c.interval()), "first")
	must.NoError(t, c.client.CoreV1().Pods("default").Delete(c.ctx, "first", metav1.DeleteOptions{}))
	replacement := pod("replacement", 0).Node("user").Phase(corev1.PodRunning).Condition(corev1.PodReady, corev1.ConditionTrue, "").Obj()
	replacement.OwnerReferences = pod("first", 2).OwnerReferences
	must.Do(t)(c.client.CoreV1().Pods("default").Create(c.ctx, replacement, metav1.CreateOptions{}))
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && counted(t, resultLanded) == before; time.Sleep(10 * time.Millisecond) {
		c.safely(c.ctx) // no time passes
	}
	if got := counted(t, resultLanded) - before; got != 1 {
		t.Errorf("%v returns that landed are counted, want 1", got)
	}
}

// TestOwnProfile: a profile with plugins of others, and with few of Kubernetes' own, serves as well.
func TestOwnProfile(t *testing.T) {
	files := []string{"../../manifests/overlays/karpenter/config.yaml"}
	examples, err := filepath.Glob("../../manifests/examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatal(examples, err)
	}
	for _, file := range append(files, examples...) {
		data := must.ReadFile(t, file)
		profile, args, err := configv1.Load(data)
		if err != nil && len(compat.OutOfTree) == 0 && strings.Contains(err.Error(), "there is no plugin") {
			continue // this build has no plugins of other projects
		}
		must.NoError(t, err)
		pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: args.Pools}))(t)
		r, err := newReturner(t.Context(), fake.NewClientset(), profile, pools, clocktesting.NewFakeClock(start))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		filters := fmt.Sprint(r.seats.framework.ListPlugins().Filter.Enabled)
		for _, name := range []string{"TaintToleration", "NodeResourcesFit", "NodeUnschedulable"} {
			if !slices.ContainsFunc(r.seats.framework.ListPlugins().Filter.Enabled, func(p schedconfig.Plugin) bool { return p.Name == name }) {
				t.Errorf("%s: %s is not among the filters: %s", file, name, filters)
			}
		}
	}
}

// TestProfilesWithoutDefaults: a profile that lists its plugins by itself has the filters that it lists.
func TestProfilesWithoutDefaults(t *testing.T) {
	for _, points := range []string{
		"{multiPoint: {enabled: [{name: PoolPriority}]}, filter: {enabled: [{name: PoolPriority}, {name: NodeResourcesFit}], disabled: [{name: '*'}]}, preFilter: {enabled: [{name: NodeResourcesFit}, {name: PoolPriority}], disabled: [{name: '*'}]}, bind: {disabled: [{name: DefaultBinder}]}}",
		"{multiPoint: {enabled: [{name: PrioritySort}, {name: NodeResourcesFit}, {name: PoolPriority}], disabled: [{name: '*'}]}, filter: {enabled: [{name: PoolPriority}]}}",
		"{multiPoint: {enabled: [{name: Coscheduling}, {name: NodeResourcesFit}, {name: PoolPriority}], disabled: [{name: '*'}]}, queueSort: {disabled: [{name: '*'}], enabled: [{name: Coscheduling}]}}",
	} {
		config := must.Get(configv1.Decode([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: s\n  plugins: " + points +
			"\n  pluginConfig: [{name: PoolPriority, args: {pools: [{name: user, nodeSelector: {matchLabels: {mode: user}}}]}}]\n")))(t)
		r, err := newReturner(t.Context(), fake.NewClientset(), &config.Profiles[0], pool.List{}, clocktesting.NewFakeClock(start))
		if err != nil {
			t.Errorf("%s: %v", points, err)
			continue
		}
		var filters []string
		for _, p := range r.seats.framework.ListPlugins().Filter.Enabled {
			filters = append(filters, p.Name)
		}
		slices.Sort(filters)
		if want := []string{"NodeResourcesFit", "TaintToleration"}; !slices.Equal(filters, want) {
			t.Errorf("%s: the filters are %v, want %v", points, filters, want)
		}
	}
}

// TestWorkload: the pods of a Deployment's ReplicaSets are of one workload.
func TestWorkload(t *testing.T) {
	rs := func(name string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "web", Controller: ptr.To(true)}}}}
	}
	c := newCluster(t, rs("rs-1"), rs("rs-2"))
	for _, tc := range []struct {
		kind, name string
		want       types.UID
	}{{"ReplicaSet", "rs-1", "default/web"}, {"ReplicaSet", "rs-2", "default/web"}, {"ReplicaSet", "rs-3", "default/rs-3"}, {"StatefulSet", "db", "default/db"}} {
		if got := c.workloadOf("default", &metav1.OwnerReference{Kind: tc.kind, Name: tc.name, UID: types.UID(tc.name)}); got != tc.want {
			t.Errorf("%s %s is of %s, want %s", tc.kind, tc.name, got, tc.want)
		}
	}
}

// TestHarmful: the only ready pod of a workload is evicted only if a PodDisruptionBudget selects it. A pod of an old
// ReplicaSet, or of an old revision of a StatefulSet, is not evicted. An event on the pod says why, once.
func TestHarmful(t *testing.T) {
	owned := func(name, rs string) *corev1.Pod {
		p := pod(name, 2).Label("app", name).Node("virtual").Phase(corev1.PodRunning).Condition(corev1.PodReady, corev1.ConditionTrue, "").Obj()
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs, UID: types.UID(rs), Controller: ptr.To(true)}}
		return p
	}
	rs := func(revision string) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-" + revision, Namespace: "default", UID: types.UID("web-" + revision), Annotations: map[string]string{"deployment.kubernetes.io/revision": revision},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Deployment", Name: "web", UID: "web", Controller: ptr.To(true)}}}}
	}
	guards := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "guarded", Namespace: "default"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}}}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "web"}}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "default", UID: "db"}, Status: appsv1.StatefulSetStatus{UpdateRevision: "2"}}
	ofSet := func(p *corev1.Pod, revision string) *corev1.Pod {
		p.OwnerReferences[0].Kind, p.Labels[appsv1.ControllerRevisionHashLabelKey] = "StatefulSet", revision
		return p
	}
	c := newCluster(t, virtual(), node("user", "user", "10").Obj(), deployment, rs("9"), rs("10"), guards, owned("single", "a"), owned("guarded", "b"), owned("outdated", "web-9"), owned("new", "web-10"),
		set, ofSet(owned("db-0", "db"), "1"), ofSet(owned("db-1", "db"), "2"))
	c.expect("all", c.after(2*time.Minute), "db-1", "guarded", "new")
	written := c.Recorder.(*events.FakeRecorder).Events
	close(written)
	var said []string
	for event := range written {
		if strings.Contains(event, "NotReturned") {
			said = append(said, event[strings.LastIndex(event, ": ")+2:])
		}
	}
	slices.Sort(said)
	c.expect("the events", said, "a rollout replaces it", "a rollout replaces it", "it is the only ready pod of its workload, and no PodDisruptionBudget selects it")
}

// TestBothReady: of two ready pods without a PodDisruptionBudget, a round evicts one.
func TestBothReady(t *testing.T) {
	var pods []runtime.Object
	for _, name := range []string{"a", "b"} {
		p := pod(name, 2).Phase(corev1.PodRunning).Condition(corev1.PodReady, corev1.ConditionTrue, "").Obj()
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: ptr.To(true)}}
		pods = append(pods, p)
	}
	c := newCluster(t, append(pods, virtual(), node("user", "user", "10").Obj())...)
	c.expect("the evictions", c.after(time.Minute+c.interval()), "a")
}

// TestByOrder: a pod returns to a pool that is better by its own order only.
func TestByOrder(t *testing.T) {
	web, plain := pod("web", 2).Node("system").Phase(corev1.PodRunning).Annotation(pool.OrderAnnotation, "system-first").Obj(), pod("plain", 2).Node("system").Phase(corev1.PodRunning).Obj()
	late := pod("late", 2).Annotation(pool.OrderAnnotation, "system-first").Obj() // on the virtual node
	c := newCluster(t, virtual(), node("system", "system", "10").Obj(), node("user", "user", "10").Obj(), web, plain, late)
	c.expect("the evictions", c.after(2*time.Minute), "late", "plain")
	if to := c.away["late"].to; to != "system" {
		t.Errorf("the pod on the virtual node goes to %q", to)
	}
}

// TestBetterPool: a pod of the second pool returns to a node of the first that stays, but not before minAge.
func TestBetterPool(t *testing.T) {
	going := node("user-1", "user", "10").Taints([]corev1.Taint{{Key: "DeletionCandidateOfClusterAutoscaler", Effect: corev1.TaintEffectPreferNoSchedule}}).Obj()
	old, young := pod("old", 2).Node("system").Phase(corev1.PodRunning).Obj(), pod("young", 1).Node("system").Phase(corev1.PodRunning).Obj() // 2 h and 1 h
	c := newCluster(t, virtual(), going, node("system", "system", "10").Obj(), node("system-2", "system", "10").Obj(), old, young)
	c.expect("to a node that goes, and to one of the same pool", c.after(10*time.Minute))
	must.Do(t)(c.client.CoreV1().Nodes().Create(c.ctx, node("user-2", "user", "10").Obj(), metav1.CreateOptions{}))
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := c.nodes.Get("user-2"); err == nil {
			break
		}
	}
	c.expect("to one that stays", c.after(2*time.Minute), "old")
	c.expect("after minAge", c.after(time.Hour), "young")
}

// TestBuffers: a started pod leaves the room that CapacityBuffers want, on each node that the scheduler may choose for it.
// Beside buffers, one replacement at a time is on its way.
func TestBuffers(t *testing.T) {
	templateOf := func(name, cpu string, change func(*st.PodWrapper)) *corev1.PodTemplate {
		p := st.MakePod().Req(map[corev1.ResourceName]string{"cpu": cpu, "memory": "1Gi"})
		change(p)
		return &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "spare"}}, Spec: p.Obj().Spec}}
	}
	large := templateOf("large", "4", func(*st.PodWrapper) {})
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: appsv1.DeploymentSpec{Template: large.Template}}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: appsv1.StatefulSetSpec{Template: large.Template}}
	taint := corev1.Taint{Key: "virtual-kubelet.io/provider", Effect: corev1.TaintEffectNoSchedule}
	tainted := virtual()
	tainted.Spec.Taints = []corev1.Taint{taint}
	others := []runtime.Object{tainted, deployment, set, large,
		templateOf("small", "1", func(*st.PodWrapper) {}),
		templateOf("volume", "4", func(p *st.PodWrapper) { p.PVC("new") }),
		templateOf("copy", "4", func(p *st.PodWrapper) { p.Toleration(taint.Key) }),
	}
	const ready = `"conditions": [{"type": "ReadyForProvisioning", "status": "True"}]`
	of := func(template string, replicas int) string {
		return fmt.Sprintf(`{"status": {"podTemplateRef": {"name": %q}, "replicas": %d, %s}}`, template, replicas, ready)
	}
	scaled := func(kind string) string {
		return fmt.Sprintf(`{"spec": {"scalableRef": {"kind": %q, "name": "web"}}, "status": {"replicas": 1, %s}}`, kind, ready)
	}
	user := func(name, cpu string) *st.NodeWrapper { return node(name, "user", cpu) }
	for name, tc := range map[string]struct {
		buffers string
		nodes   []*st.NodeWrapper
		stuck   bool
		want    []string
	}{
		"no room besides the buffer's":      {of("large", 1), []*st.NodeWrapper{user("a", "4")}, false, nil},
		"room for one besides it":           {of("large", 1), []*st.NodeWrapper{user("a", "5")}, false, []string{"a"}},
		"room for both, one at a time":      {of("large", 1), []*st.NodeWrapper{user("a", "9")}, false, []string{"a"}},
		"the buffer fits elsewhere":         {of("large", 1), []*st.NodeWrapper{user("a", "4"), node("b", "system", "4")}, false, []string{"a"}},
		"the buffer fits nowhere":           {of("large", 1), []*st.NodeWrapper{user("a", "3")}, false, []string{"a"}},
		"one node of two is the buffer's":   {of("large", 1), []*st.NodeWrapper{user("a", "3"), user("b", "4")}, false, nil},
		"a buffer of small pods":            {of("small", 4), []*st.NodeWrapper{user("a", "3"), user("b", "4")}, false, []string{"a"}},
		"a better pool's room is wanted":    {of("large", 1), []*st.NodeWrapper{user("a", "4"), node("b", "system", "3")}, false, nil},
		"two sizes":                         {of("large", 1) + "," + of("small", 1), []*st.NodeWrapper{user("a", "5")}, false, nil},
		"two on one node":                   {of("large", 2), []*st.NodeWrapper{user("a", "8"), user("b", "4")}, false, []string{"a"}},
		"of pods with a volume":             {of("volume", 1), []*st.NodeWrapper{user("a", "4")}, false, nil},
		"of pods that fit the virtual node": {of("copy", 1), []*st.NodeWrapper{user("a", "4")}, false, []string{"a", "b"}},
		"pods that have not started":        {of("large", 1), []*st.NodeWrapper{user("a", "4")}, true, []string{"a", "b"}},
		"not ready":                         {strings.Replace(of("large", 1), "True", "False", 1), []*st.NodeWrapper{user("a", "4")}, false, []string{"a", "b"}},
		"of suspended nodes":                {strings.Replace(of("large", 1), `"replicas"`, `"provisioningStrategy": "buffer.gke.io/standby-capacity", "replicas"`, 1), []*st.NodeWrapper{user("a", "4")}, false, []string{"a", "b"}},
		"without its template":              {of("none", 1), []*st.NodeWrapper{user("a", "4")}, false, []string{"a", "b"}},
		"of a Deployment, by Karpenter":     {scaled("Deployment"), []*st.NodeWrapper{user("a", "4")}, false, nil},
		"of a StatefulSet, by Karpenter":    {scaled("StatefulSet"), []*st.NodeWrapper{user("a", "4")}, false, nil},
		"of a kind that is not known":       {scaled("Rollout"), []*st.NodeWrapper{user("a", "4")}, false, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := slices.Clone(others)
			for i, name := range []string{"a", "b"} {
				p := pod(name, 3-i)
				if !tc.stuck {
					p.Phase(corev1.PodRunning)
				}
				objects = append(objects, p.Obj())
			}
			for _, n := range tc.nodes {
				objects = append(objects, n.Obj())
			}
			c := newCluster(t, objects...)
			c.hasBuffers(tc.buffers)
			c.expect("the evictions", c.after(2*time.Minute), tc.want...)
		})
	}
}

// hasBuffers gives the cluster these CapacityBuffers.
func (c *cluster) hasBuffers(buffers string) {
	parsed := must.Get(capacitybuffer.Parse([]byte(`{"items": [` + buffers + `]}`)))(c)
	for i := range parsed {
		parsed[i].Namespace, parsed[i].Name = "default", "spare"
	}
	c.listBuffers = func(context.Context) ([]capacitybuffer.Buffer, error) { return parsed, nil }
}

// TestBuffersChange: room that a buffer gives back must be free for stableFor. If buffers cannot be read, started pods
// stay. If reading them is forbidden, Return does not know them.
func TestBuffersChange(t *testing.T) {
	large := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: "default"}, Template: corev1.PodTemplateSpec{
		Spec: st.MakePod().Req(map[corev1.ResourceName]string{"cpu": "4"}).NodeSelector(map[string]string{"kubernetes.azure.com/mode": "user"}).Obj().Spec}}
	alike := pod("alike", 1).Phase(corev1.PodRunning)
	alike.OwnerReferences = pod("started", 3).OwnerReferences
	c := newCluster(t, virtual(), large, node("a", "user", "4").Obj(), node("b", "system", "1").Obj(), pod("started", 3).Phase(corev1.PodRunning).Obj(), alike.Obj(),
		pod("stuck", 2).NodeSelector(map[string]string{"kubernetes.azure.com/mode": "system"}).Obj())
	c.answers["stuck"] = slices.Repeat([]error{apierrors.NewTooManyRequests("not now", 0)}, 100)
	active := `{"status": {"podTemplateRef": {"name": "large"}, "replicas": 1, "conditions": [{"type": "ReadyForProvisioning", "status": "True"}]}}`
	started := func(what string, d time.Duration, want ...string) {
		t.Helper()
		c.expect(what, slices.DeleteFunc(c.after(d), func(name string) bool { return name == "stuck" }), want...)
	}
	c.hasBuffers(active)
	started("beside the buffer", 5*time.Minute)
	if said := <-c.Recorder.(*events.FakeRecorder).Events; !strings.Contains(said, harmToBuffers) {
		t.Error(said)
	}
	c.hasBuffers(strings.Replace(active, "True", "False", 1))
	started("the buffer is not ready for a moment", 30*time.Second)
	c.hasBuffers(active)
	started("the buffer is ready again", 5*time.Minute)
	c.listBuffers = func(context.Context) ([]capacitybuffer.Buffer, error) {
		return nil, errors.New("the API server is slow")
	}
	if c.after(11 * time.Minute); !slices.Contains(c.evicted, "stuck") || slices.Contains(c.evicted, "started") {
		t.Errorf("evictions while the buffers cannot be read: %v", c.evicted)
	}
	c.listBuffers = func(context.Context) ([]capacitybuffer.Buffer, error) {
		return nil, apierrors.NewForbidden(schema.GroupResource{Resource: "capacitybuffers"}, "", nil)
	}
	started("it is forbidden to read them", 2*time.Minute, "started", "alike")
}
