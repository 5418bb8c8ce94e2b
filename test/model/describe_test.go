package model

import (
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

func ago(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return fmt.Sprint(now.Sub(t).Round(time.Millisecond))
}

func (k *podKind) describe(now time.Time) string {
	return fmt.Sprintf("pod disk=%s agentPool=%s tolerates=%v cpu=%d virtual=%v priority=%d burst=%q created %s, delay %s, requested %v, unschedulable %s, no room %s, ignored %s, counts failures %v: %+v",
		k.disk, k.agentPool, k.tolerates, k.cpu, k.virtual, k.priority, k.burst, ago(now, k.created), k.delay, k.requested, ago(now, k.since), ago(now, k.noRoom), ago(now, k.ignored), k.counts, k.pacing)
}

// describe returns a description of the last part of the history.
func (h *history) describe(k int) string {
	var b strings.Builder
	now := h.looks[k].at
	fmt.Fprintf(&b, "%+v\n", h.settings)
	for name, g := range h.known {
		fmt.Fprintf(&b, "group %s: mode %s, size %q, %+v, template %+v\n", name, g.mode, g.size, g.kind, g.template)
	}
	for j := max(0, k-30); j <= k; j++ {
		l, n := &h.looks[j], &h.notes[j]
		fmt.Fprintf(&b, "%s ago:", ago(now, l.at))
		for what, is := range map[string]bool{"write": n.write, "not believed": !n.believed, "takeover": n.takeover, "not quiet": n.write && !n.quiet, "restarted": l.restarted} {
			if is {
				b.WriteString(" [" + what + "]")
			}
		}
		switch {
		case l.status == nil:
			b.WriteString(" missing")
		case j > 0 && h.isSame(j-1, j) && j > max(0, k-30):
			b.WriteString(" the same")
		default:
			fmt.Fprintf(&b, " %s #%d/%d/%d", l.status.kind, l.status.serial, l.status.made, l.status.began)
			for name, g := range l.status.groups {
				fmt.Fprintf(&b, " %s %d of %d of %d", name, g.ready+g.unready+g.longUnregistered, g.target, g.max)
				if g.backoff {
					b.WriteString(" backoff")
				}
				if g.unhealthy {
					b.WriteString(" unhealthy")
				}
			}
		}
		if l.override.gate != "" {
			fmt.Fprintf(&b, " overridden %s, until %s ago", l.override.gate, ago(now, l.override.until))
		}
		b.WriteString(";")
		for _, s := range n.seats {
			fmt.Fprintf(&b, " %d/%s %s %s", s.pool, s.group, n.states[s], n.whys[s])
			if n.moved[s] {
				b.WriteString(" moved")
			}
		}
		b.WriteString(";")
		for _, n := range l.nodes {
			fmt.Fprintf(&b, " %s(%s %s", n.name, n.group.name, ago(now, n.created))
			for what, is := range map[string]bool{"ready": n.ready, "startup": n.startup, "startupTaint": n.startupTaint, "leaving": n.leaving, "passing": n.passing} {
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

// describe returns the view as it is published.
func (s *subject) describe(now time.Time) string {
	data, _ := yaml.Marshal(s.view) // it has nothing that cannot be written
	return fmt.Sprintf("the view at %v:\n%s", now, data)
}
