package poolpriority

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// endingSlack is how much longer than its grace period a pod may take to end: the kubelet cleans up after it.
	endingSlack = 5 * time.Second
	// lookAgain is when a pod that waits for a rollout to go on is tried again at the latest.
	lookAgain = 10 * time.Second
	// stirredAgain is when it is at the earliest if the rollout changes. Both are longer where many pods wait: a try costs some
	// milliseconds in a large cluster, and each pod has tryEach.
	stirredAgain, tryEach = time.Second, 40 * time.Millisecond
	// maxWait is for how long at most a pod waits for pods that are not ending yet.
	maxWait = 5 * time.Minute
	// replicaSetLag is how much later than its pods the scheduler may hear of a ReplicaSet.
	replicaSetLag = 5 * time.Second
)

// room is a place that a held pod waits for.
type room struct {
	gate.Room
	node                   string
	ending                 bool      // all that it waits for is ending already
	since                  time.Time // since when it has been waiting for what is not; zero if it has not
	deployment, replicaSet types.UID // the pod's own
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

// surge is what is known of whether a pod is a new one of a rollout: it is of one, it is of none, or its ReplicaSet is not known
// yet.
type surge struct {
	of     *rollout.Rollout
	unseen *room
}

// may reports whether the pod is, or may be, a new one of a rollout.
func (s surge) may() bool { return s.of != nil || s.unseen != nil }

// rollouts tells which pods are the new ones of a rollout. A nil one knows of none.
type rollouts struct {
	deployments appslisters.DeploymentLister
	replicaSets cache.Indexer        // with the index byController
	hasSynced   cache.InformerSynced // the Deployments are known
	pods        podCounts
}

// byController is the index of ReplicaSets by the UID of what controls them.
const byController = "poolpriority.dev/controller"

func controllerIndex(obj any) ([]string, error) {
	if owner := metav1.GetControllerOfNoCopy(obj.(*appsv1.ReplicaSet)); owner != nil {
		return []string{string(owner.UID)}, nil
	}
	return nil, nil
}

// podCounts are the pods of each owner in a snapshot.
type podCounts struct {
	version int // of the index
	living  map[types.UID]int
	ending  map[types.UID]int   // on nodes better than a burst pool's
	on      map[types.UID][]int // the positions of those nodes, rising
}

// end reports whether pods of one of the ReplicaSets are ending.
func (c *podCounts) end(replicaSets map[types.UID]int) bool {
	for uid := range replicaSets {
		if c.ending[uid] > 0 {
			return true
		}
	}
	return false
}

func (r *rollouts) synced() bool { return r == nil || r.hasSynced() }

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
	replicaSets := handle.SharedInformerFactory().Apps().V1().ReplicaSets().Informer()
	if err := replicaSets.AddIndexers(cache.Indexers{byController: controllerIndex}); err != nil {
		return nil, fmt.Errorf("indexing ReplicaSets: %w", err)
	}
	r := &rollouts{
		deployments: factory.Apps().V1().Deployments().Lister(),
		replicaSets: replicaSets.GetIndexer(),
		hasSynced:   factory.Apps().V1().Deployments().Informer().HasSynced,
	}
	if _, err := replicaSets.AddEventHandler(cache.ResourceEventHandlerFuncs{
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

// of returns what is known of the pod at the time now.
func (r *rollouts) of(pod *v1.Pod, now time.Time) surge {
	owner := metav1.GetControllerOf(pod)
	if r == nil || owner == nil || owner.Kind != "ReplicaSet" {
		return surge{}
	}
	obj, _, _ := r.replicaSets.GetByKey(pod.Namespace + "/" + owner.Name) // does not fail
	own, known := obj.(*appsv1.ReplicaSet)
	if !known || own.UID != owner.UID || own.Spec.Replicas != nil && *own.Spec.Replicas == 0 {
		// It wants no pod, as far as is known, and has one: what is known is old. Or it does since, and the pod will go.
		if now.Sub(pod.CreationTimestamp.Time) > replicaSetLag {
			return surge{}
		}
		reason := gate.ReasonEarly
		reason.Detail = "ReplicaSet " + owner.Name
		return surge{unseen: &room{Room: gate.Room{Reason: reason, Until: now.Add(retryUnseen)}}}
	}
	deployment := metav1.GetControllerOf(own)
	if deployment == nil || deployment.Kind != "Deployment" {
		return surge{}
	}
	d, err := r.deployments.Deployments(pod.Namespace).Get(deployment.Name)
	if err != nil || d.UID != deployment.UID {
		return surge{}
	}
	objs, err := r.replicaSets.ByIndex(byController, string(d.UID))
	if err != nil {
		return surge{} // the index is there
	}
	all := make([]*appsv1.ReplicaSet, len(objs))
	for i := range objs {
		all[i] = objs[i].(*appsv1.ReplicaSet)
	}
	return surge{of: rollout.Of(d, all, own.UID)}
}

// countPods counts the pods of the snapshot by their owners, unless nothing changed since it last did.
func (s *search) countPods() *podCounts {
	counts := &s.pl.gate.rollouts.pods
	if counts.living != nil && counts.version == s.pl.index.version {
		return counts
	}
	*counts = podCounts{version: s.pl.index.version, living: map[types.UID]int{}, ending: map[types.UID]int{}, on: map[types.UID][]int{}}
	for position, node := range s.nodes {
		better := int(s.pl.index.entries[position].rank) <= s.pl.pools.Regular()
		for _, info := range node.GetPods() {
			owner := ownerOf(info)
			if !isEnding(info) {
				counts.living[owner]++
			} else if better {
				counts.ending[owner]++
			}
			if on := counts.on[owner]; better && (len(on) == 0 || on[len(on)-1] != position) {
				counts.on[owner] = append(on, position)
			}
		}
	}
	return counts
}

// ownerOf returns the UID of what controls the pod, or "".
func ownerOf(info fwk.PodInfo) types.UID {
	if owner := metav1.GetControllerOfNoCopy(info.GetPod()); owner != nil {
		return owner.UID
	}
	return ""
}

// room returns a node better than a burst pool's on which the pod will fit once pods have ended: those that are ending and will
// be gone by the end of their grace period and, while the rollout goes on without the pod, those that it replaces. Room that
// other held pods wait for is theirs. It returns nil if there is no such node.
func (s *search) room(ctx context.Context, surge surge) (*room, error) {
	if surge.of == nil {
		return surge.unseen, nil
	}
	now, counts := s.pl.gate.clock.Now(), s.countPods()
	if !surge.of.Replacing && !counts.end(surge.of.Old) {
		return nil, nil // the rollout is over
	}
	taken := s.pl.gate.held.rooms(s.pod.UID)
	since := s.pl.gate.held.waitingSince(s.pod.UID)
	goesOn := (since.IsZero() || now.Sub(since) < min(maxWait, surge.of.Deadline/2)) && s.goesOn(ctx, surge.of, counts, taken)
	node, until, err := s.roomAmong(ctx, surge.of, taken, false, now)
	ending := node != ""
	if node == "" && err == nil && goesOn {
		node, _, err = s.roomAmong(ctx, surge.of, taken, true, now)
		until = now.Add(max(lookAgain, time.Duration(len(taken))*tryEach))
		if since.IsZero() {
			since = now
		}
	}
	if err != nil || node == "" {
		return nil, err
	}
	found := &room{Room: gate.Room{Reason: gate.ReasonRoom, Until: until}, node: node, ending: ending, since: since,
		deployment: surge.of.Deployment, replicaSet: surge.of.New}
	found.Reason.Detail = "on node " + node
	return found, nil
}

// roomAmong returns the best-ranked node on which the pod will fit once those that are ending have ended and, with replaced, those
// that the rollout replaces; and when those that are ending will have. It returns "" if there is none.
func (s *search) roomAmong(ctx context.Context, surge *rollout.Rollout, taken []heldRoom, replaced bool, now time.Time) (string, time.Time, error) {
	old := map[int]bool{} // the nodes that have pods which the rollout replaces
	if replaced {
		for uid := range surge.Old {
			for _, position := range s.countPods().on[uid] {
				old[position] = true
			}
		}
	}
	for rank := 0; rank <= s.pl.pools.Regular(); rank++ {
		for _, position := range s.pl.index.tiers[rank] {
			e := &s.pl.index.entries[position]
			if (!e.ending && !old[position]) || (s.only != nil && !s.only.Has(e.node.Name)) {
				continue
			}
			leaving, until := s.leaving(position, surge, replaced, now)
			if len(leaving) == 0 {
				continue
			}
			fits, err := s.fitsInPlaceOf(ctx, position, leaving, coming(taken, e.node.Name, surge, replaced))
			if err != nil {
				return "", time.Time{}, err
			}
			if fits {
				return e.node.Name, until, nil
			}
		}
	}
	return "", time.Time{}, nil
}

// leaving returns the pods of the node that will leave it, those that the rollout replaces among them with replaced, and when the
// last of those that are ending will have left.
func (s *search) leaving(position int, surge *rollout.Rollout, replaced bool, now time.Time) (pods []fwk.PodInfo, until time.Time) {
	for _, info := range s.nodes[position].GetPods() {
		if end := info.GetPod().DeletionTimestamp; end != nil {
			if gone := end.Add(endingSlack); gone.Before(now) || gone.After(now.Add(surge.Grace+endingSlack)) {
				continue
			} else if gone.After(until) {
				until = gone
			}
		} else if _, old := surge.Old[ownerOf(info)]; !old || !replaced {
			continue
		}
		pods = append(pods, info)
	}
	return pods, until
}

// coming returns the pods that wait for what leaves the node: for those that are ending and, with replaced, for those that the
// rollout replaces. What other rollouts replace is left to their own pods.
func coming(taken []heldRoom, node string, surge *rollout.Rollout, replaced bool) []*v1.Pod {
	var pods []*v1.Pod
	for i := range taken {
		if t := &taken[i]; t.node == node && (t.ending || replaced && t.deployment == surge.Deployment) {
			pods = append(pods, t.pod)
		}
	}
	return pods
}

// goesOn reports whether old pods will go although the pod finds no place.
func (s *search) goesOn(ctx context.Context, surge *rollout.Rollout, counts *podCounts, taken []heldRoom) bool {
	promised, waiting := 0, 0 // new pods that will have the place of one that is ending, and that wait for one to end
	for i := range taken {
		if taken[i].replicaSet == surge.New && taken[i].ending {
			promised++
		} else if taken[i].replicaSet == surge.New {
			waiting++
		}
	}
	condemned := 0 // old pods that the ReplicaSet controller is about to delete
	for uid, wanted := range surge.Old {
		condemned += max(0, counts.living[uid]-wanted)
	}
	pending := max(0, surge.Wanted-counts.living[surge.New]-promised-condemned)
	goesOn := waiting < condemned || surge.GoesOn(pending)
	klog.FromContext(ctx).V(4).Info("Looked at a rollout", "pod", klog.KObj(s.pod), "goesOn", goesOn, "wanted", surge.Wanted, "placed", counts.living[surge.New],
		"waitForEnding", promised, "waitForOthers", waiting, "condemned", condemned, "pending", pending)
	return goesOn
}

// fitsInPlaceOf reports whether the pod fits on the node once the leaving pods are gone and the coming ones are there.
func (s *search) fitsInPlaceOf(ctx context.Context, position int, leaving []fwk.PodInfo, coming []*v1.Pod) (bool, error) {
	if s.byResources && !s.request.fit(s.freeAfter(position, leaving, coming)) {
		return false, nil
	}
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
	nominated := s.pl.handle.NominatedPodsForNode(node.Node().Name) // the filters run with them
	for _, pod := range coming {
		if slices.ContainsFunc(nominated, func(n fwk.PodInfo) bool {
			return n.GetPod().UID == pod.UID && corev1helpers.PodPriority(n.GetPod()) >= corev1helpers.PodPriority(s.pod)
		}) {
			continue
		}
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			return false, fmt.Errorf("reading pod %s: %w", klog.KObj(pod), err)
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

// freeAfter is what is free on the node then.
func (s *search) freeAfter(position int, leaving []fwk.PodInfo, coming []*v1.Pod) requests {
	free := s.pl.index.entries[position].free
	for _, info := range leaving {
		r := info.CalculateResource().Resource
		free.MilliCPU, free.Memory, free.Pods = free.MilliCPU+r.GetMilliCPU(), free.Memory+r.GetMemory(), free.Pods+1
	}
	for _, pod := range coming {
		r := podRequests(pod)
		free.MilliCPU, free.Memory, free.Pods = free.MilliCPU-r.MilliCPU, free.Memory-r.Memory, free.Pods-r.Pods
	}
	return free
}
