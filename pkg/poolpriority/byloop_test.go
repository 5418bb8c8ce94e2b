package poolpriority

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	st "k8s.io/kubernetes/pkg/scheduler/testing"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/compat/gating"
	"poolpriority.dev/scheduler/test/compat"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/seed"
)

// lastLook is longer than the gatekeeper looks at a node on which capacity became free.
const lastLook = 6 * time.Second

// running is a scheduler that runs against a fake API server, with a user pool that can grow: the gate is closed.
type running struct {
	*harness
	failures atomic.Int64 // of scheduling cycles
	denials  atomic.Int64 // of bindings to the node "denied"
}

// slowQueue takes longer than lastLook to look for pods that the end of the pod "slow" may help. Meanwhile, the scheduler's cache learns
// of no other pod.
type slowQueue struct{ queue.SchedulingQueue }

func (q slowQueue) MoveAllToActiveOrBackoffQueue(logger klog.Logger, event fwk.ClusterEvent, oldObj, newObj any, check queue.PreEnqueueCheck) {
	if pod, ok := oldObj.(*v1.Pod); ok && pod.Name == "slow" && newObj == nil {
		time.Sleep(lastLook + time.Second)
	}
	q.SchedulingQueue.MoveAllToActiveOrBackoffQueue(logger, event, oldObj, newObj, check)
}

func newRunning(t *testing.T, objects ...runtime.Object) *running {
	status := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cluster-autoscaler-status",
		Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/last-updated": time.Now().UTC().String()}},
		Data: map[string]string{"status": `
autoscalerStatus: Running
clusterWide: {health: {status: Healthy, lastTransitionTime: "2026-11-21T09:00:00Z"}}
nodeGroups:
- name: aks-userpool-12345678-vmss
  health: {status: Healthy, nodeCounts: {registered: {ready: 1}}, cloudProviderTarget: 1, minSize: 0, maxSize: 100}
  scaleUp: {status: NoActivity}
`}}
	h := must.Get(tryHarnessWith(t, aks(t), nil, append(objects, status, virtualNode("virtual").Obj())...))(t)
	r := &running{harness: h}
	h.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" {
			return false, nil, nil
		}
		binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
		if binding.Target.Name == "denied" {
			r.denials.Add(1)
			return true, nil, apierrors.NewForbidden(v1.Resource("pods/binding"), binding.Name, errors.New(`admission webhook "nodes.example.com" denied the request: no`))
		}
		obj, err := h.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), binding.Namespace, binding.Name)
		if err != nil {
			return true, nil, err
		}
		bound := obj.(*v1.Pod).DeepCopy()
		bound.Spec.NodeName = binding.Target.Name
		return true, binding, h.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), bound, binding.Namespace)
	})
	h.client.PrependReactor("update", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		updated := action.(clienttesting.UpdateAction).GetObject().(*v1.Pod)
		obj, err := h.client.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), updated.Namespace, updated.Name)
		if err == nil && obj.(*v1.Pod).Spec.NodeName != updated.Spec.NodeName { // bound since the test read it
			return true, nil, apierrors.NewConflict(v1.Resource("pods"), updated.Name, errors.New("spec.nodeName is immutable"))
		}
		return false, nil, nil
	})
	gated := h.sched.SchedulingQueue.(gating.Queue)
	gated.SchedulingQueue = slowQueue{gated.SchedulingQueue}
	h.sched.SchedulingQueue = gated
	failed := h.sched.FailureHandler
	h.sched.FailureHandler = func(ctx context.Context, profile framework.Framework, info *framework.QueuedPodInfo, status *fwk.Status, nominating *fwk.NominatingInfo, start time.Time) {
		r.failures.Add(1)
		failed(ctx, profile, info, status, nominating, start)
	}
	h.shared.Start(h.ctx.Done())
	h.shared.WaitForCacheSync(h.ctx.Done())
	must.NoError(t, h.sched.WaitForHandlersSync(h.ctx))
	h.watches("pods")
	h.watches("nodes")
	go h.plugin.gatekeeper.Run(h.ctx)
	go h.sched.Run(h.ctx)
	return r
}

func (r *running) pods() []v1.Pod {
	return must.Get(r.client.CoreV1().Pods("default").List(r.ctx, metav1.ListOptions{}))(r).Items
}

