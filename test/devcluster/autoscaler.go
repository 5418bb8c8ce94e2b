package devcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/reference"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// AutoscalerOptions configure the simulated cluster autoscaler. The default times are shorter than those of the real
// cluster autoscaler, so that a run takes seconds.
type AutoscalerOptions struct {
	// Interval is the time between two loops. If a loop did something, the next loop follows at once. The default is 1
	// s; the real autoscaler's is 10 s.
	Interval time.Duration
	// UnneededTime is how long a VM must be unneeded before the autoscaler removes it. By default, the autoscaler
	// removes no VM; the real autoscaler's default is 10 min.
	UnneededTime time.Duration
	// DelayAfterAdd is the time after a scale-up in which no VM is removed. The default is three intervals; the real
	// autoscaler's is 10 min.
	DelayAfterAdd time.Duration
	// DeleteDelay is the time from the taint of a node to its drain. The default is half an interval; the real
	// autoscaler's is 5 s.
	DeleteDelay time.Duration
	// NoEvents is set if the autoscaler writes no events.
	NoEvents bool
	// Buffers turns CapacityBuffers on (--capacity-buffer-controller-enabled and --capacity-buffer-pod-injection-enabled).
	// The cluster needs their CRD.
	Buffers bool
}

func (o *AutoscalerOptions) setDefaults() {
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.DelayAfterAdd = cmp.Or(o.DelayAfterAdd, 3*o.Interval)
	o.DeleteDelay = cmp.Or(o.DeleteDelay, o.Interval/2)
}

// flags returns the options for package autoscaler.
func (o *AutoscalerOptions) flags() autoscaler.Options {
	flags := autoscaler.Real()
	flags.ScanInterval, flags.UnneededTime = o.Interval, o.UnneededTime
	flags.DelayAfterAdd, flags.DelayAfterDelete, flags.DelayAfterFailure = o.DelayAfterAdd, o.Interval, 3*o.Interval
	flags.PodBatch = 0
	return flags
}

// Autoscaler is a simulated cluster autoscaler. It decides as the real cluster autoscaler does: with the in-tree
// filters and with all nodes, including the virtual node. If a pod fits on one of these nodes, it does not scale up. If
// the pods of a VM fit on other nodes, it drains the VM.
type Autoscaler struct {
	options AutoscalerOptions
	client  kubernetes.Interface
	dynamic dynamic.Interface
	pools   []*PoolManager

	// Each Start makes the following fields anew.
	factory   informers.SharedInformerFactory
	simulator *simulator
	core      *autoscaler.Autoscaler
	said      map[types.UID]string // by pod: its last event about a scale-up
	removals  sync.WaitGroup
	events    sync.WaitGroup

	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
	failed []string // the nodes whose removal failed since the last loop
	loops  atomic.Int64
}

func newAutoscaler(config *rest.Config, options AutoscalerOptions, pools []*PoolManager) (*Autoscaler, error) {
	options.setDefaults()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the autoscaler's client: %w", err)
	}
	dynamic, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the autoscaler's dynamic client: %w", err)
	}
	return &Autoscaler{options: options, client: client, dynamic: dynamic, pools: pools}, nil
}

// Start runs the autoscaler until Stop or Kill. Like the real autoscaler, it first writes the status Initializing.
func (a *Autoscaler) Start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	a.factory = informers.NewSharedInformerFactory(a.client, 0)
	simulator, err := newSimulator(ctx, a.client, a.factory)
	if err != nil {
		cancel()
		return err
	}
	a.simulator, a.core, a.said = simulator, autoscaler.New(a.options.flags()), map[types.UID]string{}
	a.takeFailed()
	a.factory.Core().V1().Pods().Informer()
	a.factory.Core().V1().Nodes().Informer()
	a.factory.Start(ctx.Done())
	a.factory.WaitForCacheSync(ctx.Done())
	a.mu.Lock()
	a.cancel, a.done = cancel, make(chan struct{})
	a.mu.Unlock()
	if err := a.write(ctx, autoscaler.NotRunning(), time.Now()); err != nil {
		klog.FromContext(ctx).V(2).Info("The simulated autoscaler could not write its status", "err", err)
	}
	go a.run(ctx, a.done)
	return nil
}

// Loops returns the number of loops that have written a status.
func (a *Autoscaler) Loops() int { return int(a.loops.Load()) }

// Kill ends the autoscaler as SIGKILL does. The status stays, and the nodes that the autoscaler was removing keep their
// taints.
func (a *Autoscaler) Kill() {
	a.mu.Lock()
	cancel, done := a.cancel, a.done
	a.cancel = nil
	a.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
		a.removals.Wait()
		a.events.Wait()
	}
}

