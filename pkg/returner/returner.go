// Package returner returns pods from burst pools to VMs, and from regular pools to better regular pools. It searches for
// capacity with the Filter plugins of the scheduler's profile, and evicts the pods that fit a better node.
package returner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/capacitybuffer"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/refusal"
	"poolpriority.dev/scheduler/pkg/returnplan"
	"poolpriority.dev/scheduler/pkg/rollout"
)

const (
	// maxInterval is the longest time between two rounds. A round that takes longer evicts no more pods, because the listed
	// pods and nodes are out of date. searchFor bounds the search of a round for capacity.
	maxInterval, searchFor = 10 * time.Second, 5 * time.Second
	// evictionTimeout is the timeout of one eviction request.
	evictionTimeout = 5 * time.Second
	// roundTimeout is the timeout of one round. startTimeout bounds the wait for Deployments before the first round.
	roundTimeout, startTimeout = 15 * time.Second, 30 * time.Second
)

// Config has the dependencies of a Returner.
type Config struct {
	Pools pool.List
	// Profile is the completed profile that configures PoolPriority. Returner evicts only pods with its scheduler name.
	Profile *schedconfig.KubeSchedulerProfile
	// Informers are the scheduler's own. New registers informers, so the caller must start Informers afterwards.
	Informers informers.SharedInformerFactory
	// Client evicts pods. It also reads CapacityBuffers and Deployments.
	Client kubernetes.Interface
	// Recorder writes an event on an evicted pod.
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Report is called after each round with the pauses of workloads, and with a message if the round did not finish.
	Report func(pauses map[types.UID]returnplan.Pause, problem string)
}

// Returner evicts pods from pools that have Return enabled. It evicts a pod if nodes of better regular pools have had
// capacity for the pod during the whole time stableFor. It is not safe for concurrent use.
type Returner struct {
	Config

	seats       *rooms
	pods        corelisters.PodLister
	nodes       corelisters.NodeLister
	replicaSets appslisters.ReplicaSetLister
	sets        appslisters.StatefulSetLister
	deployments appslisters.DeploymentLister
	budgets     policylisters.PodDisruptionBudgetLister
	own         informers.SharedInformerFactory // of Deployments
	synced      func() bool                     // whether own has synced
	planner     *returnplan.Planner
	away        map[types.UID]move   // evicted pods whose replacements may not be bound yet
	told        map[types.UID]string // why each pod was not evicted, as an event says
	listBuffers func(context.Context) ([]capacitybuffer.Buffer, error)
	forbidden   sync.Once // logs that it is forbidden to read CapacityBuffers
}

// New returns a Returner that has not run yet.
func New(ctx context.Context, config Config) (*Returner, error) {
	seats, err := newRooms(ctx, &config)
	if err != nil {
		return nil, err
	}
	// The scheduler does not start while it cannot list what its own informers watch, and it works without Deployments.
	own := informers.NewSharedInformerFactoryWithOptions(config.Client, 0, informers.WithTransform(func(obj any) (any, error) {
		if d, ok := obj.(*appsv1.Deployment); ok {
			d.ManagedFields = nil
		}
		return obj, nil
	}))
	core, apps := config.Informers.Core().V1(), config.Informers.Apps().V1()
	r := &Returner{Config: config, seats: seats, own: own, away: map[types.UID]move{}, told: map[types.UID]string{},
		pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), replicaSets: apps.ReplicaSets().Lister(), sets: apps.StatefulSets().Lister(),
		budgets: config.Informers.Policy().V1().PodDisruptionBudgets().Lister(), deployments: own.Apps().V1().Deployments().Lister(),
		listBuffers: func(ctx context.Context) ([]capacitybuffer.Buffer, error) {
			return capacitybuffer.List(ctx, config.Client.CoreV1().RESTClient())
		}}
	r.synced = own.Apps().V1().Deployments().Informer().HasSynced
	rules := make([]*returnplan.Rules, r.Pools.Len())
	for i := range r.Pools.Len() {
		if c := r.Pools.At(i).Return(); c != nil {
			rules[i] = &returnplan.Rules{StableFor: c.StableFor.Duration, MinAge: c.MinAge.Duration, PerMinute: int(c.EvictionsPerMinute), PerWorkload: int(c.PerWorkload), Interval: r.interval()}
		}
	}
	r.planner = returnplan.NewPlanner(rules)
	return r, nil
}

// Run runs one round in each interval until the context ends. Call it once Informers have synced and the scheduler leads.
// pauses are those that the last leader recorded.
func (r *Returner) Run(ctx context.Context, pauses map[types.UID]returnplan.Pause) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("return"))
	r.own.Start(ctx.Done())
	_ = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, startTimeout, true, func(context.Context) (bool, error) { return r.synced(), nil }) // else each round says so
	r.restore(pauses)
	klog.FromContext(ctx).Info("Pods are returned to better pools")
	wait.UntilWithContext(ctx, r.safely, r.interval())
}

