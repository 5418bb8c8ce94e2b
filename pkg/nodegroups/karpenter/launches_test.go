package karpenter

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/pool"
	"poolpriority.dev/scheduler/test/must"
)

// claim returns a NodeClaim in a phase of its life. launched is the minute at which it was launched.
func claim(name, phase string, launched int) []byte {
	const deleting = `,"deletionTimestamp":"2026-11-21T10:00:00Z"`
	condition := func(status, reason, message string) string {
		at := start.Add(time.Duration(launched) * time.Minute).Format(time.RFC3339)
		return fmt.Sprintf(`{"type":"Launched","status":%q,"reason":%q,"message":%q,"lastTransitionTime":%q}`, status, reason, message, at)
	}
	var metadata, conditions string
	switch phase {
	case "new":
	case "awaiting", "refused":
		conditions = condition("Unknown", awaiting, "object is awaiting reconciliation")
	case "failing", "dropped":
		conditions = condition("Unknown", "LaunchFailed", "no quota\nfor "+name)
	case "starting":
		conditions = condition("True", "Launched", "")
	case "launched", "ending":
		conditions = condition("True", "Launched", "") + `,{"type":"Registered","status":"True","reason":"Registered"}`
	}
	if phase == "refused" || phase == "dropped" || phase == "ending" {
		metadata = deleting
	}
	return fmt.Appendf(nil, `{"apiVersion":"karpenter.sh/v1","kind":"NodeClaim","metadata":{"name":%q,"uid":%q%s},"status":{"conditions":[%s]}}`, name, name, metadata, conditions)
}

// TestNodeGoesWhileLaunchFails: while a NodeClaim is not launched, Karpenter does not write the NodePool's status,
// which still counts a node that is gone, and does not count a new one.
func TestNodeGoesWhileLaunchFails(t *testing.T) {
	launches := NewLaunches()
	tracker := NewTracker(pool.Graces{Provision: time.Hour, Backoff: 2 * time.Minute}, launches)
	for _, s := range []struct {
		minute      int
		nodeClaim   string // name and phase
		launched    int    // the minute of its launch
		nodes       int
		state, code string
	}{
		{0, "a starting", 0, 0, "Growing", "Provisioning"}, {1, "a launched", 0, 1, "CanGrow", "BelowLimits"}, {2, "b failing", 0, 1, "CanGrow", "LaunchFailing"},
		{3, "a ending", 0, 0, "CanGrow", "LaunchFailing"}, {4, "b failing", 0, 0, "Full", "LaunchFailed"},
		{5, "c starting", 5, 0, "Growing", "Provisioning"}, {5, "d starting", 5, 1, "Growing", "Provisioning"},
	} {
		now := start.Add(time.Duration(s.minute) * time.Minute)
		name, phase, _ := strings.Cut(s.nodeClaim, " ")
		if _, err := launches.Observe(claim(name, phase, s.launched), false, now); err != nil {
			t.Fatal(err)
		}
		must.NoError(t, tracker.Observe(object(t, `{limits: {cpu: 10}}`, `{cpu: 4, nodes: 1}`), nodes(s.nodes), now))
		if g := tracker.Status(nil, now); string(g.State) != s.state || g.Reason.Code != s.code {
			t.Errorf("minute %d, %s: %s %s (%s), want %s %s", s.minute, s.nodeClaim, g.State, g.Reason.Code, g.Reason.Detail, s.state, s.code)
		}
	}
}