func (a *Autoscaler) run(ctx context.Context, done chan<- struct{}) {
	defer close(done)
	timer := time.NewTimer(a.options.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		again, err := a.loop(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The simulated autoscaler's loop failed", "err", err)
		}
		if again {
			timer.Reset(0)
		} else {
			timer.Reset(a.options.Interval)
		}
	}
}

// loop runs one loop of the autoscaler: it decides, orders VMs, taints nodes, and writes the status last. If it cannot
// decide, it writes no status.
func (a *Autoscaler) loop(ctx context.Context) (again bool, err error) {
	begun := time.Now()
	world, err := a.world()
	if err == nil && a.options.Buffers {
		world.Buffers, err = a.bufferPods(ctx)
	}
	if err != nil {
		return false, err
	}
	for _, node := range a.takeFailed() {
		a.core.RemovalFailed(node, begun)
	}
	result, err := a.core.Loop(world, a.simulator, &cloud{Autoscaler: a, ctx: ctx}, begun)
	if err != nil {
		return false, err
	}
	a.report(ctx, result)
	errs := a.carryOut(ctx, result)
	if err := a.write(ctx, result.Status, begun); err != nil {
		return false, err
	}
	a.loops.Add(1)
	return result.Again, errs
}

// world returns the nodes, the pods and the node groups at the start of a loop.
func (a *Autoscaler) world() (w autoscaler.World, err error) {
	if w.Nodes, err = a.factory.Core().V1().Nodes().Lister().List(labels.Everything()); err != nil {
		return w, fmt.Errorf("listing nodes: %w", err)
	}
	if w.Pods, err = a.factory.Core().V1().Pods().Lister().List(labels.Everything()); err != nil {
		return w, fmt.Errorf("listing pods: %w", err)
	}
	for _, m := range a.pools {
		w.Groups = append(w.Groups, autoscaler.Group{
			Name: m.Group(), Min: m.Min, Max: m.Max, Priority: m.Priority, Target: m.Target(),
			Template: m.Node("template"), Instances: m.instances(),
		})
	}
	return w, nil
}

// cloud is the cloud provider of a loop.
type cloud struct {
	*Autoscaler
	ctx context.Context
}

// Grow orders n VMs.
func (c *cloud) Grow(group string, n int) error {
	c.pool(group).Grow(n)
	return nil
}

// Delete deletes VMs that never became nodes.
func (c *cloud) Delete(group string, instances []string) error {
	var errs []error
	for _, name := range instances {
		errs = append(errs, c.pool(group).Delete(c.ctx, name))
	}
	return errors.Join(errs...)
}

// Lower does nothing, because each ordered VM exists.
func (c *cloud) Lower(string, int) error { return nil }

func (a *Autoscaler) pool(group string) *PoolManager {
	for _, m := range a.pools {
		if m.Group() == group {
			return m
		}
	}
	return nil
}

func (a *Autoscaler) write(ctx context.Context, status autoscaler.Status, begun time.Time) error {
	cm, err := status.ConfigMap(begun)
	if err != nil {
		return err
	}
	configMaps := a.client.CoreV1().ConfigMaps(cm.Namespace)
	if _, err = configMaps.Update(ctx, cm, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		_, err = configMaps.Create(ctx, cm, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing the autoscaler's status: %w", err)
	}
	return nil
}

// report writes an event for each result of the loop. Like the real autoscaler's recorder, it writes them in the
// background, and does not repeat an event on a pod.
func (a *Autoscaler) report(ctx context.Context, result autoscaler.Result) {
	if a.options.NoEvents {
		return
	}
	var grown []*corev1.Pod
	message := ""
	if g := result.Grown; g != nil {
		message = fmt.Sprintf("pod triggered scale-up: [{%s %d->%d (max: %d)}]", g.Group, g.From, g.To, g.Max)
		for _, pod := range g.Pods {
			if a.said[pod.UID] != message {
				a.said[pod.UID] = message
				grown = append(grown, pod)
			}
		}
	}
	a.events.Go(func() {
		for _, pod := range grown {
			a.event(ctx, pod, "TriggeredScaleUp", message)
		}
		for _, u := range result.Unhelped {
			a.event(ctx, u.Pod, "NotTriggerScaleUp", u.Message)
		}
	})
}

// event writes an event on the pod.
func (a *Autoscaler) event(ctx context.Context, pod *corev1.Pod, reason, message string) {
	ref, err := reference.GetReference(scheme.Scheme, pod)
	if err != nil {
		return
	}
	now := metav1.Now()
	_, err = a.client.CoreV1().Events(pod.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: pod.Name + "-", Namespace: pod.Namespace},
		InvolvedObject: *ref, Reason: reason, Message: message, Type: corev1.EventTypeNormal,
		Source: corev1.EventSource{Component: "cluster-autoscaler"}, ReportingController: "cluster-autoscaler",
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("The simulated autoscaler could not write an event", "err", err)
	}
}
