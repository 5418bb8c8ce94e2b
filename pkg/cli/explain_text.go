package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// printExplanation prints it for people.
func (o *options) printExplanation(w io.Writer, e *Explanation, now time.Time) {
	paint := painter(o.colored())
	fmt.Fprintln(w, e.Summary)
	if len(e.Pools) > 0 {
		fmt.Fprintln(w)
		o.printVerdicts(w, e, paint)
	}
	facts := o.lines(e, now)
	if len(facts) > 0 {
		fmt.Fprintln(w)
	}
	t := table{columns: make([]column, 2)}
	for _, f := range facts {
		t.add(text(f.Name), text(f.Text))
	}
	t.write(w, false, false)
	o.printNotes(w, e.Notes, paint)
}

// lines are what is said below the pools, each with its heading.
func (o *options) lines(e *Explanation, now time.Time) []Fact {
	var lines []Fact
	add := func(name string, texts []string) {
		for i, text := range texts {
			if i > 0 {
				name = ""
			}
			lines = append(lines, Fact{name, text})
		}
	}
	var said []string
	for _, reason := range e.Said {
		said = append(said, reason.Sentence)
	}
	if e.Message != "" && (len(said) == 0 || o.wide()) {
		said = []string{e.Message}
	}
	heading := "The scheduler said"
	if e.Changed {
		heading = "At its last try"
	}
	add(heading, said)
	if e.Changed {
		add("Now", o.nowText(e))
	}
	lines = append(lines, e.Facts...)
	add("It changes when", o.changesText(e, now))
	add("What helps", e.Advice)
	return lines
}

// nowText says how the decision now differs from what the scheduler said.
func (o *options) nowText(e *Explanation) []string {
	var parts []string
	more := "; the scheduler tries the pod again when a gate opens for it"
	for i := range e.Pools {
		v := &e.Pools[i]
		switch {
		case !v.Burst:
		case v.Verdict == verdictOpen:
			parts = append(parts, v.Name+" is open: "+v.Reason.Sentence)
			more = "; the scheduler will try the pod again by itself"
		case v.Verdict == verdictClosed:
			parts = append(parts, v.Reason.Sentence)
		}
	}
	parts = slices.Compact(parts)
	if n := len(parts); n > 0 {
		parts[n-1] += more
	}
	return parts
}

// changesText is what changes the decision, in one line.
func (o *options) changesText(e *Explanation, now time.Time) []string {
	var parts []string
	for _, c := range e.Changes {
		s := c.When
		var more []string
		if !c.At.IsZero() {
			s = strings.TrimSpace(s + " at " + o.clockTime(c.At, now))
			more = append(more, until(c.At, now))
		}
		if c.By != "" {
			more = append(more, c.By)
		}
		if len(more) > 0 {
			s += " (" + strings.Join(more, ", ") + ")"
		}
		parts = append(parts, s)
	}
	if len(parts) == 0 {
		return nil
	}
	return []string{strings.Join(parts, ", or ")}
}

// printVerdicts prints what is decided of each pool and, with -o wide, of each node group.
func (o *options) printVerdicts(w io.Writer, e *Explanation, paint painter) {
	heading := "FOR THIS POD"
	if e.Situation == Template {
		heading = "FOR A NEW POD"
	}
	t := table{columns: []column{{name: ""}, {name: "POOL"}, {name: heading}, {name: "WHY"}, {name: ""}}}
	for i := range e.Pools {
		v := &e.Pools[i]
		word, style := verdictText(v)
		t.add(text(strconv.Itoa(v.Rank)), text(v.Name), cell{word, style}, text(v.Reason.Code), text(o.detail(e, v)))
		if !o.wide() {
			continue
		}
		for k := range v.Groups {
			g := &v.Groups[k]
			word, style := regularText(g.Holds, g.State, g.Reason)
			name := g.Name
			if name == "" {
				name = "(no group)"
			}
			t.add(text(""), text("  "+name), cell{"  " + word, style}, text(g.Reason.Code), text(sentence(g.Reason)))
		}
	}
	t.write(w, !o.noHeaders, paint)
}

// verdictText is the verdict in a word or two.
func verdictText(v *PoolVerdict) (string, style) {
	switch {
	case !v.Burst:
		return regularText(v.Verdict == verdictHolds, v.State, v.Reason)
	case v.Verdict == verdictOpen:
		return "open", costly
	case v.Verdict == verdictObserved:
		return "open (observed)", costly
	case gate.Lookup(v.Reason.Code).Kind.Waits():
		return "closed", plain
	}
	return "cannot use it", quiet
}

// regularText is that of a regular pool or of a node group in the state.
func regularText(holds bool, state string, reason nodegroups.Reason) (string, style) {
	switch {
	case holds:
		return "holds the gate", styles[state]
	case gate.IsNotApplicable(reason):
		return "cannot use it", quiet
	case state == string(nodegroups.Full):
		return "full", quiet
	}
	return "counts as full", quiet
}

// sentence is the reason with its detail.
func sentence(r nodegroups.Reason) string {
	if r.Detail == "" {
		return r.Sentence
	}
	if r.Sentence == "" {
		return r.Detail
	}
	return r.Sentence + " (" + r.Detail + ")"
}

// detail is what else is to be said of a pool.
func (o *options) detail(e *Explanation, v *PoolVerdict) string {
	if !v.Burst {
		if v.Reason.Detail == "" || o.wide() {
			return sentence(v.Reason)
		}
		return v.Reason.Detail
	}
	var parts []string
	switch holders := e.named(verdictHolds); {
	case v.Verdict == verdictClosed && v.ofEarlier() && len(holders) > 0:
		parts = append(parts, "opens when "+list(holders)+" can give it no node")
	case v.Verdict == verdictObserved:
		parts = append(parts, "would be closed, if the gate did not only observe")
	case v.Reason.Detail != "" && v.Reason.Code != gate.ReasonBudget.Code && !v.ofEarlier():
		parts = append(parts, v.Reason.Detail)
	default:
		parts = append(parts, short(v.Reason.Sentence))
	}
	if v.Budget != "" {
		parts = append(parts, v.Budget)
	}
	return strings.Join(parts, "; ")
}

// ofEarlier reports whether what earlier pools say is why the burst pool is closed, or would be.
func (v *PoolVerdict) ofEarlier() bool { return gate.Lookup(v.Reason.Code).Kind == gate.Earlier }
