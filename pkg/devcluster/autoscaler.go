package devcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/reference"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
)

const (
	statusNamespace, statusName = "kube-system", "cluster-autoscaler-status"

	toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"
	safeToEvict      = "cluster-autoscaler.kubernetes.io/safe-to-evict"
)

// AutoscalerOptions configure the simulated autoscaler. Its defaults are the real one's, shortened: a run takes seconds.
type AutoscalerOptions struct {
	// Interval is the time between two loops; the real one's is 10 s. Default 1 s.
	Interval time.Duration
	// UnneededTime is how long a VM must have been unneeded to be removed; the real one's is 10 min. Default: never.
	UnneededTime time.Duration
	// DelayAfterAdd is how long after a scale-up no VM is removed. Default: three intervals.
	DelayAfterAdd time.Duration
	// InitialBackoff and MaxBackoff bound how long a group that failed to grow is left alone. Default 5 and 30 min.
	InitialBackoff, MaxBackoff time.Duration
	// Utilization is the share of requested CPU or memory below which a VM may be unneeded. Default 0.5.
	Utilization float64
}

func (o *AutoscalerOptions) setDefaults() {
	setDefault(&o.Interval, time.Second)
	setDefault(&o.DelayAfterAdd, 3*o.Interval)
	setDefault(&o.InitialBackoff, 5*time.Minute)
	setDefault(&o.MaxBackoff, 30*time.Minute)
	setDefault(&o.Utilization, 0.5)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Autoscaler is a simulated cluster autoscaler. It decides as the real one does: by the in-tree filters over all nodes
// of the cluster, the virtual node among them, so that a pod that fits anywhere triggers nothing and a VM whose pods
// would fit elsewhere is drained.
type Autoscaler struct {
	options   AutoscalerOptions
	client    kubernetes.Interface
	factory   informers.SharedInformerFactory
	simulator *simulator
	groups    []*group
	since     time.Time            // when it started
	said      map[types.UID]string // the last event on each pod

	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
	loops  atomic.Int64
}

// group is the autoscaler's memory of a node group.
type group struct {
	*PoolManager
	backoffUntil    time.Time
	backoffDuration time.Duration
	backoffError    string
	unneededSince   map[string]time.Time
	scaledUp        time.Time
	healthySince    time.Time
}

func newAutoscaler(config *rest.Config, options AutoscalerOptions, pools []*PoolManager) (*Autoscaler, error) {
	options.setDefaults()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the autoscaler's client: %w", err)
	}
	a := &Autoscaler{options: options, client: client}
	for _, m := range pools {
		a.groups = append(a.groups, &group{PoolManager: m})
	}
	// The priority expander: the highest priority first.
	sort.SliceStable(a.groups, func(i, j int) bool { return a.groups[i].Priority > a.groups[j].Priority })
	return a, nil
}

// Start runs the autoscaler until Stop or Kill. It writes Initializing first, as the real one does.
func (a *Autoscaler) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	a.factory = informers.NewSharedInformerFactory(a.client, 0)
	simulator, err := newSimulator(ctx, a.client, a.factory)
	if err != nil {
		cancel()
		return err
	}
	a.simulator, a.since, a.said = simulator, time.Now(), map[types.UID]string{}
	for _, g := range a.groups {
		g.unneededSince = map[string]time.Time{}
		g.healthySince = time.Now()
		g.backoffUntil, g.backoffDuration = time.Time{}, 0
	}
	a.factory.Core().V1().Pods().Informer()
	a.factory.Core().V1().Nodes().Informer()
	a.factory.Start(ctx.Done())
	a.factory.WaitForCacheSync(ctx.Done())
	a.mu.Lock()
	a.cancel, a.done = cancel, make(chan struct{})
	a.mu.Unlock()
	if err := a.write(ctx, initializingStatus()); err != nil {
		klog.FromContext(ctx).V(2).Info("The simulated autoscaler could not write its status", "err", err)
	}
	go a.run(ctx, a.done)
	return nil
}

// Loops is how many loops have ended, each with a status written.
func (a *Autoscaler) Loops() int { return int(a.loops.Load()) }

// Kill ends the autoscaler as SIGKILL does: the status stays as it is.
func (a *Autoscaler) Kill() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cancel != nil {
		a.cancel()
		<-a.done
		a.cancel = nil
	}
}

