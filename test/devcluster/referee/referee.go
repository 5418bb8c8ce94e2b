// Package referee watches a cluster and reports pods that were placed in the wrong pool. It does not use the scheduler.
// It compares each placement with the free capacity that the nodes of preferred pools had at that moment.
package referee

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/test/devcluster"
)

const (
	// bindingLag is the default of BindingLag.
	bindingLag = time.Second
	// sightLag is how much later than the API server stored it the referee may see a binding, on a busy machine.
	sightLag = 2 * time.Second
	// readyLag is how long a scheduler may take to see that a node is ready.
	readyLag = 2 * time.Second
	// stuckAfter is how long a pod may be pending while a node has room. It is longer than a pod's backoff in tests.
	stuckAfter = 12 * time.Second
)

// Tier is a node pool in the order that the referee expects.
type Tier struct {
	Name string
	// Max is the largest number of VMs that the pool can have; 0 for the virtual node, which comes last.
	Max  int
	Owns func(*corev1.Node) bool
}

// Referee judges the placements of pods of one scheduler.
type Referee struct {
	tiers []Tier
	// Scheduler is the name of the scheduler whose pods are judged, ours by default.
	Scheduler string
	// BindingLag is how long the bindings that a scheduler decides on at one moment may take to appear, 1 s by default.
	// The scheduler writes them in parallel and in any order; with at most 50 requests a second it takes seconds for
	// many pods.
	BindingLag time.Duration
	// Nodes and Pods are the listers of the referee's informers.
	Nodes corelisters.NodeLister
	Pods  corelisters.PodLister

	mu         sync.Mutex
	nodes      map[string]*seenNode
	bindings   []binding
	bound      map[types.UID]int // index in bindings
	violations []string
	misplaced  []Misplaced
	judged     int
	waiting    map[types.UID]time.Time // since when a node has had room for each of these pending pods
	byTier     []int
}

type seenNode struct {
	node  *corev1.Node
	since time.Time // ready, not cordoned and with these taints since then
	gone  time.Time
}

type binding struct {
	pod  *corev1.Pod
	node string
	seen time.Time // when the referee saw it
	at   time.Time // when the API server stored it, in whole seconds; seen if the pod does not say it
	gone time.Time
}

// Misplaced is a pod that was bound to a node of a wrong pool.
type Misplaced struct {
	Pod string
	// At is when the referee saw the binding.
	At time.Time
	// Tier is the index of the tier of the pod's node; -1 if the node is in no tier.
	Tier int
	// Why has a complaint for each preferred tier that had free capacity or could grow.
	Why []string
}

// Watch starts a referee that watches the cluster until the context ends.
func Watch(ctx context.Context, client kubernetes.Interface, tiers []Tier) (*Referee, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	r := &Referee{
		tiers: tiers, Scheduler: devcluster.SchedulerName, BindingLag: bindingLag, nodes: map[string]*seenNode{}, bound: map[types.UID]int{}, byTier: make([]int, len(tiers)),
		Nodes: factory.Core().V1().Nodes().Lister(), Pods: factory.Core().V1().Pods().Lister(),
	}
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			now := time.Now()
			if initial { // it was there before, and the scheduler knows it
				now = now.Add(-2 * readyLag)
			}
			r.sawNode(obj.(*corev1.Node), now)
		},
		UpdateFunc: func(_, obj any) { r.sawNode(obj.(*corev1.Node), time.Now()) },
		DeleteFunc: func(obj any) {
			if node, ok := obj.(*corev1.Node); ok {
				r.lostNode(node.Name, time.Now())
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watching nodes: %w", err)
	}
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.sawPod(obj.(*corev1.Pod), time.Now()) },
		UpdateFunc: func(_, obj any) { r.sawPod(obj.(*corev1.Pod), time.Now()) },
		DeleteFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				r.lostPod(pod.UID, time.Now())
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return r, nil
}

func (r *Referee) sawNode(node *corev1.Node, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, ok := r.nodes[node.Name]
	if !ok {
		seen = &seenNode{}
		r.nodes[node.Name] = seen
	}
	usable := !node.Spec.Unschedulable && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeNotReady })
	switch {
	case !usable:
		seen.since = time.Time{}
	case seen.since.IsZero() || !equality.Semantic.DeepEqual(seen.node.Spec.Taints, node.Spec.Taints):
		seen.since = now
	}
	seen.node = node
}

func (r *Referee) lostNode(name string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seen, ok := r.nodes[name]; ok {
		seen.gone = now
	}
}

func (r *Referee) sawPod(pod *corev1.Pod, now time.Time) {
	if pod.Spec.NodeName == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.bound[pod.UID]; !ok {
		r.bound[pod.UID] = len(r.bindings)
		b := binding{pod: pod, node: pod.Spec.NodeName, seen: now, at: now}
		for _, c := range pod.Status.Conditions { // a busy referee sees bindings late, and one moment's far apart
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
				b.at = c.LastTransitionTime.Time
			}
		}
		r.bindings = append(r.bindings, b)
	}
}

func (r *Referee) lostPod(uid types.UID, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.bound[uid]; ok && r.bindings[i].gone.IsZero() {
		r.bindings[i].gone = now
	}
}

