// Package cleanup removes the taints, annotations, leases and ConfigMaps that the scheduler and the controller wrote in
// a cluster. It does not remove the objects of the manifests or the Helm chart.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/controller"
	"poolpriority.dev/scheduler/pkg/denial"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/scalein"
)

const (
	// Run ends after quietSyncs passes in a row that find nothing to remove. One such pass is not enough, because a
	// controller that is still shutting down may undo a removal. Run waits for syncInterval between two passes. It runs
	// at most maxSyncs passes after the first one.
	quietSyncs, syncInterval, maxSyncs = 3, 2 * time.Second, 30

	// workers is the maximum number of concurrent patches of pods. page is the page size of lists of pods.
	workers, page = 10, 500
)

// ownAnnotations lists the annotations that the scheduler and the controller write on pods, except the deletion cost.
// See unmark for the deletion cost.
var ownAnnotations = []string{scalein.PoolAnnotation, scalein.OwnCostAnnotation, gate.DecisionAnnotation, refusal.BoundAtAnnotation}

// Cleaner removes the gate taint from nodes and the installation's annotations from pods. It deletes the leases and the
// ConfigMaps with the published state. Pods keep the tolerations that the controller added, because the API server
// rejects the removal of tolerations. Stop the scheduler and the controller of the installation before a clean-up.
type Cleaner struct {
	Client client.Client
	Clock  clock.Clock
	// Installation is the name of the installation to remove. If it is empty, the default installation is removed.
	Installation string
	// TaintOnly limits the clean-up to the gate taint.
	TaintOnly bool
	// SchedulerName restricts the clean-up to pods of this scheduler. If it is empty, all pods are cleaned. If it is
	// empty and the cluster has another installation, no pod is cleaned, because a pod does not show which installation
	// wrote its annotations.
	SchedulerName string
	// Namespace is the namespace of the objects to delete. Leases and ConfigMaps are their names.
	Namespace          string
	Leases, ConfigMaps []string
}

// found is the result of one pass.
type found struct {
	nodes, pods, objects int
	starting             int              // pods on burst nodes that have not started, and are not changed before they start
	others               sets.Set[string] // other installations that have their gate taint on nodes
	unclear              bool             // no pod was changed, because the pods may belong to another installation
	errs                 []error
}

// Run runs passes of the clean-up until it finds nothing more to remove. If an object cannot be changed, Run continues
// with the other objects. Run waits up to a minute for pods on burst nodes to start, because the change of a pod before
// its start may lose the pod. A pod that does not start within the minute keeps its annotations.
func (c *Cleaner) Run(ctx context.Context) error {
	taint, err := c.taint()
	if err != nil {
		return err
	}
	for quiet, looks := 0, 1; ; looks++ {
		f := c.sync(ctx, taint)
		if f.nodes+f.pods+f.objects+f.starting+len(f.errs) > 0 {
			quiet = 0
		} else if quiet++; quiet == quietSyncs {
			return f.left(ctx)
		}
		if looks > maxSyncs {
			return errors.Join(f.left(ctx), f.result(ctx))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.Clock.After(syncInterval):
		}
	}
}

// taint returns a GateTaint that removes the installation's gate taint.
func (c *Cleaner) taint() (*controller.GateTaint, error) {
	name, invalid := configv1.InstallationOf(c.Installation)
	if invalid != nil {
		return nil, fmt.Errorf("the installation's name: %s", invalid.ErrorBody())
	}
	none, err := pool.ListOf(&configv1.PoolPriorityArgs{Installation: name})
	return &controller.GateTaint{Client: c.Client, Pools: none, Off: true}, err
}

// left logs which other installations have gate taints on nodes. Cleaner does not remove these taints. left returns an
// error if Cleaner changed no pod because the pods may belong to another installation.
func (f *found) left(ctx context.Context) error {
	others := strings.Join(sets.List(f.others), ", ")
	if others != "" {
		klog.FromContext(ctx).Info("Left the gate taint of another installation on nodes", "installation", others)
	}
	if f.unclear {
		return fmt.Errorf("the cluster has another installation, %s: the annotations of pods stay. To remove them, set --scheduler-name to this installation's scheduler", others)
	}
	return nil
}

