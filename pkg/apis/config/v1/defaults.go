package v1

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// SetDefaults_PoolPriorityArgs sets the defaults of fields that are not set.
func SetDefaults_PoolPriorityArgs(args *PoolPriorityArgs) { //nolint:revive,stylecheck // the usual form of a defaulting function's name
	args.Order = cmp.Or(args.Order, OrderStrict)
	args.Mode = cmp.Or(args.Mode, ModeEnforce)
	args.StatusConfigMap = cmp.Or(args.StatusConfigMap, PodNamespace()+"/"+StatusName)
	args.ScaleIn.DeletionCosts = cmp.Or(args.ScaleIn.DeletionCosts, CostsOwn)
	args.ScaleIn.HoldSurge = cmp.Or(args.ScaleIn.HoldSurge, ptr.To(true))
	args.GateTaint = cmp.Or(args.GateTaint, ptr.To(true))
	for i := range args.Pools {
		if r := args.Pools[i].Return; r != nil {
			r.setDefaults(10 * time.Minute)
		}
		if burst := args.Pools[i].Burst; burst != nil {
			burst.Platform = cmp.Or(burst.Platform, PlatformACI)
			burst.WhileGrowing = cmp.Or(burst.WhileGrowing, Hold)
			if c := &burst.Creates; burst.Platform == PlatformACI {
				if burst.Tolerations == nil { // an empty list is none
					burst.Tolerations = []corev1.Toleration{{Key: ProviderTaintKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
				}
				c.Per5Minutes, c.PerHour = cmp.Or(c.Per5Minutes, ptr.To[int32](100)), cmp.Or(c.PerHour, ptr.To[int32](300))
			}
			burst.AddTolerations = cmp.Or(burst.AddTolerations, ptr.To(true))
			setDuration(&burst.StartWithin, 15*time.Minute)
			burst.MakeRoom.BelowPriority = cmp.Or(burst.MakeRoom.BelowPriority, ptr.To[int32](0))
			burst.Return.setDefaults(0)
			if share := shareOf(burst); args.Tenants && share != (BurstLimits{}) {
				burst.PerNamespace = cmp.Or(burst.PerNamespace, &share)
			}
		}
	}
	c := &args.Capacity
	c.ClusterAutoscalerStatus = cmp.Or(c.ClusterAutoscalerStatus, metav1.NamespaceSystem+"/cluster-autoscaler-status")
	c.KarpenterLease = cmp.Or(c.KarpenterLease, metav1.NamespaceSystem+"/karpenter-leader-election")
	setDuration(&c.StaleAfter, 3*time.Minute)
	setDuration(&c.UnknownGrace, 15*time.Minute)
	setDuration(&c.ProvisionGrace, 15*time.Minute)
	setDuration(&c.BackoffGrace, 2*time.Minute)
	setDuration(&c.DeclineGrace, time.Minute)
	setDuration(&c.NewPodDelay, 0)
	setDuration(&c.HoldLimit, time.Hour)
}

func (r *Return) setDefaults(minAge time.Duration) {
	setDuration(&r.StableFor, 5*time.Minute)
	setDuration(&r.MinAge, minAge)
	r.EvictionsPerMinute = cmp.Or(r.EvictionsPerMinute, 2)
	r.PerWorkload = cmp.Or(r.PerWorkload, 1)
}

// shareOf returns half of the pool's limits, rounded up, and at least what one pod may request: `largest`, or else 4
// CPUs and 16 GB. It leaves out limits that are not positive.
func shareOf(burst *Burst) (share BurstLimits) {
	limits := ptr.Deref(burst.Limits, BurstLimits{})
	share.Pods = max(0, limits.Pods+1) / 2
	half := func(limit *resource.Quantity, name corev1.ResourceName, least string) *resource.Quantity {
		if limit == nil || limit.Sign() <= 0 {
			return nil
		}
		pod, ok := burst.Largest[name]
		if !ok {
			pod = resource.MustParse(least)
		}
		milli := min(limit.MilliValue(), max((limit.MilliValue()+1)/2, pod.MilliValue()))
		return resource.NewMilliQuantity(milli, limit.Format)
	}
	share.CPU, share.Memory = half(limits.CPU, corev1.ResourceCPU, "4"), half(limits.Memory, corev1.ResourceMemory, "16G")
	return share
}

func setDuration(field **metav1.Duration, value time.Duration) {
	*field = cmp.Or(*field, &metav1.Duration{Duration: value})
}