func (r *Returner) restore(pauses map[types.UID]returnplan.Pause) {
	for workload, pause := range pauses {
		r.planner.Restore(r.Clock.Now(), workload, pause)
	}
}

// interval returns the time between two rounds. It is a fifth of the shortest stableFor, and at most maxInterval.
func (r *Returner) interval() time.Duration {
	interval := maxInterval
	for i := range r.Pools.Len() {
		if c := r.Pools.At(i).Return(); c != nil {
			interval = min(interval, c.StableFor.Duration/5)
		}
	}
	return interval
}

// safely runs a round, counts its result, and reports. If the round panics, the next round starts anew.
func (r *Returner) safely(ctx context.Context) {
	result, problem := roundComplete, ""
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(fmt.Errorf("%v", p), "A round of Return panicked. Pods are not returned to better pools in this round", "stack", string(debug.Stack()))
			result, problem = roundFailed, "Return: the last round failed: its error is in the scheduler's log"
		}
		rounds.WithLabelValues(result).Inc()
		r.Report(r.planner.Pauses(), problem)
	}()
	cut, err := r.round(ctx)
	switch {
	case err != nil:
		klog.FromContext(ctx).Error(err, "Pods are not returned to better pools in this round")
		result, problem = roundFailed, "Return: the last round failed: "+err.Error()
	case cut:
		result, problem = roundCutShort, fmt.Sprintf("Return: the last round was cut short, because its search took longer than %v or the whole round longer than %v. Some pods return later, or not at all. "+
			"Give the scheduler more CPU, enable return in fewer pools, or find out why the API server is slow", searchFor, maxInterval)
	}
}

// round checks all pods once, and evicts those that it can return to a VM now. It reports whether it was cut short because
// it took too long.
func (r *Returner) round(ctx context.Context) (cut bool, err error) {
	if !r.synced() {
		return false, errors.New("the Deployments are not known: the scheduler needs the right to list and watch them, as in manifests/rbac/scheduler.yaml")
	}
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	began := r.Clock.Now()
	world := r.sync()
	for _, arrival := range r.planner.Arrive(began, world.members) {
		if pool := r.Pools.At(arrival.Pool).Name; arrival.Reason == "" {
			returns.WithLabelValues(pool, resultLanded).Inc()
		} else {
			returns.WithLabelValues(pool, resultNotLanded).Inc()
			r.report(ctx, &arrival, world)
		}
	}
	maps.DeleteFunc(r.told, func(uid types.UID, _ string) bool { return world.pods[uid] == nil })
	away := r.planner.Away()
	maps.DeleteFunc(r.away, func(uid types.UID, _ move) bool { return !away[uid] })
	if slices.ContainsFunc(world.candidates, func(pods []returnplan.Pod) bool { return len(pods) > 0 }) {
		r.seats.begin(slices.Collect(maps.Values(r.away)))
	}
	readBuffers := sync.OnceValue(func() error {
		err := r.readBuffers(ctx)
		if err != nil {
			logger.Error(err, "Started pods are not returned to better pools in this round")
		}
		return err
	})
	for i := range slices.Backward(world.candidates) { // the worst-ranked pool first
		from := r.Pools.At(i)
		if from.Return() == nil {
			continue
		}
		found := map[types.UID]*move{}
		room := func(p returnplan.Pod) (bool, string) {
			if cut = cut || r.Clock.Since(began) > searchFor; cut {
				return false, ""
			}
			pod, spare := world.pods[p.UID], p.Harm == "" && !p.Stuck
			if spare && readBuffers() != nil {
				return false, ""
			}
			m, err := r.seats.find(ctx, pod, r.given(pod, from), p.Harm == "", spare)
			if err != nil {
				logger.Error(err, "The search for capacity in better pools failed", "pod", klog.KObj(pod))
				return false, ""
			}
			if found[p.UID] = m; m != nil && m.wanted {
				return true, harmToBuffers
			}
			return m != nil, ""
		}
		evict, harmful := r.planner.Round(began, i, world.candidates[i], room)
		for _, p := range harmful {
			r.stays(from, p, world.pods[p.UID], found[p.UID].to)
		}
		for _, p := range evict {
			if r.Clock.Since(began) > maxInterval {
				return true, nil
			}
			if !p.Stuck && world.harm(&p) != "" {
				continue // because of another eviction in this round
			}
			if !p.Stuck && len(r.seats.buffers) > 0 && len(r.away) > 0 {
				continue // a replacement that is not bound yet may take any node
			}
			if r.evict(ctx, i, p, world.pods[p.UID], found[p.UID], world.members[p.Workload]) && world.ready[p.UID] {
				world.readyOf[p.Workload]--
				delete(world.ready, p.UID)
			}
		}
	}
	return cut, nil
}

