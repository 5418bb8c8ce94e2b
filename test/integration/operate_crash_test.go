package integration

import (
	"testing"
	"time"

	"poolpriority.dev/scheduler/test/must"
	"poolpriority.dev/scheduler/test/suite"
)

// TestCrashLoop: a scheduler that is killed every four seconds holds a pod for its grace, and not for a longer or
// shorter time.
func TestCrashLoop(t *testing.T) {
	const grace, every = 15 * time.Second, 4 * time.Second
	e := start(t, nil, vms("userpool", "user", 1, 1, 1, 20)) // no autoscaler, no status: the pool is Unknown
	e.schedule("testdata/crash-loop-unknown.yaml", suite.UserTier(1), suite.VirtualTier())
	started := time.Now()
	e.Create(suite.Deployment("web", 5, "500m"))
	for next := started.Add(every); ; time.Sleep(50 * time.Millisecond) {
		took, got := time.Since(started), e.Placed("web")
		if got["aci"] > 0 && took < grace-time.Second || got["aci"] == 0 && took > grace+2*every {
			t.Fatalf("after %v, with a grace of %v: %v; %s", took, grace, got, e.Said("web"))
		}
		if got["aci"] > 0 {
			return
		}
		if time.Now().After(next) {
			e.scheduler.Kill()
			must.NoError(e, e.scheduler.Restart())
			next = time.Now().Add(every)
		}
	}
}
