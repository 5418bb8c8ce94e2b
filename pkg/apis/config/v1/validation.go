package v1

import (
	"fmt"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// minStaleAfter is three writes of the cluster autoscaler, which writes its status every 10 s.
const minStaleAfter = 30 * time.Second

// Validate returns every error in args, each with the path of its field and what to do about it. It expects defaulted
// arguments.
func Validate(args *PoolPriorityArgs) field.ErrorList {
	var errs field.ErrorList
	if args.Order != OrderStrict && args.Order != OrderPreferred {
		errs = append(errs, field.NotSupported(field.NewPath("order"), args.Order, []Order{OrderStrict, OrderPreferred}))
	}
	if args.Mode != ModeEnforce && args.Mode != ModeObserve {
		errs = append(errs, field.NotSupported(field.NewPath("mode"), args.Mode, []Mode{ModeEnforce, ModeObserve}))
	}
	errs = append(errs, validateConfigMapID(args.StatusConfigMap, field.NewPath("statusConfigMap"))...)
	errs = append(errs, validatePools(args.Pools, field.NewPath("pools"))...)
	for i := range args.Pools {
		if burst := args.Pools[i].Burst; burst != nil && burst.Return.Enabled && args.Order == OrderPreferred {
			errs = append(errs, field.Forbidden(field.NewPath("pools").Index(i).Child("burst", "return", "enabled"),
				"with order: Preferred the replacement may be put into the burst pool again although there is room elsewhere; set order: Strict, or switch return off"))
		}
	}
	if c := args.ScaleIn.PodDeletionCost; args.ScaleIn.Others && c != nil && !*c {
		errs = append(errs, field.Forbidden(field.NewPath("scaleIn", "others"), "with podDeletionCost: false no pod is given a cost; remove one of the two"))
	}
	return append(errs, validateCapacity(&args.Capacity, field.NewPath("capacity"))...)
}

func validatePools(pools []Pool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(pools) == 0 {
		errs = append(errs, field.Required(p, "list at least one pool, most preferred first"))
	}
	firstBurst := len(pools)
	names := map[string]int{}
	for i := range pools {
		if first, ok := names[pools[i].Name]; ok && pools[i].Name != "" {
			errs = append(errs, field.Invalid(p.Index(i).Child("name"), pools[i].Name,
				fmt.Sprintf("pools[%d] has this name already; give each pool a name of its own", first)))
		} else {
			names[pools[i].Name] = i
		}
		if pools[i].Burst != nil && i < firstBurst {
			firstBurst = i
		}
	}
	if firstBurst == 0 && len(pools) > 0 {
		errs = append(errs, field.Invalid(p.Index(0).Child("burst"), pools[0].Name,
			"a burst pool opens when the pools before it can grow no more, and there is none before it; put a regular pool first"))
	}
	hasBurst := firstBurst < len(pools)
	for i := range pools {
		errs = append(errs, validatePool(&pools[i], hasBurst, p.Index(i))...)
		if pools[i].Burst == nil && i > firstBurst {
			errs = append(errs, field.Invalid(p.Index(i), pools[i].Name,
				fmt.Sprintf("a regular pool after the burst pool %q; move it before pools[%d]: burst pools come last", pools[firstBurst].Name, firstBurst)))
		}
	}
	return errs
}

func validatePool(pool *Pool, hasBurst bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if pool.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), "give the pool a name"))
	} else {
		for _, msg := range utilvalidation.IsDNS1123Label(pool.Name) {
			errs = append(errs, field.Invalid(p.Child("name"), pool.Name, msg))
		}
	}
	errs = append(errs, validateSelector(pool.NodeSelector, p.Child("nodeSelector"), "name labels of the pool's nodes: an empty selector would match every node")...)
	errs = append(errs, validateSource(pool, hasBurst, p)...)
	if pool.NodeTemplate != nil {
		if pool.Burst != nil {
			errs = append(errs, field.Forbidden(p.Child("nodeTemplate"), "a burst pool is not judged by its nodes; remove it"))
		}
		errs = append(errs, validateTemplate(pool.NodeTemplate, p.Child("nodeTemplate"))...)
	}
	if pool.Capacity != nil {
		if pool.Burst != nil {
			errs = append(errs, field.Forbidden(p.Child("capacity"), "a burst pool is not judged; remove it"))
		}
		errs = append(errs, validatePoolCapacity(pool.Capacity, p.Child("capacity"))...)
	}
	if pool.Burst != nil {
		errs = append(errs, validateBurst(pool.Burst, p.Child("burst"))...)
	}
	return errs
}

// validateSelector validates a selector, of which whatToDo says what it needs if it is empty.
func validateSelector(selector *metav1.LabelSelector, p *field.Path, whatToDo string) field.ErrorList {
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(p, whatToDo)}
	}
	errs := metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, p)
	if len(errs) == 0 {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			errs = append(errs, field.Invalid(p, selector, err.Error()))
		}
	}
	return errs
}

