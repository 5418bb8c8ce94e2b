package v1

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// minStaleAfter is three times the interval at which the cluster autoscaler writes its status (10 s).
const minStaleAfter = 30 * time.Second

// maxCreates bounds what is published of a burst pool's creates.
const maxCreates = 1000

// Validate returns all errors in args. Each error has the path of the wrong field and says how to correct the field.
// The arguments must be defaulted.
func Validate(args *PoolPriorityArgs) field.ErrorList {
	var errs field.ErrorList
	errs = oneOf(errs, field.NewPath("order"), args.Order, OrderStrict, OrderPreferred)
	errs = oneOf(errs, field.NewPath("mode"), args.Mode, ModeEnforce, ModeObserve)
	errs = append(errs, validateObjectID(args.StatusConfigMap, "ConfigMap", field.NewPath("statusConfigMap"))...)
	errs = append(errs, validatePools(args.Pools, field.NewPath("pools"))...)
	errs = append(errs, validateOrders(args.Orders, args.Pools, field.NewPath("orders"))...)
	for i := range args.Pools {
		p := field.NewPath("pools").Index(i)
		burst, r := args.Pools[i].Burst, args.Pools[i].Return
		const again = "with order: Preferred, the replacement of an evicted pod may land in the same pool again; set order: Strict, or enabled: false"
		errs = when(errs, burst != nil && burst.Return.Enabled && args.Order == OrderPreferred, field.Forbidden(p.Child("burst", "return", "enabled"), again))
		errs = when(errs, r != nil && r.Enabled && args.Order == OrderPreferred, field.Forbidden(p.Child("return", "enabled"), again))
		errs = when(errs, r != nil && i == 0 && len(args.Orders) == 0, field.Forbidden(p.Child("return"), "no pool is better than the first; remove it"))
	}
	errs = oneOf(errs, field.NewPath("scaleIn", "deletionCosts"), cmp.Or(args.ScaleIn.DeletionCosts, CostsOwn), CostsOwn, CostsAll, CostsNone)
	return append(errs, validateCapacity(&args.Capacity, field.NewPath("capacity"))...)
}

func validatePools(pools []Pool, p *field.Path) field.ErrorList {
	if len(pools) == 0 {
		return field.ErrorList{field.Required(p, "list at least one pool, most preferred first")}
	}
	var errs field.ErrorList
	firstBurst := slices.IndexFunc(pools, func(pool Pool) bool { return pool.Burst != nil })
	errs = when(errs, firstBurst == 0, field.Invalid(p.Index(0).Child("burst"), pools[0].Name,
		"a burst pool opens when no earlier pool can grow, and there is no earlier pool; put a regular pool first"))
	overflow := slices.ContainsFunc(pools, func(pool Pool) bool { return pool.Burst != nil && pool.Burst.WhileGrowing == Overflow })
	for i := range pools {
		if burst := pools[i].Burst; burst != nil {
			errs = when(errs, overflow && burst.WaitLimit.Duration > 0, field.Invalid(p.Index(i).Child("burst", "waitLimit"), burst.WaitLimit.Duration.String(),
				"must not be set in any pool if one has whileGrowing: Overflow: pods that burst by waitLimit leave their room on nodes to pods that have overflowed"))
		}
		name := pools[i].Name
		first := slices.IndexFunc(pools, func(pool Pool) bool { return pool.Name == name })
		errs = when(errs, name != "" && first < i, field.Invalid(p.Index(i).Child("name"), name, fmt.Sprintf("pools[%d] has this name already; give each pool a name of its own", first)))
		errs = append(errs, validatePool(&pools[i], firstBurst >= 0, p.Index(i))...)
		if pools[i].Burst == nil && firstBurst >= 0 && i > firstBurst {
			errs = append(errs, field.Invalid(p.Index(i), name,
				fmt.Sprintf("a regular pool after the burst pool %q; move it before pools[%d]: burst pools come last", pools[firstBurst].Name, firstBurst)))
		}
	}
	return errs
}

func validateOrders(orders []NamedOrder, pools []Pool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i := range orders {
		o, op := &orders[i], p.Index(i)
		errs = append(errs, validateName(o.Name, op.Child("name"), "give the order a name", utilvalidation.IsDNS1123Label)...)
		errs = when(errs, names[o.Name], field.Duplicate(op.Child("name"), o.Name))
		names[o.Name] = true
		errs = when(errs, len(o.Pools) == 0, field.Required(op.Child("pools"), "list at least one pool, most preferred first"))
		seen, burst := map[string]bool{}, -1
		for k, name := range o.Pools {
			np, at := op.Child("pools").Index(k), slices.IndexFunc(pools, func(p Pool) bool { return p.Name == name })
			switch {
			case at < 0:
				errs = append(errs, field.NotFound(np, name))
			case seen[name]:
				errs = append(errs, field.Duplicate(np, name))
			case at < burst:
				errs = append(errs, field.Invalid(np, name, "must come before burst pools, and burst pools must be in the order of pools"))
			case pools[at].Burst != nil:
				burst = at
			}
			seen[name] = true
		}
	}
	return errs
}