// Stop ends the autoscaler politely: it deletes its status.
func (a *Autoscaler) Stop(ctx context.Context) error {
	a.Kill()
	err := a.client.CoreV1().ConfigMaps(statusNamespace).Delete(ctx, statusName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the autoscaler's status: %w", err)
	}
	return nil
}

func (a *Autoscaler) run(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	ticker := time.NewTicker(a.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// A loop that fails early skips the write, and the next one tries again.
		if err := a.loop(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The simulated autoscaler's loop failed", "err", err)
		}
	}
}

// loop is one pass: what is pending, what fits, scale-up, scale-down, status.
func (a *Autoscaler) loop(ctx context.Context) error {
	now := time.Now()
	nodes, err := a.factory.Core().V1().Nodes().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	pods, err := a.factory.Core().V1().Pods().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	bound, pending := split(pods, nodes)
	world := a.simulator.world(usable(nodes), bound)
	for _, g := range a.groups {
		for i := range g.upcoming(nodes) {
			world.addNode(g.template(i))
		}
	}
	unfit, err := world.place(ctx, pending)
	if err != nil {
		return err
	}
	remaining, err := a.scaleUp(ctx, world, unfit, now)
	if err != nil {
		return err
	}
	for _, pod := range remaining {
		a.event(ctx, pod, "NotTriggerScaleUp", fmt.Sprintf("pod didn't trigger scale-up: %d max node group size reached", a.atMax()))
	}
	candidates, err := a.scaleDown(ctx, nodes, bound, now)
	if err != nil {
		return err
	}
	if err := a.write(ctx, a.status(nodes, len(unfit) > 0, candidates, now)); err != nil {
		return err
	}
	a.loops.Add(1)
	return nil
}

// split returns the pods that are on nodes, and those that the autoscaler sees as pending: PodScheduled is False with
// reason Unschedulable, and no existing node is nominated.
func split(pods []*corev1.Pod, nodes []*corev1.Node) (bound, pending []*corev1.Pod) {
	exists := map[string]bool{}
	for _, node := range nodes {
		exists[node.Name] = true
	}
	for _, pod := range pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case pod.Spec.NodeName != "":
			if exists[pod.Spec.NodeName] {
				bound = append(bound, pod)
			}
		case pod.DeletionTimestamp == nil && !exists[pod.Status.NominatedNodeName] && slices.ContainsFunc(pod.Status.Conditions, isUnschedulable):
			pending = append(pending, pod)
		}
	}
	sort.Slice(pending, func(i, j int) bool {
		if t, u := pending[i].CreationTimestamp, pending[j].CreationTimestamp; !t.Equal(&u) {
			return t.Before(&u)
		}
		return pending[i].Name < pending[j].Name
	})
	return bound, pending
}

