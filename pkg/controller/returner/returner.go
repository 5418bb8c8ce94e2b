// Package returner brings pods back from burst pools: it finds room by the scheduler's own filters, and evicts.
package returner

import (
	"context"
	"errors"
	"fmt"

	"time"

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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/utils/clock"

	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/pkg/returning"
)

// maxInterval is how often the pods are looked at, at the least.
const maxInterval = 10 * time.Second

// Returner evicts pods of burst pools that have Return enabled once there has been room for them elsewhere for long enough.
type Returner struct {
	// Config is how the API server is reached.
	Config *rest.Config
	// Profile is the scheduler's profile that configures PoolPriority. Only pods of this scheduler are evicted.
	Profile schedconfig.KubeSchedulerProfile
	// Pools are the pools in it.
	Pools pool.List
	// Recorder says on a pod why it is evicted.
	Recorder record.EventRecorder

	clock       clock.PassiveClock
	client      kubernetes.Interface
	rooms       *rooms
	pods        corelisters.PodLister
	nodes       corelisters.NodeLister
	replicaSets appslisters.ReplicaSetLister
	planners    []*returning.Planner // by burst pool; nil where Return is not enabled
}

// Wanted reports whether a pool has Return enabled.
func Wanted(pools pool.List) bool {
	for i := pools.Regular(); i < pools.Len(); i++ {
		if pools.At(i).Burst.Return.Enabled {
			return true
		}
	}
	return false
}

// NeedLeaderElection has one controller at a time evict pods.
func (r *Returner) NeedLeaderElection() bool { return true }

// Start looks at the pods again and again until the context ends.
func (r *Returner) Start(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithName("return")
	ctx = klog.NewContext(ctx, logger)
	client, err := kubernetes.NewForConfig(r.Config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	factory := scheduler.NewInformerFactory(client, 0)
	if err := r.setUp(ctx, client, factory, clock.RealClock{}); err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if err := r.rooms.synced(ctx, factory); err != nil {
		return nil //nolint:nilerr // the controller ends
	}
	logger.Info("Pods are returned from burst pools")
	wait.UntilWithContext(ctx, r.round, r.interval())
	return nil
}

// interval is how often the pods are looked at: a few times in the shortest time for which room must have lasted.
func (r *Returner) interval() time.Duration {
	interval := maxInterval
	for i := r.Pools.Regular(); i < r.Pools.Len(); i++ {
		if burst := r.Pools.At(i).Burst; burst.Return.Enabled {
			interval = min(interval, burst.Return.StableFor.Duration/5)
		}
	}
	return interval
}

func (r *Returner) setUp(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory, clock clock.PassiveClock) error {
	var err error
	if r.rooms, err = newRooms(ctx, r.Profile, r.Pools, client, r.Config, factory); err != nil {
		return err
	}
	r.client, r.clock = client, clock
	r.pods, r.nodes, r.replicaSets = factory.Core().V1().Pods().Lister(), factory.Core().V1().Nodes().Lister(), factory.Apps().V1().ReplicaSets().Lister()
	factory.Apps().V1().ReplicaSets().Informer() // has it started with the others
	for i := r.Pools.Regular(); i < r.Pools.Len(); i++ {
		var planner *returning.Planner
		if c := r.Pools.At(i).Burst.Return; c.Enabled {
			planner = returning.NewPlanner(returning.Rules{
				StableFor: c.StableFor.Duration, PerMinute: int(c.EvictionsPerMinute), PerWorkload: int(c.PerWorkload), Interval: r.interval(),
			})
		}
		r.planners = append(r.planners, planner)
	}
	return nil
}

// round looks at all pods once.
func (r *Returner) round(ctx context.Context) {
	logger := klog.FromContext(ctx)
	if err := r.rooms.begin(logger); err != nil {
		logger.Error(err, "Pods are not returned from burst pools in this round")
		return
	}
	world, err := r.look()
	if err != nil {
		logger.Error(err, "Pods are not returned from burst pools in this round")
		return
	}
	for b, planner := range r.planners {
		if planner == nil {
			continue
		}
		found := map[types.UID]string{}
		room := func(p returning.Pod) bool {
			pod := world.pods[p.UID]
			node, err := r.rooms.find(ctx, pod)
			if err != nil {
				logger.Error(err, "It cannot be told whether there is room for the pod outside of burst pools", "pod", klog.KObj(pod))
				return false
			}
			found[p.UID] = node
			return node != ""
		}
		for _, p := range planner.Round(r.clock.Now(), world.candidates[b], room, world.membersOf) {
			r.evict(ctx, planner, p, world.pods[p.UID], found[p.UID], r.Pools.At(r.Pools.Regular()+b), world.membersOf(p.Workload))
		}
	}
}

// world is what a round looks at.
type world struct {
	pods       map[types.UID]*corev1.Pod
	candidates [][]returning.Pod // by burst pool
	members    map[types.UID][]returning.Member
}

func (w *world) membersOf(workload types.UID) []returning.Member { return w.members[workload] }

func (r *Returner) look() (*world, error) {
	pods, err := r.pods.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing the pods: %w", err)
	}
	w := &world{pods: map[types.UID]*corev1.Pod{}, candidates: make([][]returning.Pod, len(r.planners)), members: map[types.UID][]returning.Member{}}
	for _, pod := range pods {
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner == nil || pod.Spec.SchedulerName != r.Profile.SchedulerName {
			continue
		}
		burst := -1
		if node, err := r.nodes.Get(pod.Spec.NodeName); err == nil {
			if i := r.Pools.Of(node.Labels); i != pool.None && r.Pools.At(i).IsBurst() {
				burst = i - r.Pools.Regular()
			}
		}
		workload := r.workloadOf(pod.Namespace, owner)
		if pod.DeletionTimestamp == nil {
			w.members[workload] = append(w.members[workload], returning.Member{UID: pod.UID, Bound: pod.Spec.NodeName != "", Burst: burst >= 0})
		}
		if burst < 0 || r.planners[burst] == nil || returning.Stays(pod) != "" {
			continue
		}
		w.pods[pod.UID] = pod
		w.candidates[burst] = append(w.candidates[burst], returning.Pod{UID: pod.UID, Created: pod.CreationTimestamp.Time, Owner: owner.UID, Workload: workload})
	}
	return w, nil
}

