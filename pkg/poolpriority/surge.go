package poolpriority

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// endingSlack is added to a pod's grace period, because the kubelet cleans up after the grace period.
	endingSlack = 5 * time.Second
	// rolloutRetry bounds the time between retries of a pod that waits for a rollout. The bound is higher if many pods
	// wait.
	rolloutRetry = 10 * time.Second
	// maxWait bounds the wait for pods that are not terminating yet.
	maxWait = 5 * time.Minute
)

// reservation returns a reservation for which the pod can wait instead of bursting, or nil if there is none. The node
// of the reservation ranks above the burst pools. The pod will fit on the node once the node's terminating pods are
// gone. If the rollout makes progress while the pod is pending, the old pods of the rollout count as terminating, too.
// Capacity that is reserved for other held pods does not count as free.
func (s *search) reservation(ctx context.Context, status held.RolloutStatus) (*held.Reservation, error) {
	if status.Of == nil {
		return status.Unknown, nil
	}
	now, counts := s.pl.clock.Now(), s.pl.index.podsByOwner(s.nodes)
	if !status.Of.Replacing && !counts.end(status.Of.Old) {
		return nil, nil // the rollout is over
	}
	taken := s.pl.gatekeeper.Reservations(s.pod.UID)
	known, _ := s.pl.gatekeeper.Lookup(s.pod.UID)
	since := known.WaitsForRollout
	goesOn := (since.IsZero() || now.Sub(since) < min(maxWait, status.Of.Deadline/2)) && s.goesOn(ctx, status.Of, counts, taken)
	node, until, err := s.placeAmong(ctx, status.Of, taken, false, now)
	ending := node != ""
	if node == "" && err == nil && goesOn {
		node, _, err = s.placeAmong(ctx, status.Of, taken, true, now)
		until = now.Add(max(rolloutRetry, time.Duration(len(taken))*held.TryEach))
		if since.IsZero() {
			since = now
		}
	}
	if err != nil || node == "" {
		return nil, err
	}
	return &held.Reservation{Wait: gate.Wait{Reason: gate.ReasonRolloutTerminating.With("on node %s", node), Until: until}, Node: node, Terminating: ending, Since: since,
		Deployment: status.Of.Deployment, ReplicaSet: status.Of.New}, nil
}

// victimsOf returns a reservation on the node where the pod's preemption victims are terminating, or nil. It looks only
// at nodes outside burst pools. It ignores victims whose grace period is over.
func (pl *PoolPriority) victimsOf(pod *v1.Pod, nodes []fwk.NodeInfo) *held.Reservation {
	if pl.index.endings == 0 {
		return nil
	}
	now := pl.clock.Now()
	for position := range pl.index.entries {
		e := &pl.index.entries[position]
		if !e.ending || !slices.ContainsFunc(pl.handle.NominatedPodsForNode(e.node.Name), func(n fwk.PodInfo) bool { return n.GetPod().UID == pod.UID }) {
			continue
		}
		var until time.Time
		for _, info := range nodes[position].GetPods() {
			if end := info.GetPod().DeletionTimestamp; end != nil && corev1helpers.PodPriority(info.GetPod()) < corev1helpers.PodPriority(pod) && end.Add(endingSlack).After(until) {
				until = end.Add(endingSlack)
			}
		}
		if now.Before(until) {
			return &held.Reservation{Wait: gate.Wait{Reason: gate.ReasonVictimsTerminating.With("on node %s", e.node.Name), Until: until}, Node: e.node.Name, Terminating: true}
		}
	}
	return nil
}

