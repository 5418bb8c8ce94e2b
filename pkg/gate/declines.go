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
	// TrialAfter is how long a decline counts before one pod, the trial, waits on its own clock again. If the trial
	// does not end within TrialLimit, another pod takes its place.
	TrialAfter, TrialLimit = 5 * time.Minute, 10 * time.Minute
	// maxKeys bounds how many kinds are remembered.
	maxKeys = 5000
)

// Declines remembers which node groups declined pods, by AutoscalerKey: the autoscaler treats pods with the same key
// alike. It is safe for concurrent use.
type Declines struct {
	mu     sync.Mutex
	byKey  map[string]*keyDeclines
	trials map[types.UID]*keyDeclines // the pods that are or were trials, until they are bound or gone
}

// keyDeclines are the declines of one AutoscalerKey.
type keyDeclines struct {
	declined map[string]time.Time // by DeclineKey: when
	// trial is a pod that waits on a clock of its own, since then.
	trial      types.UID
	trialSince time.Time
}

// NewDeclines returns one that remembers nothing.
func NewDeclines() *Declines {
	return &Declines{byKey: map[string]*keyDeclines{}, trials: map[types.UID]*keyDeclines{}}
}

// Known reports whether anything is remembered.
func (k *Declines) Known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byKey) > 0
}

// Learn remembers the groups that declined a pod with the key on its own clock at the time now. It reports whether one
// is new.
func (k *Declines) Learn(key string, d *Decision, now time.Time) bool {
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
				if len(k.byKey) >= maxKeys {
					clear(k.byKey) // they are learnt anew
					clear(k.trials)
				}
				known = &keyDeclines{declined: map[string]time.Time{}}
				k.byKey[key] = known
			}
			name := DeclineKey(i, group)
			if at, ok := known.declined[name]; !ok || now.Sub(at) > TrialAfter {
				fresh = true
			}
			known.declined[name], known.trial = now, ""
		}
	}
	return fresh
}

// Declined returns which groups decline a pod with the key, and since when, by DeclineKey.
func (k *Declines) Declined(key string, pod types.UID, now time.Time) map[string]time.Time {
	if key == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byKey[key]
	if known == nil {
		return nil
	}
	return known.believed(now, func() bool { return k.trial(known, pod, now) })
}

// believed returns the remembered declines that count for the pod. isTrial reports whether the pod is the trial: none
// counts for it.
func (known *keyDeclines) believed(now time.Time, isTrial func() bool) map[string]time.Time {
	believed := make(map[string]time.Time, len(known.declined))
	for name, at := range known.declined {
		if now.Sub(at) <= TrialAfter || !isTrial() {
			believed[name] = at
		}
	}
	return believed
}

// trial reports whether the pod is the one of the kind that waits on a clock of its own.
func (k *Declines) trial(known *keyDeclines, pod types.UID, now time.Time) bool {
	if known.needsTrial(now) {
		known.trial, known.trialSince = pod, now
		k.trials[pod] = known
	}
	return known.trial == pod
}

// needsTrial reports whether the next pod with the key is the trial.
func (known *keyDeclines) needsTrial(now time.Time) bool {
	return known.trial == "" || now.Sub(known.trialSince) > TrialLimit
}

// Decline has the declines of one AutoscalerKey, for tools.
type Decline struct {
	// Groups are the groups that declined, by DeclineKey, and when.
	Groups map[string]time.Time `json:"groups"`
	// Trial is a pod that waits on a clock of its own, and TrialSince since when; empty if none does.
	Trial      types.UID `json:"probe,omitempty"`
	TrialSince time.Time `json:"probing,omitzero"`
}

// Believed returns which groups decline the pod, one of the kind, as Kinds has it at the time now.
func (d *Decline) Believed(pod types.UID, now time.Time) map[string]time.Time {
	known := keyDeclines{declined: d.Groups, trial: d.Trial, trialSince: d.TrialSince}
	return known.believed(now, func() bool { return known.needsTrial(now) || known.trial == pod })
}

// Remembered returns the declines of at most n keys, the latest ones, by KeyDigest.
func (k *Declines) Remembered(n int) map[string]Decline {
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
		declines[KeyDigest(key)] = Decline{Groups: maps.Clone(known.declined), Trial: known.trial, TrialSince: known.trialSince}
	}
	return declines
}

// KeyDigest is a short form of an Autoscaler key; empty for one that is like no other.
func KeyDigest(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Forget takes in that the pod has been bound, or is gone: if it was a trial, the next pod with its key is.
func (k *Declines) Forget(pod types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, ok := k.trials[pod]; ok {
		delete(k.trials, pod)
		if known.trial == pod {
			known.trial = ""
		}
	}
}