func validatePool(pool *Pool, hasBurst bool, p *field.Path) field.ErrorList {
	errs := validateName(pool.Name, p.Child("name"), "give the pool a name", utilvalidation.IsDNS1123Label)
	errs = append(errs, validateSelector(pool.NodeSelector, p.Child("nodeSelector"), "name labels of the pool's nodes: an empty selector would match every node")...)
	errs = append(errs, validateSource(pool, hasBurst, p)...)
	if pool.NodeTemplate != nil {
		errs = append(errs, validateTemplate(pool.NodeTemplate, p.Child("nodeTemplate"))...)
	}
	if c := pool.Capacity; c != nil {
		errs = append(errs, validateDurations(p.Child("capacity"), graceRanges(c.ProvisionGrace, c.BackoffGrace, c.DeclineGrace))...)
	}
	if pool.Return != nil {
		errs = append(errs, validateReturn(pool.Return, p.Child("return"))...)
	}
	if pool.Burst != nil {
		errs = when(errs, pool.Return != nil, field.Forbidden(p.Child("return"), "belongs into burst.return in a burst pool"))
		errs = when(errs, pool.NodeTemplate != nil, field.Forbidden(p.Child("nodeTemplate"), "has no effect in a burst pool; remove it"))
		errs = when(errs, pool.Capacity != nil, field.Forbidden(p.Child("capacity"), "has no effect in a burst pool; remove it"))
		errs = append(errs, validateBurst(pool.Burst, p.Child("burst"))...)
	}
	return errs
}

// validateSelector validates a selector that must not be empty. whatToDo is the advice for an empty selector.
func validateSelector(selector *metav1.LabelSelector, p *field.Path, whatToDo string) field.ErrorList {
	if selector == nil || len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		return field.ErrorList{field.Required(p, whatToDo)}
	}
	return metav1validation.ValidateLabelSelector(selector, metav1validation.LabelSelectorValidationOptions{}, p)
}

func validateSource(pool *Pool, hasBurst bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	var sources []string
	if s := pool.ClusterAutoscaler; s != nil {
		sources = append(sources, "clusterAutoscaler")
		for i, pattern := range s.NodeGroups {
			errs = append(errs, validatePattern(pattern, p.Child("clusterAutoscaler", "nodeGroups").Index(i))...)
		}
		for i := range s.NodeTemplates {
			tp := p.Child("clusterAutoscaler", "nodeTemplates").Index(i)
			errs = append(errs, validatePattern(s.NodeTemplates[i].NodeGroup, tp.Child("nodeGroup"))...)
			errs = append(errs, validateTemplate(&s.NodeTemplates[i].NodeTemplate, tp.Child("nodeTemplate"))...)
		}
	}
	if s := pool.Karpenter; s != nil {
		sources = append(sources, "karpenter")
		errs = append(errs, validateName(s.NodePool, p.Child("karpenter", "nodePool"), "name the NodePool", utilvalidation.IsDNS1123Subdomain)...)
	}
	if s := pool.Static; s != nil {
		sources = append(sources, "static")
		errs = when(errs, s.MaxNodes < 1, field.Invalid(p.Child("static", "maxNodes"), s.MaxNodes, "must be at least 1; use fixed: {} for a pool that never grows"))
	}
	if pool.Fixed != nil {
		sources = append(sources, "fixed")
	}
	switch {
	case pool.Burst != nil && len(sources) > 0:
		errs = append(errs, field.Forbidden(p.Child(sources[0]), "a burst pool has no capacity source; remove this field, or remove burst"))
	case len(sources) > 1:
		errs = append(errs, field.Forbidden(p.Child(sources[1]), fmt.Sprintf("the pool already has the source %s; set only one of clusterAutoscaler, karpenter, static and fixed", sources[0])))
	case pool.Burst == nil && hasBurst && len(sources) == 0:
		errs = append(errs, field.Required(p, "a pool before a burst pool needs a capacity source: add clusterAutoscaler: {}, karpenter: {nodePool: NAME}, static: {maxNodes: N} or fixed: {}"))
	}
	return errs
}

func validatePattern(pattern string, p *field.Path) field.ErrorList {
	if pattern == "" {
		return field.ErrorList{field.Required(p, "give a node group's name or a pattern for it")}
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return field.ErrorList{field.Invalid(p, pattern, "not a valid pattern for Go's path.Match: close the bracket or escape it with a backslash")}
	}
	return nil
}

