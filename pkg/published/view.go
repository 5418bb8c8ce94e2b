package published

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/aci"
	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

const (
	// ViewKey is the ConfigMap's key that holds a View in JSON. People, tools and the next leader read it.
	ViewKey = "view"
	// ViewVersion and ViewKind are the version and the kind of a View.
	ViewVersion, ViewKind = "poolpriority.dev/v1alpha1", "View"
)

// View has all inputs of the gate, except for the pod. With a View and a pod, a tool calls Request and then Decide to
// compute the same decision as the scheduler.
type View struct {
	// APIVersion and Kind are ViewVersion and ViewKind if this version wrote the View.
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Written is when the View was written, by the leader's clock.
	Written time.Time `json:"written"`
	// Leader is the hostname of the leader, which is the name of its pod. Version is the leader's version.
	Leader  string `json:"leader,omitempty"`
	Version string `json:"version,omitempty"`
	// Args is the active configuration, with all defaults.
	Args *configv1.PoolPriorityArgs `json:"args"`
	// Installation is Args.Installation, which the encoded Args do not contain.
	Installation string `json:"installation,omitempty"`
	// Capacity has the state of each pool, by the pool's index in Args.
	Capacity nodegroups.View `json:"capacity"`
	// SchedulerName is the schedulerName of the scheduler's pods.
	SchedulerName string `json:"schedulerName,omitempty"`
	// Available counts the nodes of each pool that are ready and not cordoned, by the pool's index. Unlisted counts the
	// nodes in no pool. Only people read Available and Unlisted, and other versions may leave them out.
	Available []int `json:"available,omitempty"`
	Unlisted  int   `json:"unlisted,omitempty"`
	// Burst is the usage of each burst pool, by the pool's index. Entries of regular pools are empty.
	Burst []aci.Use `json:"burst,omitempty"`
	// Shares is the usage of each namespace in each burst pool, by the pool's index. It is set if any pool has a budget
	// for each namespace.
	Shares []map[string]aci.Use `json:"shares,omitempty"`
	// Usage has the usage of each pool, by the pool's index.
	Usage []Usage `json:"usage,omitempty"`
	// Override is the operator's override of the gate, if any.
	Override gate.Override `json:"override,omitzero"`
	// Declines has what gate.Declines remembers.
	Declines map[string]gate.Decline `json:"declines,omitempty"`
	// Waits has the times since which pods have waited, by the pod's UID. It leaves out pods whose conditions show
	// these times.
	Waits map[types.UID]Wait `json:"waits,omitempty"`
	// Held counts the held pods.
	Held Held `json:"held"`
	// Problems lists mistakes that the user can fix, one sentence for each.
	Problems []string `json:"problems,omitempty"`
	// LeftOut counts the entries that Fit left out, such as "230 refusals". They are heirs (Memory.Heirs), details (usage figures,
	// declines, services and templates), waits (Waits), refusals (Memory.BurstPools) and clocks (Memory.Unschedulable). A decision from an
	// incomplete View may differ from the scheduler's decision.
	LeftOut []string `json:"leftOut,omitempty"`
}

// Usage describes how full a pool is.
type Usage struct {
	// Pods is the number of pods on the pool's nodes that have not ended.
	Pods int `json:"pods"`
	// Requested is the sum of the pods' requests for CPU and memory. Allocatable is the sum of the nodes' allocatable
	// resources.
	Requested   corev1.ResourceList `json:"requested,omitempty"`
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
}

// Wait has the times since which a pod has waited, as in gate.Request.
type Wait struct {
	Unschedulable time.Time `json:"unschedulable,omitzero"` // when the pod became unschedulable; zero if unknown
	NoRoom        time.Time `json:"noRoom,omitzero"`        // when the pod began to lack resources; zero if unknown, or if it last failed for another reason
	Ignored       time.Time `json:"ignored,omitzero"`       // when autoscalers last ignored the pod; zero if they never ignored it
	// Inherited is for how long a deleted pod had waited whose waiting the pod continues. It is in nanoseconds.
	Inherited time.Duration `json:"inherited,omitempty"`
}

