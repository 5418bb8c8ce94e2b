package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// ProbeAfter is for how long what was learnt of a kind of pods is believed before one of them, a probe, waits on a clock of its own; another
	// one does if nothing was heard of it for ProbeLimit.
	ProbeAfter, ProbeLimit = 5 * time.Minute, 10 * time.Minute
	// maxKinds bounds how many kinds are remembered.
	maxKinds = 5000
)

// Kinds remembers which node groups decline which kinds of pods: what the autoscaler does not do for one pod, it does not do for another that
// it cannot tell apart. Its methods may be called by many goroutines.
type Kinds struct {
	mu     sync.Mutex
	byKey  map[string]*kind
	probes map[types.UID]*kind // the pods that are or were probes, until they are bound or gone
}

// kind is what is known of one kind of pods.
type kind struct {
	declined map[string]time.Time // by DeclineKey: when
	// probe is a pod that waits on a clock of its own, since then.
	probe   types.UID
	probing time.Time
}

// NewKinds returns one that remembers nothing.
func NewKinds() *Kinds { return &Kinds{byKey: map[string]*kind{}, probes: map[types.UID]*kind{}} }

// Known reports whether anything is remembered.
func (k *Kinds) Known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byKey) > 0
}

// Learn takes in by which groups a pod of the kind is declined on a clock of its own at the time now. It reports whether that is new.
func (k *Kinds) Learn(key string, d *Decision, now time.Time) bool {
	if key == "" {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := false
	for i := range d.Regular {
		for _, group := range d.Regular[i].Declined {
			known := k.byKey[key]
			if known == nil {
				if len(k.byKey) >= maxKinds {
					clear(k.byKey) // they are learnt anew
					clear(k.probes)
				}
				known = &kind{declined: map[string]time.Time{}}
				k.byKey[key] = known
			}
			name := DeclineKey(i, group)
			if at, ok := known.declined[name]; !ok || now.Sub(at) > ProbeAfter {
				fresh = true
			}
			known.declined[name], known.probe = now, ""
		}
	}
	return fresh
}

// Declined returns which groups decline the pod of the kind, and since when that is known, by DeclineKey.
func (k *Kinds) Declined(key string, pod types.UID, now time.Time) map[string]time.Time {
	if key == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byKey[key]
	if known == nil {
		return nil
	}
	return known.believed(now, func() bool { return k.probe(known, pod, now) })
}

// believed are the groups that are believed to decline a pod of the kind, of which isProbe says whether it is the one that waits on a clock of its
// own.
func (known *kind) believed(now time.Time, isProbe func() bool) map[string]time.Time {
	believed := make(map[string]time.Time, len(known.declined))
	for name, at := range known.declined {
		if now.Sub(at) <= ProbeAfter || !isProbe() {
			believed[name] = at
		}
	}
	return believed
}

// probe reports whether the pod is the one of the kind that waits on a clock of its own.
func (k *Kinds) probe(known *kind, pod types.UID, now time.Time) bool {
	if known.vacant(now) {
		known.probe, known.probing = pod, now
		k.probes[pod] = known
	}
	return known.probe == pod
}

// vacant reports whether the next pod of the kind is the probe.
func (known *kind) vacant(now time.Time) bool {
	return known.probe == "" || now.Sub(known.probing) > ProbeLimit
}

// Decline is what is known of which node groups decline one kind of pods, for tools.
type Decline struct {
	// Groups are those that do, by DeclineKey, and when that was learnt.
	Groups map[string]time.Time `json:"groups"`
	// Probe is a pod that waits on a clock of its own, and Probing since when; empty if none does.
	Probe   types.UID `json:"probe,omitempty"`
	Probing time.Time `json:"probing,omitzero"`
}

// Believed returns which groups decline the pod, one of the kind, as Kinds has it at the time now.
func (d *Decline) Believed(pod types.UID, now time.Time) map[string]time.Time {
	known := kind{declined: d.Groups, probe: d.Probe, probing: d.Probing}
	return known.believed(now, func() bool { return known.vacant(now) || known.probe == pod })
}

// Remembered returns what is known of at most n kinds, those of which something was learnt last, by KindDigest.
func (k *Kinds) Remembered(n int) map[string]Decline {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.byKey) == 0 {
		return nil
	}
	learnt := func(key string) (at time.Time) {
		for _, t := range k.byKey[key].declined {
			at = latest(at, t)
		}
		return at
	}
	keys := slices.Collect(maps.Keys(k.byKey))
	if len(keys) > n {
		slices.SortFunc(keys, func(a, b string) int { return learnt(b).Compare(learnt(a)) })
		keys = keys[:n]
	}
	declines := make(map[string]Decline, len(keys))
	for _, key := range keys {
		known := k.byKey[key]
		declines[KindDigest(key)] = Decline{Groups: maps.Clone(known.declined), Probe: known.probe, Probing: known.probing}
	}
	return declines
}

// KindDigest is a short form of an Autoscaler key; empty for one that is like no other.
func KindDigest(kind string) string {
	if kind == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(kind))
	return hex.EncodeToString(sum[:8])
}

// Forget takes in that the pod has been bound, or is gone: if it was a probe, the next pod of its kind is.
func (k *Kinds) Forget(pod types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, ok := k.probes[pod]; ok {
		delete(k.probes, pod)
		if known.probe == pod {
			known.probe = ""
		}
	}
}
