package gatekeeper

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"poolpriority.dev/scheduler/pkg/compat"
	"poolpriority.dev/scheduler/pkg/gate"
)

// groupsInterval is how often the gatekeeper looks whether the API server serves PodGroups.
const groupsInterval = time.Minute

// watchGroups watches PodGroups if the API server serves them, in the version that it prefers, until that version is gone,
// such as after an upgrade. All groups then count as gangs until they are read again.
func (g *Gatekeeper) watchGroups(ctx context.Context) {
	all, _ := discovery.ServerPreferredResources(g.config.Client.Discovery()) // after an error, there are the others
	found, _ := discovery.GroupVersionResources(all)                          // fails only for an unknown form of versions
	var resource schema.GroupVersionResource
	for r := range found {
		if r.Group == "scheduling.k8s.io" && r.Resource == "podgroups" {
			resource = r
		}
	}
	if resource.Empty() {
		return
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	informer := dynamicinformer.NewFilteredDynamicInformer(g.config.Dynamic, resource, v1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	_, _ = informer.AddEventHandler(g.lookInNamespace()) // fails only after the informer was stopped
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if cache.DefaultWatchErrorHandler(ctx, r, err); apierrors.IsNotFound(err) {
			end()
		}
	})
	store := informer.GetStore()
	g.groups.Store(&store)
	defer g.groups.Store(nil)
	poke(g.changed) // in a build that does not see the pods' groups, PodGroups are a problem
	informer.RunWithContext(ctx)
}

// gang returns the name of the pod's group if the group is a gang, or "". Each group counts as a gang until the
// scheduler has read a PodGroup with the policy basic, and so does a part of a CompositePodGroup, and a
// group with constraints.
func (g *Gatekeeper) gang(pod *v1.Pod) string {
	name, ok := compat.PodGroup(pod)
	if store := g.groups.Load(); ok && store != nil {
		object, _, _ := (*store).GetByKey(pod.Namespace + "/" + name) // does not fail
		if group, read := object.(*unstructured.Unstructured); read {
			_, basic, _ := unstructured.NestedFieldNoCopy(group.Object, "spec", "schedulingPolicy", "basic")
			_, part, _ := unstructured.NestedFieldNoCopy(group.Object, "spec", "parentCompositePodGroupName")
			_, together, _ := unstructured.NestedFieldNoCopy(group.Object, "spec", "schedulingConstraints")
			if basic && !part && !together {
				return ""
			}
		}
	}
	return name
}

// warnOfGang writes an event on a held pod of a gang. Only one pod of each gang gets the event.
func (g *Gatekeeper) warnOfGang(pod *v1.Pod, decision *gate.Decision) {
	if !decision.Closes(gate.ReasonGroupNotHeld) {
		return
	}
	name, _ := compat.PodGroup(pod)
	key := pod.Namespace + "/" + name
	if _, warned := g.warned.Get(key); !warned {
		g.warned.Add(key, nil)
		g.config.Recorder.Eventf(pod, nil, v1.EventTypeWarning, "GroupNotHeld", "Holding",
			"the pods of group %s do not burst: the scheduler places pods one by one, so a part of a gang might run on VMs and a part on burst nodes. The group counts as a gang unless its PodGroup has the policy basic and belongs to no CompositePodGroup", name)
	}
}
