package integration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"poolpriority.dev/scheduler/test/devcluster"
	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/seed"
	"poolpriority.dev/scheduler/test/suite"
)

var churn = flag.Duration("churn", time.Minute, "how long TestKarpenterChurn goes on")

var nodeClaims = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}

// churnMargin is how long before a binding a condition must have lasted, so that the test judges the binding as wrong.
// The scheduler's input, its decision and the binding reach this test by three watches, on a busy machine. The margin
// does not cover the time by which Karpenter's own counts lag (it writes a NodePool's status every 5 s): the test
// judges by NodeClaims, not by that status.
const churnMargin = time.Second

// claimed is a NodeClaim as the API showed it. leaving is zero if nobody deleted the NodeClaim.
type claimed struct {
	made, leaving time.Time
	cpu           resource.Quantity // of its instance type; of the smallest one if it was never launched
	node          string            // the Node's name; empty if it was never launched
}

// bound is a binding to the virtual node.
type bound struct {
	pod string
	at  time.Time
}

// witness records when NodeClaims and Nodes came and went, and when each pod was bound to the virtual node. Its watches
// lag, each by another time: where an object says when something happened, that time counts if it is earlier. early
// judges the bindings when everything has been seen.
type witness struct {
	mu     sync.Mutex
	claims map[types.UID]*claimed
	burst  map[types.UID]bound
	nodes  map[string]time.Time // when a node was first ready
	most   resource.Quantity    // the limit of the NodePool
	// sizes are the CPUs of the instance types. The NodeClaims of the kwok provider have less: what their pods request.
	sizes map[string]resource.Quantity
}

// watchChurn starts a witness of a NodePool with this limit of CPUs.
func (e *env) watchChurn(limit string) *witness {
	e.Helper()
	w := &witness{claims: map[types.UID]*claimed{}, burst: map[types.UID]bound{}, nodes: map[string]time.Time{},
		most: resource.MustParse(limit), sizes: map[string]resource.Quantity{"s-1": resource.MustParse("1"), "s-2": resource.MustParse("2")}}
	client := must.Get(dynamic.NewForConfig(e.Config))(e)
	factory := informers.NewSharedInformerFactory(e.Client, 0)
	claims := dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(nodeClaims).Informer()
	on := func(informer cache.SharedIndexInformer, see func(obj any, gone bool)) {
		must.Do(e)(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { see(obj, false) },
			UpdateFunc: func(_, obj any) { see(obj, false) },
			DeleteFunc: func(obj any) {
				if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = last.Obj
				}
				see(obj, true)
			},
		}))
		go informer.RunWithContext(e.ctx)
		if !cache.WaitForCacheSync(e.ctx.Done(), informer.HasSynced) {
			e.Fatal("the test's watch did not start")
		}
	}
	on(claims, func(obj any, gone bool) { w.seeClaim(obj.(*unstructured.Unstructured), gone, time.Now()) })
	on(factory.Core().V1().Nodes().Informer(), func(obj any, gone bool) { w.seeNode(obj.(*corev1.Node), gone, time.Now()) })
	on(factory.Core().V1().Pods().Informer(), func(obj any, gone bool) { w.seePod(obj.(*corev1.Pod), time.Now()) })
	return w
}

func (w *witness) seeClaim(obj *unstructured.Unstructured, gone bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.claims[obj.GetUID()]
	if c == nil {
		c = &claimed{made: now, cpu: w.sizes["s-1"]}
		w.claims[obj.GetUID()] = c
	}
	if cpu, ok := w.sizes[obj.GetLabels()[corev1.LabelInstanceTypeStable]]; ok {
		c.cpu = cpu
	}
	if name, _, _ := unstructured.NestedString(obj.Object, "status", "nodeName"); name != "" {
		c.node = name
	}
	if deleted := obj.GetDeletionTimestamp(); c.leaving.IsZero() && (gone || deleted != nil) {
		c.leaving = earliest(now, deleted)
	}
}

// earliest returns when something happened that was seen at this time, and of which the object may say when it happened.
func earliest(seen time.Time, said *metav1.Time) time.Time {
	if said.IsZero() || said.After(seen) {
		return seen
	}
	return said.Time
}

func (w *witness) seeNode(node *corev1.Node, gone bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range node.Status.Conditions {
		ready := c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		if _, known := w.nodes[node.Name]; !known && ready && !gone {
			w.nodes[node.Name] = earliest(now, &c.LastTransitionTime)
		}
	}
}

func (w *witness) seePod(pod *corev1.Pod, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.burst[pod.UID]; !known && pod.Spec.NodeName == devcluster.VirtualNodeName {
		w.burst[pod.UID] = bound{pod: pod.Name, at: now}
	}
}

// early returns a line for each binding that was wrong.
func (w *witness) early() []string {
	var lines []string
	for _, b := range w.burst {
		if why := w.judge(b.at); why != "" {
			lines = append(lines, fmt.Sprintf("%s %s: %s", b.at.Format("15:04:05.000"), b.pod, why))
		}
	}
	slices.Sort(lines)
	return lines
}

