package karpenter

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// NodeClaimResource is the API resource of NodeClaims. A NodeClaim represents a node that Karpenter has ordered or is
// about to order.
var NodeClaimResource = schema.GroupVersionResource{Group: "karpenter.sh", Version: "v1", Resource: "nodeclaims"}

const (
	// rememberFailure is how long launches count as failing after the last failure. A provider does not retry an
	// offering for 3 min after the offering had no capacity. During these 3 min, Karpenter creates no NodeClaim.
	// Source: github.com/Azure/karpenter-provider-azure/pkg/cache, UnavailableOfferingsTTL.
	rememberFailure = 5 * time.Minute
	// launchTimeout is for how long Karpenter tries to launch a NodeClaim. Source:
	// sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle, launchTimeout.
	launchTimeout = 5 * time.Minute
	// behind is the longest time for which a NodePool's status may still count a node that is gone. Karpenter stops
	// counting a node when the deletion of the node's NodeClaim begins, and writes the status every 5 s, but not while a
	// NodeClaim is not launched. Source: sigs.k8s.io/karpenter/pkg/controllers/nodepool/counter and state,
	// MarkedForDeletion and Synced.
	behind = 10 * time.Second
	// maxMessage bounds the message of a failed launch, in bytes. Karpenter itself keeps 300 bytes.
	maxMessage = 200
	// conditionLaunched is True once the NodeClaim's VM was created. conditionRegistered is True once its Node exists.
	conditionLaunched, conditionRegistered = "Launched", "Registered"
	// awaiting is the reason of a condition that Karpenter has initialized and not evaluated yet. Source:
	// github.com/awslabs/operatorpkg/status, SetUnknown.
	awaiting = "AwaitingReconciliation"
)