// Held counts the held pods.
type Held struct {
	Total int `json:"total"`
	// Oldest is when the held pod with the longest wait became unschedulable; zero if no pod is held.
	Oldest time.Time `json:"oldest,omitzero"`
	// By counts the held pods by pool and reason, the largest number first.
	By []HeldBy `json:"by,omitempty"`
}

// HeldBy counts the held pods with the same pool and reason.
type HeldBy struct {
	// Pool is the first regular pool that keeps the gate closed. If there is none, Pool is the burst pool whose gate is
	// closed, or open in vain.
	Pool   string `json:"pool"`
	Reason string `json:"reason"`
	Pods   int    `json:"pods"`
}

// Encode returns the View in JSON, as written at the given time.
func (v *View) Encode(written time.Time) ([]byte, error) {
	c := *v
	c.APIVersion, c.Kind, c.Written = ViewVersion, ViewKind, written.UTC()
	return json.Marshal(&c)
}

// Restored returns the state of the named regular pool as the next leader starts from it, and whether there is one.
func (v *View) Restored(name string) (nodegroups.Pool, bool) {
	i := slices.IndexFunc(v.Args.Pools, func(p configv1.Pool) bool { return p.Name == name && p.Burst == nil })
	if i < 0 {
		return nodegroups.Pool{}, false
	}
	p := &v.Capacity.Pools[i]
	return nodegroups.Pool{State: p.State, Since: p.Since, Known: p.Known, Nodes: p.Nodes, Groups: p.Groups}, true
}

// Creates returns the last creates in the named burst pool.
func (v *View) Creates(name string) breaker.Creates {
	if i := slices.IndexFunc(v.Args.Pools, func(p configv1.Pool) bool { return p.Name == name }); i >= 0 {
		return v.Capacity.Pools[i].Provider.Creates
	}
	return nil
}

// quiet returns the View without the fields that change at every evaluation of the pools. While pods are held, it drops
// only Capacity.Built, because the other fields affect when the gate opens for these pods.
func (v *View) quiet() *View {
	c := *v
	c.Capacity.Built = time.Time{}
	if c.Held.Total > 0 {
		return &c
	}
	c.Capacity.TemplatesUntil = time.Time{}
	c.Capacity.Pools = slices.Clone(c.Capacity.Pools)
	for i := range c.Capacity.Pools {
		p := &c.Capacity.Pools[i]
		p.ScannedBefore, p.LastStatus.Seen, p.Until, p.Groups = time.Time{}, time.Time{}, time.Time{}, slices.Clone(p.Groups)
		for k := range p.Groups {
			p.Groups[k].Until = time.Time{}
		}
	}
	return &c
}

// DecodeView parses the value of ViewKey. It drops fields that only a newer version knows. If the View lacks inputs of
// a decision, DecodeView returns an error.
func DecodeView(data []byte) (*View, error) {
	v := &View{}
	if err := json.Unmarshal(data, v); err != nil {
		return nil, fmt.Errorf("reading key %q: %w", ViewKey, err)
	}
	switch {
	case v.Kind != ViewKind:
		return nil, fmt.Errorf("reading key %q: the kind is %q, not %s", ViewKey, v.Kind, ViewKind)
	case v.Args == nil || len(v.Args.Pools) == 0:
		return nil, fmt.Errorf("reading key %q: no pools in args", ViewKey)
	case len(v.Capacity.Pools) != len(v.Args.Pools):
		return nil, fmt.Errorf("reading key %q: capacity has %d pools, but args has %d", ViewKey, len(v.Capacity.Pools), len(v.Args.Pools))
	case v.Burst != nil && len(v.Burst) != len(v.Args.Pools), v.Usage != nil && len(v.Usage) != len(v.Args.Pools),
		v.Shares != nil && len(v.Shares) != len(v.Args.Pools), v.Available != nil && len(v.Available) != len(v.Args.Pools):
		return nil, fmt.Errorf("reading key %q: burst, shares, usage or available does not have one entry for each of the %d pools", ViewKey, len(v.Args.Pools))
	}
	var unset []*configv1.Burst // by an older scheduler, for which an empty list was the default
	for i := range v.Args.Pools {
		if b := v.Args.Pools[i].Burst; b != nil && b.Tolerations == nil {
			unset = append(unset, b)
		}
		if v.Args.Pools[i].NodeSelector == nil {
			return nil, fmt.Errorf("reading key %q: args.pools[%d] has no nodeSelector", ViewKey, i)
		}
		if i > 0 && v.Args.Pools[i-1].Burst != nil && v.Args.Pools[i].Burst == nil {
			return nil, fmt.Errorf("reading key %q: args.pools[%d] is a regular pool after a burst pool", ViewKey, i)
		}
	}
	configv1.SetDefaults_PoolPriorityArgs(v.Args) // another version may leave fields out
	for _, b := range unset {
		b.Tolerations = nil
	}
	return v, nil
}

