package integration

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/test/suite"
)

// TestOverflow: the VMs are full, two more are ordered, and take a minute. Twelve pods come, and the two VMs have room
// for eight. With whileGrowing: Overflow, four burst as soon as no further VM can be ordered. With Hold, they burst when
// the VMs are full. In the end, the pods are in the same pools.
func TestOverflow(t *testing.T) {
	t.Parallel()
	for _, growing := range []configv1.WhileGrowing{configv1.Hold, configv1.Overflow} {
		t.Run(string(growing), func(t *testing.T) {
			t.Parallel()
			const boot = time.Minute
			user := vms("userpool", "user", 2, 2, 4, 20)
			user.BootDelay = metav1.Duration{Duration: boot}
			e := start(t, fast(), user)
			e.schedule(replaced(t, "testdata/aks-no-grace.yaml", "        burst:\n", "        burst:\n          whileGrowing: "+string(growing)+"\n"))
			e.Create(suite.Deployment("old", 8, "500m"))
			e.Lands(20*time.Second, "old", map[string]int{"userpool": 8})
			time.Sleep(65 * time.Second) // no pod overflows in the minute after a VM came
			e.Create(suite.Deployment("web", 12, "500m"))
			e.Eventually(20*time.Second, func() string {
				if e.pool("userpool").Target() < 4 {
					return "the VMs are not ordered"
				}
				return ""
			})
			ordered, soon := time.Now(), map[string]int{"": 12}
			if growing == configv1.Overflow {
				soon = map[string]int{"": 8, "aci": 4}
			}
			e.Lands(6*time.Second, "web", soon) // a loop of the autoscaler, and 5 s
			t.Logf("%v after %v", soon, time.Since(ordered).Round(100*time.Millisecond))
			e.Keeps(boot/2, "web", soon)
			e.Lands(boot, "web", map[string]int{"userpool": 8, "aci": 4})
		})
	}
}
