package gatekeeper

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
	// eventOverridden and eventOverrideOver are the reasons of events on the ConfigMap that overrides the gate.
	eventOverridden, eventOverrideOver = "GateOverridden", "GateOverrideOver"
	// codeOverrideUnreadable is the code of the problem of one that cannot be read.
	codeOverrideUnreadable = "GateOverrideUnreadable"
	// sourceOverride is the value of the label source of metrics.
	sourceOverride = "override"
	// overrideRetry is how often it is looked whether a ConfigMap can be read that could not be.
	overrideRetry = 2 * time.Second
)

// override follows the ConfigMap by which an operator overrides the gate, that one and no other. What cannot be read in it changes nothing: what
// was read before stays in force, also with the next leader. But for current, which anybody may ask, it is the loop's.
type override struct {
	id       string // namespace/name
	object   *watched
	recorder events.EventRecorder
	current  atomic.Pointer[gate.Override] // what is in force; it may have ended since

	read     published.Override // the last that could be read
	cm       runtime.Object     // as last observed; nil if there is none
	problem  string             // of that; "" if there is none
	observed bool               // it is known whether there is a ConfigMap, or why not
	logged   string
	told     string
}

// newOverride starts to follow the ConfigMap in the namespace of the one that has the published state.
func newOverride(ctx context.Context, config *Config, changed chan<- struct{}) (*override, error) {
	namespace, _, _ := strings.Cut(config.Args.StatusConfigMap, "/")
	o := &override{id: namespace + "/" + gate.OverrideConfigMap, recorder: config.Recorder}
	o.current.Store(&gate.Override{Gate: gate.OverrideUnread})
	sourceErrors.WithLabelValues(sourceOverride).Add(0)
	informer := coreinformers.NewFilteredConfigMapInformer(config.Client, namespace, 0, cache.Indexers{}, only(gate.OverrideConfigMap))
	var err error
	o.object, err = watch(ctx, informer, o.id, sourceOverride, changed)
	return o, err
}

// restore takes over what the last leader read: it counts for as long as the same ConfigMap has nothing that can be read, or it is not known
// what it has.
func (o *override) restore(m *published.Memory) { o.read = m.Override }

// observe reads the ConfigMap as it is at the time now.
func (o *override) observe(logger klog.Logger, now time.Time) {
	before := o.problem
	o.observed, o.problem = o.object.settled(), ""
	obj, err := o.object.get()
	o.cm = obj
	switch {
	case err != nil:
		o.problem = fmt.Sprintf("ConfigMap %s cannot be read: %v: may the scheduler get, list and watch it? Until then %s", o.id, err, o.stays(now))
	case obj == nil && o.observed:
		o.read = published.Override{}
	case obj != nil:
		cm := obj.(*v1.ConfigMap)
		if o.read.UID != cm.UID {
			o.read = published.Override{UID: cm.UID}
		}
		if said, err := gate.ParseOverride(cm); err != nil {
			if o.problem = fmt.Sprintf("ConfigMap %s is not understood: %v. Until then %s", o.id, err, o.stays(now)); o.problem != before {
				sourceErrors.WithLabelValues(sourceOverride).Inc()
			}
		} else {
			o.read.Override = said
		}
	}
	current := o.inForce(now)
	if !o.observed && current.Gate == "" {
		current.Gate = gate.OverrideUnread
	}
	o.current.Store(&current)
	if said := current.String(); said != o.logged {
		o.logged = said
		if current.Gate == "" {
			logger.Info("The gate is not overridden any more", "configMap", o.id)
		} else if current.Gate != gate.OverrideUnread {
			logger.Info("The gate is overridden", "gate", said, "configMap", o.id)
		}
	}
}

// inForce is what is overridden at the time now.
func (o *override) inForce(now time.Time) gate.Override {
	if o.read.At(now) == "" {
		return gate.Override{}
	}
	return o.read.Override
}

// stays says what of the gate stays as it was.
func (o *override) stays(now time.Time) string {
	if current := o.inForce(now); current.Gate != "" {
		return "what was read before stays in force: " + current.String()
	}
	return "the gate goes by the pools"
}

// due is when an override that is in force at the time now ends, or when to look again whether the ConfigMap can be read: that there is none is
// no event. Zero is never.
func (o *override) due(now time.Time) time.Time {
	if _, err := o.object.get(); err != nil || !o.object.settled() {
		return nodegroups.Earliest(now.Add(overrideRetry), o.inForce(now).Until)
	}
	return o.inForce(now).Until
}

// report tells, if that is new, by an event on the ConfigMap, what is in force at the time now.
func (o *override) report(leading bool, now time.Time) {
	current := o.inForce(now)
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
		o.recorder.Eventf(o.cm, nil, v1.EventTypeNormal, eventOverrideOver, "Overriding", "it is past %s: the gate goes by the pools again; delete the ConfigMap, or give another time", o.read.Until.UTC().Format(time.RFC3339))
	case current.Gate == gate.OverrideClosed:
		o.recorder.Eventf(o.cm, nil, v1.EventTypeNormal, eventOverridden, "Overriding", "%s: no pod is let into a burst pool; what runs there stays", current)
	default:
		o.recorder.Eventf(o.cm, nil, v1.EventTypeNormal, eventOverridden, "Overriding", "%s: burst pools are open for all pods that may burst, within budgets", current)
	}
}

// findOverride finds that what is to override the gate cannot be read.
func (ps *problems) findOverride(o *override) {
	if o.problem != "" {
		ps.current = append(ps.current, problem{id: codeOverrideUnreadable, regarding: o.cm, code: codeOverrideUnreadable, message: o.problem})
	}
}

// overridden is the rule with what is overridden.
func (g *Gatekeeper) overridden() gate.Rule {
	rule := g.rule
	rule.Override = *g.override.current.Load()
	return rule
}