// TestLaunches: a step is an event of a NodeClaim, and the expected state of a NodePool that is below its limits and
// has a backoffGrace of 2 min.
func TestLaunches(t *testing.T) {
	type step struct {
		minute      int
		nodeClaim   string // name, phase, and the minute of its launch, if any; "-name": it is gone
		state, code string
		until       int // the minute at which the state changes without an event; 0: never
	}
	const canGrow, full = "CanGrow", "Full"
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"one is tried again and again, and dropped", []step{
			{0, "a new", canGrow, "BelowLimits", 0}, {0, "a awaiting", canGrow, "BelowLimits", 0},
			{1, "a failing", canGrow, "LaunchFailing", 3}, {2, "", canGrow, "LaunchFailing", 3}, {3, "", full, "LaunchFailed", 0},
			{6, "a dropped", full, "LaunchFailed", 11}, {7, "-a", full, "LaunchFailed", 11}, {8, "b failing", full, "LaunchFailed", 0},
			{30, "", full, "LaunchFailed", 0}, {31, "-b", full, "LaunchFailed", 36}, {36, "", canGrow, "BelowLimits", 0},
		}},
		{"those for which there is no capacity come and go", []step{
			{1, "a awaiting", canGrow, "BelowLimits", 0}, {1, "a refused", canGrow, "LaunchFailing", 3}, {1, "-a", canGrow, "LaunchFailing", 3},
			{2, "b refused", canGrow, "LaunchFailing", 3}, {3, "c awaiting", full, "LaunchFailed", 7}, {4, "-c", full, "LaunchFailed", 9},
			{9, "", canGrow, "BelowLimits", 0}, {10, "d refused", canGrow, "LaunchFailing", 12},
		}},
		{"one that is launched ends it, and one that was launched before does not", []step{
			{1, "a launched 1", canGrow, "BelowLimits", 0}, {2, "b failing", canGrow, "LaunchFailing", 4}, {3, "a launched 1", canGrow, "LaunchFailing", 4},
			{4, "", full, "LaunchFailed", 0}, {5, "a launched 1", full, "LaunchFailed", 0}, {6, "b launched 6", canGrow, "BelowLimits", 0},
			{7, "c refused", canGrow, "LaunchFailing", 9}, {8, "d launched 8", canGrow, "BelowLimits", 0},
		}},
		{"one of which it is heard only when it is gone does not end it", []step{
			{1, "a failing", canGrow, "LaunchFailing", 3}, {2, "-b", canGrow, "LaunchFailing", -1}, {3, "", full, "LaunchFailed", 0},
		}},
		{"others are launched while one fails still", []step{
			{1, "a failing", canGrow, "LaunchFailing", 3}, {2, "b launched 2", canGrow, "LaunchFailing", 4}, {4, "a failing", full, "LaunchFailed", 0},
			{5, "c launched 5", canGrow, "LaunchFailing", 7}, {6, "a launched 6", canGrow, "BelowLimits", 0},
		}},
		{"one that another process saw fail is launched", []step{
			{1, "a failing", canGrow, "LaunchFailing", 3}, {2, "restart", canGrow, "LaunchFailing", 3}, {3, "", full, "LaunchFailed", 6},
			{3, "a failing", full, "LaunchFailed", 0}, {4, "restart", full, "LaunchFailed", 8}, {4, "a launched 4", canGrow, "BelowLimits", 0},
			{5, "restart", canGrow, "BelowLimits", 0}, {5, "a launched 4", canGrow, "BelowLimits", 0},
		}},
		{"one that comes without being seen before is launched", []step{
			{1, "a refused", canGrow, "LaunchFailing", 3}, {4, "b launched 4", canGrow, "BelowLimits", 0}, {5, "-b", canGrow, "BelowLimits", -1},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launches := NewLaunches()
			tracker := NewTracker(pool.Graces{Provision: time.Minute, Backoff: 2 * time.Minute}, launches)
			for i, s := range tc.steps {
				now := start.Add(time.Duration(s.minute) * time.Minute)
				name, phase, _ := strings.Cut(s.nodeClaim, " ")
				phase, minute, _ := strings.Cut(phase, " ")
				launched := 0
				_, _ = fmt.Sscan(minute, &launched)
				var err error
				switch {
				case name == "restart":
					memory := tracker.Memory()
					launches = NewLaunches()
					tracker = NewTracker(pool.Graces{Provision: time.Minute, Backoff: 2 * time.Minute}, launches)
					tracker.Restore(memory, now)
				case strings.HasPrefix(name, "-b") && s.until == -1:
					_, err = launches.Observe(claim(name[1:], "launched", 4), true, now)
				case strings.HasPrefix(name, "-"):
					_, err = launches.Observe(claim(name[1:], "awaiting", 0), true, now)
				case name != "":
					_, err = launches.Observe(claim(name, phase, launched), false, now)
				}
				if err == nil {
					err = tracker.Observe(object(t, `{limits: {cpu: 10}}`, `{cpu: 4, nodes: 1}`), nodes(1), now)
				}
				must.NoError(t, err)
				j := tracker.Status(nil, now)
				until := start.Add(time.Duration(s.until) * time.Minute)
				switch s.until {
				case 0:
					until = time.Time{}
				case -1:
					until = now.Add(behind)
				}
				if string(j.State) != s.state || j.Reason.Code != s.code || !j.Until.Equal(until) || j.Groups[0].BackingOff != (s.code == "LaunchFailing") {
					t.Errorf("step %d: %s %+v until %v, skipped %v; want %+v", i, j.State, j.Reason, j.Until, j.Groups[0].BackingOff, s)
				}
			}
		})
	}
}