// nodeClaim has the fields of a NodeClaim that this package reads. Source: sigs.k8s.io/karpenter/pkg/apis/v1,
// NodeClaim.
type nodeClaim struct {
	Metadata struct {
		Name              string       `json:"name"`
		UID               types.UID    `json:"uid"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp,omitempty"`
	} `json:"metadata"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
	} `json:"status,omitempty"`
}

// launch returns whether the NodeClaim was launched (ok) and when (at, by Karpenter's clock). If the launch failed,
// failure is the message. Karpenter retries a failed launch for launchTimeout. But if there is no capacity or the node class is
// not ready, Karpenter deletes the NodeClaim at once. Source:
// sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle, launchNodeClaim.
func (c *nodeClaim) launch() (at time.Time, ok bool, failure string) {
	switch condition := meta.FindStatusCondition(c.Status.Conditions, conditionLaunched); {
	case condition == nil, condition.Status == metav1.ConditionUnknown && condition.Reason == awaiting:
		return time.Time{}, false, ""
	case condition.Status == metav1.ConditionTrue:
		return condition.LastTransitionTime.Time, true, ""
	default:
		return time.Time{}, false, c.says(condition.Reason + ": " + condition.Message)
	}
}

// says returns the NodeClaim's name and the text, in one line of at most maxMessage bytes.
func (c *nodeClaim) says(text string) string {
	text = strings.Join(strings.Fields(fmt.Sprintf("NodeClaim %s: %s", c.Metadata.Name, text)), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxMessage)], "")
}

// LaunchMemory is the state of a NodePool's launches that the leader publishes, so that the next leader can restore it.
type LaunchMemory struct {
	// Launched is when a NodeClaim was last launched, by Karpenter's clock.
	Launched time.Time `json:"launched,omitzero"`
	// Failing is when launches began to fail; zero if they have not failed since the last success. Failed is when a
	// failure was last seen.
	Failing time.Time `json:"failing,omitzero"`
	Failed  time.Time `json:"failed,omitzero"`
	// Message is Karpenter's message of the last failure.
	Message string `json:"message,omitempty"`
}

// Launches follows a NodePool's NodeClaims. Its methods are safe for concurrent use. Each watch event is recorded as it
// arrives, because a NodeClaim without capacity is created and deleted within a second.
type Launches struct {
	mu     sync.Mutex
	memory LaunchMemory
	claims map[types.UID]seenClaim // the NodeClaims that exist
	left   time.Time               // when a launched NodeClaim was last seen to be deleted, or a Node to be removed
}

// seenClaim is what the last event of a NodeClaim said.
type seenClaim struct {
	seen     time.Time // when it was first seen
	failure  string    // the message of its failed launch, if any
	launched bool
	starting bool // it is launched, and its Node does not exist yet
	leaving  bool // it is being deleted
}

// waits reports whether the NodeClaim is not launched, and may still be.
func (c *seenClaim) waits() bool { return !c.launched && !c.leaving }

// NewLaunches returns launches without a history.
func NewLaunches() *Launches { return &Launches{claims: map[types.UID]seenClaim{}} }

// Observe records a NodeClaim at the time now, from its JSON or, if it is gone, from its last known JSON. It reports
// whether the NodePool's status must be derived again.
func (l *Launches) Observe(object []byte, gone bool, now time.Time) (changed bool, err error) {
	c, err := decode[nodeClaim](object, "NodeClaim")
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if gone {
		c.Metadata.DeletionTimestamp = &metav1.Time{Time: now}
		defer delete(l.claims, c.Metadata.UID)
	}
	at, launched, failure := c.launch()
	before, known := l.claims[c.Metadata.UID]
	leaving := c.Metadata.DeletionTimestamp != nil
	k := seenClaim{seen: cmp.Or(before.seen, now), failure: failure, launched: launched, leaving: leaving,
		starting: launched && !leaving && !meta.IsStatusConditionTrue(c.Status.Conditions, conditionRegistered)}
	switch {
	case launched:
		l.left, changed = l.lastLeftAt(now), known && before.waits()
		l.claims[c.Metadata.UID] = k
		if !leaving || known && !before.leaving { // else, the launch of one that goes would end the failures of others
			changed = l.succeed(at, now) || changed
		}
		if leaving && !before.leaving { // Karpenter no longer counts it
			l.left, changed = now, true
		}
	case before.leaving:
	case leaving:
		l.fail(cmp.Or(failure, c.says("deleted before it was launched")), now)
		changed = true
	case failure != "" && failure != before.failure:
		l.fail(failure, now)
		changed = true
	}
	l.claims[c.Metadata.UID] = k
	return changed, nil
}

// succeed records the launch of a NodeClaim. at is the time of the launch by Karpenter's clock. If the launch of
// another NodeClaim has failed, launches count as failing from the time now on. succeed reports whether launches
// counted as failing before.
func (l *Launches) succeed(at, now time.Time) bool {
	if !at.After(l.memory.Launched) {
		return false // this launch, or a later one, is recorded already
	}
	failing := !l.memory.Failing.IsZero()
	l.memory = LaunchMemory{Launched: at}
	for _, c := range l.claims {
		if c.waits() && c.failure != "" {
			l.memory.Failing, l.memory.Failed, l.memory.Message = now, now, c.failure
		}
	}
	return failing
}

// fail records a failed launch.
func (l *Launches) fail(message string, now time.Time) {
	if since, _ := l.since(now); since.IsZero() {
		l.memory.Failing = now
	}
	l.memory.Failed, l.memory.Message = now, message
}

// since returns when launches began to fail; zero if they do not count as failing. Launches count as failing while a
// NodeClaim with a failed launch exists, and for rememberFailure after the last failure. until is when launches stop
// counting as failing without an event; zero if never.
func (l *Launches) since(now time.Time) (since, until time.Time) {
	for _, c := range l.claims {
		if c.waits() && c.failure != "" {
			return l.memory.Failing, time.Time{}
		}
	}
	until = l.memory.Failed.Add(rememberFailure)
	if l.memory.Failing.IsZero() || !now.Before(until) {
		return time.Time{}, time.Time{}
	}
	return l.memory.Failing, until
}

// failing returns the results of since, and the message of the last failure.
func (l *Launches) failing(now time.Time) (since, until time.Time, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, until = l.since(now)
	return since, until, l.memory.Message
}

// coming returns the number of ordered nodes that do not exist yet. counted is this number by the NodePool's status.
// While a NodeClaim is not launched, Karpenter does not update the status. The old status counts nodes that are gone,
// and does not count new nodes. Therefore coming then returns the number of launched NodeClaims without a Node. Source:
// sigs.k8s.io/karpenter/pkg/controllers/nodepool/counter, and state, Synced.
func (l *Launches) coming(counted int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	starting, waits := int64(0), false
	for _, c := range l.claims {
		if waits = waits || c.waits(); c.starting {
			starting++
		}
	}
	if waits {
		return starting
	}
	return counted
}

// behindUntil returns until when the NodePool's status may still count a node that is gone; zero if it counts no such
// node at the time now.
func (l *Launches) behindUntil(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until := l.lastLeftAt(now).Add(behind); now.Before(until) {
		return until
	}
	return time.Time{}
}

// nodeLeft records that a Node was seen to be removed.
func (l *Launches) nodeLeft(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = now
}

// lastLeftAt returns when a NodeClaim or Node last left. It returns the time now if Karpenter has had no time to write
// the status since then, because a NodeClaim is not launched.
func (l *Launches) lastLeftAt(now time.Time) time.Time {
	for _, c := range l.claims {
		if c.waits() && c.failure == "" && now.Before(c.seen.Add(launchTimeout)) && !l.left.IsZero() && c.seen.Before(l.left.Add(behind)) {
			return now
		}
	}
	return l.left
}

// Memory returns the state to publish.
func (l *Launches) Memory() LaunchMemory {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory
}

// Restore sets the state that another process published. It keeps launches and failures that this process has recorded
// since then.
func (l *Launches) Restore(m LaunchMemory) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.memory
	if own.Launched.After(m.Launched) {
		return // a NodeClaim has been launched since
	}
	l.memory = m
	if m.Failing.IsZero() {
		l.memory.Failing = own.Failing
	}
	if own.Failed.After(m.Failed) {
		l.memory.Failed, l.memory.Message = own.Failed, own.Message
	}
}
