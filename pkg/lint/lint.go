// Package lint finds what keeps a cluster from using burst pools, or from growing its pools in order. It reads no
// cluster: the caller passes facts.
package lint

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Severity is how serious a finding is.
type Severity string

// An Error keeps pods pending, or has them run where they should not. A Warning may do so. Info explains a surprise.
const (
	Error   Severity = "Error"
	Warning Severity = "Warning"
	Info    Severity = "Info"
)

// Finding is something that the user should know or change.
type Finding struct {
	// Code is a stable name of the kind of finding.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Object is the kind and the name of the object that the finding is about.
	Object  string `json:"object"`
	Message string `json:"message"`
	// Remedy is what to do; empty if nothing has to be done.
	Remedy string `json:"remedy,omitempty"`
	// See is the page of the documentation, relative to the repository's root.
	See string `json:"see"`
}

// Facts is what Check reads. What is not known is nil.
type Facts struct {
	// Server is version.Supported of the API server's version.
	Server error
	// Pools are the scheduler's. View is the running scheduler's, or has only the numbers of nodes. Without a cluster, it
	// is nil.
	Pools pool.List
	View  *nodegroups.View
	// GroupsKnown is set if View has the node groups of the pools.
	GroupsKnown bool
	// Problems are what the scheduler published.
	Problems []string
	// Disorder says which node group or NodePool grows before one of an earlier pool.
	Disorder []string
	// Unlimited are the NodePools without limits.
	Unlimited []string
	AKS       *AKS
	Quota     *Quota

	// Scheduler is the schedulerName of this scheduler's pods. Args are its arguments, with defaults, or nil.
	Scheduler string
	Args      *configv1.PoolPriorityArgs
	// Workloads are those of the cluster or of files.
	Workloads []Workload
	// FitNoPool names the workloads of this scheduler whose pods fit no regular pool because of taints.
	FitNoPool []string
	// Overlaps are the nodes in several pools, unless they are among the scheduler's problems.
	Overlaps []pool.Overlap
	// BurstNodes are the nodes of burst pools. nil means that they are not known, or that there is none.
	BurstNodes []corev1.Node
	// GateTaintDenied is why nodes cannot get the gate taint; empty if they can, or if that is not known.
	GateTaintDenied string
}

// Check returns the findings, errors first.
func Check(f *Facts) []Finding {
	var found []Finding
	add := func(code string, severity Severity, object, see, remedy, format string, a ...any) {
		found = append(found, Finding{Code: code, Severity: severity, Object: object, Message: fmt.Sprintf(format, a...), Remedy: remedy, See: see})
	}
	if f.Server != nil {
		add("VersionUnsupported", Error, "cluster", "docs/versions.md", "upgrade the cluster", "%v", f.Server)
	}
	if f.AKS != nil {
		f.checkAKS(add)
	}
	if f.Args != nil {
		f.checkSettings(add)
	}
	for i := range f.Pools.Len() {
		f.checkPool(i, add)
	}
	if f.Quota != nil {
		f.checkQuota(add)
	}
	for _, problem := range f.Problems {
		add("Problem", Warning, "scheduler", "docs/troubleshooting.md", "", "%s", problem)
	}
	for _, o := range f.Overlaps {
		add("InSeveralPools", Warning, "node "+o.Node.Name, "docs/configuration.md", "narrow the nodeSelectors, or ignore it", "%s", o)
	}
	for _, line := range f.Disorder {
		add("ExpanderOrder", Warning, "autoscaler", "docs/install.md#which-pool-grows-first", "kubectl pools expander prints what to apply", "%s", line)
	}
	for _, name := range f.Unlimited {
		add("NoLimits", Warning, "NodePool "+name, "docs/install.md#which-pool-grows-first", "set spec.limits",
			"it has no limits, so it is never full: pods burst only after Karpenter wrote that it cannot place them")
	}
	if f.GateTaintDenied != "" {
		add("GateTaintDenied", Error, "nodes", "docs/install.md#before", "", "%s", f.GateTaintDenied)
	}
	for i := range f.Workloads {
		f.checkWorkload(&f.Workloads[i], add)
	}
	if n := len(f.FitNoPool); n > 0 {
		severity := Warning
		if f.Pools.Autoscaled() && slices.ContainsFunc(f.Args.Pools, func(p configv1.Pool) bool { return p.Karpenter != nil }) {
			severity = Error // neither autoscaler adds a VM for the pods
		}
		add("NoPoolFits", severity, "workloads", "docs/gate.md#which-groups-fit-a-pod", "tolerate the taint of one of the pools, which kubectl pools explain names",
			"the pods of %d workload(s) fit no VM, because of taints. They burst while VMs could be added, or wait for ever: %s", n, strings.Join(f.FitNoPool, ", "))
	}
	order := []Severity{Error, Warning, Info}
	slices.SortStableFunc(found, func(a, b Finding) int { return slices.Index(order, a.Severity) - slices.Index(order, b.Severity) })
	return found
}

