package gate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// OverrideConfigMap is the name of a ConfigMap in the scheduler's namespace. With this ConfigMap, an operator
	// overrides all gates.
	OverrideConfigMap = "pool-priority-override"
	// overrideGateKey and overrideUntilKey are the only keys that the ConfigMap may have.
	overrideGateKey, overrideUntilKey = "gate", "until"
)

// OverriddenGate is a value of Override.Gate.
type OverriddenGate string

const (
	// OverrideClosed closes all burst pools for all pods.
	OverrideClosed OverriddenGate = "Closed"
	// OverrideOpen ignores the earlier pools: it opens the burst pools as if each pod had waited for waitLimit. All
	// other checks still apply.
	OverrideOpen OverriddenGate = "Open"
	// OverrideUnread closes all gates until the scheduler has read the ConfigMap. Otherwise, a restarted scheduler
	// could let in pods that the value Closed keeps out.
	OverrideUnread OverriddenGate = "Unread"
)

// Override is an operator's override of all gates. The zero value overrides nothing.
type Override struct {
	// Gate is OverrideClosed, OverrideOpen or OverrideUnread. Any other value overrides nothing.
	Gate OverriddenGate `json:"gate,omitempty"`
	// Until is when the override ends; zero if the override lasts until an operator removes it.
	Until time.Time `json:"until,omitzero"`
}

// At returns the override that is in force at the time now, or "".
func (o Override) At(now time.Time) OverriddenGate {
	if !o.Until.IsZero() && !now.Before(o.Until) {
		return ""
	}
	return o.Gate
}

// String completes the sentence "the gate is overridden: …".
func (o Override) String() string {
	if o.Until.IsZero() {
		return string(o.Gate)
	}
	return string(o.Gate) + " until " + o.Until.UTC().Format(time.RFC3339)
}

// ParseOverride parses the ConfigMap. Unknown keys and values are errors, so that a misspelt override never has another
// meaning.
func ParseOverride(cm *corev1.ConfigMap) (Override, error) {
	o := Override{Gate: OverriddenGate(strings.TrimSpace(cm.Data[overrideGateKey]))}
	if o.Gate != OverrideClosed && o.Gate != OverrideOpen {
		return Override{}, fmt.Errorf("%s: the value is %q; set %s or %s", overrideGateKey, cm.Data[overrideGateKey], OverrideClosed, OverrideOpen)
	}
	if until, ok := cm.Data[overrideUntilKey]; ok {
		var err error
		if o.Until, err = time.Parse(time.RFC3339, strings.TrimSpace(until)); err != nil || o.Until.IsZero() {
			return Override{}, fmt.Errorf("%s: the value is %q; write a time such as 2026-11-21T10:00:00Z, or remove the key", overrideUntilKey, until)
		}
	}
	for _, key := range append(slices.Sorted(maps.Keys(cm.Data)), slices.Sorted(maps.Keys(cm.BinaryData))...) {
		if key != overrideGateKey && key != overrideUntilKey {
			return Override{}, fmt.Errorf("%s: unknown key; the keys are %s and %s", key, overrideGateKey, overrideUntilKey)
		}
	}
	return o, nil
}

// overridden applies the override to the verdict v, and reports whether an override is in force.
func (r *Rule) overridden(v Verdict, now time.Time) (Verdict, bool) {
	switch r.Override.At(now) {
	case OverrideClosed:
		until := r.Override.Until
		v = Verdict{Reason: ReasonOverridden, Until: until}
		if !until.IsZero() {
			v.Reason.Detail = "until " + until.UTC().Format(time.RFC3339)
		}
		return v, true
	case OverrideUnread:
		return Verdict{Reason: reasonOverrideUnread}, true
	case OverrideOpen:
		if !v.Open {
			v = Verdict{Open: true, Reason: reasonOverriddenOpen}
		}
		return v, true
	}
	return v, false
}
