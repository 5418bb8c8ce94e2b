package cli

import (
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
)

// none stands for what is not known.
const none = "–"

// age is how long ago the time was, as kubectl has it; a dash for one that is not known.
func age(t, now time.Time) string {
	if t.IsZero() {
		return none
	}
	return duration.HumanDuration(now.Sub(t))
}

// until is in how long a time is that is to come.
func until(t, now time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + duration.HumanDuration(t.Sub(now))
}

// clockTime is a time on the reader's clock face, with the date if that is another than today's.
func (o *options) clockTime(t, now time.Time) string {
	t, now = t.In(o.zone), now.In(o.zone)
	if t.Format(time.DateOnly) != now.Format(time.DateOnly) {
		return t.Format(time.DateTime)
	}
	return t.Format(time.TimeOnly)
}

// count is a number of things, in words that read on: "1 pod waits", "2 pods wait".
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// list joins words: "a", "a and b", "a, b and c".
func list(words []string) string { return join(words, "and") }

// choice joins them with or.
func choice(words []string) string { return join(words, "or") }

func join(words []string, last string) string {
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " " + last + " " + words[n-1]
	}
	return strings.Join(words, "")
}

// decimal prints a number with a decimal below ten, and without one above.
func decimal(f float64) string {
	if f < 9.95 {
		return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
	}
	return strconv.FormatFloat(f, 'f', 0, 64)
}

// short is what a sentence says of a burst pool's nodes, without the subject that it has in the condition of a pod.
func short(sentence string) string {
	for _, cut := range []struct{ prefix, with string }{
		{"node(s) in a burst pool, which ", ""}, {"node(s) in a burst pool that ", ""}, {"node(s) in a burst pool whose ", "its "}, {"node(s) in a burst pool ", ""},
	} {
		if rest, ok := strings.CutPrefix(sentence, cut.prefix); ok {
			return cut.with + rest
		}
	}
	return sentence
}
