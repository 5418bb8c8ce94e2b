package cli

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"poolpriority.dev/scheduler/pkg/gate"
)

// read reads what is to be known of the pod beside itself and what was published.
func (e *explainer) read(ctx context.Context, c *cluster) {
	e.readPlace(ctx, c)
	if e.published != nil {
		e.readFacts(ctx, c)
	}
	e.now = c.now()
	if e.published != nil {
		e.Notes = append(e.Notes, e.published.notes(e.now)...)
	}
}

// readPlace reads in which pool the pod's node is.
func (e *explainer) readPlace(ctx context.Context, c *cluster) {
	if e.pod.Spec.NodeName == "" {
		return
	}
	nodes, err := c.nodesOf(ctx, []corev1.Pod{*e.pod}, e.published, 1)
	if apierrors.IsForbidden(err) {
		err = errors.New("you may not get nodes: ask for the role pool-priority-viewer")
	}
	if err != nil {
		e.note("in which pool node %s is cannot be told: %v", e.pod.Spec.NodeName, err)
	}
	e.Pool, e.placed = e.published.poolOf(e.pod, nodes)
}

// readFacts reads what the gate goes by of the pod's namespace and volumes: as little as is needed.
func (e *explainer) readFacts(ctx context.Context, c *cluster) {
	p := e.published
	if p.pools.SelectsNamespaces() {
		namespace := &corev1.Namespace{}
		err := c.get(ctx, namespace, "", e.pod.Namespace)
		switch {
		case err == nil:
			e.request.NotSelected = p.pools.NotSelecting(namespace)
		case apierrors.IsNotFound(err):
			e.request.NotSelected = p.pools.NotSelecting(nil)
		default:
			e.note("whether burst pools are for the pods of namespace %s is not known: %v", e.pod.Namespace, err)
		}
	}
	if gate.LooksAtVolumes(p.pools, &p.view.Capacity) {
		var err error
		if e.request.AzureFiles, err = c.azureFiles(ctx, e.pod); err != nil {
			e.note("whether its volumes are Azure Files is not known: %v", err)
		}
	}
}

// azureFiles reports whether the pod claims persistent volumes and all of them are Azure Files. Nothing is asked for a pod that claims none.
func (c *cluster) azureFiles(ctx context.Context, pod *corev1.Pod) (bool, error) {
	var failed error
	note := func(err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			failed = err
		}
	}
	lookup := gate.Volumes{ // what cannot be read is empty, and no Azure Files
		Claim: func(namespace, name string) *corev1.PersistentVolumeClaim {
			claim := &corev1.PersistentVolumeClaim{}
			note(c.get(ctx, claim, namespace, name))
			return claim
		},
		Volume: func(name string) *corev1.PersistentVolume {
			volume := &corev1.PersistentVolume{}
			note(c.get(ctx, volume, "", name))
			return volume
		},
		Provisioner: func(name string) string {
			class := &storagev1.StorageClass{}
			note(c.get(ctx, class, "", name))
			return class.Provisioner
		},
	}
	return lookup.AzureFiles(pod), failed
}
