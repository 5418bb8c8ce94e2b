package gate

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	configv1 "poolpriority.dev/scheduler/pkg/apis/config/v1"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

func TestRecord(t *testing.T) {
	pools := must.Get(pool.ListOf(&configv1.PoolPriorityArgs{Pools: []configv1.Pool{{Name: "user"}, {Name: "system"}, {Name: "aci", Burst: &configv1.Burst{}}}}))(t)
	full := []Verdict{{Open: true, Reason: nodegroups.Reason{Code: "AtMaxSize"}}, {Open: true, Reason: nodegroups.Reason{Code: "Backoff", Detail: "QuotaExceeded"}}}
	for _, tc := range []struct {
		name     string
		decision Decision
		waited   time.Duration
		record   string
		story    string
	}{
		{"open", Decision{Regular: full, Burst: []Verdict{{}, {}, {Open: true, Reason: reasonOpen}}}, 100*time.Second + 300*time.Millisecond,
			`{"reason":"Open","waited":"1m40s","pools":{"system":"Backoff","user":"AtMaxSize"}}`,
			"Let into aci: no earlier pool can grow for the pod (user AtMaxSize, system Backoff), after 1m40s"},
		{"at once", Decision{Regular: full, Burst: []Verdict{{}, {}, {Open: true, Reason: reasonOpen}}}, 0,
			`{"reason":"Open","pools":{"system":"Backoff","user":"AtMaxSize"}}`,
			"Let into aci: no earlier pool can grow for the pod (user AtMaxSize, system Backoff)"},
		{"it chose", Decision{Regular: []Verdict{{Open: true}, {Open: true}}, Burst: []Verdict{{}, {}, {Open: true, Reason: reasonAsked}}}, 1234 * time.Millisecond,
			`{"reason":"SelectedByPod","waited":"1.2s"}`, "Let into aci: the pod selects the burst pool itself, after 1.2s"},
		{"observed", Decision{Regular: full, Burst: []Verdict{{}, {}, {Open: true, Observed: true, Reason: ReasonCanGrow}}}, 0,
			`{"reason":"PoolCanGrow","observed":true,"pools":{"system":"Backoff","user":"AtMaxSize"}}`,
			"Let into aci in mode Observe; in mode Enforce, the gate would be closed: PoolCanGrow (user AtMaxSize, system Backoff)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			record := tc.decision.Record(pools, 2, tc.waited)
			if got := record.Encode(); got != tc.record {
				t.Errorf("Record: %s\nwant %s", got, tc.record)
			}
			if read, err := ParseRecord(record.Encode()); err != nil || !cmp.Equal(read, record) {
				t.Errorf("ParseRecord() = %+v, %v", read, err)
			}
			if got := tc.decision.Message(pools, 2, tc.waited); got != tc.story {
				t.Errorf("Story: %s\nwant %s", got, tc.story)
			}
		})
	}
	if _, err := ParseRecord("yes"); err == nil {
		t.Error("no error for garbage")
	}
}