func validateTemplate(t *NodeTemplate, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, p.Child("labels"))
	for i, taint := range t.Taints {
		tp := p.Child("taints").Index(i)
		errs = when(errs, taint.Key == "", field.Required(tp.Child("key"), "give the taint a key"))
		errs = oneOf(errs, tp.Child("effect"), taint.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute)
	}
	for name, quantity := range t.Allocatable {
		errs = when(errs, quantity.Sign() < 0, field.Invalid(p.Child("allocatable").Key(string(name)), quantity.String(), "must not be negative"))
	}
	return errs
}

func validateBurst(burst *Burst, p *field.Path) field.ErrorList {
	errs := validateTolerations(burst.Tolerations, p.Child("tolerations"))
	errs = append(errs, validateLimits(burst.Limits, p, "limits")...)
	errs = append(errs, validateLimits(burst.PerNamespace, p, "perNamespace")...)
	for _, c := range []struct {
		name string
		most *int32
	}{{"per5Minutes", burst.Creates.Per5Minutes}, {"perHour", burst.Creates.PerHour}} {
		errs = when(errs, ptr.Deref(c.most, 0) < 0 || ptr.Deref(c.most, 0) > maxCreates, field.Invalid(p.Child("creates", c.name), ptr.Deref(c.most, 0), fmt.Sprintf("must be from 0 (no limit) to %d", maxCreates)))
	}
	if burst.NamespaceSelector != nil {
		errs = append(errs, validateSelector(burst.NamespaceSelector, p.Child("namespaceSelector"),
			"name labels of the namespaces whose pods may burst: an empty selector would match every namespace; to allow all namespaces, remove it")...)
	}
	for i, loss := range burst.Allow {
		errs = oneOf(errs, p.Child("allow").Index(i), loss, LossNetworkPolicy, LossSecurityContext, LossSandbox)
	}
	errs = oneOf(errs, p.Child("platform"), cmp.Or(burst.Platform, PlatformACI), PlatformACI, PlatformOther)
	errs = oneOf(errs, p.Child("whileGrowing"), cmp.Or(burst.WhileGrowing, Hold), Hold, Overflow)
	errs = append(errs, validateLargest(burst.Largest, p.Child("largest"))...)
	below := ptr.Deref(burst.MakeRoom.BelowPriority, 0)
	errs = when(errs, below > 0, field.Invalid(p.Child("makeRoom", "belowPriority"), below, "must not be positive, because pods of an ordinary priority would be killed; -2147483648 turns it off"))
	errs = append(errs, validateDurations(p, []duration{
		{"startWithin", burst.StartWithin, time.Second, 24 * time.Hour, "0s (evict only refused pods)"},
		{"waitLimit", &burst.WaitLimit, time.Second, 24 * time.Hour, "0s (no limit)"},
	})...)
	return append(errs, validateReturn(&burst.Return, p.Child("return"))...)
}

// validateLimits validates the limits in the field of this name; nil means no limits.
func validateLimits(limits *BurstLimits, burstPath *field.Path, name string) field.ErrorList {
	if limits == nil {
		return nil
	}
	p := burstPath.Child(name)
	errs := when(nil, *limits == (BurstLimits{}), field.Required(p, "set pods, cpu or memory, or remove "+name))
	errs = when(errs, limits.Pods < 0, field.Invalid(p.Child("pods"), limits.Pods, "must be at least 1; leave it out for no limit"))
	errs = when(errs, limits.CPU != nil && limits.CPU.Sign() <= 0, field.Invalid(p.Child("cpu"), limits.CPU.String(), "must be positive; leave it out for no limit"))
	return when(errs, limits.Memory != nil && limits.Memory.Sign() <= 0, field.Invalid(p.Child("memory"), limits.Memory.String(), "must be positive; leave it out for no limit"))
}

func validateLargest(largest corev1.ResourceList, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(largest)) {
		quantity, np := largest[name], p.Key(string(name))
		if errs = oneOf(errs, np, name, corev1.ResourceCPU, corev1.ResourceMemory); name == corev1.ResourceCPU || name == corev1.ResourceMemory {
			errs = when(errs, quantity.Sign() <= 0, field.Invalid(np, quantity.String(), "must be positive; leave it out for no limit"))
		}
	}
	return errs
}

func validateReturn(r *Return, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if d := r.StableFor; d != nil && (d.Duration < time.Second || d.Duration > 24*time.Hour) {
		errs = append(errs, field.Invalid(p.Child("stableFor"), d.Duration.String(), "must be from 1s to 24h"))
	}
	if d := r.MinAge; d != nil && (d.Duration < 0 || d.Duration > 24*time.Hour) {
		errs = append(errs, field.Invalid(p.Child("minAge"), d.Duration.String(), "must be from 0s to 24h"))
	}
	n := r.EvictionsPerMinute
	errs = when(errs, n < 0 || n > 600, field.Invalid(p.Child("evictionsPerMinute"), n, "must be from 1 to 600; 0 means the default (2)"))
	return when(errs, r.PerWorkload < 0, field.Invalid(p.Child("perWorkload"), r.PerWorkload, "must not be negative; 0 means the default (1)"))
}