// IsForeign reports whether the View's APIVersion is not ViewVersion. The fields of such a View may have other
// meanings.
func (v *View) IsForeign() bool { return v.APIVersion != ViewVersion }

// Pools returns the pools of Args, for the View's Installation.
func (v *View) Pools() (pool.List, error) {
	args := *v.Args
	args.Installation = v.Installation
	return pool.ListOf(&args)
}

// Request returns the gate's input for the pod at the time now, from the View and the pod. The caller adds facts about
// volumes and namespaces.
func (v *View) Request(pod *corev1.Pod, now time.Time) gate.Request {
	request := gate.Request{Pod: pod, Burst: v.Burst}
	if v.Shares != nil {
		request.Share = func(i int) aci.Use { return v.Shares[i][pod.Namespace] }
	}
	wait, known := v.Waits[pod.UID]
	if !known {
		wait.Unschedulable, wait.NoRoom = gate.UnschedulableSince(pod), gate.NoRoomSince(pod)
	}
	if pod.Status.NominatedNodeName != "" {
		wait.Ignored = now
	}
	request.UnschedulableSince, request.NoRoomSince, request.IgnoredUntil, request.Inherited = wait.Unschedulable, wait.NoRoom, wait.Ignored, wait.Inherited
	return request
}

// ReadsEvents reports whether the gate's decisions depend on the events that autoscalers write on pods.
func (v *View) ReadsEvents() bool {
	return !v.Args.Tenants && slices.ContainsFunc(v.Capacity.Pools, func(p nodegroups.Pool) bool {
		return !p.LastStatus.EventsSince.IsZero() || slices.ContainsFunc(p.Groups, func(g nodegroups.Group) bool { return g.ByEvent })
	})
}

// Decide returns the gate's decision for the request at the time now.
func (v *View) Decide(request gate.Request, pools pool.List, now time.Time) gate.Decision {
	v.addDeclines(&request, now)
	rule := gate.NewRule(v.Args, pools)
	rule.Override = v.Override
	return rule.Decide(request, &v.Capacity, now)
}

// Groups returns the verdicts on the request at the time now, one for each node group of the regular pool with index i.
func (v *View) Groups(request gate.Request, pools pool.List, i int, now time.Time) []gate.Verdict {
	v.addDeclines(&request, now)
	rule := gate.NewRule(v.Args, pools)
	return rule.Groups(request, &v.Capacity, i, now)
}

// CreditEnds returns when the pod of the request has no credit left (gate.Rule.CreditEnds).
func (v *View) CreditEnds(request gate.Request, pools pool.List, now time.Time) time.Time {
	rule := gate.NewRule(v.Args, pools)
	return rule.CreditEnds(request, &v.Capacity, now)
}

// addDeclines adds the declines of the pod's AutoscalerKey to the request.
func (v *View) addDeclines(request *gate.Request, now time.Time) {
	if len(v.Declines) > 0 {
		digest, uid := gate.KeyDigest(request.AutoscalerKey()), request.Pod.UID
		request.Declined = func(key string) time.Time { return gate.Believed(v.Declines, digest, key, uid, now) }
	}
}
