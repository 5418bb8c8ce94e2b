package v1

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateBurst(burst *Burst, p *field.Path) field.ErrorList {
	errs := validateTolerations(burst.Tolerations, p.Child("tolerations"))
	if burst.MaxPods < 0 {
		errs = append(errs, field.Invalid(p.Child("maxPods"), burst.MaxPods, "must not be negative; 0 is no limit"))
	}
	if burst.Limits != nil {
		errs = append(errs, validateLimits(burst, p)...)
	}
	if burst.NamespaceSelector != nil {
		errs = append(errs, validateSelector(burst.NamespaceSelector, p.Child("namespaceSelector"),
			"name labels of the namespaces whose pods may burst: an empty selector would match every namespace; remove it for that")...)
	}
	if burst.Platform != "" && burst.Platform != PlatformACI && burst.Platform != PlatformOther {
		errs = append(errs, field.NotSupported(p.Child("platform"), burst.Platform, []Platform{PlatformACI, PlatformOther}))
	}
	errs = append(errs, validateLargest(burst.Largest, p.Child("largest"))...)
	if d := burst.StartWithin; d != nil && d.Duration != 0 && (d.Duration < time.Second || d.Duration > 24*time.Hour) {
		errs = append(errs, field.Invalid(p.Child("startWithin"), d.Duration.String(), "must be 0s, which takes back no pod that was not refused, or between 1s and 24h0m0s"))
	}
	if d := burst.WaitLimit.Duration; d != 0 && (d < time.Second || d > 24*time.Hour) {
		errs = append(errs, field.Invalid(p.Child("waitLimit"), d.String(), "must be 0s, which waits as long as it takes, or between 1s and 24h0m0s"))
	}
	return append(errs, validateReturn(&burst.Return, p.Child("return"))...)
}

// validateLimits validates the limits of a pool that has some.
func validateLimits(burst *Burst, burstPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	limits, p := burst.Limits, burstPath.Child("limits")
	if *limits == (BurstLimits{}) {
		errs = append(errs, field.Required(p, "set pods, cpu or memory, or remove limits"))
	}
	if limits.Pods < 0 {
		errs = append(errs, field.Invalid(p.Child("pods"), limits.Pods, "must be at least 1; leave it out for no limit"))
	}
	if burst.MaxPods != 0 && limits.Pods != 0 {
		errs = append(errs, field.Forbidden(p.Child("pods"), "maxPods is the short form of it, and is set as well; remove one of the two"))
	}
	if limits.CPU != nil && limits.CPU.Sign() <= 0 {
		errs = append(errs, field.Invalid(p.Child("cpu"), limits.CPU.String(), "must be positive; leave it out for no limit"))
	}
	if limits.Memory != nil && limits.Memory.Sign() <= 0 {
		errs = append(errs, field.Invalid(p.Child("memory"), limits.Memory.String(), "must be positive; leave it out for no limit"))
	}
	return errs
}

func validateLargest(largest corev1.ResourceList, p *field.Path) field.ErrorList {
	var names []string
	for name := range largest {
		names = append(names, string(name))
	}
	slices.Sort(names)
	var errs field.ErrorList
	for _, name := range names {
		quantity := largest[corev1.ResourceName(name)]
		switch {
		case name != string(corev1.ResourceCPU) && name != string(corev1.ResourceMemory):
			errs = append(errs, field.NotSupported(p.Key(name), name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}))
		case quantity.Sign() <= 0:
			errs = append(errs, field.Invalid(p.Key(name), quantity.String(), "must be positive; leave it out if it is not to be judged"))
		}
	}
	return errs
}

func validateReturn(r *Return, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := r.StableFor; d != nil && (d.Duration < time.Second || d.Duration > 24*time.Hour) {
		errs = append(errs, field.Invalid(p.Child("stableFor"), d.Duration.String(), "must be from 1s to 24h"))
	}
	if n := r.EvictionsPerMinute; n < 0 || n > 600 {
		errs = append(errs, field.Invalid(p.Child("evictionsPerMinute"), n, "must be from 1 to 600; 0 is the default, 2"))
	}
	if n := r.PerWorkload; n < 0 {
		errs = append(errs, field.Invalid(p.Child("perWorkload"), n, "must be at least 1; 0 is the default, 1"))
	}
	return errs
}

func validateTolerations(tolerations []corev1.Toleration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		tp := p.Index(i)
		switch t.Effect {
		case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule:
		case "", corev1.TaintEffectNoExecute:
			errs = append(errs, field.Invalid(tp.Child("effect"), t.Effect,
				"would match NoExecute taints, which evict running pods whatever the scheduler does; set effect: NoSchedule"))
		default:
			errs = append(errs, field.NotSupported(tp.Child("effect"), t.Effect, []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule}))
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			if t.Value != "" {
				errs = append(errs, field.Invalid(tp.Child("value"), t.Value, "must be empty with operator Exists"))
			}
		case corev1.TolerationOpEqual, "":
		default:
			errs = append(errs, field.NotSupported(tp.Child("operator"), t.Operator, []corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
		}
		if t.Key == "" {
			errs = append(errs, field.Required(tp.Child("key"), "name the taint to look past: a toleration without a key would match every taint"))
		}
		if t.TolerationSeconds != nil {
			errs = append(errs, field.Forbidden(tp.Child("tolerationSeconds"), "has a meaning for NoExecute only; remove it"))
		}
	}
	return errs
}
