package v1

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// SetDefaults_PoolPriorityArgs sets the defaults of fields that are not set.
func SetDefaults_PoolPriorityArgs(args *PoolPriorityArgs) { //nolint:revive,stylecheck // the usual form of a defaulting function's name
	args.Order = cmp.Or(args.Order, OrderStrict)
	args.Mode = cmp.Or(args.Mode, ModeEnforce)
	args.StatusConfigMap = cmp.Or(args.StatusConfigMap, PodNamespace()+"/"+StatusName)
	args.ScaleIn.PodDeletionCost = cmp.Or(args.ScaleIn.PodDeletionCost, ptr.To(true))
	args.ScaleIn.HoldSurge = cmp.Or(args.ScaleIn.HoldSurge, ptr.To(true))
	args.GateTaint = cmp.Or(args.GateTaint, ptr.To(true))
	for i := range args.Pools {
		if burst := args.Pools[i].Burst; burst != nil {
			burst.Platform = cmp.Or(burst.Platform, PlatformACI)
			setDuration(&burst.StartWithin, 15*time.Minute)
			setDuration(&burst.Return.StableFor, 5*time.Minute)
			burst.Return.EvictionsPerMinute = cmp.Or(burst.Return.EvictionsPerMinute, 2)
			burst.Return.PerWorkload = cmp.Or(burst.Return.PerWorkload, 1)
			if half := half(burst.Budget()); args.Tenants && half != (BurstLimits{}) {
				burst.PerNamespace = cmp.Or(burst.PerNamespace, &half)
			}
		}
	}
	c := &args.Capacity
	c.ClusterAutoscalerStatus = cmp.Or(c.ClusterAutoscalerStatus, metav1.NamespaceSystem+"/cluster-autoscaler-status")
	setDuration(&c.StaleAfter, 3*time.Minute)
	setDuration(&c.UnknownGrace, 15*time.Minute)
	setDuration(&c.ProvisionGrace, 15*time.Minute)
	setDuration(&c.BackoffGrace, 2*time.Minute)
	setDuration(&c.DeclineGrace, time.Minute)
	setDuration(&c.NewPodDelay, 0)
	setDuration(&c.HoldLimit, time.Hour)
}

// half returns half of the limits, rounded up. It leaves out limits that are not positive.
func half(limits BurstLimits) (half BurstLimits) {
	half.Pods = max(0, limits.Pods+1) / 2
	if limits.CPU != nil && limits.CPU.Sign() > 0 {
		half.CPU = resource.NewMilliQuantity((limits.CPU.MilliValue()+1)/2, resource.DecimalSI)
	}
	if limits.Memory != nil && limits.Memory.Sign() > 0 {
		half.Memory = resource.NewQuantity((limits.Memory.Value()+1)/2, limits.Memory.Format)
	}
	return half
}

func setDuration(field **metav1.Duration, value time.Duration) {
	*field = cmp.Or(*field, &metav1.Duration{Duration: value})
}
