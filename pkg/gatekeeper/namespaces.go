package gatekeeper

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// watchNamespaces follows the labels of namespaces, by which burst pools may say whose pods they are for. The scheduler watches namespaces anyway.
func (g *Gatekeeper) watchNamespaces() error {
	namespaces := g.config.Informers.Core().V1().Namespaces()
	changed := func(obj any) {
		if namespace := obj.(*v1.Namespace); g.held.In(namespace.Name) {
			poke(g.changed)
		}
	}
	registration, err := namespaces.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(oldObj, newObj any) {
			if !labels.Equals(oldObj.(*v1.Namespace).Labels, newObj.(*v1.Namespace).Labels) {
				changed(newObj)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	g.spaces = namespaces.Lister()
	g.synced = append(g.synced, registration.HasSynced)
	return nil
}

// notSelected says of each pool, by its index, that it is not for the pods of the pod's namespace; nil: every pool is for all. A namespace that
// is not known yet is selected by none.
func (g *Gatekeeper) notSelected(pod *v1.Pod) []bool {
	if g.spaces == nil {
		return nil
	}
	namespace, err := g.spaces.Get(pod.Namespace)
	if err != nil {
		namespace = nil
	}
	return g.config.Pools.NotSelecting(namespace)
}