type adder func(code string, severity Severity, object, see, remedy, format string, a ...any)

// checkPool checks the pool with index i.
func (f *Facts) checkPool(i int, add adder) {
	p, state, object := f.Pools.At(i), &nodegroups.Pool{}, "pool "+f.Pools.At(i).Name
	if f.View != nil {
		state = &f.View.Pools[i]
	}
	isNamed := func(g nodegroups.Group) bool { return g.Name != "" }
	if f.View != nil && state.Nodes == 0 && (f.GroupsKnown || f.Pools.IsBurst(i)) && p.Karpenter == nil && !slices.ContainsFunc(state.Groups, isNamed) {
		add("EmptyPool", Warning, object, "docs/troubleshooting.md", "compare the pool's nodeSelector with kubectl get nodes --show-labels", "its nodeSelector matches no node, and no node group is known that may get such nodes")
	}
	if f.Pools.IsBurst(i) {
		if limits := p.Limits(); limits == (pool.Limits{}) {
			add("NoBudget", Warning, object, "docs/costs.md#how-much-at-most", "set burst.limits", "it has no limits, so any number of pods may burst")
		}
		given := p.Tolerations()
		isOurs := func(w Workload) bool { return w.Ours && w.CannotBurst == "" }
		isKeptOff := func(w Workload) bool {
			return isOurs(w) && state.Untolerated(append(given, w.Template.Spec.Tolerations...)) != nil
		}
		// If each workload tolerates the taint, they are meant to.
		if taint := state.Untolerated(given); taint != nil && (slices.ContainsFunc(f.Workloads, isKeptOff) || !slices.ContainsFunc(f.Workloads, isOurs)) {
			add("UntoleratedTaint", Warning, object, "docs/configuration.md", "tolerate it in burst.tolerations or, if its effect is NoExecute, in the pods",
				"its nodes take only pods that tolerate the taint %s, which the pool does not", taint.ToString())
		}
		return
	}
	for _, g := range state.Groups {
		if slices.ContainsFunc(g.NodeTemplates, func(t nodegroups.NodeTemplate) bool {
			return slices.ContainsFunc(t.Taints, func(taint corev1.Taint) bool { return taint.Key == "CriticalAddonsOnly" })
		}) {
			add("CriticalAddonsOnly", Info, object, "docs/install.md#which-pool-grows-first", "", "its nodes have the taint CriticalAddonsOnly, so ordinary pods skip this pool")
			return
		}
	}
}

// checkQuota compares the limits of all burst pools on Container Instances with the quota of the subscription.
func (f *Facts) checkQuota(add adder) {
	var pods int
	var milliCPU int64
	for _, p := range f.Pools.Burst() {
		if !p.OnACI() {
			continue
		}
		limits := p.Limits()
		pods, milliCPU = pods+limits.Pods, milliCPU+limits.MilliCPU
		if limits.Pods == 0 || limits.MilliCPU == 0 {
			add("OverQuota", Error, "pool "+p.Name, "docs/aci.md#what-it-costs-limits-and-quota", "set burst.limits.pods and burst.limits.cpu below the quota", "it has no limit of pods, or none of CPU, and the subscription has a quota of both")
		}
	}
	const remedy = "lower burst.limits, or have the quota raised"
	if f.Quota.Groups >= 0 && pods > f.Quota.Groups {
		add("OverQuota", Error, "burst pools", "docs/aci.md#what-it-costs-limits-and-quota", remedy, "their limits allow %d pods, and the quota %d container groups", pods, f.Quota.Groups)
	}
	if f.Quota.Cores >= 0 && milliCPU > int64(f.Quota.Cores)*1000 {
		add("OverQuota", Error, "burst pools", "docs/aci.md#what-it-costs-limits-and-quota", remedy, "their limits allow %g CPUs, and the quota %d cores", float64(milliCPU)/1000, f.Quota.Cores)
	}
}
