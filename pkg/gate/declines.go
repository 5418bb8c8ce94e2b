package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"poolpriority.dev/scheduler/pkg/nodegroups"
)

const (
	// TrialAfter is the age at which one pod, the trial, tests a decline again. The gate ignores the old decline for
	// the trial, and holds the trial until the node group declines the trial itself. If the trial is neither declined,
	// bound nor deleted within TrialLimit, the next pod with the same key becomes the trial. In the same way, another trial
	// tests whether groups for which pods have no credit serve pods again.
	TrialAfter, TrialLimit = 5 * time.Minute, time.Hour
	// creditMemory is how long a pod's lack of credit holds for other pods with its key, if nothing changes.
	creditMemory = time.Hour
	// maxKeys is the maximum number of keys in Declines.
	maxKeys = 5000
)

// Declines records, for each AutoscalerKey, which node groups declined a pod with that key, and for which groups such a
// pod ran out of credit. The autoscaler treats all pods with the same key alike. Declines is safe for concurrent use.
type Declines struct {
	mu     sync.Mutex
	byKey  map[string]*Decline      // by tableOf
	trials map[types.UID][]*Decline // by the current and former trials that are neither bound nor deleted
}

// Decline has the declines of one AutoscalerKey, or for which groups pods with the key have no credit. The scheduler
// publishes it for tools.
type Decline struct {
	// Groups has the time of each node group's last decline by DeclineKey, or of the last loss of credit by creditKey.
	Groups map[string]time.Time `json:"groups"`
	// Trial is the UID of the pod that tests them, or empty. TrialSince is when the pod became the trial.
	Trial      types.UID `json:"probe,omitempty"`
	TrialSince time.Time `json:"probing,omitzero"`
}

// NewDeclines returns Declines without entries.
func NewDeclines() *Declines {
	return &Declines{byKey: map[string]*Decline{}, trials: map[types.UID][]*Decline{}}
}

// Known reports whether any decline or loss of credit is recorded.
func (k *Declines) Known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byKey) > 0
}

// tableOf returns the key of Declines.byKey for the pods with the AutoscalerKey, whose KeyDigest is given, and for the
// DeclineKey or the creditKey.
func tableOf(digest, name string) string {
	if strings.HasPrefix(name, creditPrefix) {
		return creditPrefix + digest
	}
	return digest
}

// Learn records Verdict.Declined in the decision d of a pod with the AutoscalerKey. Learn reports whether one of the
// entries is new or replaces one that was TrialAfter older.
func (k *Declines) Learn(key string, d *Decision) bool {
	if key == "" {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := false
	for i := range d.Regular {
		for name, at := range d.Regular[i].Declined {
			table := tableOf(KeyDigest(key), name)
			known := k.byKey[table]
			if known == nil {
				if len(k.byKey) >= maxKeys {
					isDecline := func(table string, _ *Decline) bool { return !strings.HasPrefix(table, creditPrefix) }
					maps.DeleteFunc(k.byKey, isDecline) // later decisions record them again, but credit only after a long wait
				}
				if len(k.byKey) >= maxKeys {
					clear(k.byKey)
					clear(k.trials)
				}
				known = &Decline{Groups: map[string]time.Time{}}
				k.byKey[table] = known
			}
			if last, ok := known.Groups[name]; !ok || at.After(last) {
				fresh = fresh || !ok || at.Sub(last) > TrialAfter
				known.Groups[name], known.Trial = at, ""
			}
		}
	}
	return fresh
}

// Declined returns when the node group with the DeclineKey last declined a pod with the AutoscalerKey, whose KeyDigest is
// given, or when such a pod last ran out of credit for the group with the creditKey; zero if neither has happened. For the trial, it returns zero
// instead of a time that is older than TrialAfter. If there is no trial, the pod becomes the trial.
func (k *Declines) Declined(digest, name string, pod types.UID, now time.Time) time.Time {
	if digest == "" {
		return time.Time{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byKey[tableOf(digest, name)]
	if known == nil {
		return time.Time{}
	}
	return known.believed(name, now, func() bool {
		if known.needsTrial(now) {
			known.Trial, known.TrialSince = pod, now
			k.trials[pod] = append(k.trials[pod], known)
		}
		return known.Trial == pod
	})
}

// believed returns the time of the entry with the name that counts for a pod; zero if none does. isTrial reports whether
// the pod is the trial.
func (d *Decline) believed(name string, now time.Time, isTrial func() bool) time.Time {
	at, ok := d.Groups[name]
	if ok && now.Sub(at) > TrialAfter && isTrial() {
		return time.Time{}
	}
	return at
}

// needsTrial reports whether the next pod with the key becomes the trial.
func (d *Decline) needsTrial(now time.Time) bool {
	return d.Trial == "" || now.Sub(d.TrialSince) > TrialLimit
}

// Believed is Declines.Declined for what is published. digest is the KeyDigest of the pod's AutoscalerKey.
func Believed(published map[string]Decline, digest, name string, pod types.UID, now time.Time) time.Time {
	known := published[tableOf(digest, name)]
	return known.believed(name, now, func() bool { return known.needsTrial(now) || known.Trial == pod })
}

// Remembered returns what is known of each key. If there are more than n keys, Remembered returns only the n keys with
// the most recent entries.
func (k *Declines) Remembered(n int) map[string]Decline {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.byKey) == 0 {
		return nil
	}
	learnt := func(key string) (at time.Time) {
		for _, t := range k.byKey[key].Groups {
			at = nodegroups.Latest(at, t)
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
		known := *k.byKey[key]
		known.Groups = maps.Clone(known.Groups)
		declines[key] = known
	}
	return declines
}

// Restore takes over which pods have no credit left from what the last leader published (Remembered).
func (k *Declines) Restore(published map[string]Decline) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, d := range published {
		if strings.HasPrefix(key, creditPrefix) && d.Groups != nil && k.byKey[key] == nil && len(k.byKey) < maxKeys {
			k.byKey[key] = &Decline{Groups: maps.Clone(d.Groups)}
		}
	}
}

// NotServing returns a function that reports whether any pods have no credit left for a group of the pool at the time
// now. It forgets what is older than creditMemory.
func (k *Declines) NotServing(now time.Time) func(pool string, g *nodegroups.Group) bool {
	last := map[string]time.Time{}
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.byKey, func(key string, known *Decline) bool {
		if !strings.HasPrefix(key, creditPrefix) {
			return false
		}
		maps.DeleteFunc(known.Groups, func(name string, at time.Time) bool {
			last[name] = nodegroups.Latest(last[name], at)
			return now.Sub(at) >= creditMemory
		})
		return len(known.Groups) == 0
	})
	return func(pool string, g *nodegroups.Group) bool {
		at := last[creditKey(pool, g.Name)]
		return lacksCredit(g, at, now) && !servedSince(g.Served, at)
	}
}

// KeyDigest returns a short hash of an AutoscalerKey, or "" for an empty key.
func KeyDigest(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Forget removes a bound or deleted pod from the trials. If the pod was a trial, the next pod with its key can become the
// trial.
func (k *Declines) Forget(pod types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, known := range k.trials[pod] {
		if known.Trial == pod {
			known.Trial = ""
		}
	}
	delete(k.trials, pod)
}