// workloadOf returns the UID of what the user made: of the Deployment of a ReplicaSet, or of what controls the pod.
func (r *Returner) workloadOf(namespace string, owner *metav1.OwnerReference) types.UID {
	if owner.Kind == "ReplicaSet" {
		if rs, err := r.replicaSets.ReplicaSets(namespace).Get(owner.Name); err == nil && rs.UID == owner.UID {
			if deployment := metav1.GetControllerOfNoCopy(rs); deployment != nil {
				return deployment.UID
			}
		}
	}
	return owner.UID
}

// evict asks for the pod's eviction, which PodDisruptionBudgets may refuse.
func (r *Returner) evict(ctx context.Context, planner *returning.Planner, p returning.Pod, pod *corev1.Pod, node string, from *pool.Pool, members []returning.Member) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod), "pool", from.Name, "node", node)
	err := r.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
	now := r.clock.Now()
	switch {
	case err == nil:
		failures, _ := planner.Failures(p.Workload)
		planner.Evicted(now, p, members)
		logger.Info("Evicted a pod from a burst pool: there is room for it elsewhere", "stableFor", from.Burst.Return.StableFor.Duration, "failures", failures)
		r.Recorder.Eventf(pod, corev1.EventTypeNormal, "Returning", "evicted from burst pool %s: node %s has had room for it for %s",
			from.Name, node, from.Burst.Return.StableFor.Duration)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		logger.V(2).Info("The pod to return from a burst pool is gone", "answer", err.Error())
	default:
		pause := planner.Refused(now, p)
		if apierrors.IsTooManyRequests(err) {
			logger.Info("A pod is not returned from a burst pool yet: its eviction was refused", "answer", answer(err), "pause", pause)
		} else {
			logger.Error(err, "A pod cannot be returned from a burst pool", "pause", pause)
		}
	}
}

// answer is what the API server says, with the causes: the PodDisruptionBudget among them.
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