func (r *running) create(p *v1.Pod) {
	must.Do(r)(r.client.CoreV1().Pods("default").Create(r.ctx, p, metav1.CreateOptions{}))
}

func (r *running) remove(name string) {
	must.NoError(r, r.client.CoreV1().Pods("default").Delete(r.ctx, name, metav1.DeleteOptions{}))
}

// held waits until so many pods wait for the loop.
func (r *running) held(n int) {
	r.Helper()
	must.Eventually(r, fmt.Sprint(n, " pods are held"), func() bool {
		waiting := 0
		for _, p := range r.pods() {
			if entry, ok := r.plugin.gatekeeper.Held().Lookup(p.UID); ok && entry.ByLoop {
				waiting++
			}
		}
		return waiting == n
	})
}

// of returns how many pods of the kind are bound.
func (r *running) of(kind string) int {
	n := 0
	for _, p := range r.pods() {
		if p.Spec.NodeName != "" && p.Spec.NodeSelector["kind"] == kind && p.Labels["held"] != "" {
			n++
		}
	}
	return n
}

// fills returns a pod of high priority on the node.
func fills(name, node, cpu string) *v1.Pod {
	return st.MakePod().Name(name).UID(name).Namespace("default").Node(node).Priority(100).Req(map[v1.ResourceName]string{"cpu": cpu}).Obj()
}

func heldOn(name, kind string) *v1.Pod {
	return pod(name).Label("held", "yes").Priority(100).NodeSelector(map[string]string{"kind": kind}).Obj()
}

// setMaximum writes a status in which both pools have one node and the maximum. At the maximum of one node, the gate opens.
func (r *running) setMaximum(most int) {
	r.Helper()
	status := must.Get(r.client.CoreV1().ConfigMaps("kube-system").Get(r.ctx, "cluster-autoscaler-status", metav1.GetOptions{}))(r)
	text, _, _ := strings.Cut(status.Data["status"], "- name")
	for _, pool := range []string{"userpool", "systempool"} {
		text += fmt.Sprintf("- name: aks-%s-12345678-vmss\n  health: {status: Healthy, nodeCounts: {registered: {ready: 1}}, cloudProviderTarget: 1, minSize: 0, maxSize: %d}\n  scaleUp: {status: NoActivity}\n", pool, most)
	}
	status.Data["status"] = text
	status.Annotations["cluster-autoscaler.kubernetes.io/last-updated"] = time.Now().UTC().String()
	must.Do(r)(r.client.CoreV1().ConfigMaps("kube-system").Update(r.ctx, status, metav1.UpdateOptions{}))
}

// opened waits until the gate is open in vain for so many pods.
func (r *running) opened(n int) {
	r.Helper()
	must.Eventually(r, fmt.Sprint("the gate is open in vain for ", n, " pods"), func() bool {
		open := 0
		for _, p := range r.pods() {
			if entry, ok := r.plugin.gatekeeper.Held().Lookup(p.UID); ok && entry.ByLoop && slices.Contains(entry.Open, true) {
				open++
			}
		}
		return open == n
	})
}

