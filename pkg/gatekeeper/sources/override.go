package sources

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

const (
	// eventOverridden and eventOverrideOver are the reasons of events on the override's ConfigMap.
	eventOverridden, eventOverrideOver = "GateOverridden", "GateOverrideEnded"
	// EventOverrideUnreadable is the code of the problem that the override's ConfigMap cannot be read or parsed.
	EventOverrideUnreadable = "GateOverrideUnreadable"
	// sourceOverride is the value of the metrics label "source" for the override.
	sourceOverride = "override"
	// overrideRetry is the time between two tries to read the ConfigMap.
	overrideRetry = 2 * time.Second
)

// Override watches the single ConfigMap with which an operator overrides the gate. If the ConfigMap cannot be read or
// parsed, the last override that could be parsed stays in force, even if the leader changes. Only the gatekeeper's loop
// may use an Override. The field Current is an exception: it is safe for concurrent use.
type Override struct {
	id       string // namespace/name
	object   *watched
	recorder events.EventRecorder
	Current  atomic.Pointer[gate.Override] // the override in force at the last Observe; it may have expired since

	read     published.Override // the last override that could be parsed
	cm       runtime.Object     // the ConfigMap as last observed; nil if there is none
	problem  string             // why the ConfigMap cannot be read or parsed; "" if it can
	observed bool               // whether the ConfigMap was read, does not exist, or could not be read
	logged   string             // the override in force that was last logged
	told     string             // the state for which the last event was written
}

// NewOverride starts to watch the override's ConfigMap. This ConfigMap is in the same namespace as the ConfigMap
// Args.StatusConfigMap.
func NewOverride(ctx context.Context, config *Config) *Override {
	namespace, _, _ := strings.Cut(config.Args.StatusConfigMap, "/")
	o := &Override{id: namespace + "/" + gate.OverrideConfigMap, recorder: config.Recorder}
	o.Current.Store(&gate.Override{Gate: gate.OverrideUnread})
	informer := coreinformers.NewFilteredConfigMapInformer(config.Client, namespace, 0, cache.Indexers{}, only(gate.OverrideConfigMap))
	o.object = watch(ctx, informer, o.id, sourceOverride, config.Changed)
	return o
}

// Restore takes over the override that the last leader read. This override stays in force until the ConfigMap has been
// read. If the ConfigMap is still the same object and cannot be parsed, the override stays in force until the ConfigMap
// is corrected.
func (o *Override) Restore(m *published.Memory) { o.read = m.Override }

// Observe reads the ConfigMap from the informer, and sets Current to the override in force at the time now.
func (o *Override) Observe(logger klog.Logger, now time.Time) {
	before := o.problem
	o.observed, o.problem = o.object.settled(), ""
	obj, err := o.object.get()
	o.cm = obj
	switch {
	case err != nil:
		o.problem = fmt.Sprintf("ConfigMap %s cannot be read: %v. Check that the scheduler may list and watch it. Until it can be read, %s", o.id, err, o.stays(now))
	case obj == nil && o.observed:
		o.read = published.Override{}
	case obj != nil:
		cm := obj.(*v1.ConfigMap)
		if o.read.UID != cm.UID {
			o.read = published.Override{UID: cm.UID}
		}
		if said, err := gate.ParseOverride(cm); err != nil {
			if o.problem = fmt.Sprintf("ConfigMap %s is invalid: %v. Until it is corrected, %s", o.id, err, o.stays(now)); o.problem != before {
				Errors.WithLabelValues(sourceOverride).Inc()
			}
		} else {
			o.read.Override = said
		}
	}
	current := o.InForce(now)
	if said := current.String(); said != o.logged {
		o.logged = said
		if current.Gate == "" {
			logger.Info("The gate is not overridden any more", "configMap", o.id)
		} else {
			logger.Info("The gate is overridden", "gate", said, "configMap", o.id)
		}
	}
	if !o.observed && current.Gate == "" {
		current.Gate = gate.OverrideUnread
	}
	o.Current.Store(&current)
}

// InForce returns the override that is in force at the time now; empty if there is none.
func (o *Override) InForce(now time.Time) gate.Override {
	if o.read.At(now) == "" {
		return gate.Override{}
	}
	return o.read.Override
}

// stays describes the override that stays in force.
func (o *Override) stays(now time.Time) string {
	if current := o.InForce(now); current.Gate != "" {
		return "the override that was read before stays in force: " + current.String()
	}
	return "there is no override"
}

// Due returns when to call Observe again without an event; zero means never. Observe must be called when the override
// in force ends. Until the ConfigMap has been read, Observe must also be called every overrideRetry, because the
// informer sends no event if the ConfigMap does not exist.
func (o *Override) Due(now time.Time) time.Time {
	if _, err := o.object.get(); err != nil || !o.object.settled() {
		return nodegroups.Earliest(now.Add(overrideRetry), o.InForce(now).Until)
	}
	return o.InForce(now).Until
}

// Report writes an event on the ConfigMap if the override in force has changed since the last event. Only the leader
// writes events.
func (o *Override) Report(leading bool, now time.Time) {
	current := o.InForce(now)
	if !leading || o.problem != "" {
		return
	}
	said := ""
	if o.cm != nil {
		said = fmt.Sprint(o.read.UID, " ", o.read.Override, " ", current.Gate != "")
	}
	if said == o.told {
		return
	}
	o.told = said
	switch {
	case o.cm == nil:
	case current.Gate == "":
		o.recorder.Eventf(o.cm, nil, v1.EventTypeNormal, eventOverrideOver, "Overriding", "the override ended at %s: delete the ConfigMap, or set another time", o.read.Until.UTC().Format(time.RFC3339))
	case current.Gate == gate.OverrideClosed:
		o.recorder.Eventf(o.cm, nil, v1.EventTypeNormal, eventOverridden, "Overriding", "%s: burst pools get no more pods. Pods that run in a burst pool stay there", current)
	default:
		o.recorder.Eventf(o.cm, nil, v1.EventTypeNormal, eventOverridden, "Overriding", "%s: burst pools are open for all pods that may burst, within budgets", current)
	}
}

// Settled reports whether the ConfigMap was read, is known not to exist, or could not be read.
func (o *Override) Settled() bool { return o.object.settled() }

// Problem returns the ConfigMap as last observed, and why it cannot be read or parsed; "" if it can.
func (o *Override) Problem() (runtime.Object, string) { return o.cm, o.problem }

// Remember sets m.Override to the last override that could be parsed.
func (o *Override) Remember(m *published.Memory) { m.Override = o.read }