// report logs that an eviction did not help.
func (r *Returner) report(ctx context.Context, f *returnplan.Arrival, w *world) {
	evicted := klog.ObjectRef{}
	if m, ok := r.away[f.Evicted]; ok {
		evicted = klog.KObj(m.pod.GetPod())
	}
	klog.FromContext(ctx).Info("Returning a pod to a better pool did not help", "reason", f.Reason, "pod", evicted, "replacement", klog.KObj(w.pods[f.Landed]), "inARow", f.InARow, "until", f.Until)
}

// given returns the tolerations of the pool from, if it is a burst pool, without those in the pod template of the pod's
// ReplicaSet. The controller added these tolerations to the pod, and the replacement pod will not have them.
func (r *Returner) given(pod *corev1.Pod, from *pool.Pool) []corev1.Toleration {
	if from.Burst == nil {
		return nil
	}
	var own []corev1.Toleration
	if owner := metav1.GetControllerOfNoCopy(pod); owner.Kind == "ReplicaSet" {
		if rs, err := r.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			own = rs.Spec.Template.Spec.Tolerations
		}
	}
	return slices.DeleteFunc(from.Tolerations(), func(t corev1.Toleration) bool {
		return slices.ContainsFunc(own, func(o corev1.Toleration) bool { return o.MatchToleration(&t) })
	})
}

// world is the input of a round.
type world struct {
	pods       map[types.UID]*corev1.Pod // the pods of our scheduler, by UID
	candidates [][]returnplan.Pod        // the pods that may be returned, by the index of their pool
	members    map[types.UID][]returnplan.Member
	ready      map[types.UID]bool // pods that are ready and not terminating
	readyOf    map[types.UID]int  // the number of these pods, by workload
	// harm returns why an eviction of the started pod would harm its workload, or "".
	harm func(*returnplan.Pod) string
}

func (r *Returner) sync() *world {
	pods, _ := r.pods.List(labels.Everything()) // does not fail
	w := &world{pods: map[types.UID]*corev1.Pod{}, candidates: make([][]returnplan.Pod, r.Pools.Len()), members: map[types.UID][]returnplan.Member{},
		ready: map[types.UID]bool{}, readyOf: map[types.UID]int{}}
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || pod.Spec.SchedulerName != r.Profile.SchedulerName {
			continue
		}
		in, rank := pool.None, pool.Excluded
		if node, err := r.nodes.Get(pod.Spec.NodeName); err == nil {
			rank, in = r.Pools.RankOf(node)
		}
		order, _ := r.Pools.OrderOf(pod.Annotations)
		place := int(order.PlaceOf(rank))
		workload := r.workloadOf(pod.Namespace, owner)
		w.pods[pod.UID] = pod
		w.members[workload] = append(w.members[workload], returnplan.Member{UID: pod.UID, Owner: refusal.OwnerOf(pod),
			Bound: pod.Spec.NodeName != "", Rank: place, Ready: isReady(pod) && refusal.Started(pod), Ending: pod.DeletionTimestamp != nil})
		if in == pool.None || r.Pools.At(in).Return() == nil || returnplan.Stays(pod) != "" {
			continue
		}
		w.candidates[in] = append(w.candidates[in], returnplan.Pod{UID: pod.UID, Created: pod.CreationTimestamp.Time, Stuck: !refusal.Began(pod),
			Owner: refusal.OwnerOf(pod), Workload: workload, Below: min(place, r.Pools.Regular()+1), Alike: owner.Kind == "ReplicaSet" && !claims(pod)})
	}
	replicaSets, _ := r.replicaSets.List(labels.Everything()) // does not fail
	newest := rollout.Newest(replicaSets)
	for workload, members := range w.members {
		for i := range members {
			if members[i].Ready && !members[i].Ending {
				w.ready[members[i].UID] = true
				w.readyOf[workload]++
			}
		}
	}
	w.harm = func(p *returnplan.Pod) string {
		pod, ready := w.pods[p.UID], w.ready[p.UID]
		others := w.readyOf[p.Workload]
		if ready {
			others--
		}
		return returnplan.HarmOf(ready, others, func() bool { return r.isOutdated(pod, newest) }, func() bool { return r.isGuarded(pod) })
	}
	for _, pods := range w.candidates {
		for i := range pods {
			if p := &pods[i]; !p.Stuck {
				p.Harm = w.harm(p)
			}
		}
	}
	return w
}