// TestPodsEndBesideHeld: pods that end, and nodes that come, cost no cycles of the held pods that they cannot help.
func TestPodsEndBesideHeld(t *testing.T) {
	const pods = 400
	var objects []runtime.Object
	for n := range 12 {
		name, kind := fmt.Sprint("node-", n), "other"
		if n < 2 {
			kind = "a"
		}
		objects = append(objects, userNode(name).Label("kind", kind).Obj(), st.MakePod().Name("daemon-"+name).UID("daemon-"+name).Namespace("default").Node(name).
			Req(map[v1.ResourceName]string{"cpu": "10m"}).Obj())
		for i := range 4 {
			name := fmt.Sprint(name, "-", i)
			objects = append(objects, st.MakePod().Name(name).UID(name).Namespace("default").Node(fmt.Sprint("node-", n)).Priority(100).Req(map[v1.ResourceName]string{"cpu": "990m"}).Obj())
		}
	}
	r := newRunning(t, objects...)
	for i := range pods {
		r.create(heldOn(fmt.Sprint("held-", i), []string{"a", "b"}[i%2]))
	}
	r.held(pods)
	// settle waits until the last look, and returns how many cycles failed meanwhile.
	settle := func(before int64) int64 {
		time.Sleep(lastLook)
		return r.failures.Load() - before
	}
	began := r.failures.Load()
	for n := 2; n < 12; n++ {
		for i := range 4 {
			r.remove(fmt.Sprint("node-", n, "-", i))
		}
	}
	if n := settle(began); n > 0 {
		t.Errorf("40 pods ended on nodes of another kind: %d cycles of held pods failed, want 0", n)
	}
	began = r.failures.Load()
	start := time.Now()
	for n := range 2 {
		r.remove(fmt.Sprint("node-", n, "-0"))
		r.remove(fmt.Sprint("node-", n, "-1"))
	}
	must.Eventually(r, "four pods are bound", func() bool { return r.of("a") == 4 })
	took := time.Since(start)
	n := settle(began)
	t.Logf("held pods bound after %v, %d cycles failed", took, n)
	if n > 40 {
		t.Errorf("four pods ended on two nodes, and two held pods fit on each: %d cycles of held pods failed, want at most 40", n)
	}
	began = r.failures.Load()
	start = time.Now()
	must.Do(t)(r.client.CoreV1().Nodes().Create(r.ctx, userNode("new").Label("kind", "b").Obj(), metav1.CreateOptions{}))
	must.Eventually(r, "the new node is full", func() bool { return r.of("b") == 4 })
	took = time.Since(start)
	n = settle(began)
	t.Logf("node full after %v, %d cycles failed", took, n)
	if n > 12 {
		t.Errorf("a node that suits 200 held pods and has capacity for 4 came: %d cycles of held pods failed, want at most 12", n)
	}
}

// TestSlowCache: a held pod is tried when the scheduler's cache has the end of another pod, however late that is.
func TestSlowCache(t *testing.T) {
	r := newRunning(t, userNode("full").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}).Obj(), fills("slow", "full", "0"), fills("ends", "full", "1"))
	r.create(pod("held").Label("held", "yes").Priority(100).Obj())
	r.held(1)
	r.remove("slow")
	r.remove("ends")
	must.Eventually(r, "the held pod is bound", func() bool { return r.of("") == 1 })
}

// TestHeldPodsAreGated: a held pod is gated if only plugins that are nodeLocal rejected it, so that the queue skips it at
// the binding of another pod. Activate, which the gatekeeper uses, tries the pod again.
func TestHeldPodsAreGated(t *testing.T) {
	r := newRunning(t, userNode("full").Capacity(map[v1.ResourceName]string{"cpu": "0", "memory": "16Gi", "pods": "10"}).Obj())
	r.create(heldOn("held", "a"))
	r.held(1)
	time.Sleep(lastLook) // nobody else activates the pod, which would race with the look into the queue
	p := &r.pods()[0]
	gated := func() bool {
		info, ok := compat.QueuedPod(r.sched, p)
		return ok && info.Gated()
	}
	must.Eventually(r, "the queue has the pod as gated", gated)
	before := r.failures.Load()
	r.sched.SchedulingQueue.Activate(r.logger, map[string]*v1.Pod{"default/held": p})
	must.Eventually(r, "the pod is tried again", func() bool { return r.failures.Load() > before })
	must.Eventually(r, "the pod is gated again", gated)
	for _, tc := range []struct {
		rejects string
		held    bool
		want    string
	}{{names.NodeResourcesFit, true, Name}, {names.PodTopologySpread, true, ""}, {names.NodeResourcesFit, false, ""}} {
		tried := p.DeepCopy()
		if !tc.held {
			tried.UID = "another"
		}
		r.plugin.gatekeeper.Held().Local(tried.UID)
		info := &framework.QueuedPodInfo{PodInfo: must.Get(framework.NewPodInfo(tried))(t)}
		gating := ""
		handler := r.plugin.requeueByLoop(func(_ context.Context, _ framework.Framework, info *framework.QueuedPodInfo, _ *fwk.Status, _ *fwk.NominatingInfo, _ time.Time) {
			gating = r.plugin.gatingPlugin(info)
		})
		handler(r.ctx, nil, info, fwk.AsStatus(&framework.FitError{Pod: tried, Diagnosis: framework.Diagnosis{UnschedulablePlugins: sets.New(tc.rejects)}}), nil, time.Now())
		if gating != tc.want {
			t.Errorf("held %v, rejected by %s: gated by %q, want %q", tc.held, tc.rejects, gating, tc.want)
		}
		if handler(r.ctx, nil, info, fwk.AsStatus(errors.New("no answer")), nil, time.Now()); gating != "" {
			t.Errorf("held %v, and the next cycle ended in an error: gated by %q", tc.held, gating)
		}
	}
}

