package gate

import (
	"slices"
	"strings"

	"poolpriority.dev/scheduler/pkg/aci"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
)

// Kind is a class of reasons. It shows what a reason means for a pod.
type Kind int

const (
	// Earlier means that the gate is closed because an earlier pool can grow, is growing, or is Unknown.
	Earlier Kind = iota + 1
	// Momentary means that the gate is likely to open within seconds. While it is closed for such a reason, the
	// scheduler preempts no pods for the held pod.
	Momentary
	// Waiting means that the gate stays closed for more than a few seconds. It may open without a change of the pod.
	Waiting
	// Lasting means that the gate is closed until the pod, its namespace or the configuration changes.
	Lasting
	// Open means that the gate is open.
	Open
	// InVain means that the gate is open, and no node takes the pod.
	InVain
	// OfNode means that the node cannot be used, whether or not the gate is open.
	OfNode
	// OfPool means that a regular pool, or one of its node groups, does not keep the gate closed.
	OfPool
)

// Entry is a row of the table of reasons.
type Entry struct {
	nodegroups.Reason
	Kind Kind
	// Hint is advice for the user. Only reasons of the kind Lasting have a hint.
	Hint string
}

// table has a row for each reason. The function define adds a row.
var table []Entry

func define(kind Kind, code, sentence, hint string) nodegroups.Reason {
	reason := nodegroups.Reason{Code: code, Sentence: sentence}
	table = append(table, Entry{reason, kind, hint})
	return reason
}

