package poolpriority

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/gatekeeper/held"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// endingSlack is added to a pod's grace period, because the kubelet cleans up after the grace period.
	endingSlack = 5 * time.Second
	// rolloutRetry is the time between retries of a pod that waits for a rollout. The time is longer if many pods wait, by
	// rolloutRetryEach for each, because in a large cluster, one retry takes some milliseconds.
	rolloutRetry     = 10 * time.Second
	rolloutRetryEach = 40 * time.Millisecond
	// maxWait bounds the wait for other pods of a rollout, unless their grace period is longer.
	maxWait = 5 * time.Minute
	// maxVictimsWait bounds the wait of a pod that could burst for a pod that it preempted.
	maxVictimsWait = time.Minute
)

// forRollout returns the pod's wait for its rollout, or nil. The pod waits instead of bursting while old pods of the
// rollout terminate, and while the rollout will delete old pods although the pod is pending. As many new pods wait as old
// pods go. No room is kept for one of them.
func (s *search) forRollout(ctx context.Context, status held.RolloutStatus) *gate.Wait {
	of := status.Of
	if of == nil {
		return status.Unknown
	}
	now := s.pl.clock.Now()
	since, others := s.pl.gatekeeper.Held().ForRollout(s.pod.UID, of.New)
	if since.IsZero() {
		since = now
	}
	last, ending, living := s.oldPods(of, now)
	limit := min(maxWait, of.Deadline/2)
	switch {
	case others < ending:
		limit = max(limit, of.Grace+endingSlack)
	case others >= ending+living || !s.goesOn(ctx, of, ending, others-ending):
		return nil
	}
	until := nodegroups.Earliest(now.Add(max(rolloutRetry, time.Duration(others)*rolloutRetryEach)), nodegroups.Earliest(last, since.Add(limit)))
	if !now.Before(until) {
		return nil
	}
	return &gate.Wait{Reason: gate.ReasonRolloutTerminating, Until: until, ReplicaSet: of.New}
}

// oldPods counts the terminating and the other pods that the rollout replaces, and returns when the last of the
// terminating ones will be gone. It looks only at nodes outside burst pools that the pod may use.
func (s *search) oldPods(of *rollout.Rollout, now time.Time) (last time.Time, ending, living int) {
	counts := s.pl.index.podsByOwner(s.nodes)
	for uid := range of.Old {
		for position := range counts.on[uid] {
			e := &s.pl.index.entries[position]
			if s.only != nil && !s.only.Has(e.node.Name) || !s.pl.letsIn(s.pod, nil, e.node) {
				continue
			}
			o := e.owned[slices.IndexFunc(e.owned, func(o ownedPods) bool { return o.owner == uid })]
			living += o.living
			for _, end := range o.ends {
				if gone := end.Add(endingSlack); !gone.Before(now) && !gone.After(now.Add(of.Grace+endingSlack)) {
					last = nodegroups.Latest(last, gone)
					ending++
				}
			}
		}
	}
	return last, ending, living
}

// goesOn reports whether the rollout will delete old pods even while the pod stays pending. ending is the number of new
// pods that will get the room of terminating pods, and waiting that of other new pods that wait.
func (s *search) goesOn(ctx context.Context, of *rollout.Rollout, ending, waiting int) bool {
	counts, condemned := s.pl.index.podsByOwner(s.nodes), 0 // condemned are old pods that the ReplicaSet controller is about to delete
	for uid, wanted := range of.Old {
		condemned += max(0, counts.living[uid]-wanted)
	}
	pending := max(0, of.Wanted-counts.living[of.New]-condemned-ending)
	goesOn := waiting < condemned || of.GoesOn(pending)
	klog.FromContext(ctx).V(4).Info("Checked whether the rollout will delete old pods while the pod is pending", "pod", klog.KObj(s.pod), "goesOn", goesOn, "wanted", of.Wanted,
		"placed", counts.living[of.New], "ending", ending, "waiting", waiting, "condemned", condemned, "pending", pending)
	return goesOn
}

// victimsOf returns the pod's wait for its preemption victims, or nil. It looks only at nodes outside burst pools. It
// ignores victims whose grace period is over, or that began to end more than maxVictimsWait ago, with endingSlack.
func (pl *PoolPriority) victimsOf(pod *v1.Pod, nodes []fwk.NodeInfo) *gate.Wait {
	now := pl.clock.Now()
	for position := range pl.index.entries {
		e := &pl.index.entries[position]
		if e.burst != nil || !e.scan(nodes[position]).ending || !slices.ContainsFunc(pl.handle.NominatedPodsForNode(e.node.Name), func(n fwk.PodInfo) bool { return n.GetPod().UID == pod.UID }) {
			continue
		}
		var until time.Time
		for _, info := range nodes[position].GetPods() {
			end, grace := info.GetPod().DeletionTimestamp, ptr.Deref(info.GetPod().DeletionGracePeriodSeconds, 0)
			if end == nil || corev1helpers.PodPriority(info.GetPod()) >= corev1helpers.PodPriority(pod) {
				continue
			}
			began := end.Add(-time.Duration(grace) * time.Second)
			until = nodegroups.Latest(until, nodegroups.Earliest(end.Time, began.Add(maxVictimsWait)).Add(endingSlack))
		}
		if now.Before(until) {
			return &gate.Wait{Reason: gate.ReasonVictimsTerminating.With("on node %s", e.node.Name), Until: until}
		}
	}
	return nil
}

// ownedPods holds facts about the pods of one owner on a node.
type ownedPods struct {
	owner  types.UID
	living int         // the number of pods that are not terminating
	ends   []time.Time // when the grace periods of the terminating pods end
}

// podsByOwner counts the pods of the snapshot by their controlling owners.
type podsByOwner struct {
	living map[types.UID]int
	on     map[types.UID]map[int]bool // the positions of nodes outside burst pools that have pods of the owner
}

func newPodsByOwner() podsByOwner {
	return podsByOwner{living: map[types.UID]int{}, on: map[types.UID]map[int]bool{}}
}

// podsByOwner returns the number of pods by owner. It counts again only the pods of nodes that have changed since the
// last call.
func (x *index) podsByOwner(nodes []fwk.NodeInfo) *podsByOwner {
	for _, position := range x.stale {
		e := &x.entries[position]
		x.owners.add(e, position, -1)
		e.countOwners(nodes[position].GetPods(), e.rank != pool.Excluded && !x.pools.IsBurstRank(e.rank))
		x.owners.add(e, position, 1)
		e.stale = false
	}
	x.stale = x.stale[:0]
	return &x.owners
}

// countOwners counts the node's pods by their controlling owners. better is set for a node that is better than burst
// nodes.
func (e *entry) countOwners(pods []fwk.PodInfo, better bool) {
	e.owned, e.better = e.owned[:0], better
	for _, info := range pods {
		owner := refusal.OwnerOf(info.GetPod())
		i := slices.IndexFunc(e.owned, func(o ownedPods) bool { return o.owner == owner })
		if i < 0 {
			i = len(e.owned)
			e.owned = append(e.owned, ownedPods{owner: owner})
		}
		if end := info.GetPod().DeletionTimestamp; end == nil {
			e.owned[i].living++
		} else {
			e.owned[i].ends = append(e.owned[i].ends, end.Time)
		}
	}
}

// add adds the node's pods to the counts. If times is -1, it subtracts them.
func (p *podsByOwner) add(e *entry, position, times int) {
	for _, o := range e.owned {
		if p.living[o.owner] += o.living * times; p.living[o.owner] == 0 {
			delete(p.living, o.owner)
		}
		on := p.on[o.owner]
		switch {
		case !e.better:
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