// TestOpenGateWithoutRoom: held pods for which the gate has opened, and that fit no burst node, are requeued by the loop
// alone: not when another pod ends, but when a burst node has room.
func TestOpenGateWithoutRoom(t *testing.T) {
	spent := virtualNode("spent").Capacity(map[v1.ResourceName]string{"cpu": "2", "memory": "16Gi", "pods": "10"}).Obj()
	cordoned := virtualNode("cordoned").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}).Obj()
	cordoned.Spec.Unschedulable = true
	r := newRunning(t, spent, cordoned, userNode("full").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}).Obj(), fills("on-vm", "full", "900m"), fills("small", "full", "100m"), fills("large", "spent", "2"))
	must.NoError(t, r.client.CoreV1().Nodes().Delete(r.ctx, "virtual", metav1.DeleteOptions{}))
	for i := range 3 {
		r.create(pod(fmt.Sprint("p-", i)).Priority(100).Obj())
	}
	r.held(3)
	r.setMaximum(1)
	r.opened(3)
	for i := range 100 { // they find the gate open
		r.create(pod(fmt.Sprint("p-late-", i)).Priority(100).Obj())
	}
	r.opened(103)
	bound := func() (n int) {
		for _, p := range r.pods() {
			if strings.HasPrefix(p.Name, "p-") && p.Spec.NodeName != "" {
				n++
			}
		}
		return n
	}
	time.Sleep(lastLook)
	began := r.failures.Load()
	r.remove("small")
	time.Sleep(lastLook)
	if n := r.failures.Load() - began; n > 0 || bound() > 0 {
		t.Errorf("a pod ended where none fits: %d cycles failed, %d pods are bound", n, bound())
	}
	cordoned = cordoned.DeepCopy()
	cordoned.Spec.Unschedulable = false
	must.Do(t)(r.client.CoreV1().Nodes().Update(r.ctx, cordoned, metav1.UpdateOptions{}))
	must.Eventually(r, "a pod runs on the node that was cordoned", func() bool { return bound() >= 1 })
	must.Do(t)(r.client.CoreV1().Nodes().Create(r.ctx, virtualNode("new").Capacity(map[v1.ResourceName]string{"cpu": "1", "memory": "16Gi", "pods": "10"}).Obj(), metav1.CreateOptions{}))
	must.Eventually(r, "a pod runs on the new node", func() bool { return bound() >= 2 })
	r.remove("large")
	must.Eventually(r, "a pod runs where another has ended", func() bool { return bound() >= 3 })
}

// TestNoRequeueIsLost plays random changes, and requires that each pod which fits on a VM is bound soon, while the gate is
// closed and while it is open in vain.
func TestNoRequeueIsLost(t *testing.T) {
	for _, mode := range []string{gateIsClosed, podsSelectVMs, noBurstNode, burstNodesFull} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			noRequeueIsLost(t, mode)
		})
	}
}

const (
	gateIsClosed   = "the gate is closed"
	podsSelectVMs  = "the gate opens for pods that select VMs"
	noBurstNode    = "the gate opens, and there is no burst node"
	burstNodesFull = "the gate opens, and burst nodes are full"
)

