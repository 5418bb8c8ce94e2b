package gatekeeper

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"poolpriority.dev/scheduler/pkg/aci"
)

// usage is what the pods on each node take, whosever they are: added up as they come, change and go, so that asking costs something for each node
// and nothing for each pod. It is for figures: the gate goes by the scheduling cycle's snapshot.
type usage struct {
	hasSynced cache.InformerSynced

	mu    sync.Mutex
	pods  map[types.UID]taken
	nodes map[string]load // by name; without those that have no pods
}

// taken is what one pod takes.
type taken struct {
	node string
	load
}

// load is what pods take: as kube reckons it, and as Azure Container Instances bills it. Which of them counts is for the node's pool to say, and the
// node may be heard of later than the pod.
type load struct{ requests, billed aci.Use }

// plus adds n times (1 or -1) the other. What overflows comes back when it is taken away again.
func (l load) plus(n int, other load) load {
	return load{sum(l.requests, n, other.requests), sum(l.billed, n, other.billed)}
}

func sum(a aci.Use, n int, b aci.Use) aci.Use {
	return aci.Use{Pods: a.Pods + n*b.Pods, MilliCPU: a.MilliCPU + int64(n)*b.MilliCPU, Memory: a.Memory + int64(n)*b.Memory}
}

// newUsage returns one that follows the pods.
func newUsage(pods coreinformers.PodInformer) (*usage, error) {
	u := &usage{pods: map[types.UID]taken{}, nodes: map[string]load{}}
	registration, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { u.see(obj.(*v1.Pod)) },
		UpdateFunc: func(oldObj, newObj any) {
			// An informer may merge the deletion of a pod with the creation of another of the same name.
			if oldPod := oldObj.(*v1.Pod); oldPod.UID != newObj.(*v1.Pod).UID {
				u.gone(oldPod.UID)
			}
			u.see(newObj.(*v1.Pod))
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if pod, ok := obj.(*v1.Pod); ok {
				u.gone(pod.UID)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	u.hasSynced = registration.HasSynced
	return u, nil
}

// see takes in a pod that was added or that changed.
func (u *usage) see(pod *v1.Pod) {
	now := taken{node: pod.Spec.NodeName}
	if now.node != "" {
		now.load = load{requests: aci.UseOf(pod, false), billed: aci.UseOf(pod, true)}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if before := u.pods[pod.UID]; before == now {
		return
	}
	u.goneLocked(pod.UID)
	if now.requests.Pods > 0 {
		u.pods[pod.UID] = now
		u.nodes[now.node] = u.nodes[now.node].plus(1, now.load)
	}
}

func (u *usage) gone(pod types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.goneLocked(pod)
}

func (u *usage) goneLocked(pod types.UID) {
	before, ok := u.pods[pod]
	if !ok {
		return
	}
	delete(u.pods, pod)
	if left := u.nodes[before.node].plus(-1, before.load); left.requests.Pods > 0 {
		u.nodes[before.node] = left
	} else {
		delete(u.nodes, before.node)
	}
}

// sums adds up what is on the nodes, by the index that each has in byNode, from 0 to n-1.
func (u *usage) sums(n int, byNode map[string]int) []load {
	sums := make([]load, n)
	u.mu.Lock()
	defer u.mu.Unlock()
	for node, load := range u.nodes {
		if i, ok := byNode[node]; ok {
			sums[i] = sums[i].plus(1, load)
		}
	}
	return sums
}
