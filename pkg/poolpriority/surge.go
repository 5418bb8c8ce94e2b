package poolpriority

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// endingSlack is how much longer than its grace period a pod may take to end: the kubelet cleans up after it.
	endingSlack = 5 * time.Second
	// lookAgain is when a pod that waits for a rollout to go on is tried again at the latest, and stirredAgain when it is at the
	// earliest if the rollout changes.
	lookAgain, stirredAgain = 10 * time.Second, time.Second
	// replicaSetLag is how much later than its pods the scheduler may hear of a ReplicaSet.
	replicaSetLag = 5 * time.Second
)

// room is a place that a held pod waits for.
type room struct {
	gate.Room
	node                   string
	ending                 bool              // all that it waits for is ending already
	replaces               map[types.UID]int // the ReplicaSets whose pods it waits for otherwise
	deployment, replicaSet types.UID         // the pod's own
}

// asRequested is the room as the gate sees it.
func (r *room) asRequested() gate.Room {
	if r == nil {
		return gate.Room{}
	}
	return r.Room
}

// heldRoom is a room with the pod that waits for it.
type heldRoom struct {
	pod *v1.Pod
	room
}

// rollouts tells which pods are the new ones of a rollout.
type rollouts struct {
	deployments appslisters.DeploymentLister
	replicaSets appslisters.ReplicaSetLister
}

// newRollouts starts to watch Deployments, of which little is kept, and uses the scheduler's own view of ReplicaSets. stirred is
// called with the UID of a Deployment one of whose ReplicaSets changed. A scheduler that may not read Deployments sees no
// rollouts.
func newRollouts(ctx context.Context, handle fwk.Handle, stirred func(deployment types.UID)) (*rollouts, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(handle.ClientSet(), 0, informers.WithTransform(func(obj any) (any, error) {
		if d, ok := obj.(*appsv1.Deployment); ok {
			d.ManagedFields, d.Annotations, d.Labels, d.Spec.Template = nil, nil, nil, v1.PodTemplateSpec{}
		}
		return obj, nil
	}))
	r := &rollouts{
		deployments: factory.Apps().V1().Deployments().Lister(),
		replicaSets: handle.SharedInformerFactory().Apps().V1().ReplicaSets().Lister(),
	}
	if _, err := handle.SharedInformerFactory().Apps().V1().ReplicaSets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			if owner := metav1.GetControllerOf(obj.(*appsv1.ReplicaSet)); owner != nil {
				stirred(owner.UID)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watching ReplicaSets: %w", err)
	}
	factory.Start(ctx.Done())
	return r, nil
}

// of returns the rollout that the pod is a new one of, or nil.
func (r *rollouts) of(pod *v1.Pod) *rollout.Rollout {
	owner := metav1.GetControllerOf(pod)
	if r == nil || owner == nil || owner.Kind != "ReplicaSet" {
		return nil
	}
	own, err := r.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name)
	if err != nil || own.UID != owner.UID {
		return nil
	}
	deployment := metav1.GetControllerOf(own)
	if deployment == nil || deployment.Kind != "Deployment" {
		return nil
	}
	d, err := r.deployments.Deployments(pod.Namespace).Get(deployment.Name)
	if err != nil || d.UID != deployment.UID {
		return nil
	}
	all, err := r.replicaSets.ReplicaSets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister of everything does not fail
	}
	return rollout.Of(d, all, own.UID)
}

// unseen returns what a pod waits for whose ReplicaSet the scheduler has not heard of yet, or nil.
func (r *rollouts) unseen(pod *v1.Pod, now time.Time) *room {
	owner := metav1.GetControllerOf(pod)
	if r == nil || owner == nil || owner.Kind != "ReplicaSet" || now.Sub(pod.CreationTimestamp.Time) > replicaSetLag {
		return nil
	}
	if _, err := r.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); !apierrors.IsNotFound(err) {
		return nil
	}
	return &room{Room: gate.Room{Detail: "the scheduler has not heard of ReplicaSet " + owner.Name + " yet", Until: now.Add(retryUnseen)}}
}

