package gatekeeper

import (
	"context"
	"math"

	v1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/gate"
)

// watchPolicies watches NetworkPolicies and DeviceClasses. It does not use the scheduler's own informers, because the
// scheduler would not start without the permission to list and watch them. An informer rejects handlers only after it
// was started.
func (g *Gatekeeper) watchPolicies(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(g.config.Client, 0, informers.WithTransform(func(obj any) (any, error) {
		if p, ok := obj.(*networkingv1.NetworkPolicy); ok {
			return gate.NewPolicy(p), nil
		}
		return obj, nil
	}))
	informer, logged := factory.Networking().V1().NetworkPolicies().Informer(), false
	g.policies, g.classes = informer, factory.Resource().V1().DeviceClasses().Lister()
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if !logged && !informer.HasSynced() {
			klog.FromContext(ctx).Info("The scheduler cannot read NetworkPolicies. With tenants: true, pods burst only if they may lose their NetworkPolicies. Check that the scheduler may list and watch NetworkPolicies", "err", err)
			logged = true
		}
	})
	if g.config.Args.Tenants {
		_, _ = informer.AddEventHandler(g.lookInNamespace())
		go func() {
			if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				poke(g.changed) // there may be no NetworkPolicy
			}
		}()
	}
	poked := func(any) { poke(g.changed) }
	_, _ = factory.Resource().V1().DeviceClasses().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: poked, UpdateFunc: func(_, o any) { poked(o) }, DeleteFunc: poked})
	factory.Start(ctx.Done())
}

// devices returns the extended resources of DeviceClasses. From 1.36 on, a node can have devices for them, and does not
// list how many.
func (g *Gatekeeper) devices() v1.ResourceList {
	devices, many := v1.ResourceList{}, *apiresource.NewQuantity(math.MaxInt32, apiresource.DecimalSI)
	classes, _ := g.classes.List(labels.Everything()) // does not fail
	for _, class := range classes {
		devices[v1.ResourceName(resourceapi.ResourceDeviceClassPrefix+class.Name)] = many
		if name := class.Spec.ExtendedResourceName; name != nil {
			devices[v1.ResourceName(*name)] = many
		}
	}
	return devices
}

// lookInNamespace returns a handler that makes the loop sync again after each event if a pod of the object's namespace
// is held.
func (g *Gatekeeper) lookInNamespace() cache.ResourceEventHandler {
	changed := func(obj any) {
		if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
			g.lookFor(func(pod *v1.Pod) bool { return pod.Namespace == key.Namespace })
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }, DeleteFunc: changed}
}

// protections returns those of the pod, as far as the scheduler can read them. The namespace may be nil.
func (g *Gatekeeper) protections(pod *v1.Pod, namespace *v1.Namespace) gate.Lost {
	var policies []*gate.Policy
	all, _ := g.policies.GetIndexer().ByIndex(cache.NamespaceIndex, pod.Namespace) // does not fail
	for _, obj := range all {
		if p, ok := obj.(*gate.Policy); ok {
			policies = append(policies, p)
		}
	}
	return gate.LostBy(pod, namespace, policies)
}

// tenant returns what the gate reads of the pod's namespace if `tenants` is true, and nil otherwise. Until the
// scheduler has read the NetworkPolicies, every pod counts as selected by one.
func (g *Gatekeeper) tenant(pod *v1.Pod) *gate.Tenant {
	if !g.config.Args.Tenants {
		return nil
	}
	namespace, _ := g.spaces.Get(pod.Namespace) // nil if the informer does not have the namespace
	lost := g.protections(pod, namespace)
	if !g.policies.HasSynced() {
		lost[configv1.LossNetworkPolicy] = "its NetworkPolicies, which the scheduler cannot read"
	}
	return gate.TenantOf(namespace, lost)
}
