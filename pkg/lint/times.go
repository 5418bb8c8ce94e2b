package lint

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
)

// Times are the settings of the cluster autoscaler that `capacity` must fit. An empty one is not known.
type Times struct {
	NewPodScaleUpDelay   string `json:"newPodScaleUpDelay"`
	MaxNodeProvisionTime string `json:"maxNodeProvisionTime"`
	ScanInterval         string `json:"scanInterval"`
}

// times returns the times of the cluster autoscaler: those of AKS's profile, or of its flags if it is one of the workloads.
func (f *Facts) times() (t Times) {
	if f.AKS != nil {
		t = f.AKS.AutoScalerProfile.Times
	}
	fields := map[string]*string{"--new-pod-scale-up-delay": &t.NewPodScaleUpDelay, "--max-node-provision-time": &t.MaxNodeProvisionTime, "--scan-interval": &t.ScanInterval}
	for i := range f.Workloads {
		for _, c := range f.Workloads[i].Template.Spec.Containers {
			for _, flag := range slices.Concat(c.Command, c.Args) {
				name, value, _ := strings.Cut(flag, "=")
				if field := fields[name]; field != nil && strings.Contains(c.Image, "/cluster-autoscaler:") {
					*field = value
				}
			}
		}
	}
	return t
}

// TooShort returns the fields of capacity that are too short for the times, each with the value to set.
func (t Times) TooShort(c *configv1.Capacity) (set []string) {
	for _, field := range []struct {
		name, setting string
		value         *metav1.Duration
		factor        time.Duration
	}{
		{"newPodDelay", t.NewPodScaleUpDelay, c.NewPodDelay, 1},
		{"provisionGrace", t.MaxNodeProvisionTime, c.ProvisionGrace, 1},
		{"staleAfter", t.ScanInterval, c.StaleAfter, 4}, // three loops are the minimum, and a loop takes longer than the interval
	} {
		if d, err := time.ParseDuration(field.setting); err == nil && field.factor*d > field.value.Duration {
			set = append(set, fmt.Sprintf("%s: %v", field.name, field.factor*d))
		}
	}
	return set
}