// These are the reasons. If a reason's kind is InCondition, kube-scheduler writes the sentence after "0/5 nodes are
// available: 1 …". None of these sentences contains another of them.
var (
	ReasonCanGrow = define(Earlier, "PoolCanGrow", "node(s) in a burst pool, which opens when no earlier pool can grow", "")
	ReasonGrowing = define(Earlier, "PoolGrowing", "node(s) in a burst pool, which stays closed while nodes of an earlier pool are on their way", "")
	ReasonUnknown = define(Earlier, "PoolUnknown", "node(s) in a burst pool, which stays closed while it is unknown whether an earlier pool can grow", "")
	reasonRequest = define(Earlier, "ProvisioningRequest", "node(s) in a burst pool, which stays closed while the pod's ProvisioningRequest may get nodes in an earlier pool", "")

	ReasonSnapshotStale      = define(Momentary, "SnapshotStale", "node(s) in a burst pool, which stays closed until the scheduler's snapshot has all nodes of the earlier pools", "")
	ReasonRolloutTerminating = define(Momentary, "RolloutTerminating", "node(s) in a burst pool, which stays closed while pods that the rollout replaces terminate elsewhere", "")
	ReasonReplicaSetUnknown  = define(Momentary, "ReplicaSetUnknown", "node(s) in a burst pool, which stays closed until the scheduler has seen the pod's ReplicaSet", "")
	ReasonVictimsTerminating = define(Momentary, "VictimsTerminating", "node(s) in a burst pool, which stays closed while the pods that the pod preempted terminate elsewhere", "")
	ReasonRateLimited        = define(Momentary, "RateLimited", "node(s) in a burst pool that starts few pods at a time for an owner that counts failed pods, such as a Job", "")
	reasonOverrideUnread     = define(Momentary, "OverrideUnread", "node(s) in a burst pool, which stays closed until the scheduler has read the ConfigMap pool-priority-override", "")

	// ReasonMakesRoom is not Momentary: the scheduler preempts pods for the held pod.
	ReasonMakesRoom        = define(Waiting, "MakesRoom", "node(s) in a burst pool, which stays closed while the pod can take the place of pods of low priority (makeRoom) elsewhere", "")
	ReasonProviderRefusing = define(Waiting, "Refused", "node(s) in a burst pool whose provider refuses pods", "")
	ReasonHalfOpen         = define(Waiting, "HalfOpen", "node(s) in a burst pool whose provider refused pods and is being tested with other pods", "")
	ReasonFailureLimit     = define(Waiting, "FailureLimit", "node(s) in a burst pool that refused too many pods of an owner that counts failed pods, such as a Job", "")
	ReasonBudgetSpent      = define(Waiting, "BudgetSpent", "node(s) in a burst pool whose budget (limits or perNamespace) has no room for the pod", "")
	ReasonCreateRate       = define(Waiting, "CreateRate", "node(s) in a burst pool that has got as many pods as its rate (creates) allows for now", "")
	ReasonBindingsDenied   = define(Waiting, "BindingsDenied", "node(s) in a pool to which an admission rule denied the binding of the pod, or of pods like it", "")
	ReasonOverridden       = define(Waiting, "OverriddenClosed", "node(s) in a burst pool, which is closed by the ConfigMap pool-priority-override", "")

	ReasonOptedOut = define(Lasting, "OptedOut", "node(s) in a burst pool that the pod's annotation poolpriority.dev/burst opts out of",
		"it may burst without the annotation "+pool.BurstAnnotation+": "+pool.BurstNever)
	reasonUnknownBurstValue = define(Lasting, "UnknownBurstValue", "node(s) in a burst pool, which the pod may not use: its annotation poolpriority.dev/burst is not Never, Always or BelowPriority",
		"give the annotation "+pool.BurstAnnotation+" the value "+pool.BurstNever+", "+pool.BurstAlways+" or "+pool.BurstBelowPriority+", or remove it")
	ReasonBelowPriority = define(Lasting, "BelowPriority", "node(s) in a burst pool, which takes no pods of such a low priority (makeRoom)",
		"it may burst with the annotation "+pool.BurstAnnotation+": "+pool.BurstBelowPriority)
	reasonNotInOrder = define(Lasting, "NotInOrder", "node(s) in a burst pool that the order in the pod's annotation poolpriority.dev/order leaves out",
		"it may burst with another order in the annotation "+pool.OrderAnnotation+", or without the annotation")
	ReasonUnknownOrder = define(Lasting, "UnknownOrder", "node(s) in a burst pool, which the pod may not use: the configuration has no order of the name in its annotation poolpriority.dev/order",
		"correct the annotation "+pool.OrderAnnotation+", or remove it")
	// ReasonGroupNotHeld is the reason for the pods of a gang.
	ReasonGroupNotHeld = define(Lasting, "GroupNotHeld", "node(s) in a burst pool, which takes no pods of a gang, because the scheduler places them one by one",
		"it may burst if it is in no PodGroup (spec.schedulingGroup), or in one with the policy basic")
	reasonTopologyMissing = define(Lasting, "TopologyMissing", "node(s) in a burst pool that lack the topologyKey of a DoNotSchedule spread constraint of the pod",
		"it may burst if its topologySpreadConstraints with that topologyKey are removed or set to ScheduleAnyway")
	ReasonTemplateRefused = define(Lasting, "TemplateRefused", "node(s) in a burst pool whose provider refused this pod template",
		"change the part of the workload's template that the provider refuses")
	reasonNamespaceNotSelected = define(Lasting, "NamespaceNotSelected", "node(s) in a burst pool whose namespaceSelector (by default "+pool.BurstLabel+"="+pool.LabelAllowed+") does not match the pod's namespace",
		"it may burst if its namespace has the labels that the pool's namespaceSelector asks for")
	reasonNetworkPolicyLost = define(Lasting, "NetworkPolicyLost", "node(s) in a burst pool where the pod would lose its NetworkPolicies: its namespace lacks the label "+networkPolicyLabel+"="+pool.LabelAllowed,
		byLabel(networkPolicyLabel)+", or in the pool, burst.allow: [NetworkPolicy]")
	reasonSecurityContextLost = define(Lasting, "SecurityContextLost", "node(s) in a burst pool where the pod would lose its securityContext: its namespace lacks the label "+securityContextLabel+"="+pool.LabelAllowed,
		byLabel(securityContextLabel)+", or in the pool, burst.allow: [SecurityContext]")
	reasonSandboxLost = define(Lasting, "SandboxLost", "node(s) in a burst pool where the pod would lose the sandbox of its RuntimeClass: its namespace lacks the label "+sandboxLabel+"="+pool.LabelAllowed,
		byLabel(sandboxLabel)+", or in the pool, burst.allow: [Sandbox]")
	reasonOnlyWhenFull = define(Lasting, "OnlyWhenFull", "node(s) in a burst pool, which a pod that fits no VM may use only with the namespace label "+pool.BurstNodesLabel+"="+pool.LabelAllowed,
		"it may burst without the node selector, affinity or size that rules out all VMs; "+byLabel(pool.BurstNodesLabel))
	reasonTooLarge = define(Lasting, "TooLarge", "node(s) in a burst pool that cannot run pods as large as this one",
		"it may burst if it requests no more than the pool's field largest allows")
	reasonsUnsupported = defineUnsupported() // by the code of the aci.Feature

	reasonOpen           = define(Open, "Open", "no earlier pool can grow for the pod", "")
	reasonAsked          = define(Open, "SelectedByPod", "the pod selects the burst pool itself", "")
	reasonWaitLimit      = define(Open, "WaitLimit", "the pod has waited for waitLimit", "")
	reasonOverflow       = define(Open, "Overflow", "no earlier pool can get more nodes, and those on their way have no room for the pod", "")
	reasonHoldLimit      = define(Open, "HoldLimit", "the pod has been held for holdLimit", "")
	reasonOverriddenOpen = define(Open, "OverriddenOpen", "the ConfigMap pool-priority-override opens the gate", "")

	// ReasonNoRoom is in no decision of the gate.
	ReasonNoRoom = define(InVain, "NoRoomInBurstPool", "the gate is open for the pod, and no node of the burst pool takes it", "")

	reasonNotApplicable = define(OfPool, "NotApplicable", "the pool's nodes cannot run the pod", "")
	reasonDeclined      = define(OfPool, "Declined", "the autoscaler does not grow the pool for the pod", "")
	reasonNoCredit      = define(OfPool, "NoCredit", "the pool counts as full, because its nodes have not served pods like this one for too long", "")
	reasonBeyondLimits  = define(OfPool, "BeyondLimits", "the pod requests more than the pool's limits leave", "")
	reasonUnknownLong   = define(OfPool, "UnknownTooLong", "the pool counts as full, because its capacity has been unknown for unknownGrace", "")
	reasonNoBindings    = define(OfPool, "NoBindings", "an admission rule denies the pod's binding to the pool's nodes", "")
	reasonNoGroups      = define(OfPool, "NoGroups", "the scheduler has no data about the pool yet", "")

	// ReasonBetterPool is for nodes that rank below a pool with room. ReasonInNoBurstPool is for virtual-kubelet nodes
	// outside of every burst pool. ReasonAwaitsGateTaint is for new burst nodes to which the controller has not added
	// the gate taint yet. ReasonNotAvailable is for burst nodes that are not ready, are cordoned or lack their label.
	ReasonBetterPool      = define(OfNode, "BetterPool", "node(s) in a pool ranked below a pool with room", "")
	ReasonInNoBurstPool   = define(OfNode, "InNoBurstPool", "node(s) of a virtual kubelet in no burst pool", "")
	ReasonAwaitsGateTaint = define(OfNode, "AwaitsGateTaint", "node(s) in a burst pool that are new and wait for the gate taint", "")
	ReasonNotAvailable    = define(OfNode, "NotAvailable", "node(s) in a burst pool that are cordoned, not ready or without their label", "")
)

