package v1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// SetDefaults_PoolPriorityArgs fills in what the user left out.
func SetDefaults_PoolPriorityArgs(args *PoolPriorityArgs) { //nolint:revive,stylecheck // the name that defaulters have
	if args.Order == "" {
		args.Order = OrderStrict
	}
	if args.Mode == "" {
		args.Mode = ModeEnforce
	}
	if args.StatusConfigMap == "" {
		args.StatusConfigMap = PodNamespace() + "/" + StatusName
	}
	if args.ScaleIn.PodDeletionCost == nil {
		args.ScaleIn.PodDeletionCost = ptr.To(true)
	}
	if args.ScaleIn.HoldSurge == nil {
		args.ScaleIn.HoldSurge = ptr.To(true)
	}
	for i := range args.Pools {
		if burst := args.Pools[i].Burst; burst != nil {
			setDuration(&burst.Return.StableFor, 5*time.Minute)
			setInt(&burst.Return.EvictionsPerMinute, 2)
			setInt(&burst.Return.PerWorkload, 1)
			setDuration(&burst.StartWithin, 15*time.Minute)
			if burst.Platform == "" {
				burst.Platform = PlatformACI
			}
		}
	}
	if args.GateTaint == nil {
		args.GateTaint = ptr.To(true)
	}
	c := &args.Capacity
	if c.ClusterAutoscalerStatus == "" {
		c.ClusterAutoscalerStatus = metav1.NamespaceSystem + "/cluster-autoscaler-status"
	}
	setDuration(&c.StaleAfter, 3*time.Minute)
	setDuration(&c.UnknownGrace, 15*time.Minute)
	setDuration(&c.ProvisionGrace, 15*time.Minute)
	setDuration(&c.BackoffGrace, 2*time.Minute)
	setDuration(&c.DeclineGrace, time.Minute)
	setDuration(&c.NewPodDelay, 0)
	setDuration(&c.HoldLimit, time.Hour)
}

func setDuration(field **metav1.Duration, value time.Duration) {
	if *field == nil {
		*field = &metav1.Duration{Duration: value}
	}
}

func setInt(field *int32, value int32) {
	if *field == 0 {
		*field = value
	}
}