func noRequeueIsLost(t *testing.T, mode string) {
	random := seed.New(t, 1)
	kinds := []string{"a", "b", "c"}
	kind := func() string { return kinds[random.IntN(len(kinds))] }
	r := newRunning(t)
	serial := 0
	addNode := func() {
		serial++
		n := userNode(fmt.Sprint("n-", serial)).Label("kind", kind()).Capacity(map[v1.ResourceName]string{"cpu": fmt.Sprint(1 + random.IntN(4)), "memory": "16Gi", "pods": fmt.Sprint(1 + random.IntN(4))}).Obj()
		n.Spec.Unschedulable = random.IntN(4) == 0
		if random.IntN(2) == 0 {
			n.Spec.Taints = []v1.Taint{{Key: "t", Effect: v1.TaintEffectNoSchedule}}
		}
		must.Do(r)(r.client.CoreV1().Nodes().Create(r.ctx, n, metav1.CreateOptions{}))
	}
	addPod := func() {
		serial++
		p := small(fmt.Sprint("p-", serial))
		p.Spec.Priority, p.Spec.NodeSelector = ptr.To(int32(random.IntN(3))), map[string]string{"kind": kind()} //nolint:gosec // small
		p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *apiresource.NewMilliQuantity(500*(1+random.Int64N(5)), apiresource.DecimalSI)
		if random.IntN(3) == 0 {
			p.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever)
		}
		r.create(p)
	}
	changePod := func(match func(*v1.Pod) bool) {
		pods := slices.DeleteFunc(r.pods(), func(p v1.Pod) bool { return !match(&p) })
		if len(pods) == 0 {
			return
		}
		p := pods[random.IntN(len(pods))].DeepCopy()
		if random.IntN(3) == 0 {
			p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: "t", Operator: v1.TolerationOpExists})
		} else {
			p.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = apiresource.MustParse("300m")
		}
		serial++
		p.ResourceVersion = fmt.Sprint(serial)                                            // the scheduling queue ignores an update without a new one
		_, _ = r.client.CoreV1().Pods("default").Update(r.ctx, p, metav1.UpdateOptions{}) // preemption may have deleted it
	}
	changeNode := func() {
		nodes := must.Get(r.client.CoreV1().Nodes().List(r.ctx, metav1.ListOptions{LabelSelector: "agentpool=userpool"}))(r).Items
		n := nodes[random.IntN(len(nodes))].DeepCopy()
		switch random.IntN(4) {
		case 0:
			n.Spec.Taints = nil
		case 1:
			n.Spec.Unschedulable = !n.Spec.Unschedulable
		case 2:
			n.Labels["kind"] = kind()
			if random.IntN(2) == 0 {
				n.Spec.Taints = []v1.Taint{{Key: "t", Effect: v1.TaintEffectNoSchedule}}
			}
		case 3:
			n.Status.Allocatable[v1.ResourceCPU], n.Status.Allocatable[v1.ResourcePods] = apiresource.MustParse("6"), apiresource.MustParse("8")
		}
		must.Do(r)(r.client.CoreV1().Nodes().Update(r.ctx, n, metav1.UpdateOptions{}))
	}
	deletePod := func() {
		if pods := r.pods(); len(pods) > 0 {
			_ = r.client.CoreV1().Pods("default").Delete(r.ctx, pods[random.IntN(len(pods))].Name, metav1.DeleteOptions{})
		}
	}
	changes := []func(){deletePod, deletePod, changeNode, changeNode, addPod,
		func() { changePod(func(p *v1.Pod) bool { return p.Spec.NodeName != "" }) },
		func() { changePod(func(p *v1.Pod) bool { return p.Spec.NodeName == "" }) },
	}
	for range 20 {
		addNode()
	}
	for range 100 {
		addPod()
	}
	if mode != gateIsClosed {
		if mode != podsSelectVMs {
			must.NoError(t, r.client.CoreV1().Nodes().Delete(r.ctx, "virtual", metav1.DeleteOptions{}))
		}
		if mode == burstNodesFull {
			for _, kind := range kinds {
				must.Do(t)(r.client.CoreV1().Nodes().Create(r.ctx, virtualNode("v-"+kind).Label("kind", kind).Capacity(map[v1.ResourceName]string{"cpu": "3", "memory": "16Gi", "pods": "4"}).Obj(), metav1.CreateOptions{}))
			}
		}
		r.setMaximum(1)
	}
	rounds, bound := 40, 0
	time.Sleep(lastLook) // what made the nodes known is over
	for round := range rounds {
		for range 1 + random.IntN(3) {
			changes[random.IntN(len(changes))]()
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { // a lost one would take 4 minutes
			pod, node := r.fitting()
			if pod == "" {
				break
			}
			bound++
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %s fits on %s and is not bound", round, pod, node)
			}
		}
		for len(r.pods()) < 100 {
			addPod()
		}
	}
	waiting := len(slices.DeleteFunc(r.pods(), func(p v1.Pod) bool { return p.Spec.NodeName != "" }))
	if waiting < 5 || bound == 0 {
		t.Errorf("%d pods wait in the end, and it took %d looks for all pods that fit: the test shows nothing", waiting, bound)
	}
}