func validateSource(pool *Pool, hasBurst bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	var sources []string
	if s := pool.ClusterAutoscaler; s != nil {
		sources = append(sources, "clusterAutoscaler")
		errs = append(errs, validateNodeGroups(s.NodeGroups, p.Child("clusterAutoscaler", "nodeGroups"))...)
		errs = append(errs, validateNodeTemplates(s.NodeTemplates, p.Child("clusterAutoscaler", "nodeTemplates"))...)
	}
	if s := pool.Karpenter; s != nil {
		sources = append(sources, "karpenter")
		if s.NodePool == "" {
			errs = append(errs, field.Required(p.Child("karpenter", "nodePool"), "name the NodePool"))
		} else {
			for _, msg := range utilvalidation.IsDNS1123Subdomain(s.NodePool) {
				errs = append(errs, field.Invalid(p.Child("karpenter", "nodePool"), s.NodePool, msg))
			}
		}
	}
	if s := pool.Static; s != nil {
		sources = append(sources, "static")
		if s.MaxNodes < 1 {
			errs = append(errs, field.Invalid(p.Child("static", "maxNodes"), s.MaxNodes, "must be at least 1; use fixed: {} for a pool that never grows"))
		}
	}
	if pool.Fixed != nil {
		sources = append(sources, "fixed")
	}
	switch {
	case pool.Burst != nil && len(sources) > 0:
		errs = append(errs, field.Forbidden(p.Child(sources[0]), "a burst pool has no source: remove it, or remove burst"))
	case len(sources) > 1:
		errs = append(errs, field.Forbidden(p.Child(sources[1]), fmt.Sprintf("the pool has a source already (%s); name only one of clusterAutoscaler, karpenter, static and fixed", sources[0])))
	case pool.Burst == nil && hasBurst && len(sources) == 0:
		errs = append(errs, field.Required(p, "a pool before a burst pool must say what limits it: add clusterAutoscaler: {}, karpenter: {nodePool: NAME}, static: {maxNodes: N} or fixed: {}"))
	}
	return errs
}

func validateNodeGroups(patterns []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, pattern := range patterns {
		errs = append(errs, validatePattern(pattern, p.Index(i))...)
	}
	return errs
}

func validatePattern(pattern string, p *field.Path) field.ErrorList {
	if pattern == "" {
		return field.ErrorList{field.Required(p, "give a node group's name or a pattern for it")}
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return field.ErrorList{field.Invalid(p, pattern, "not a pattern as path.Match reads it: close the bracket or escape it with a backslash")}
	}
	return nil
}

func validateNodeTemplates(templates []NodeGroupTemplate, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range templates {
		errs = append(errs, validatePattern(templates[i].NodeGroup, p.Index(i).Child("nodeGroup"))...)
		errs = append(errs, validateTemplate(&templates[i].NodeTemplate, p.Index(i).Child("nodeTemplate"))...)
	}
	return errs
}

func validateTemplate(t *NodeTemplate, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, p.Child("labels"))
	for i, taint := range t.Taints {
		tp := p.Child("taints").Index(i)
		if taint.Key == "" {
			errs = append(errs, field.Required(tp.Child("key"), "a taint has a key"))
		}
		if taint.Effect != corev1.TaintEffectNoSchedule && taint.Effect != corev1.TaintEffectNoExecute && taint.Effect != corev1.TaintEffectPreferNoSchedule {
			errs = append(errs, field.NotSupported(tp.Child("effect"), taint.Effect,
				[]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}))
		}
	}
	for name, quantity := range t.Allocatable {
		if quantity.Sign() < 0 {
			errs = append(errs, field.Invalid(p.Child("allocatable").Key(string(name)), quantity.String(), "must not be negative"))
		}
	}
	return errs
}

func validateConfigMapID(id string, p *field.Path) field.ErrorList {
	namespace, name, found := strings.Cut(id, "/")
	if !found || len(utilvalidation.IsDNS1123Label(namespace)) > 0 || len(utilvalidation.IsDNS1123Subdomain(name)) > 0 {
		return field.ErrorList{field.Invalid(p, id, "must be NAMESPACE/NAME of a ConfigMap")}
	}
	return nil
}

// duration is the value of a field and the range that it must be in.
type duration struct {
	name     string
	value    *metav1.Duration
	min, max time.Duration
}

func validateDurations(p *field.Path, durations []duration) field.ErrorList {
	var errs field.ErrorList
	for _, d := range durations {
		if d.value != nil && (d.value.Duration < d.min || d.value.Duration > d.max) {
			errs = append(errs, field.Invalid(p.Child(d.name), d.value.Duration.String(), fmt.Sprintf("must be between %v and %v", d.min, d.max)))
		}
	}
	return errs
}

func validatePoolCapacity(c *PoolCapacity, p *field.Path) field.ErrorList {
	return validateDurations(p, []duration{
		{"provisionGrace", c.ProvisionGrace, 0, 24 * time.Hour},
		{"backoffGrace", c.BackoffGrace, 0, 24 * time.Hour},
		{"declineGrace", c.DeclineGrace, time.Second, 24 * time.Hour},
	})
}

func validateCapacity(c *Capacity, p *field.Path) field.ErrorList {
	errs := validateConfigMapID(c.ClusterAutoscalerStatus, p.Child("clusterAutoscalerStatus"))
	errs = append(errs, validateDurations(p, []duration{
		{"staleAfter", c.StaleAfter, minStaleAfter, 24 * time.Hour},
		{"unknownGrace", c.UnknownGrace, 0, 24 * time.Hour},
		{"provisionGrace", c.ProvisionGrace, 0, 24 * time.Hour},
		{"backoffGrace", c.BackoffGrace, 0, 24 * time.Hour},
		{"declineGrace", c.DeclineGrace, time.Second, 24 * time.Hour},
		{"newPodDelay", c.NewPodDelay, 0, time.Hour},
	})...)
	if d := c.HoldLimit; d != nil && d.Duration != 0 && (d.Duration < time.Second || d.Duration > maxHoldLimit) {
		errs = append(errs, field.Invalid(p.Child("holdLimit"), d.Duration.String(), fmt.Sprintf("must be 0 or between 1s and %v", maxHoldLimit)))
	}
	return errs
}

// maxHoldLimit is as long as anybody would still call it waiting.
const maxHoldLimit = 30 * 24 * time.Hour