// judge returns the condition that made a binding to the virtual node wrong. It returns "" if no such condition lasted
// for churnMargin before the binding.
func (w *witness) judge(at time.Time) string {
	from := at.Add(-churnMargin)
	moments := []time.Time{from}
	for _, c := range w.claims {
		if c.made.After(from) {
			moments = append(moments, c.made)
		}
	}
	var used resource.Quantity // the largest use at any moment since from
	for _, moment := range moments {
		if q := w.usedAt(moment); q.Cmp(used) > 0 {
			used = q
		}
	}
	with, size := used.DeepCopy(), w.sizes["s-1"]
	with.Add(size)
	if with.Cmp(w.most) <= 0 {
		return fmt.Sprintf("the NodeClaims had %s of %s CPUs, and a node has %s", used.String(), w.most.String(), size.String())
	}
	for _, c := range w.claims {
		ready, came := w.nodes[c.node]
		if (c.leaving.IsZero() || c.leaving.After(at)) && c.made.Before(from) && (!came || ready.After(at)) {
			return fmt.Sprintf("a NodeClaim made %s before has no node that is ready", at.Sub(c.made).Round(time.Millisecond))
		}
	}
	return ""
}

// usedAt returns the sum of the CPUs of the NodeClaims that existed at the moment and were not being deleted.
func (w *witness) usedAt(moment time.Time) resource.Quantity {
	var sum resource.Quantity
	for _, c := range w.claims {
		if !c.made.After(moment) && (c.leaving.IsZero() || c.leaving.After(moment)) {
			sum.Add(c.cpu)
		}
	}
	return sum
}

// TestKarpenterChurn: spikes of pods come and go, while nodes and NodeClaims are deleted. No pod is bound to the
// virtual node while the NodePool's limits allow another node, or while a node is on its way. The test judges by the
// NodeClaims and Nodes that the API had when the pod was bound.
func TestKarpenterChurn(t *testing.T) {
	t.Parallel()
	r := seed.New(t, 2)
	e := startKarpenterWith(t, karpenterConfig, karpenterRBAC, "testdata/nodepool-churn.yaml", instanceType("s-1", 1), instanceType("s-2", 2))
	e.waitGated(true)
	w := e.watchChurn("3")
	const app = "burst-required"
	e.Create(suite.Load(t, "testdata/burst-required.yaml"))
	spikes, deleted := 0, 0
	for end := time.Now().Add(*churn); time.Now().Before(end); spikes++ {
		pods := 14 + r.IntN(20)
		if spikes%3 == 0 {
			pods = 30 + r.IntN(6) // more than the 28 pods for which the limits allow nodes
		}
		e.Scale(app, int32(pods))
		for range r.IntN(4) {
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			deleted += e.deleteCapacity(r)
		}
		e.Eventually(90*time.Second, func() string { // no pod is held for long
			if pending := e.Placed(app)[""]; pending > 0 {
				return fmt.Sprintf("%d pods are pending; %s", pending, e.Said(app))
			}
			return ""
		})
		e.Scale(app, int32(r.IntN(4)))
		time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	early := w.early()
	t.Logf("%d spikes, %d nodes or NodeClaims deleted, %d NodeClaims seen, %d pods burst, %d of them early", spikes, deleted, len(w.claims), len(w.burst), len(early))
	for _, line := range early {
		t.Error(line)
	}
	if len(w.burst) == 0 || deleted == 0 {
		t.Error("nothing burst, or nothing was deleted: the test shows nothing")
	}
}

// deleteCapacity deletes one of the NodePool's nodes, or the node's NodeClaim, and returns the number of deletions. If
// Karpenter has not initialized the node, deleteCapacity deletes the NodeClaim. After a deletion of the node, Karpenter
// would wait for the node for 15 min and order no other node for its pods.
func (e *env) deleteCapacity(r *rand.Rand) int {
	e.Helper()
	nodes := e.nodesOf("agentpool")
	if len(nodes) == 0 {
		return 0
	}
	node := nodes[r.IntN(len(nodes))]
	var err error
	initialized := node.Labels["karpenter.sh/initialized"] == "true"
	switch owners := node.OwnerReferences; {
	case len(owners) > 0 && (!initialized || r.IntN(2) == 0):
		err = e.dynamic().Resource(nodeClaims).Delete(e.ctx, owners[0].Name, metav1.DeleteOptions{})
	case initialized:
		err = e.Client.CoreV1().Nodes().Delete(e.ctx, node.Name, metav1.DeleteOptions{})
	default:
		return 0
	}
	if err != nil && !apierrors.IsNotFound(err) {
		e.Fatal(err)
	}
	return 1
}

func (e *env) dynamic() dynamic.Interface {
	e.Helper()
	client := must.Get(dynamic.NewForConfig(e.Config))(e)
	return client
}