func validateTolerations(tolerations []corev1.Toleration, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, t := range tolerations {
		tp := p.Index(i)
		if t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute {
			errs = append(errs, field.Invalid(tp.Child("effect"), t.Effect,
				"would match NoExecute taints, which evict running pods whatever the scheduler does; set effect: NoSchedule"))
		} else {
			errs = oneOf(errs, tp.Child("effect"), t.Effect, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule)
		}
		errs = oneOf(errs, tp.Child("operator"), cmp.Or(t.Operator, corev1.TolerationOpEqual), corev1.TolerationOpEqual, corev1.TolerationOpExists)
		errs = when(errs, t.Operator == corev1.TolerationOpExists && t.Value != "", field.Invalid(tp.Child("value"), t.Value, "must be empty with operator Exists"))
		errs = when(errs, t.Key == "", field.Required(tp.Child("key"), "name the key of the taint to tolerate: a toleration without a key would match every taint"))
		errs = when(errs, t.TolerationSeconds != nil, field.Forbidden(tp.Child("tolerationSeconds"), "applies to NoExecute only; remove it"))
	}
	return errs
}

func validateObjectID(id, kind string, p *field.Path) field.ErrorList {
	namespace, name, found := strings.Cut(id, "/")
	if !found || len(utilvalidation.IsDNS1123Label(namespace)) > 0 || len(utilvalidation.IsDNS1123Subdomain(name)) > 0 {
		return field.ErrorList{field.Invalid(p, id, "must be NAMESPACE/NAME of a "+kind)}
	}
	return nil
}

// duration is the value of a field, and the range in which the value must be.
type duration struct {
	name     string
	value    *metav1.Duration
	min, max time.Duration
	zero     string // the description of the value 0 in the error; empty if the value must not be 0
}

func validateDurations(p *field.Path, durations []duration) field.ErrorList {
	var errs field.ErrorList
	for _, d := range durations {
		if d.value == nil || d.value.Duration >= d.min && d.value.Duration <= d.max || d.value.Duration == 0 && d.zero != "" {
			continue
		}
		allowed := fmt.Sprintf("between %v and %v", d.min, d.max)
		if d.zero != "" {
			allowed = d.zero + " or " + allowed
		}
		errs = append(errs, field.Invalid(p.Child(d.name), d.value.Duration.String(), "must be "+allowed))
	}
	return errs
}

// graceRanges returns the ranges of the durations that a pool can override.
func graceRanges(provision, backoff, decline *metav1.Duration) []duration {
	return []duration{
		{"provisionGrace", provision, 0, 24 * time.Hour, ""},
		{"backoffGrace", backoff, 0, 24 * time.Hour, ""},
		{"declineGrace", decline, time.Second, 24 * time.Hour, ""},
	}
}

func validateCapacity(c *Capacity, p *field.Path) field.ErrorList {
	errs := append(validateObjectID(c.ClusterAutoscalerStatus, "ConfigMap", p.Child("clusterAutoscalerStatus")), validateObjectID(c.KarpenterLease, "Lease", p.Child("karpenterLease"))...)
	return append(errs, validateDurations(p, append(graceRanges(c.ProvisionGrace, c.BackoffGrace, c.DeclineGrace), []duration{
		{"staleAfter", c.StaleAfter, minStaleAfter, 24 * time.Hour, ""},
		{"unknownGrace", c.UnknownGrace, 0, 24 * time.Hour, ""},
		{"newPodDelay", c.NewPodDelay, 0, time.Hour, ""},
		{"holdLimit", c.HoldLimit, time.Second, maxHoldLimit, "0"},
	}...))...)
}

// maxHoldLimit is the longest holdLimit that is reasonable.
const maxHoldLimit = 30 * 24 * time.Hour

func validateName(name string, p *field.Path, whatToDo string, isValid func(string) []string) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, whatToDo)}
	}
	var errs field.ErrorList
	for _, msg := range isValid(name) {
		errs = append(errs, field.Invalid(p, name, msg))
	}
	return errs
}

// when adds the error if the field is wrong.
func when(errs field.ErrorList, wrong bool, err *field.Error) field.ErrorList {
	if wrong {
		return append(errs, err)
	}
	return errs
}

// oneOf adds an error if the value is not one of the supported values.
func oneOf[T ~string](errs field.ErrorList, p *field.Path, value T, supported ...T) field.ErrorList {
	return when(errs, !slices.Contains(supported, value), field.NotSupported(p, value, supported))
}
