package devcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/test/devcluster/autoscaler"
)

// drainLimit is how long the eviction and termination of a node's pods may take. The real autoscaler's limit,
// max-pod-eviction-time, is 2 min.
const drainLimit = 20 * time.Second

// carryOut adds and removes the taints that the loop decided on. Each node that the loop chose is then removed in a
// goroutine, while further loops run.
func (a *Autoscaler) carryOut(ctx context.Context, result autoscaler.Result) error {
	var errs []error
	for _, name := range result.Untaint {
		errs = append(errs, a.taint(ctx, name, false))
	}
	for _, removal := range result.Remove {
		if err := a.taint(ctx, removal.Node, true); err != nil {
			errs = append(errs, err)
			a.core.RemovalFailed(removal.Node, time.Now())
			continue
		}
		a.removals.Add(1)
		go func() {
			defer a.removals.Done()
			a.remove(ctx, removal)
		}()
	}
	return errors.Join(errs...)
}

// taint adds the ToBeDeletedTaint to the node, or removes it. If the node does not exist, taint returns no error.
func (a *Autoscaler) taint(ctx context.Context, name string, wanted bool) error {
	nodes := a.client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscaler.ToBeDeletedTaint })
		if wanted {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{
				Key: autoscaler.ToBeDeletedTaint, Value: fmt.Sprint(time.Now().Unix()), Effect: corev1.TaintEffectNoSchedule,
			})
		}
		_, err = nodes.Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("tainting node %s: %w", name, err)
	}
	return nil
}

// remove waits for DeleteDelay, drains the node and deletes its VM. If the drain or the deletion fails, remove removes
// the taint. If the autoscaler is killed meanwhile, the node stays and keeps the taint.
func (a *Autoscaler) remove(ctx context.Context, removal autoscaler.Removal) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(a.options.DeleteDelay):
	}
	err := a.drain(ctx, removal.Node)
	if err == nil {
		err = a.pool(removal.Group).Delete(ctx, removal.Node)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	klog.FromContext(ctx).V(2).Info("The simulated autoscaler could not remove a node", "node", removal.Node, "err", err)
	if err := a.taint(ctx, removal.Node, false); err != nil {
		klog.FromContext(ctx).V(2).Info("The simulated autoscaler could not take its taint off", "err", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = append(a.failed, removal.Node)
}

// takeFailed returns the nodes whose removal failed since the last call.
func (a *Autoscaler) takeFailed() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	failed := a.failed
	a.failed = nil
	return failed
}

// drain evicts the node's pods, except those of DaemonSets, and waits until they have ended.
func (a *Autoscaler) drain(ctx context.Context, node string) error {
	return poll(ctx, drainLimit, func() error { return ctx.Err() }, func() error {
		pods, err := a.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
		if err != nil {
			return fmt.Errorf("listing the pods of node %s: %w", node, err)
		}
		var errs []error
		for i := range pods.Items {
			errs = append(errs, a.evict(ctx, &pods.Items[i]))
		}
		return errors.Join(errs...)
	})
}

// evict evicts the pod. If the drain can go on without waiting for the pod, evict returns nil.
func (a *Autoscaler) evict(ctx context.Context, pod *corev1.Pod) error {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	if pod.DeletionTimestamp == nil {
		err := a.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("evicting pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	return fmt.Errorf("pod %s/%s has not ended", pod.Namespace, pod.Name)
}
