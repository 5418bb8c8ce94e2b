package gatekeeper

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// watch adds event handlers for nodes, pods, volumes and namespaces to the scheduler's own informers.
func (g *Gatekeeper) watch() error {
	core := g.config.Informers.Core().V1()
	return errors.Join(
		g.follow("nodes", core.Nodes().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { poke(g.changed) },
			DeleteFunc: func(any) { poke(g.changed) },
			UpdateFunc: func(oldObj, newObj any) {
				if nodegroups.Changed(oldObj.(*v1.Node), newObj.(*v1.Node)) {
					poke(g.changed)
				}
			},
		}),
		g.follow("pods", core.Pods().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { g.see(obj.(*v1.Pod)) },
			UpdateFunc: func(oldObj, newObj any) { g.update(oldObj.(*v1.Pod), newObj.(*v1.Pod)) },
			DeleteFunc: func(obj any) {
				if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = tombstone.Obj
				}
				if pod, ok := obj.(*v1.Pod); ok {
					g.usage.Gone(pod.UID)
					g.deleted(pod)
					g.free(pod)
					g.Freed(placeOf(pod))
					g.providers.Deleted(pod)
				}
			},
		}),
		g.watchVolumes(),
		g.watchNamespaces(),
	)
}

func (g *Gatekeeper) follow(what string, informer cache.SharedIndexInformer, handler cache.ResourceEventHandlerFuncs) error {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		return fmt.Errorf("watching %s: %w", what, err)
	}
	g.synced = append(g.synced, registration.HasSynced)
	return nil
}

// see processes a pod that was added or changed. update calls see before forget, so that the usage of a bound pod is
// counted before the pod's reserved budget is released.
func (g *Gatekeeper) see(pod *v1.Pod) {
	g.usage.See(pod)
	if node, err := g.nodes.Get(pod.Spec.NodeName); err == nil {
		if c := gate.ScheduledCondition(pod); c != nil {
			g.usage.Place(pod, node, c.LastTransitionTime.Time)
		}
	}
	g.providers.See(pod)
}

// update processes a change of a pod.
func (g *Gatekeeper) update(before, pod *v1.Pod) {
	// If a pod is deleted and created again with the same name, an informer may deliver the deletion and the creation
	// as one update.
	if before.UID != pod.UID {
		g.usage.Gone(before.UID)
		g.deleted(before)
		g.providers.Gone(before.UID)
	}
	g.see(pod)
	if isEnded(pod) && !isEnded(before) {
		g.free(pod)
	}
	if freesCapacity(before, pod) {
		g.Freed(placeOf(before))
	}
	if !mayWait(pod) {
		g.deleted(pod) // or bound
		if pod.Spec.NodeName != "" && before.Spec.NodeName == "" {
			g.providers.WarnOfDifferences(pod, func(p *pool.Pool) []string {
				namespace, _ := g.spaces.Get(pod.Namespace) // nil if the informer does not have the namespace
				return g.protections(pod, namespace).In(p)
			})
		}
	} else if g.held.Update(before, pod, g.config.Clock.Now()) {
		poke(g.batch)
	} else if g.config.Args.Tenants && !labels.Equals(before.Labels, pod.Labels) { // other NetworkPolicies may select the pod
		g.lookFor(func(p *v1.Pod) bool { return p.UID == pod.UID })
	}
}

// free handles the end of a pod. If the pod was on a burst node, the budget of the burst pool may now have room for
// held pods.
func (g *Gatekeeper) free(pod *v1.Pod) {
	if g.providers.Follows(pod.Spec.NodeName) {
		g.budgetFreed.Store(true)
		poke(g.earlier)
	}
}

func isEnded(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// lookFor makes the loop sync again if matters returns true for at least one held pod.
func (g *Gatekeeper) lookFor(matters func(*v1.Pod) bool) {
	if g.held.Any(func(pod *v1.Pod, _ string) bool { return matters(pod) }) {
		poke(g.changed)
	}
}

// watchVolumes watches PersistentVolumeClaims, PersistentVolumes and StorageClasses, because a pod's volumes decide
// whether the pod may burst.
func (g *Gatekeeper) watchVolumes() error {
	pvc := func(obj any) {
		pvc := obj.(*v1.PersistentVolumeClaim)
		g.lookFor(func(pod *v1.Pod) bool {
			return pod.Namespace == pvc.Namespace && slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == pvc.Name
			})
		})
	}
	volume := func(any) { g.lookFor(aci.HasPVC) }
	core := g.config.Informers.Core().V1()
	return errors.Join(
		g.follow("persistent volume claims", core.PersistentVolumeClaims().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc: pvc, UpdateFunc: func(_, obj any) { pvc(obj) },
		}),
		g.follow("persistent volumes", core.PersistentVolumes().Informer(), cache.ResourceEventHandlerFuncs{
			AddFunc: volume, UpdateFunc: func(oldObj, newObj any) {
				// The gate reads only the volume's source. The API server rejects changes of the source, but a deleted
				// volume may be created again with another source. The informer may deliver the deletion and the
				// creation as one update.
				if !equality.Semantic.DeepEqual(oldObj.(*v1.PersistentVolume).Spec.PersistentVolumeSource, newObj.(*v1.PersistentVolume).Spec.PersistentVolumeSource) {
					volume(newObj)
				}
			},
		}),
		g.follow("storage classes", g.config.Informers.Storage().V1().StorageClasses().Informer(), cache.ResourceEventHandlerFuncs{AddFunc: volume}),
	)
}

// watchNamespaces watches the labels of namespaces if a burst pool admits only some namespaces.
func (g *Gatekeeper) watchNamespaces() error {
	if !g.config.Pools.SelectsNamespaces() {
		return nil
	}
	changed := func(obj any) {
		name := obj.(*v1.Namespace).Name
		g.lookFor(func(pod *v1.Pod) bool { return pod.Namespace == name })
	}
	return g.follow("namespaces", g.config.Informers.Core().V1().Namespaces().Informer(), cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(oldObj, newObj any) {
			if !labels.Equals(oldObj.(*v1.Namespace).Labels, newObj.(*v1.Namespace).Labels) {
				changed(newObj)
			}
		},
	})
}

// notSelected reports, by the pool's index, whether the pool's namespaceSelector excludes the pod's namespace. It
// returns nil if all pools admit all namespaces. If the informer has not delivered the namespace yet, every selector
// excludes the namespace.
func (g *Gatekeeper) notSelected(pod *v1.Pod) []bool {
	namespace, _ := g.spaces.Get(pod.Namespace) // nil if the informer does not have the namespace
	return g.config.Pools.NotSelecting(namespace)
}
