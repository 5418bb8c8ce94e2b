package gate

import "poolpriority.dev/scheduler/pkg/nodegroups"

// Reasons for which a node cannot be used whatever the gate says. The sentences read on in "0/5 nodes are available: 1 …".
var (
	// ReasonBetterPool is that of nodes ranked below the pool that has room.
	ReasonBetterPool = nodegroups.Reason{Code: "BetterPool", Sentence: "node(s) in a pool ranked below one that has room"}
	// ReasonExcluded is that of a virtual kubelet's nodes that no burst pool lists.
	ReasonExcluded = nodegroups.Reason{Code: "InNoBurstPool", Sentence: "node(s) of a virtual kubelet in no burst pool"}
	// ReasonUngated is that of burst nodes that the controller is about to taint.
	ReasonUngated = nodegroups.Reason{Code: "AwaitsGateTaint", Sentence: "node(s) in a burst pool that are new and wait for the gate taint"}
	// ReasonUnavailable is that of burst nodes that are not ready or are cordoned.
	ReasonUnavailable = nodegroups.Reason{Code: "NotAvailable", Sentence: "node(s) in a burst pool that are not ready or are cordoned"}
)

// Reasons are all for which a node of a burst pool, or one that no pod is put on, may be refused to a pod: each sentence that the scheduler writes into
// a pod's condition is one of these. No sentence begins another.
func Reasons() []nodegroups.Reason {
	return append(ClosedReasons(), ReasonBetterPool, ReasonExcluded, ReasonUngated, ReasonUnavailable)
}