// TestLaunchMessage: Karpenter's message of the last failed launch is shortened, and put in one line.
func TestLaunchMessage(t *testing.T) {
	launches := NewLaunches()
	tracker := NewTracker(pool.Graces{}, launches)
	must.NoError(t, tracker.Observe(object(t, `{}`, `{nodes: 0}`), nil, start))
	for _, tc := range []struct{ name, phase, want string }{
		{"a", "failing", "NodePool default: NodeClaim a: LaunchFailed: no quota for a"},
		{"b", "refused", "NodePool default: NodeClaim b: deleted before it was launched"},
		{strings.Repeat("c", 300), "failing", "NodePool default: NodeClaim " + strings.Repeat("c", maxMessage-len("NodeClaim "))},
		{strings.Repeat("é", 300), "failing", "NodePool default: NodeClaim " + strings.Repeat("é", (maxMessage-len("NodeClaim "))/2)},
	} {
		if changed, err := launches.Observe(claim(tc.name, tc.phase, 0), false, start); err != nil || !changed {
			t.Fatal(changed, err)
		}
		if diff := cmp.Diff(tc.want, tracker.Status(nil, start).Reason.Detail); diff != "" {
			t.Errorf("(-want,+got):\n%s", diff)
		}
	}
	for _, wrong := range []string{"{", `{"apiVersion":"v1","kind":"Pod"}`, `{"apiVersion":"karpenter.sh/v1","kind":"NodeClaim","status":{"conditions":7}}`} {
		if _, err := launches.Observe([]byte(wrong), false, start); err == nil {
			t.Errorf("%s: no error", wrong)
		}
		if _, err := launches.Observe([]byte(wrong), true, start); err == nil {
			t.Errorf("%s, gone: no error", wrong)
		}
	}
}

// TestStatusBehind: after a node or a NodeClaim is deleted, the NodePool is not at its limits while its status may
// still count the node.
func TestStatusBehind(t *testing.T) {
	second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
	const spec = `{limits: {cpu: 8}}`
	for _, tc := range []struct {
		name  string
		leave func(*Launches) (present int, resources string)
		want  string
	}{
		{"nothing goes", func(*Launches) (int, string) { return 2, `{cpu: 8, nodes: 2}` }, "Full AtLimits"},
		{"a large node goes and a smaller one has come", func(*Launches) (int, string) { return -2, `{cpu: 8, nodes: 2}` }, "CanGrow StatusBehind"},
		{"a NodeClaim is being deleted", func(l *Launches) (int, string) {
			_, _ = l.Observe(claim("a", "ending", 0), false, second(1))
			return 2, `{cpu: 8, nodes: 2}`
		}, "CanGrow StatusBehind"},
		{"a NodeClaim is gone, and what is left is not enough for a large pod", func(l *Launches) (int, string) {
			_, _ = l.Observe(claim("a", "launched", 0), true, second(1))
			return 1, `{cpu: 7, nodes: 1}`
		}, "CanGrow BelowLimits"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			launches := NewLaunches()
			_, _ = launches.Observe(claim("a", "launched", 0), false, start)
			tracker := NewTracker(pool.Graces{Provision: time.Minute}, launches)
			observe := func(nodes int, resources string, now time.Time) nodegroups.SourceStatus {
				list := nodesOf(max(nodes, -nodes), "s-4", "4")
				if nodes < 0 {
					list[1].Name = "another"
				}
				must.NoError(t, tracker.Observe(object(t, spec, resources), list, now))
				return tracker.Status(nil, now)
			}
			observe(2, `{cpu: 8, nodes: 2}`, start)
			present, resources := tc.leave(launches)
			if present == 1 { // another process takes over now
				memory := tracker.Memory()
				tracker = NewTracker(pool.Graces{Provision: time.Minute}, NewLaunches())
				tracker.Restore(memory, second(1))
			}
			j := observe(present, resources, second(1))
			if got := string(j.State) + " " + j.Reason.Code; got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if full := j.State == nodegroups.Full; !full && (!j.Until.Equal(second(11)) || j.Groups[0].Remaining != nil) {
				t.Errorf("until %v, remaining %v: want 10 s, and that a pod of any size waits", j.Until, j.Groups[0].Remaining)
			}
			if j = tracker.Status(nil, second(11)); strings.HasSuffix(j.Reason.Code, "Behind") || j.State == nodegroups.CanGrow && j.Groups[0].Remaining == nil {
				t.Errorf("after 10 s: %s %+v, remaining %v", j.State, j.Reason, j.Groups[0].Remaining)
			}
		})
	}
}

