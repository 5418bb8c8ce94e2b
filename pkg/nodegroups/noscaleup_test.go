package nodegroups

import (
	"testing"
	"time"
)

// TestConfirms: an event counts only if it says what it must say, of all groups of the status, in the right order of
// time.
func TestConfirms(t *testing.T) {
	at := func(ms int) time.Time {
		return time.Date(2026, 11, 21, 10, 0, 0, ms*1e6, time.UTC)
	}
	since := at(10_300) // the pod began to wait; its groups did not change later
	for name, tc := range map[string]struct {
		status LastStatus
		event  NoScaleUp
		want   bool
	}{
		"it holds":                           {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2}, true},
		"no group is at its maximum":         {LastStatus{Groups: 1}, NoScaleUp{Groups: 1}, true},
		"all are at their maximum":           {LastStatus{Groups: 2, AtMax: 2}, NoScaleUp{Groups: 2, AtMax: 2}, true},
		"an event that says nothing":         {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{}, false},
		"nor does a status without groups":   {LastStatus{}, NoScaleUp{}, false},
		"a group is missing":                 {LastStatus{Groups: 4, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"a group too many":                   {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 4, AtMax: 2}, false},
		"a group has left its maximum":       {LastStatus{Groups: 3, AtMax: 1}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"a group has reached its maximum":    {LastStatus{Groups: 3, AtMax: 3}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"it arrived before the wait began":   {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2, Seen: at(10_299)}, false},
		"it arrived when the wait began":     {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2, Seen: since}, false},
		"it was written in the same second":  {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2, At: at(10_000), Seen: at(10_301)}, true},
		"it was written earlier":             {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2, At: at(9_000)}, false},
		"it has no time":                     {LastStatus{Groups: 3, AtMax: 2}, NoScaleUp{Groups: 3, AtMax: 2, At: time.Unix(0, 0)}, false},
		"the status is older":                {LastStatus{Groups: 3, AtMax: 2, Seen: at(11_000)}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"the status is as old":               {LastStatus{Groups: 3, AtMax: 2, Seen: at(12_000)}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"events are not read":                {LastStatus{Groups: 3, AtMax: 2, EventsSince: never}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"it was there when reading began":    {LastStatus{Groups: 3, AtMax: 2, EventsSince: at(12_000)}, NoScaleUp{Groups: 3, AtMax: 2}, false},
		"it came just after reading began":   {LastStatus{Groups: 3, AtMax: 2, EventsSince: at(11_999)}, NoScaleUp{Groups: 3, AtMax: 2}, true},
		"reading began after the wait began": {LastStatus{Groups: 3, AtMax: 2, EventsSince: at(11_000)}, NoScaleUp{Groups: 3, AtMax: 2}, true},
	} {
		set := func(to *time.Time, otherwise time.Time) {
			switch *to {
			case time.Time{}:
				*to = otherwise
			case never:
				*to = time.Time{}
			}
		}
		set(&tc.status.EventsSince, at(0))
		set(&tc.status.Seen, at(13_000))
		set(&tc.event.At, at(11_000))
		set(&tc.event.Seen, at(12_000))
		if got := tc.status.Confirms(tc.event, since); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// never stands for a time that is not set.
var never = time.Unix(1, 0)