// result returns the errors of the last pass. If the last pass still found objects to clean up, result adds an error
// that says so.
func (f *found) result(ctx context.Context) error {
	if f.starting > 0 {
		klog.FromContext(ctx).Info("Some pods on burst nodes keep their annotations, because a change of a pod before it starts might lose the pod. The annotations do no harm", "pods", f.starting)
	}
	err := errors.Join(f.errs...)
	if f.nodes+f.pods+f.objects == 0 || denial.Is(err) {
		return err
	}
	return errors.Join(err, fmt.Errorf("what was removed comes back: the gate taint on %d node(s), annotations on %d pod(s), %d lease(s) and ConfigMap(s). If a scheduler or a controller still runs, remove it first",
		f.nodes, f.pods, f.objects))
}

// sync runs one pass: it removes everything that it finds.
func (c *Cleaner) sync(ctx context.Context, taint *controller.GateTaint) *found {
	f := &found{others: sets.New[string]()}
	c.nodes(ctx, f, taint)
	if c.TaintOnly {
		return f
	}
	if f.unclear = c.SchedulerName == "" && f.others.Len() > 0; !f.unclear {
		c.pods(ctx, f)
	}
	for _, name := range c.Leases {
		c.remove(ctx, f, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}})
	}
	for _, name := range c.ConfigMaps {
		c.remove(ctx, f, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: name}})
	}
	return f
}

// nodes removes the gate taint from all nodes.
func (c *Cleaner) nodes(ctx context.Context, f *found, taint *controller.GateTaint) {
	nodes := &corev1.NodeList{}
	if err := c.Client.List(ctx, nodes); err != nil {
		f.failed("listing the nodes", err)
		return
	}
	for i := range nodes.Items {
		if other := taint.Pools.OtherOf(&nodes.Items[i]); other != "" {
			f.others.Insert(other)
		}
		if taint.InLine(&nodes.Items[i]) {
			continue
		}
		f.nodes++
		f.failed("", taint.Write(ctx, &nodes.Items[i]))
	}
}

// pods removes ownAnnotations and our deletion costs from all pods, or from the pods of SchedulerName.
func (c *Cleaner) pods(ctx context.Context, f *found) {
	pods := &corev1.PodList{}
	for more := true; more; more = pods.Continue != "" {
		if err := c.Client.List(ctx, pods, client.Limit(page), client.Continue(pods.Continue)); err != nil {
			f.failed("listing the pods", err)
			return
		}
		var mu sync.Mutex
		workqueue.ParallelizeUntil(ctx, workers, len(pods.Items), func(i int) {
			pod := &pods.Items[i]
			marked := slices.ContainsFunc(ownAnnotations, func(key string) bool { return metav1.HasAnnotation(pod.ObjectMeta, key) })
			if c.SchedulerName != "" && pod.Spec.SchedulerName != c.SchedulerName || !marked {
				return
			}
			starting := metav1.HasAnnotation(pod.ObjectMeta, refusal.BoundAtAnnotation) && !refusal.Started(pod)
			var err error
			if !starting {
				err = c.unmark(ctx, pod)
			}
			mu.Lock()
			defer mu.Unlock()
			if starting {
				f.starting++
				return
			}
			f.pods++
			f.failed("removing the annotations of pod "+pod.Namespace+"/"+pod.Name, err)
		})
	}
}

// unmark removes ownAnnotations from the pod. If the deletion cost still has the value that we wrote, unmark removes
// the cost, too.
func (c *Cleaner) unmark(ctx context.Context, pod *corev1.Pod) error {
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if own, ours := pod.Annotations[scalein.OwnCostAnnotation]; ours && own == pod.Annotations[scalein.CostAnnotation] {
		delete(pod.Annotations, scalein.CostAnnotation)
	}
	for _, key := range ownAnnotations {
		delete(pod.Annotations, key)
	}
	return c.Client.Patch(ctx, pod, patch)
}

// remove deletes the object, if it exists.
func (c *Cleaner) remove(ctx context.Context, f *found, object client.Object) {
	err := c.Client.Delete(ctx, object)
	if err == nil {
		f.objects++
	}
	f.failed("deleting "+c.Namespace+"/"+object.GetName(), err)
}

// failed records an error. It ignores NotFound errors, because an object that does not exist needs no clean-up. It
// ignores conflicts, because the next pass reads the object again.
func (f *found) failed(doing string, err error) {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return
	}
	if doing != "" {
		err = fmt.Errorf("%s: %w", doing, err)
	}
	f.errs = append(f.errs, err)
}
