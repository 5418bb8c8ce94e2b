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
	// bound nor deleted within TrialLimit, the next pod with the same key becomes the trial. A trial also tests whether
	// groups for which pods have no credit serve pods again.
	TrialAfter, TrialLimit = 5 * time.Minute, 20 * time.Minute
	// creditMemory is how long a pod's lack of credit holds for other pods with its key, if nothing changes.
	creditMemory = time.Hour
	// maxKeys is the maximum number of keys in Declines.
	maxKeys = 5000
)

// Declines records, for each AutoscalerKey, which node groups declined a pod with that key. The autoscaler treats all
// pods with the same key alike. Declines is safe for concurrent use.
type Declines struct {
	mu     sync.Mutex
	byKey  map[string]*keyDeclines    // by KeyDigest
	trials map[types.UID]*keyDeclines // current and former trials that are neither bound nor deleted
}

// keyDeclines are the declines of one AutoscalerKey.
type keyDeclines struct {
	declined map[string]time.Time // the time of a node group's last decline, by DeclineKey
	// trial is the UID of the current trial, or empty. The pod became the trial at trialSince.
	trial      types.UID
	trialSince time.Time
}

// NewDeclines returns Declines without entries.
func NewDeclines() *Declines {
	return &Declines{byKey: map[string]*keyDeclines{}, trials: map[types.UID]*keyDeclines{}}
}

// Known reports whether any decline is recorded.
func (k *Declines) Known() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.byKey) > 0
}

// Learn records the node groups that declined a pod with the key. Verdict.Declined in the pod's decision d lists these
// groups. Learn reports whether one of the declines is new or replaces a decline older than TrialAfter.
func (k *Declines) Learn(key string, d *Decision, now time.Time) bool {
	if key == "" {
		return false
	}
	key = KeyDigest(key)
	k.mu.Lock()
	defer k.mu.Unlock()
	fresh := false
	for i := range d.Regular {
		for _, name := range d.Regular[i].Declined {
			known := k.byKey[key]
			if known == nil {
				if len(k.byKey) >= maxKeys {
					clear(k.byKey) // later decisions record the declines again
					clear(k.trials)
				}
				known = &keyDeclines{declined: map[string]time.Time{}}
				k.byKey[key] = known
			}
			if at, ok := known.declined[name]; !ok || now.Sub(at) > TrialAfter {
				fresh = true
			}
			known.declined[name], known.trial = now, ""
		}
	}
	return fresh
}

// Declined returns the times at which node groups declined pods with the key, by DeclineKey. If the pod is or becomes
// the trial, Declined leaves out declines older than TrialAfter.
func (k *Declines) Declined(key string, pod types.UID, now time.Time) map[string]time.Time {
	if key == "" {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.byKey[KeyDigest(key)]
	if known == nil {
		return nil
	}
	return known.believed(now, func() bool { return k.trial(known, pod, now) })
}

// believed returns the declines that count for a pod. For the trial, declines older than TrialAfter do not count.
// isTrial reports whether the pod is the trial.
func (known *keyDeclines) believed(now time.Time, isTrial func() bool) map[string]time.Time {
	believed := make(map[string]time.Time, len(known.declined))
	for name, at := range known.declined {
		if now.Sub(at) <= TrialAfter || !isTrial() {
			believed[name] = at
		}
	}
	return believed
}

// trial reports whether the pod is the trial of its key. If needsTrial returns true, the pod becomes the trial first.
func (k *Declines) trial(known *keyDeclines, pod types.UID, now time.Time) bool {
	if known.needsTrial(now) {
		known.trial, known.trialSince = pod, now
		k.trials[pod] = known
	}
	return known.trial == pod
}

// needsTrial reports whether the next pod with the key becomes the trial.
func (known *keyDeclines) needsTrial(now time.Time) bool {
	return known.trial == "" || now.Sub(known.trialSince) > TrialLimit
}

// Decline has the declines of one AutoscalerKey in the form that the scheduler publishes for tools.
type Decline struct {
	// Groups has the time of each node group's last decline, by DeclineKey.
	Groups map[string]time.Time `json:"groups"`
	// Trial is the UID of the pod that tests the declines, or empty. TrialSince is when the pod became the trial.
	Trial      types.UID `json:"probe,omitempty"`
	TrialSince time.Time `json:"probing,omitzero"`
}

// Believed returns the declines that count for the pod at the time now, by the rules of Declines.Declined. The pod must
// have the AutoscalerKey of these declines.
func (d *Decline) Believed(pod types.UID, now time.Time) map[string]time.Time {
	known := keyDeclines{declined: d.Groups, trial: d.Trial, trialSince: d.TrialSince}
	return known.believed(now, func() bool { return known.needsTrial(now) || known.trial == pod })
}

// Remembered returns the declines of each key, by KeyDigest. If there are more than n keys, Remembered returns only the
// n keys with the most recent declines.
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
		declines[key] = Decline{Groups: maps.Clone(known.declined), Trial: known.trial, TrialSince: known.trialSince}
	}
	return declines
}

// Restore takes over which pods have no credit left from what the last leader published (Remembered).
func (k *Declines) Restore(published map[string]Decline) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, d := range published {
		credits := maps.Clone(d.Groups)
		maps.DeleteFunc(credits, func(name string, _ time.Time) bool { return !strings.HasPrefix(name, creditPrefix) })
		if len(credits) > 0 && k.byKey[key] == nil && len(k.byKey) < maxKeys {
			k.byKey[key] = &keyDeclines{declined: credits}
		}
	}
}

// HasNoCredit reports whether any pods have no credit left for the group of the pool at the time now.
func (k *Declines) HasNoCredit(pool string, g *nodegroups.Group, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, known := range k.byKey {
		if at, ok := known.declined[creditKey(pool, g.Name)]; ok && lacksCredit(g, at, now) && !g.Served.At.After(at) {
			return true
		}
	}
	return false
}

// KeyDigest returns a short hash of an AutoscalerKey, or "" for an empty key.
func KeyDigest(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

// Forget removes a bound or deleted pod from the trials. If the pod was the trial of its key, the next pod with its key
// can become the trial.
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