// fitting returns a pending pod and a node with capacity for the pod, found by brute force.
func (r *running) fitting() (pod, node string) {
	pods := r.pods()
	nodes := must.Get(r.client.CoreV1().Nodes().List(r.ctx, metav1.ListOptions{LabelSelector: "agentpool=userpool"}))(r).Items
	for _, n := range nodes {
		cpu, seats := n.Status.Allocatable.Cpu().MilliValue(), n.Status.Allocatable.Pods().Value()
		for _, p := range pods {
			if p.Spec.NodeName == n.Name || p.Spec.NodeName == "" && p.Status.NominatedNodeName == n.Name {
				cpu -= p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
				seats--
			}
		}
		for _, p := range pods {
			if p.Spec.NodeName == "" && p.Spec.NodeSelector["kind"] == n.Labels["kind"] && !n.Spec.Unschedulable && (len(n.Spec.Taints) == 0 || len(p.Spec.Tolerations) > 0) &&
				seats > 0 && p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() <= cpu {
				return p.Name, n.Name
			}
		}
	}
	return "", ""
}

// TestOpensInVain: held pods select VMs, so that no burst node can take them. The gate opens for them, and none is tried.
func TestOpensInVain(t *testing.T) {
	const pods = 300
	r := newRunning(t, userNode("full").Label("kind", "a").Capacity(map[v1.ResourceName]string{"cpu": "0", "memory": "16Gi", "pods": "10"}).Obj())
	for i := range pods {
		r.create(heldOn(fmt.Sprint("p-", i), "a"))
	}
	r.held(pods)
	time.Sleep(lastLook)
	began := r.failures.Load()
	for range 3 {
		r.setMaximum(1)
		r.opened(pods)
		r.setMaximum(100)
		r.opened(0)
	}
	if n := r.failures.Load() - began; n > 0 {
		t.Errorf("the gate opened for pods that no burst node can take: %d cycles failed", n)
	}
}

// TestBindingsDenied: a pod whose binding to a node of the first pool an admission rule denies gets a node of the next.
// After the denials of pods of two namespaces, no pod is bound to the first pool.
func TestBindingsDenied(t *testing.T) {
	r := newRunning(t, userNode("denied").Obj(), systemNode("system").Capacity(map[v1.ResourceName]string{"cpu": "2", "memory": "16Gi", "pods": "10"}).Obj())
	place := func(namespace, name, want string) {
		t.Helper()
		p := pod(name).Namespace(namespace).Obj()
		must.Do(t)(r.client.CoreV1().Pods(namespace).Create(r.ctx, p, metav1.CreateOptions{}))
		must.Eventually(r, name+" is on "+want, func() bool {
			p, err := r.client.CoreV1().Pods(namespace).Get(r.ctx, name, metav1.GetOptions{})
			return err == nil && p.Spec.NodeName == want
		})
	}
	place("default", "first", "system")
	place("other", "second", "system")
	if n := r.denials.Load(); n != 2 {
		t.Errorf("%d bindings were denied, want 2", n)
	}
	r.create(pod("third").Obj()) // the system pool is full
	must.Eventually(r, "the third pod's cycle has failed", func() bool {
		p, err := r.client.CoreV1().Pods("default").Get(r.ctx, "third", metav1.GetOptions{})
		return err == nil && len(p.Status.Conditions) > 0
	})
	if n := r.denials.Load(); n != 2 {
		t.Errorf("%d bindings were denied after two namespaces, want 2", n)
	}
	if p, ok := r.plugin.gatekeeper.Held().Lookup("third"); !ok || p.ByLoop {
		t.Errorf("held: %t; the loop takes a pod that leaves out a pool for equal to pods that may use it: %t", ok, p.ByLoop)
	}
	must.Eventually(r, "the denial has been recorded for all", func() bool {
		d := r.plugin.denied.Of(0, time.Now())
		return d != nil && d.All
	})
}

// TestRepelled: a pod is repelled if an anti-affinity of another pod may keep it off nodes.
func TestRepelled(t *testing.T) {
	h := newHarness(t, aks(t))
	h.addNodes(userNode("user").Label(v1.LabelTopologyZone, "1"))
	h.place(pod("guard").PodAntiAffinityExists("repelled", v1.LabelTopologyZone, st.PodAntiAffinityWithRequiredReq).Obj(), "user")
	for name, p := range map[string]*v1.Pod{"repelled": pod("a").Label("repelled", "yes").Obj(), "not repelled": pod("b").Obj()} {
		state := framework.NewCycleState()
		_, _ = h.scheduleIn(state, p)
		if got, want := h.plugin.isRepelled(state), name == "repelled"; got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
