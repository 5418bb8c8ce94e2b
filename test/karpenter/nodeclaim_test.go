package karpenter

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	karpenterv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/nodegroups/karpenter"
	"poolpriority.dev/scheduler/pkg/pool"
)

// FuzzNodeClaim: no input causes a panic. A NodeClaim that Karpenter's types read as launched, or as not yet tried, is
// not read as a failed launch. The detail about a failed launch is one line of bounded length.
func FuzzNodeClaim(f *testing.F) {
	for _, claim := range samples(f, "nodeclaims/*.json") {
		f.Add([]byte(claim), false)
		f.Add([]byte(claim), true)
	}
	const object = `{"apiVersion":"karpenter.sh/v1","kind":"NodePool","metadata":{"name":"a"},"status":{"resources":{"cpu":"7"},"conditions":[{"type":"Ready","status":"True"}]}}`
	f.Fuzz(func(t *testing.T, data []byte, gone bool) {
		launches := karpenter.NewLaunches()
		tracker := karpenter.NewTracker(pool.Graces{}, launches)
		if err := tracker.Observe([]byte(object), nil, now); err != nil {
			t.Fatal(err)
		}
		changed, err := launches.Observe(data, false, now)
		if gone && err == nil {
			var also bool
			also, err = launches.Observe(data, true, now)
			changed = changed || also
		}
		got := tracker.Status(nil, now)
		if detail := got.Reason.Detail; len(detail) > 230 || !utf8.ValidString(detail) || strings.ContainsAny(detail, "\n\r") {
			t.Fatalf("told as %q", detail)
		}
		if got.State != nodegroups.Full {
			return
		}
		if err != nil || !changed {
			t.Fatalf("Full by a NodeClaim that cannot be read or changes nothing: %v", err)
		}
		real := &karpenterv1.NodeClaim{}
		if err := json.Unmarshal(data, real); err != nil {
			return // Karpenter's types do not fit fields that we do not read
		}
		launched := real.StatusConditions().Get(karpenterv1.ConditionTypeLaunched)
		switch {
		case launched.IsTrue():
			t.Fatalf("launches fail by a NodeClaim that is launched: %+v", launched)
		case !gone && real.DeletionTimestamp == nil && (launched == nil || launched.IsUnknown() && launched.Reason == "AwaitingReconciliation"):
			t.Fatalf("launches fail by a NodeClaim that was not tried: %+v", launched)
		case tracker.Status(nil, now.Add(time.Hour)).State == nodegroups.Full && (gone || real.DeletionTimestamp != nil):
			t.Fatal("a NodeClaim that is gone is never forgotten")
		}
	})
}