// room returns a node better than a burst pool's on which the pod will fit once pods have ended: those that are ending and will
// be gone by the end of their grace period and, while the rollout goes on without the pod, those that it replaces. Room that
// other held pods wait for is theirs. It returns nil if there is no such node.
func (s *search) room(ctx context.Context, surge *rollout.Rollout) (*room, error) {
	now := s.pl.gate.clock.Now()
	if surge == nil {
		return s.pl.gate.rollouts.unseen(s.pod, now), nil
	}
	if since := s.pl.gate.held.since(s.pod); !since.IsZero() && now.Sub(since) >= surge.Deadline {
		return nil, nil
	}
	if !surge.Replacing && !s.ends(surge.Old) {
		return nil, nil // the rollout is over
	}
	taken := s.pl.gate.held.rooms(s.pod.UID)
	replaced := s.replaced(surge, taken)
	for rank := 0; rank <= s.pl.pools.Regular(); rank++ {
		for _, position := range s.pl.index.tiers[rank] {
			e := &s.pl.index.entries[position]
			if (!e.ending && len(replaced) == 0) || (s.only != nil && !s.only.Has(e.node.Name)) {
				continue
			}
			var leaving []fwk.PodInfo
			until, ending := time.Time{}, true
			for _, info := range s.nodes[position].GetPods() {
				pod := info.GetPod()
				if end := pod.DeletionTimestamp; end != nil {
					if gone := end.Add(endingSlack); gone.Before(now) || gone.After(now.Add(surge.Grace+endingSlack)) {
						continue
					} else if gone.After(until) {
						until = gone
					}
				} else if replaced[ownerOf(info)] {
					ending = false
				} else {
					continue
				}
				leaving = append(leaving, info)
			}
			if len(leaving) == 0 {
				continue
			}
			fits, err := s.fitsInPlaceOf(ctx, position, leaving, taken)
			if err != nil {
				return nil, err
			}
			if fits {
				if !ending {
					until = now.Add(lookAgain)
				}
				return &room{Room: gate.Room{Detail: "on node " + e.node.Name, Until: until}, node: e.node.Name, ending: ending,
					replaces: surge.Old, deployment: surge.Deployment, replicaSet: surge.New}, nil
			}
		}
	}
	return nil, nil
}

// ends reports whether pods of one of the ReplicaSets are ending on nodes better than a burst pool's.
func (s *search) ends(replicaSets map[types.UID]int) bool {
	for rank := 0; rank <= s.pl.pools.Regular(); rank++ {
		for _, position := range s.pl.index.tiers[rank] {
			if !s.pl.index.entries[position].ending {
				continue
			}
			for _, info := range s.nodes[position].GetPods() {
				if _, is := replicaSets[ownerOf(info)]; is && isEnding(info) {
					return true
				}
			}
		}
	}
	return false
}

// ownerOf returns the UID of what controls the pod, or "".
func ownerOf(info fwk.PodInfo) types.UID {
	if owner := metav1.GetControllerOfNoCopy(info.GetPod()); owner != nil {
		return owner.UID
	}
	return ""
}

// replaced returns the ReplicaSets whose pods will go although the pod finds no place: those that the rollout replaces, if it
// goes on, and those that new pods of other rollouts wait for.
func (s *search) replaced(surge *rollout.Rollout, taken []heldRoom) map[types.UID]bool {
	replaced := map[types.UID]bool{}
	promised, waiting := 0, 0 // new pods that will have the place of one that is ending, and that wait for one to end
	for i := range taken {
		switch other := &taken[i]; {
		case other.ending && other.replicaSet == surge.New:
			promised++
		case !other.ending && other.replicaSet == surge.New:
			waiting++
		case !other.ending:
			for uid := range other.replaces {
				replaced[uid] = true
			}
		}
	}
	if !surge.Replacing {
		return replaced
	}
	living := map[types.UID]int{}
	for _, info := range s.nodes {
		for _, p := range info.GetPods() {
			if owner := ownerOf(p); !isEnding(p) && owner != "" {
				if _, old := surge.Old[owner]; old || owner == surge.New {
					living[owner]++
				}
			}
		}
	}
	condemned := 0 // old pods that the ReplicaSet controller is about to delete
	for uid, wanted := range surge.Old {
		condemned += max(0, living[uid]-wanted)
	}
	if pending := surge.Wanted - living[surge.New] - promised - condemned; waiting < condemned || surge.GoesOn(max(0, pending)) {
		for uid := range surge.Old {
			replaced[uid] = true
		}
	}
	return replaced
}

// fitsInPlaceOf reports whether the pod fits on the node once the leaving pods are gone and the pods that wait for room there
// have come.
func (s *search) fitsInPlaceOf(ctx context.Context, position int, leaving []fwk.PodInfo, taken []heldRoom) (bool, error) {
	logger := klog.FromContext(ctx)
	state, node := s.state.Clone(), s.nodes[position].Snapshot()
	for _, info := range leaving {
		if err := node.RemovePod(logger, info.GetPod()); err != nil {
			return false, fmt.Errorf("leaving out pod %s: %w", klog.KObj(info.GetPod()), err)
		}
		if status := s.pl.handle.RunPreFilterExtensionRemovePod(ctx, state, s.pod, info, node); !status.IsSuccess() {
			return false, status.AsError()
		}
	}
	for i := range taken {
		if taken[i].node != node.Node().Name {
			continue
		}
		info, err := framework.NewPodInfo(taken[i].pod)
		if err != nil {
			return false, fmt.Errorf("reading pod %s: %w", klog.KObj(taken[i].pod), err)
		}
		node.AddPodInfo(info)
		if status := s.pl.handle.RunPreFilterExtensionAddPod(ctx, state, s.pod, info, node); !status.IsSuccess() {
			return false, status.AsError()
		}
	}
	status := s.pl.handle.RunFilterPluginsWithNominatedPods(ctx, state, s.pod, node)
	if !status.IsSuccess() && !status.IsRejected() {
		return false, status.AsError()
	}
	return status.IsSuccess(), nil
}