// TestStatusNotWritten: Karpenter does not write the NodePool's status while a NodeClaim is not launched, so the status
// counts nodes that are gone for longer. It does not do so for ever.
func TestStatusNotWritten(t *testing.T) {
	for _, tc := range []struct {
		name      string
		made      int // when a NodeClaim is made, in seconds; a node is removed at 0
		phase     string
		launched  int // when it is launched; 0 if never
		at        int
		wantState nodegroups.State
	}{
		{"no NodeClaim", 0, "", 0, 11, nodegroups.Full},
		{"a NodeClaim that is not launched yet", 8, "awaiting", 0, 60, nodegroups.CanGrow},
		{"it is launched", 8, "awaiting", 60, 69, nodegroups.CanGrow},
		{"the status was written since", 8, "awaiting", 60, 70, nodegroups.Full},
		{"the status was written before", 10, "awaiting", 0, 11, nodegroups.Full},
		{"the launch fails", 8, "failing", 0, 11, nodegroups.Full},
		{"Karpenter does nothing", 8, "awaiting", 0, 308, nodegroups.Full},
	} {
		t.Run(tc.name, func(t *testing.T) {
			second := func(n int) time.Time { return start.Add(time.Duration(n) * time.Second) }
			launches := NewLaunches()
			tracker := NewTracker(pool.Graces{Provision: time.Second}, launches)
			observe := func(nodes int, now time.Time) nodegroups.SourceStatus {
				must.NoError(t, tracker.Observe(object(t, `{limits: {cpu: 8}}`, `{cpu: 8, nodes: 2}`), nodesOf(nodes, "s-4", "4"), now))
				return tracker.Status(nil, now)
			}
			observe(2, start)
			observe(1, start)
			if tc.phase != "" {
				must.Do(t)(launches.Observe(claim("a", tc.phase, 0), false, second(tc.made)))
			}
			if tc.launched > 0 {
				must.Do(t)(launches.Observe(claim("a", "launched", 1), false, second(tc.launched)))
			}
			if j := observe(1, second(tc.at)); j.State != tc.wantState {
				t.Errorf("%s %+v, want %s", j.State, j.Reason, tc.wantState)
			}
		})
	}
}

// TestRealNodeClaims reads the watch events of NodeClaims that Karpenter 1.8.0 wrote, with its kwok provider.
func TestRealNodeClaims(t *testing.T) {
	files, err := filepath.Glob("testdata/nodeclaims/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data := must.ReadFile(t, file)
			var sample struct {
				Want   string
				Events []struct {
					Type   string
					Object json.RawMessage
				}
			}
			must.NoError(t, json.Unmarshal(data, &sample))
			launches := NewLaunches()
			for i, event := range sample.Events {
				if _, err := launches.Observe(event.Object, event.Type == "DELETED", start.Add(time.Duration(i)*time.Second)); err != nil {
					t.Error(err)
				}
			}
			since, _, message := launches.failing(start.Add(time.Duration(len(sample.Events)) * time.Second))
			got := fmt.Sprintf("failing %v, left %v, %s", !since.IsZero(), !launches.left.IsZero(), message)
			if got != sample.Want {
				t.Errorf("%q, want %q", got, sample.Want)
			}
		})
	}
}