// These labels of a namespace allow its pods to lose a protection in burst pools.
const networkPolicyLabel, securityContextLabel, sandboxLabel = "poolpriority.dev/network-policy-loss", "poolpriority.dev/security-context-loss", "poolpriority.dev/sandbox-loss"

// byLabel returns advice for the administrator. Tools replace NAME by the namespace.
func byLabel(label string) string {
	return "an administrator can allow it: kubectl label namespace NAME " + label + "=" + pool.LabelAllowed
}

func defineUnsupported() map[string]nodegroups.Reason {
	reasons := map[string]nodegroups.Reason{}
	for _, feature := range aci.Features() {
		hint := "it may burst without this feature; the annotation " + pool.BurstAnnotation + ": " + pool.BurstAlways + " skips this check"
		if feature.Any {
			hint = "no virtual kubelet runs such pods"
		}
		reasons[feature.Code] = define(Lasting, feature.Code, "node(s) in a burst pool that cannot run "+feature.What, hint)
	}
	return reasons
}

// Lookup returns the row of the reason with the code, or an empty row.
func Lookup(code string) Entry {
	if i := slices.IndexFunc(table, func(e Entry) bool { return e.Code == code }); i >= 0 {
		return table[i]
	}
	return Entry{}
}

// Hint returns advice for the user of a pod in the namespace to which the pool is closed for the reason, or "".
func Hint(code string, p *pool.Pool, namespace string) string {
	hint := Lookup(code).Hint
	if code == reasonNamespaceNotSelected.Code && p.Burst.NamespaceSelector == nil {
		hint = byLabel(pool.BurstLabel)
	}
	return strings.Replace(hint, " NAME ", " "+namespace+" ", 1)
}

// Reasons returns the rows for whose kind the function match returns true. Their reasons have no details.
func Reasons(match func(Kind) bool) []Entry {
	return slices.DeleteFunc(slices.Clone(table), func(e Entry) bool { return !match(e.Kind) })
}

// Closes reports whether reasons of this kind close the gate.
func (k Kind) Closes() bool { return k == Earlier || k == Momentary || k == Waiting || k == Lasting }

// Holds reports whether held pods may wait for a reason of this kind.
func (k Kind) Holds() bool { return k.Closes() || k == InVain }

// Opens reports whether reasons of this kind open the gate.
func (k Kind) Opens() bool { return k == Open }

// MayOpen reports whether a gate that is closed for a reason of this kind may open while the pod stays the same.
func (k Kind) MayOpen() bool { return k.Closes() && k != Lasting }

// InCondition reports whether the scheduler writes the sentences of this kind into the pod's condition PodScheduled.
func (k Kind) InCondition() bool { return k.Closes() || k == OfNode }

// OfEarlierPool reports whether the reason closes a gate because of an earlier pool.
func (e Entry) OfEarlierPool() bool { return e.Kind == Earlier || e.Code == ReasonSnapshotStale.Code }
