package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"poolpriority.dev/scheduler/pkg/breaker"
	"poolpriority.dev/scheduler/pkg/gate"
	"poolpriority.dev/scheduler/pkg/nodegroups"
	"poolpriority.dev/scheduler/pkg/published"
)

const (
	gibibytes = 1 << 30
	gigabytes = 1e9 // the unit in which providers bill
)

// styles maps each state to the style in which it is printed.
var styles = map[string]style{
	string(nodegroups.Full): quiet, string(nodegroups.CanGrow): good, string(nodegroups.Growing): moving, string(nodegroups.Unknown): bad,
	stateOpen: caution, stateSpent: bad, stateDown: bad, string(breaker.Refusing): bad, string(breaker.HalfOpen): bad,
}

// printStatus prints the table of pools. If rest is true, it also prints the held pods, the leader and the notes.
func (o *options) printStatus(w io.Writer, l *PoolStatusList, rest bool, now time.Time) {
	hidden := !o.wide()
	t := table{columns: []column{{}, {name: "POOL"}, {name: "STATE"}, {name: "NODES"}, {name: "PODS", right: true}, {name: "CPU", right: true}, {name: "MEMORY", right: true},
		{name: "SINCE"}, {name: "SOURCE", hidden: hidden}, {name: "GROUPS", hidden: hidden}, {name: "REASON", hidden: hidden}, {name: "WHY"}}}
	for i := range l.Items {
		p := &l.Items[i]
		var groups []string
		for k := range p.Groups {
			if p.Groups[k].Name != "" {
				groups = append(groups, p.Groups[k].Name)
			}
		}
		why := o.why(p, now)
		if o.wide() && p.Reason.Detail != "" && len(p.HeldBy) == 0 && !strings.Contains(why, p.Reason.Detail) {
			why += " (" + p.Reason.Detail + ")"
		}
		t.add(text(strconv.Itoa(p.Rank)), text(p.Name), cell{p.State, styles[p.State]}, text(nodesText(p)), text(podsText(p)), text(usedText(p, corev1.ResourceCPU, 1, "")), text(memoryText(p)),
			text(age(p.Since, now)), text(cmp.Or(p.Source, none)), text(cmp.Or(strings.Join(groups, ","), none)), text(cmp.Or(p.Reason.Code, none)), text(why))
	}
	t.write(w, !o.noHeaders)
	if !rest {
		return
	}

	if l.SchedulerName != "" || l.Held.Total > 0 {
		fmt.Fprintf(w, "\n%s\n", heldText(&l.Held, now))
	}
	if o.wide() {
		fmt.Fprintf(w, "%s leads (%s), mode %s, order %s, written %s ago; %s in no pool\n", cmp.Or(l.Leader, none), cmp.Or(l.Version, none), cmp.Or(l.Mode, none), cmp.Or(l.Order, none),
			age(l.Written, now), count(l.UnlistedNodes, "node", "nodes"))
	}
	printNotes(w, slices.Concat(l.Problems, l.Notes))
}

// printNotes prints an empty line and the notes. Without notes, it prints nothing.
func printNotes(w io.Writer, notes []string) {
	for i, note := range notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s\n", paint(bad, "!"), note)
	}
}

// nodesText formats the numbers of nodes: "3+1 of 5" means 3 usable nodes, 1 node on its way, and a maximum of 5.
func nodesText(p *PoolStatus) string {
	n := ptr.Deref(p.Nodes.Ready, p.Nodes.Total)
	s := strconv.Itoa(n)
	if p.Nodes.OnTheirWay > 0 {
		s += "+" + strconv.Itoa(p.Nodes.OnTheirWay)
	}
	if most := p.Nodes.Max; most != nil {
		s += fmt.Sprintf(" of %d", *most)
	} else if p.Burst && n < p.Nodes.Total {
		s += fmt.Sprintf(" of %d", p.Nodes.Total)
	}
	return s
}