func isUnschedulable(c corev1.PodCondition) bool {
	return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

// usable returns the nodes that the simulation counts on: ready, not cordoned, not about to be deleted.
func usable(nodes []*corev1.Node) []*corev1.Node {
	var result []*corev1.Node
	for _, node := range nodes {
		if nodeIsReady(node) && !node.Spec.Unschedulable && !hasTaint(node, toBeDeletedTaint) && node.DeletionTimestamp == nil {
			result = append(result, node)
		}
	}
	return result
}

// upcoming is the number of nodes that were ordered and are not ready.
func (g *group) upcoming(nodes []*corev1.Node) int {
	ready := 0
	for _, node := range nodes {
		if g.Owns(node.Name) && nodeIsReady(node) {
			ready++
		}
	}
	return max(g.Target()-ready, 0)
}

func (g *group) template(i int) *corev1.Node {
	return g.Node(fmt.Sprintf("template-node-for-%s-%d", g.Group(), i))
}

// scaleUp grows the groups, the best priority first, for pods that a new node of theirs would take, and returns the pods
// that no group can help.
func (a *Autoscaler) scaleUp(ctx context.Context, world *world, pods []*corev1.Pod, now time.Time) ([]*corev1.Pod, error) {
	for _, g := range a.groups {
		if len(pods) == 0 || now.Before(g.backoffUntil) {
			continue
		}
		before, room := g.Target(), g.Max-g.Target()
		helped, rest, count, err := world.fill(ctx, pods, room, func(i int) *corev1.Node { return g.template(before + i) })
		if err != nil {
			return nil, err
		}
		if count == 0 {
			continue
		}
		if err := g.Grow(ctx, count); err != nil {
			g.fail(err, a.options, now)
			continue
		}
		g.scaledUp, g.backoffDuration = now, 0
		for _, pod := range helped {
			a.event(ctx, pod, "TriggeredScaleUp", fmt.Sprintf("pod triggered scale-up: [{%s %d->%d (max: %d)}]", g.Group(), before, before+count, g.Max))
		}
		pods = rest
	}
	return pods, nil
}

// fail puts the group in back-off, for twice as long each time.
func (g *group) fail(err error, options AutoscalerOptions, now time.Time) {
	if g.backoffDuration *= 2; g.backoffDuration == 0 {
		g.backoffDuration = options.InitialBackoff
	}
	g.backoffDuration = min(g.backoffDuration, options.MaxBackoff)
	g.backoffUntil = now.Add(g.backoffDuration)
	g.backoffError = "failed to increase node group size: " + err.Error()
}

func (a *Autoscaler) atMax() int {
	n := 0
	for _, g := range a.groups {
		if g.Target() >= g.Max {
			n++
		}
	}
	return n
}

// scaleDown removes VMs that have been unneeded for long enough, and returns the number of candidates by group.
func (a *Autoscaler) scaleDown(ctx context.Context, nodes []*corev1.Node, bound []*corev1.Pod, now time.Time) (map[*group]int, error) {
	candidates := map[*group]int{}
	if a.options.UnneededTime == 0 {
		return candidates, nil
	}
	removed := map[string]bool{}
	for _, g := range a.groups {
		for _, node := range nodes {
			if !g.Owns(node.Name) || !nodeIsReady(node) || hasTaint(node, toBeDeletedTaint) {
				continue
			}
			unneeded := now.Sub(g.scaledUp) >= a.options.DelayAfterAdd && g.Target() > g.Min
			if unneeded {
				var err error
				if unneeded, err = a.unneeded(ctx, node, nodes, bound, removed); err != nil {
					return nil, err
				}
			}
			if !unneeded {
				delete(g.unneededSince, node.Name)
				continue
			}
			candidates[g]++
			since, ok := g.unneededSince[node.Name]
			if !ok {
				g.unneededSince[node.Name] = now
				continue
			}
			if now.Sub(since) >= a.options.UnneededTime {
				removed[node.Name] = true
				delete(g.unneededSince, node.Name)
				if err := a.drain(ctx, g, node, bound); err != nil {
					return nil, err
				}
			}
		}
	}
	return candidates, nil
}

// unneeded reports whether the VM is little used and all its pods would fit on other nodes.
func (a *Autoscaler) unneeded(ctx context.Context, node *corev1.Node, nodes []*corev1.Node, bound []*corev1.Pod, removed map[string]bool) (bool, error) {
	var own, others []*corev1.Pod
	for _, pod := range bound {
		switch {
		case pod.Spec.NodeName != node.Name:
			others = append(others, pod)
		case !ownedByDaemonSet(pod):
			own = append(own, pod)
		}
	}
	if utilization(node, own) >= a.options.Utilization {
		return false, nil
	}
	remaining := slices.DeleteFunc(usable(nodes), func(n *corev1.Node) bool { return n.Name == node.Name || removed[n.Name] })
	world := a.simulator.world(remaining, others)
	var moved []*corev1.Pod
	for _, pod := range own {
		if pod.Annotations[safeToEvict] == "false" || (metav1.GetControllerOf(pod) == nil && pod.Annotations[safeToEvict] != "true") {
			return false, nil
		}
		fresh := pod.DeepCopy()
		fresh.Spec.NodeName = ""
		moved = append(moved, fresh)
	}
	unfit, err := world.place(ctx, moved)
	return len(unfit) == 0, err
}

func ownedByDaemonSet(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}

// utilization is the larger of the shares of CPU and memory that the pods request.
func utilization(node *corev1.Node, pods []*corev1.Pod) float64 {
	var cpu, memory float64
	for _, pod := range pods {
		requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
		cpu += requests.Cpu().AsApproximateFloat64()
		memory += requests.Memory().AsApproximateFloat64()
	}
	return max(cpu/node.Status.Allocatable.Cpu().AsApproximateFloat64(), memory/node.Status.Allocatable.Memory().AsApproximateFloat64())
}

// drain taints the VM, evicts its pods and deletes it.
func (a *Autoscaler) drain(ctx context.Context, g *group, node *corev1.Node, bound []*corev1.Pod) error {
	tainted := node.DeepCopy()
	tainted.Spec.Taints = append(tainted.Spec.Taints, corev1.Taint{Key: toBeDeletedTaint, Value: fmt.Sprint(time.Now().Unix()), Effect: corev1.TaintEffectNoSchedule})
	if _, err := a.client.CoreV1().Nodes().Update(ctx, tainted, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("tainting node %s: %w", node.Name, err)
	}
	var errs []error
	for _, pod := range bound {
		if pod.Spec.NodeName != node.Name || ownedByDaemonSet(pod) {
			continue
		}
		err := a.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return g.Delete(ctx, node.Name)
}

// status describes the groups, in the order of their names.
func (a *Autoscaler) status(nodes []*corev1.Node, pending bool, candidates map[*group]int, now time.Time) statusFile {
	probe, since := metav1.NewTime(now), metav1.NewTime(a.since) // a transition is remembered by the process that saw it
	s := statusFile{AutoscalerStatus: "Running", ClusterWide: clusterWide{
		Health:    clusterHealth{Status: "Healthy", times: times{probe, since}},
		ScaleUp:   activity{Status: "NoActivity", times: times{probe, since}},
		ScaleDown: scaleDownStatus{Status: "NoCandidates"},
	}}
	groups := slices.Clone(a.groups)
	sort.Slice(groups, func(i, j int) bool { return strings.Compare(groups[i].Group(), groups[j].Group()) < 0 })
	for _, g := range groups {
		gs := groupStatus{
			Name:      g.Group(),
			Health:    groupHealth{Status: "Healthy", CloudProviderTarget: g.Target(), MinSize: g.Min, MaxSize: g.Max},
			ScaleUp:   groupScaleUp{activity: activity{Status: "NoActivity"}},
			ScaleDown: scaleDownStatus{Status: "NoCandidates"},
		}
		counts := &gs.Health.NodeCounts
		for _, node := range nodes {
			if !g.Owns(node.Name) {
				continue
			}
			counts.Registered.Total++
			if nodeIsReady(node) {
				counts.Registered.Ready++
			} else {
				counts.Registered.NotStarted++
			}
		}
		counts.Unregistered = max(g.Target()-counts.Registered.Total, 0)
		if counts.Registered.Total > 0 { // a group without nodes has no times
			gs.Health.times = times{probe, metav1.NewTime(g.healthySince)}
			gs.ScaleUp.times = times{probe, metav1.NewTime(g.healthySince)}
		}
		switch {
		case now.Before(g.backoffUntil) && pending:
			gs.ScaleUp.Status = "Backoff"
			gs.ScaleUp.BackoffInfo = backoffStatus{ErrorCode: "cloudProviderError", ErrorMessage: g.backoffError}
		case counts.Registered.Ready < g.Target() && g.scaledUp.After(g.healthySince):
			gs.ScaleUp.Status = "InProgress"
		}
		if n := candidates[g]; n > 0 {
			gs.ScaleDown = scaleDownStatus{Status: "CandidatesPresent", Candidates: n, times: times{probe, probe}}
		}
		s.NodeGroups = append(s.NodeGroups, gs)
		total := &s.ClusterWide.Health.NodeCounts
		total.Registered.Total += counts.Registered.Total
		total.Registered.Ready += counts.Registered.Ready
		total.Registered.NotStarted += counts.Registered.NotStarted
		total.Unregistered += counts.Unregistered
	}
	return s
}

func (a *Autoscaler) write(ctx context.Context, s statusFile) error {
	cm, err := s.configMap(time.Now())
	if err != nil {
		return err
	}
	configMaps := a.client.CoreV1().ConfigMaps(statusNamespace)
	if _, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = configMaps.Create(ctx, cm, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing the autoscaler's status: %w", err)
	}
	return nil
}

// event writes an event on the pod, unless it was the last one on it: the real autoscaler's recorder does not repeat itself for long
// either.
func (a *Autoscaler) event(ctx context.Context, pod *corev1.Pod, reason, message string) {
	if a.said[pod.UID] == message {
		return
	}
	a.said[pod.UID] = message
	ref, err := reference.GetReference(scheme.Scheme, pod)
	if err != nil {
		return
	}
	now := metav1.Now()
	_, err = a.client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + "-", Namespace: pod.Namespace},
		InvolvedObject: *ref, Reason: reason, Message: message, Type: corev1.EventTypeNormal,
		Source:         corev1.EventSource{Component: "cluster-autoscaler"},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("The simulated autoscaler could not write an event", "err", err)
	}
}
