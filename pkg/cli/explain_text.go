package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
)

// printExplanation prints the explanation as text.
func (o *options) printExplanation(w io.Writer, e *Explanation, now time.Time) {
	fmt.Fprintln(w, e.Summary)
	if len(e.Pools) > 0 {
		fmt.Fprintln(w)
		o.printVerdicts(w, e)
	}
	facts := o.lines(e, now)
	if len(facts) > 0 {
		fmt.Fprintln(w)
	}
	t := table{columns: make([]column, 2)}
	for _, f := range facts {
		t.add(text(f.Name), text(f.Text))
	}
	t.write(w, false)
	printNotes(w, e.Notes)
}

// lines returns the lines below the table of pools, each with its heading.
func (o *options) lines(e *Explanation, now time.Time) []Fact {
	var lines []Fact
	add := func(name string, texts ...string) {
		for _, text := range texts {
			lines = append(lines, Fact{name, text})
			name = ""
		}
	}
	var said []string
	for _, reason := range e.Said {
		said = append(said, reason.Sentence)
	}
	if e.Message != "" && (len(said) == 0 || o.wide()) {
		said = []string{e.Message}
	}
	if e.Changed {
		add("At its last try", said...)
		add("Now", e.nowText()...)
	} else {
		add("The scheduler said", said...)
	}
	lines = append(lines, e.Facts...)
	if len(e.Changes) > 0 {
		add("It changes when", o.changesText(e, now))
	}
	add("What helps", e.Advice...)
	return lines
}

// nowText describes the gate's decision now, which differs from the decision at the scheduler's last try.
func (e *Explanation) nowText() []string {
	var parts []string
	more := "; the scheduler tries the pod again when a gate opens for it"
	for i := range e.Pools {
		v := &e.Pools[i]
		switch {
		case !v.Burst:
		case v.Verdict == verdictOpen:
			parts = append(parts, v.Name+" is open: "+v.Reason.Sentence)
			more = "; the scheduler tries the pod again in a moment if a node there has room"
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

// changesText lists, in one line, the events and times that may change the decision.
func (o *options) changesText(e *Explanation, now time.Time) string {
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
	return strings.Join(parts, ", or ")
}

// printVerdicts prints the decision on each pool and, with -o wide, on each node group.
func (o *options) printVerdicts(w io.Writer, e *Explanation) {
	heading := "FOR THIS POD"
	if e.Situation == Template {
		heading = "FOR A NEW POD"
	}
	t := table{columns: []column{{}, {name: "POOL"}, {name: heading}, {name: "WHY"}, {}}}
	for i := range e.Pools {
		v := &e.Pools[i]
		t.add(text(strconv.Itoa(v.Rank)), text(v.Name), verdictText(v), text(v.Reason.Code), text(o.detail(e, v)))
		for _, g := range v.Groups {
			if o.wide() {
				verdict := regularText(g.Holds, g.State, g.Reason)
				verdict.text = "  " + verdict.text
				t.add(text(""), text("  "+cmp.Or(g.Name, "(no group)")), verdict, text(g.Reason.Code), text(sentence(g.Reason)))
			}
		}
	}
	t.write(w, !o.noHeaders)
}

// verdictText formats the verdict for the column FOR THIS POD.
func verdictText(v *PoolVerdict) cell {
	switch {
	case !v.Burst:
		return regularText(v.Verdict == verdictHolds, v.State, v.Reason)
	case v.Verdict == verdictOpen:
		return cell{"open", caution}
	case v.Verdict == verdictObserved:
		return cell{"open (observed)", caution}
	case gate.Lookup(v.Reason.Code).Kind.MayOpen():
		return text("closed")
	}
	return cell{"not usable", quiet}
}

// regularText formats the state of a regular pool or of a node group.
func regularText(holds bool, state string, reason nodegroups.Reason) cell {
	switch {
	case holds:
		return cell{"holds the gate", styles[state]}
	case gate.IsNotApplicable(reason):
		return cell{"not usable", quiet}
	case state == string(nodegroups.Full):
		return cell{"full", quiet}
	}
	return cell{"counts as full", quiet}
}

// sentence returns the reason's sentence with its detail.
func sentence(r nodegroups.Reason) string {
	if r.Detail == "" || r.Sentence == "" {
		return r.Sentence + r.Detail
	}
	return r.Sentence + " (" + r.Detail + ")"
}

// detail returns the last column of a pool's row.
func (o *options) detail(e *Explanation, v *PoolVerdict) string {
	if !v.Burst {
		if v.Reason.Detail != "" && !o.wide() {
			return v.Reason.Detail
		}
		return sentence(v.Reason)
	}
	said := subjects.Replace(v.Reason.Sentence)
	ofEarlier := gate.Lookup(v.Reason.Code).Kind == gate.Earlier
	switch holders := e.named(verdictHolds); {
	case v.Verdict == verdictClosed && ofEarlier && len(holders) > 0:
		said = "opens when " + list(holders) + " can give the pod no node"
	case v.Verdict == verdictObserved:
		said = "would be closed with mode: Enforce"
	case v.Reason.Detail != "" && v.Reason.Code != gate.ReasonBudgetSpent.Code && !ofEarlier:
		said = v.Reason.Detail
	}
	if v.Budget != "" {
		said += "; " + v.Budget
	}
	return said
}
