package picture

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func good() Timeline {
	return Timeline{Title: "t", Runs: []Run{{
		Title: "one", Load: "a", Gated: true, Seconds: 3, Pools: []Pool{{Name: "user", MaxVMs: 2}, {Name: "system", MaxVMs: 1}, {Name: "aci"}},
		Steps: []Step{
			{Seconds: 0.5, Replicas: 2, Pods: []int{1, 0, 0}, VMs: []int{2, 1, 0}, Pending: 1, Gate: Closed, Reason: "an earlier pool can grow"},
			{Seconds: 2, Replicas: 5, Pods: []int{1, 1, 3}, VMs: []int{1, 1, 0}, Gate: Open, Reason: "no earlier pool can grow"},
		},
		Wrong: []Placement{{Seconds: 2, Pool: 2, Why: []string{"node n of pool user had room"}}},
	}}}
}

func TestTimeline(t *testing.T) {
	want := good()
	data, err := Write(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-written,+read):\n%s", diff)
	}
	if diff := cmp.Diff(Summary{Replicas: 5, VMs: 3, MaxVMs: 3, Virtual: 3, Wrong: 1}, want.Runs[0].Summary()); diff != "" {
		t.Errorf("summary (-want,+got):\n%s", diff)
	}
}

func TestSameLoad(t *testing.T) {
	var timeline Timeline
	for _, load := range []string{"a", "b", "a"} {
		timeline.Runs = append(timeline.Runs, Run{Load: load})
	}
	if got := timeline.SameLoad().Runs; len(got) != 2 || got[0].Load != "a" || got[1].Load != "a" || len(timeline.Runs) != 3 {
		t.Errorf("runs with the load of the first: %+v, of %+v", got, timeline.Runs)
	}
}

func TestBadTimelines(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Timeline)
		want   string
	}{
		"no runs":                            {func(t *Timeline) { t.Runs = nil }, "has no runs"},
		"three runs":                         {func(t *Timeline) { t.Runs = append(t.Runs, t.Runs[0], t.Runs[0]) }, "runs: there are 3, and a picture has room for 2"},
		"no pools":                           {func(t *Timeline) { t.Runs[0].Pools = nil }, "runs[0]: pools: there are 0"},
		"too many pools":                     {func(t *Timeline) { t.Runs[0].Pools = make([]Pool, 13) }, "runs[0]: pools: there are 13"},
		"no time":                            {func(t *Timeline) { t.Runs[0].Seconds = 0 }, "runs[0]: seconds: 0"},
		"nothing seen":                       {func(t *Timeline) { t.Runs[0].Steps = nil }, "runs[0]: steps: there are none"},
		"time goes back":                     {func(t *Timeline) { t.Runs[0].Steps[1].Seconds = 0.4 }, "steps[1].seconds: 0.4"},
		"a step after the end":               {func(t *Timeline) { t.Runs[0].Steps[1].Seconds = 4 }, "steps[1].seconds: 4"},
		"a pool without a figure":            {func(t *Timeline) { t.Runs[0].Steps[0].Pods = []int{1} }, "steps[0]: there are figures of 1 and 3 pools, not of 3"},
		"fewer than none":                    {func(t *Timeline) { t.Runs[0].Steps[1].VMs[0] = -1 }, "steps[1]: a figure is below 0"},
		"a gate that is neither":             {func(t *Timeline) { t.Runs[0].Steps[1].Gate = "ajar" }, `steps[1].gate: "ajar"`},
		"a placement in no pool that it has": {func(t *Timeline) { t.Runs[0].Wrong[0].Pool = 3 }, "wrong[0]: pool 3"},
	} {
		t.Run(name, func(t *testing.T) {
			timeline := good()
			c.change(&timeline)
			if _, err := SVG(timeline); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, not %q", err, c.want)
			}
		})
	}
	if _, err := Read([]byte(`{"title": "t", "runs": [], "colour": "blue"}`)); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("an unknown field: error %v", err)
	}
}