// isOutdated reports whether a rollout will end the pod's ReplicaSet, or the pod's StatefulSet may replace the pod with one
// of another revision. newest has the result of rollout.Newest.
func (r *Returner) isOutdated(pod *corev1.Pod, newest map[types.UID]int64) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner.Kind == "StatefulSet" {
		set, err := r.sets.StatefulSets(pod.Namespace).Get(owner.Name)
		return err == nil && set.UID == owner.UID && pod.Labels[appsv1.ControllerRevisionHashLabelKey] != set.Status.UpdateRevision
	}
	rs, err := r.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name)
	if err != nil || rs.UID != owner.UID {
		return false
	}
	of := metav1.GetControllerOfNoCopy(rs)
	if of == nil {
		return false
	}
	deployment, err := r.deployments.Deployments(pod.Namespace).Get(of.Name)
	return err == nil && deployment.UID == of.UID && rollout.Ends(deployment, rs, newest[refusal.OwnerOf(rs)])
}

// isGuarded reports whether a PodDisruptionBudget selects the pod.
func (r *Returner) isGuarded(pod *corev1.Pod) bool {
	budgets, _ := r.budgets.GetPodPodDisruptionBudgets(pod) // the error says that there is none
	return len(budgets) > 0
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// claims reports whether the pod has volume claims or resource claims. Claims may restrict the pod to certain nodes.
func claims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})
}

// workloadOf returns the key of a pod's workload (refusal.KeyOf). If the owner is a ReplicaSet of a Deployment, the workload is the
// Deployment. Otherwise it is the owner.
func (r *Returner) workloadOf(namespace string, owner *metav1.OwnerReference) types.UID {
	if owner.Kind == "ReplicaSet" {
		if rs, err := r.replicaSets.ReplicaSets(namespace).Get(owner.Name); err == nil && rs.UID == owner.UID {
			if deployment := metav1.GetControllerOfNoCopy(rs); deployment != nil {
				return refusal.KeyOf(namespace, deployment.UID)
			}
		}
	}
	return refusal.KeyOf(namespace, owner.UID)
}

// stays records that the pod is not evicted, although the node has had room for it.
func (r *Returner) stays(from *pool.Pool, p returnplan.Pod, pod *corev1.Pod, node string) {
	if r.told[p.UID] == p.Harm {
		return
	}
	r.told[p.UID] = p.Harm
	returns.WithLabelValues(from.Name, resultHarmful).Inc()
	r.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, "NotReturned", "Returning", "not evicted from pool %s, although node %s has had room for it for %s: %s", from.Name, node, from.Return().StableFor.Duration, p.Harm)
}

// evict evicts the pod from the pool with the index i, and reports whether it did. A PodDisruptionBudget may make the API
// server refuse the eviction.
func (r *Returner) evict(ctx context.Context, i int, p returnplan.Pod, pod *corev1.Pod, to *move, members []returnplan.Member) (evicted bool) {
	from := r.Pools.At(i)
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod), "pool", from.Name, "node", to.to)
	limited, cancel := context.WithTimeout(ctx, evictionTimeout) // without a timeout, the client retries by itself for minutes
	defer cancel()
	err := r.Client.PolicyV1().Evictions(pod.Namespace).Evict(limited, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	now, stableFor := r.Clock.Now(), from.Return().StableFor.Duration
	switch {
	case err == nil:
		r.planner.Evicted(now, i, p, members)
		r.away[pod.UID] = move{pod: to.pod, to: to.to}
		logger.Info("Evicted a pod from a pool: a node of a better pool has capacity for the pod", "stableFor", stableFor)
		r.Recorder.Eventf(pod, nil, corev1.EventTypeNormal, "Returning", "Evicting", "evicted from pool %s: node %s has had room for it for %s", from.Name, to.to, stableFor)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		logger.V(2).Info("A pod was not evicted, because it no longer exists", "answer", err.Error())
	default:
		pause := r.planner.Refused(now, p)
		returns.WithLabelValues(from.Name, resultRefused).Inc()
		if apierrors.IsTooManyRequests(err) {
			logger.Info("A pod is not returned yet: its eviction was refused", "answer", answer(err), "pause", pause)
		} else {
			logger.Error(err, "A pod cannot be returned", "pause", pause)
		}
	}
	return err == nil
}

// answer formats an API error with its causes. One cause is, for example, the PodDisruptionBudget that blocks an
// eviction.
func answer(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return err.Error()
	}
	text := err.Error()
	for _, cause := range status.Status().Details.Causes {
		text += " " + cause.Message
	}
	return text
}