// placeAmong returns the name of the best-ranked node that the pod will fit once the node's terminating pods are gone.
// If replaced is set, the pods that the rollout replaces count as gone, too. placeAmong also returns the time at which
// the node's last terminating pod will be gone. The name is "" if the pod will fit no node.
func (s *search) placeAmong(ctx context.Context, status *rollout.Rollout, taken []held.ReservedPod, replaced bool, now time.Time) (string, time.Time, error) {
	old := map[int]bool{} // positions of the nodes with pods that the rollout replaces
	if replaced {
		for uid := range status.Old {
			maps.Copy(old, s.pl.index.podsByOwner(s.nodes).on[uid])
		}
	}
	for place := range s.pl.index.tiers {
		rank := s.order.RankAt(place)
		if s.pl.pools.IsBurstRank(rank) {
			break
		}
		for _, position := range s.pl.index.tiers[rank] {
			e := &s.pl.index.entries[position]
			if (!e.ending && !old[position]) || (s.only != nil && !s.only.Has(e.node.Name)) {
				continue
			}
			leaving, until := s.leaving(position, status, replaced, now)
			if len(leaving) == 0 {
				continue
			}
			fits, err := s.fitsInPlaceOf(ctx, position, leaving, coming(taken, e.node.Name, status, replaced))
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

// leaving returns the terminating pods of the node and when the last of them will be gone. If replaced is set, it also
// returns the node's pods that the rollout replaces.
func (s *search) leaving(position int, status *rollout.Rollout, replaced bool, now time.Time) (pods []fwk.PodInfo, until time.Time) {
	for _, info := range s.nodes[position].GetPods() {
		if end := info.GetPod().DeletionTimestamp; end != nil {
			if gone := end.Add(endingSlack); gone.Before(now) || gone.After(now.Add(status.Grace+endingSlack)) {
				continue
			} else if gone.After(until) {
				until = gone
			}
		} else if _, old := status.Old[refusal.OwnerOf(info.GetPod())]; !old || !replaced {
			continue
		}
		pods = append(pods, info)
	}
	return pods, until
}

// coming returns the held pods that wait for the node's terminating pods. If replaced is set, it also returns the held
// pods that wait for old pods of this rollout. It leaves out held pods that wait for old pods of another rollout.
func coming(taken []held.ReservedPod, node string, status *rollout.Rollout, replaced bool) []*v1.Pod {
	var pods []*v1.Pod
	for i := range taken {
		if t := &taken[i]; t.Node == node && (t.Terminating || replaced && t.Deployment == status.Deployment) {
			pods = append(pods, t.Pod)
		}
	}
	return pods
}

// goesOn reports whether the rollout will delete old pods even while the pod stays pending.
func (s *search) goesOn(ctx context.Context, status *rollout.Rollout, counts *podsByOwner, taken []held.ReservedPod) bool {
	reserved, waiting := 0, 0 // new pods that get the place of a terminating pod, and new pods that wait for old pods that are not terminating yet
	for i := range taken {
		if taken[i].ReplicaSet == status.New && taken[i].Terminating {
			reserved++
		} else if taken[i].ReplicaSet == status.New {
			waiting++
		}
	}
	condemned := 0 // old pods that the ReplicaSet controller is about to delete
	for uid, wanted := range status.Old {
		condemned += max(0, counts.living[uid]-wanted)
	}
	pending := max(0, status.Wanted-counts.living[status.New]-reserved-condemned)
	goesOn := waiting < condemned || status.GoesOn(pending)
	klog.FromContext(ctx).V(4).Info("Checked whether the rollout will delete old pods while the pod is pending", "pod", klog.KObj(s.pod), "goesOn", goesOn, "wanted", status.Wanted, "placed", counts.living[status.New],
		"waitForEnding", reserved, "waitForOthers", waiting, "condemned", condemned, "pending", pending)
	return goesOn
}

// fitsInPlaceOf reports whether the pod fits on the node once the leaving pods are gone and the coming pods run on it.
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
	nominated := s.pl.handle.NominatedPodsForNode(node.Node().Name) // RunFilterPluginsWithNominatedPods adds those with at least the pod's priority
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

// freeAfter returns the node's free resources once the leaving pods are gone and the coming pods run on it.
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

// ownedPods counts the pods of one owner on a node.
type ownedPods struct {
	owner          types.UID
	living, ending int
}

// podsByOwner counts the pods of the snapshot by their controlling owners.
type podsByOwner struct {
	living map[types.UID]int
	ending map[types.UID]int          // only on nodes outside burst pools
	on     map[types.UID]map[int]bool // the positions of nodes outside burst pools that have pods of the owner
}

func newPodsByOwner() podsByOwner {
	return podsByOwner{living: map[types.UID]int{}, ending: map[types.UID]int{}, on: map[types.UID]map[int]bool{}}
}

// end reports whether any of the owners has terminating pods outside burst pools.
func (p *podsByOwner) end(owners map[types.UID]int) bool {
	for uid := range owners {
		if p.ending[uid] > 0 {
			return true
		}
	}
	return false
}

// podsByOwner returns the number of pods by owner. It counts again only the pods of nodes that have changed since the
// last call.
func (x *index) podsByOwner(nodes []fwk.NodeInfo) *podsByOwner {
	for _, position := range x.stale {
		e := &x.entries[position]
		x.owners.add(e, position, -1)
		e.countOwners(nodes[position].GetPods(), !x.pools.IsBurstRank(e.rank))
		x.owners.add(e, position, 1)
		e.stale = false
	}
	x.stale = x.stale[:0]
	return &x.owners
}

// countOwners counts the node's pods by their controlling owners. better is set for a node outside burst pools.
func (e *entry) countOwners(pods []fwk.PodInfo, better bool) {
	e.owned, e.better = e.owned[:0], better
	for _, info := range pods {
		owner := refusal.OwnerOf(info.GetPod())
		i := slices.IndexFunc(e.owned, func(o ownedPods) bool { return o.owner == owner })
		if i < 0 {
			i = len(e.owned)
			e.owned = append(e.owned, ownedPods{owner: owner})
		}
		if isEnding(info) {
			e.owned[i].ending++
		} else {
			e.owned[i].living++
		}
	}
}

// add adds the node's pods to the counts. If times is -1, it subtracts them.
func (p *podsByOwner) add(e *entry, position, times int) {
	count := func(counts map[types.UID]int, owner types.UID, n int) {
		if counts[owner] += n * times; counts[owner] == 0 {
			delete(counts, owner)
		}
	}
	for _, o := range e.owned {
		count(p.living, o.owner, o.living)
		if !e.better {
			continue
		}
		count(p.ending, o.owner, o.ending)
		on := p.on[o.owner]
		switch {
		case times < 0:
			if delete(on, position); len(on) == 0 {
				delete(p.on, o.owner)
			}
		case on == nil:
			p.on[o.owner] = map[int]bool{position: true}
		default:
			on[position] = true
		}
	}
}
