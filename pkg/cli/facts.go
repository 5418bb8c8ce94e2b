package cli

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/scalein"
)

// facts are what is known of a pod beside itself and what was published.
type facts struct {
	azureFiles  bool
	notSelected []bool
	// pool is the index of the pool that the pod's node is in, or pool.None; known says that it is known.
	pool  int
	known bool
	notes []string
}

// factsOf reads what the gate goes by of the pod's namespace and volumes, and where the pod is: as little as is needed.
func (c *cluster) factsOf(ctx context.Context, pod *corev1.Pod, p *publishedState) facts {
	f := facts{pool: pool.None}
	if p == nil {
		return f
	}
	if pod.Spec.NodeName != "" {
		if err := c.place(ctx, pod, p, &f); err != nil {
			f.notes = append(f.notes, fmt.Sprintf("in which pool node %s is cannot be told: %v", pod.Spec.NodeName, err))
		}
	}
	if p.pools.SelectsNamespaces() {
		namespace, err := c.client.CoreV1().Namespaces().Get(ctx, pod.Namespace, metav1.GetOptions{})
		switch {
		case err == nil:
			f.notSelected = p.pools.NotSelecting(namespace)
		case apierrors.IsNotFound(err):
			f.notSelected = p.pools.NotSelecting(nil)
		default:
			f.notes = append(f.notes, fmt.Sprintf("whether burst pools are for the pods of namespace %s is not known: %v", pod.Namespace,
				c.plainly("get namespaces/"+pod.Namespace, err)))
		}
	}
	if gate.LooksAtVolumes(p.pools, &p.view.Capacity) {
		var err error
		if f.azureFiles, err = c.azureFiles(ctx, pod); err != nil {
			f.notes = append(f.notes, fmt.Sprintf("whether its volumes are Azure Files is not known: %v", err))
		}
	}
	return f
}

// place finds the pool that the pod's node is in: by the pod's annotation, or by the node.
func (c *cluster) place(ctx context.Context, pod *corev1.Pod, p *publishedState, f *facts) error {
	if i, ok := p.indexOf(pod.Annotations[scalein.PoolAnnotation]); ok {
		f.pool, f.known = i, true
		return nil
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return errors.New("you may not get nodes: ask for the role pool-priority-viewer")
	case err != nil:
		return c.plainly("get nodes/"+pod.Spec.NodeName, err)
	}
	f.pool, f.known = p.pools.Of(node.Labels), true
	return nil
}

// indexOf returns the index of the pool with the name, and whether there is one.
func (p *publishedState) indexOf(name string) (int, bool) {
	for i := range p.pools.Len() {
		if p.pools.At(i).Name == name {
			return i, true
		}
	}
	return pool.None, false
}

// azureFiles reports whether the pod claims persistent volumes and all of them are Azure Files. Nothing is asked for a pod that claims none.
func (c *cluster) azureFiles(ctx context.Context, pod *corev1.Pod) (bool, error) {
	var failed error
	lookup := gate.Volumes{
		Claim: func(namespace, name string) *corev1.PersistentVolumeClaim {
			claim, err := c.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
			return found(claim, c.unless(err, fmt.Sprintf("get persistentvolumeclaims/%s in %s", name, namespace), &failed))
		},
		Volume: func(name string) *corev1.PersistentVolume {
			volume, err := c.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
			return found(volume, c.unless(err, "get persistentvolumes/"+name, &failed))
		},
		Provisioner: func(class string) string {
			storageClass, err := c.client.StorageV1().StorageClasses().Get(ctx, class, metav1.GetOptions{})
			if !c.unless(err, "get storageclasses/"+class, &failed) {
				return ""
			}
			return storageClass.Provisioner
		},
	}
	return lookup.AzureFiles(pod), failed
}

// unless reports whether there was no error, and notes one that says more than that something does not exist.
func (c *cluster) unless(err error, what string, failed *error) bool {
	if err != nil && !apierrors.IsNotFound(err) {
		*failed = c.plainly(what, err)
	}
	return err == nil
}

func found[T any](object *T, there bool) *T {
	if there {
		return object
	}
	return nil
}