// Judge judges the bindings that were seen longer ago than BindingLag and sightLag. By then, the referee has seen all
// bindings of the same moment. Judge returns the number of pods that were placed in each tier so far, and all complaints.
func (r *Referee) Judge() ([]int, []string) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for ; r.judged < len(r.bindings) && now.Sub(r.bindings[r.judged].seen) > r.BindingLag+sightLag; r.judged++ {
		b := &r.bindings[r.judged]
		if b.pod.Spec.SchedulerName != r.Scheduler {
			continue
		}
		placed, complaints := r.judge(b)
		if placed >= 0 {
			r.byTier[placed]++
		}
		if len(complaints) > 0 {
			r.violations = append(r.violations, complaints...)
			r.misplaced = append(r.misplaced, Misplaced{Pod: b.pod.Name, At: b.seen, Tier: placed, Why: complaints})
		}
	}
	return slices.Clone(r.byTier), slices.Clone(r.violations)
}

// judge returns the index of the pod's tier, and the complaints about the pod's placement. If the node is in no tier,
// the index is -1.
func (r *Referee) judge(b *binding) (int, []string) {
	placed := r.tierOf(b.node)
	if placed < 0 {
		return placed, []string{fmt.Sprintf("pod %s is on node %s, which is in no pool", b.pod.Name, b.node)}
	}
	var complaints []string
	for better := range placed {
		if complaint := r.room(b, better, placed == len(r.tiers)-1); complaint != "" {
			complaints = append(complaints, fmt.Sprintf("pod %s went to pool %s while %s", b.pod.Name, r.tiers[placed].Name, complaint))
		}
	}
	return placed, complaints
}

// Misplaced returns the pods that Judge has found in a wrong pool so far.
func (r *Referee) Misplaced() []Misplaced {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.misplaced)
}

// Unjudged returns the number of bindings that Judge has not judged yet.
func (r *Referee) Unjudged() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.bindings) - r.judged
}

func (r *Referee) tierOf(node string) int {
	seen, ok := r.nodes[node]
	if !ok {
		return -1
	}
	return slices.IndexFunc(r.tiers, func(t Tier) bool { return t.Owns(seen.node) })
}

// room returns a complaint if the scheduler should have used the tier with the index better. This is so if a node of
// that tier had free capacity. For a pod that burst, it is also so if that tier could grow.
func (r *Referee) room(b *binding, better int, burst bool) string {
	vms, applicable := 0, false
	for name, seen := range r.nodes {
		// A scheduler may see the deletion of a VM a little late.
		if !r.tiers[better].Owns(seen.node) || (!seen.gone.IsZero() && seen.gone.Add(readyLag).Before(b.seen)) {
			continue
		}
		vms++
		// The scheduler may not have seen a recent change of the node.
		stable := !seen.since.IsZero() && b.seen.Sub(seen.since) > readyLag
		if !seen.gone.IsZero() || !stable || !allowed(b.pod, seen.node) {
			continue
		}
		applicable = true
		if r.fits(b, name, seen.node) {
			return fmt.Sprintf("node %s of pool %s had room", name, r.tiers[better].Name)
		}
	}
	if burst && applicable && vms < r.tiers[better].Max {
		return fmt.Sprintf("pool %s had %d of %d VMs", r.tiers[better].Name, vms, r.tiers[better].Max)
	}
	return ""
}

func allowed(pod *corev1.Pod, node *corev1.Node) bool {
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil || !match {
		return false
	}
	_, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, true)
	return !untolerated
}

// fits reports whether the pod would have fit on the node when the pod was bound. The pods that were bound to the node
// before, or within BindingLag after the pod, count as running there.
func (r *Referee) fits(b *binding, name string, node *corev1.Node) bool {
	cpu, memory, pods := node.Status.Allocatable.Cpu().DeepCopy(), node.Status.Allocatable.Memory().DeepCopy(), node.Status.Allocatable.Pods().Value()
	for i := range r.bindings {
		other := &r.bindings[i]
		left := !other.gone.IsZero() && other.gone.Add(readyLag).Before(b.seen)
		if other.node != name || left || other.at.After(b.at.Add(r.BindingLag)) {
			continue
		}
		requests := resource.PodRequests(other.pod, resource.PodResourcesOptions{})
		cpu.Sub(*requests.Cpu())
		memory.Sub(*requests.Memory())
		pods--
	}
	requests := resource.PodRequests(b.pod, resource.PodResourcesOptions{})
	return requests.Cpu().Cmp(cpu) <= 0 && requests.Memory().Cmp(memory) <= 0 && pods > 0
}

// Stuck returns the pending pods that should run: at each call during the last 12 s, a node of a regular tier had room
// for the pod.
func (r *Referee) Stuck() []string {
	now := time.Now()
	pods, err := r.Pods.List(labels.Everything())
	if err != nil {
		return []string{err.Error()}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var stuck []string
	waiting := map[types.UID]time.Time{}
	defer func() { r.waiting = waiting }()
	for _, pod := range pods {
		if pod.Spec.NodeName != "" || pod.Spec.SchedulerName != r.Scheduler || pod.DeletionTimestamp != nil {
			continue
		}
		b := &binding{pod: pod, seen: now, at: now}
		for name, seen := range r.nodes {
			tier := r.tierOf(name)
			if tier < 0 || r.tiers[tier].Max == 0 || !seen.gone.IsZero() || seen.since.IsZero() || now.Sub(seen.since) < readyLag {
				continue
			}
			if !allowed(pod, seen.node) || !r.fits(b, name, seen.node) {
				continue
			}
			waiting[pod.UID] = now
			if since, ok := r.waiting[pod.UID]; ok {
				waiting[pod.UID] = since
			}
			if now.Sub(waiting[pod.UID]) > stuckAfter {
				stuck = append(stuck, fmt.Sprintf("pod %s is pending while node %s has room", pod.Name, name))
			}
			break
		}
	}
	return stuck
}
