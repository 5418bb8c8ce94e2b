package model

import (
	"fmt"
	"strings"
	"time"
)

func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprint(now.Sub(t).Round(time.Millisecond))
}

func (k *podKind) describe(now time.Time) string {
	return fmt.Sprintf("pod disk=%s agentPool=%s tolerates=%v cpu=%d virtual=%v priority=%d burst=%q created %s, delay %s, unschedulable %s, no room %s, ignored %s",
		k.disk, k.agentPool, k.tolerates, k.cpu, k.virtual, k.priority, k.burst, ago(now, k.created), k.delay, ago(now, k.since), ago(now, k.noRoom), ago(now, k.ignored))
}

// describe tells the last part of the history.
func (h *history) describe(k int) string {
	var b strings.Builder
	now := h.looks[k].at
	fmt.Fprintf(&b, "%+v\n", h.settings)
	for name, g := range h.known {
		fmt.Fprintf(&b, "group %s: mode %s, size %q, %+v, template %+v\n", name, g.mode, g.size, g.kind, g.template)
	}
	for j := max(0, k-40); j <= k; j++ {
		l, n := &h.looks[j], &h.notes[j]
		fmt.Fprintf(&b, "%s ago: ", ago(now, l.at))
		if l.status == nil {
			b.WriteString("missing")
		} else {
			fmt.Fprintf(&b, "%s #%d made %d began %d %+v", l.status.kind, l.status.serial, l.status.made, l.status.began, l.status.groups)
		}
		fmt.Fprintf(&b, "\n   write %v believed %v takeover %v quiet %v states %v moved %v\n   nodes:", n.write, n.believed, n.takeover, n.quiet, n.states, n.moved)
		for _, n := range l.nodes {
			fmt.Fprintf(&b, " %s(%s %s", n.name, n.group.name, ago(now, n.created))
			for what, is := range map[string]bool{"ready": n.ready, "startup": n.startup, "strange": n.strange, "leaving": n.leaving, "passing": n.passing} {
				if is {
					b.WriteString(" " + what)
				}
			}
			b.WriteString(")")
		}
		b.WriteString("\n")
	}
	return b.String()
}
