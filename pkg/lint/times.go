package lint

import (
	"fmt"
	"strings"
	"time"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// Times are the settings of the cluster autoscaler that `capacity` must fit. An empty one is not known.
type Times struct {
	NewPodScaleUpDelay   string `json:"newPodScaleUpDelay"`
	MaxNodeProvisionTime string `json:"maxNodeProvisionTime"`
	ScanInterval         string `json:"scanInterval"`
}

// TimesOf returns the times by the flags of the cluster autoscaler. A flag that is not set has the autoscaler's default.
func TimesOf(flags []string) *Times {
	t := &Times{"0s", "15m", "10s"}
	words := strings.Fields(strings.ReplaceAll(strings.Join(flags, " "), "=", " "))
	for i, word := range words[:max(0, len(words)-1)] {
		switch strings.TrimLeft(word, "-") {
		case "new-pod-scale-up-delay":
			t.NewPodScaleUpDelay = words[i+1]
		case "max-node-provision-time":
			t.MaxNodeProvisionTime = words[i+1]
		case "scan-interval":
			t.ScanInterval = words[i+1]
		}
	}
	return t
}

// Mismatches returns the fields of capacity that do not fit the times, each with the value to set, and the reasons.
func (t *Times) Mismatches(c *configv1.Capacity) (set, why []string) {
	change := func(field string, old *time.Duration, value time.Duration, format string) {
		*old = value
		set = append(set, fmt.Sprintf("%s: %v", field, value))
		why = append(why, fmt.Sprintf(format, value))
	}
	delay, provision, stale, limit := c.NewPodDelay.Duration, c.ProvisionGrace.Duration, c.StaleAfter.Duration, c.HoldLimit.Duration
	if d, err := time.ParseDuration(t.NewPodScaleUpDelay); err == nil && d != delay {
		change("newPodDelay", &delay, d, "it ignores pods younger than %v (newPodScaleUpDelay)")
	}
	if d, err := time.ParseDuration(t.MaxNodeProvisionTime); err == nil && d > provision {
		change("provisionGrace", &provision, d, "it waits %v for nodes (maxNodeProvisionTime)")
	}
	// A status is stale after three loops at the earliest, and a loop takes longer than scanInterval.
	if d, err := time.ParseDuration(t.ScanInterval); err == nil && 4*d > stale {
		change("staleAfter", &stale, 4*d, "it may take nearly %v to run three loops (scanInterval)")
	}
	if d := delay + max(provision, stale+c.UnknownGrace.Duration) + c.DeclineGrace.Duration; len(set) > 0 && limit > 0 && limit < d {
		change("holdLimit", &limit, d, "these times add up to %v")
	}
	return set, why
}
