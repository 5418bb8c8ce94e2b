package lint

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// checkSettings finds values with which the scheduler starts, and that are likely mistakes.
func (f *Facts) checkSettings(add adder) {
	odd := func(object, remedy, format string, a ...any) {
		add("OddSetting", Warning, object, "docs/configuration.md", remedy, format, a...)
	}
	if f.Args.Unelected {
		odd("leaderElection.leaderElect", "remove it", "it is false, so two replicas, also during a rollout, undo each other's work")
	}
	if f.Args.Tenants && !*f.Args.GateTaint {
		odd("gateTaint", "remove gateTaint: false", "it is false beside tenants: true, so pods that name another scheduler get onto burst nodes without the gate")
	}
	c := &f.Args.Capacity
	for _, grace := range []struct {
		name  string
		value time.Duration
	}{{"unknownGrace", c.UnknownGrace.Duration}, {"provisionGrace", c.ProvisionGrace.Duration}, {"backoffGrace", c.BackoffGrace.Duration}, {"declineGrace", c.DeclineGrace.Duration}} {
		if limit := c.HoldLimit.Duration; limit > 0 && limit < grace.value && f.Pools.HasBurst() {
			odd("capacity.holdLimit", "raise holdLimit", "it is %v, and ends %s (%v), so pods burst while VMs may still come", limit, grace.name, grace.value)
		}
	}
	scaled := slices.ContainsFunc(f.Args.Pools, func(p configv1.Pool) bool { return p.ClusterAutoscaler != nil })
	if set := f.times().TooShort(c); len(set) > 0 && scaled && f.Pools.HasBurst() {
		odd("capacity", "set capacity: {"+strings.Join(set, ", ")+"}", "it is too short for the newPodScaleUpDelay, maxNodeProvisionTime or scanInterval of the cluster autoscaler")
	}
	for i := range f.Args.Pools {
		p := &f.Args.Pools[i]
		for j := range i {
			if reflect.DeepEqual(p.NodeSelector, f.Args.Pools[j].NodeSelector) {
				odd("pool "+p.Name, "correct one of the two", "its nodeSelector is that of pool %s, which gets all its nodes", f.Args.Pools[j].Name)
			}
		}
		if p.Burst != nil {
			checkLimits(p.Burst, func(remedy, format string, a ...any) { odd("pool "+p.Name, remedy, format, a...) })
		}
	}
}

// checkLimits finds odd amounts of a burst pool.
func checkLimits(b *configv1.Burst, odd func(remedy, format string, a ...any)) {
	limits := b.Limits.List()
	for _, set := range []struct {
		name string
		list corev1.ResourceList
	}{{"limits", limits}, {"perNamespace", b.PerNamespace.List()}, {"largest", b.Largest}} {
		for _, name := range slices.Sorted(maps.Keys(set.list)) {
			value, limit := set.list[name], limits[name]
			if name == corev1.ResourceMemory && value.Value() < 1<<20 {
				odd("give a unit, such as 16Gi", "%s.memory is %s, so no pod fits", set.name, value.String())
			} else if !limit.IsZero() && value.Cmp(limit) > 0 {
				odd("correct one of the two", "%s.%s is %s, above limits.%s, which is %s", set.name, name, value.String(), name, limit.String())
			}
		}
	}
}