func podsText(p *PoolStatus) string {
	if p.Pods == nil {
		return none
	}
	s := strconv.Itoa(*p.Pods)
	if limit, ok := p.Limits[corev1.ResourcePods]; ok {
		s += fmt.Sprintf(" of %d", limit.Value())
	}
	if p.Finished > 0 {
		s += fmt.Sprintf(", %d finished", p.Finished)
	}
	return s
}

func memoryText(p *PoolStatus) string {
	if p.Burst {
		return usedText(p, corev1.ResourceMemory, gigabytes, " GB")
	}
	return usedText(p, corev1.ResourceMemory, gibibytes, " Gi")
}

// usedText formats the used amount of a resource and, if known, the total amount. Both are in the given unit.
func usedText(p *PoolStatus, name corev1.ResourceName, unit float64, suffix string) string {
	part, known := p.Requested[name]
	if !known {
		return none
	}
	whole := p.Allocatable[name]
	if p.Burst {
		whole = p.Limits[name]
	}
	text := decimal(part.AsApproximateFloat64() / unit)
	if !whole.IsZero() {
		text += " / " + decimal(whole.AsApproximateFloat64()/unit)
	}
	return text + suffix
}

// why describes the reason for the pool's state.
func (o *options) why(p *PoolStatus, now time.Time) string {
	s := p.Reason.Sentence
	switch {
	case p.State == string(nodegroups.Growing) && !p.Until.IsZero():
		s += ", until " + o.clockTime(p.Until, now) + " at the latest"
	case p.State == stateClosed:
		s = subjects.Replace(p.Reason.Sentence)
		if len(p.HeldBy) > 0 {
			s = heldByText(p.HeldBy)
		}
		if !p.Until.IsZero() {
			s += ", may open at " + o.clockTime(p.Until, now)
		}
	case p.State == stateSpent:
		s = "its budget is spent: " + p.Reason.Detail
	case p.State == stateDown:
		s = p.Reason.Detail
	case p.State == string(breaker.Refusing) && !p.Until.IsZero():
		s = p.Reason.Detail + ", tried again at " + o.clockTime(p.Until, now)
	case p.State == string(breaker.HalfOpen):
		s = p.Reason.Detail + ", being tested"
	}
	if p.Taint != "" {
		s += "; its nodes take only pods that tolerate the taint " + p.Taint
	}
	return s
}

// heldByText describes the states of the pools that keep a gate closed.
func heldByText(pools []PoolState) string {
	words := map[string]string{string(nodegroups.CanGrow): "can grow", string(nodegroups.Growing): "is growing", string(nodegroups.Unknown): "is unknown"}
	said := make([]string, len(pools))
	for i, p := range pools {
		said[i] = p.Pool + " " + words[p.State]
	}
	return list(said)
}

// heldText formats the number of held pods, by reason.
func heldText(h *published.Held, now time.Time) string {
	if h.Total == 0 {
		return "No pod waits at the gate."
	}
	s := count(h.Total, "pod waits", "pods wait")
	if !h.Oldest.IsZero() {
		s += ", the longest for " + age(h.Oldest, now)
	}
	var parts []string
	byPool := map[string]int{}
	var order []string
	for _, by := range h.By {
		if gate.Lookup(by.Reason).OfEarlierPool() {
			if byPool[by.Pool] == 0 {
				order = append(order, by.Pool)
			}
			byPool[by.Pool] += by.Pods
		}
	}
	for _, name := range order {
		parts = append(parts, fmt.Sprintf("%d for %s", byPool[name], name))
	}
	for _, by := range h.By {
		switch lasting := gate.Lookup(by.Reason).Kind == gate.Lasting; {
		case !lasting && byPool[by.Pool] == 0:
			parts = append(parts, fmt.Sprintf("%d for %s (%s)", by.Pods, by.Pool, by.Reason))
		case lasting:
			parts = append(parts, fmt.Sprintf("%d cannot burst (%s)", by.Pods, by.Reason))
		}
	}
	if len(parts) > 0 {
		s += ":   " + strings.Join(parts, "   ")
	}
	return s
}
