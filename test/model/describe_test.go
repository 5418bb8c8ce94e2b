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

// describe returns a description of the groups in the view.
func (s *subject) describe(now time.Time) string {
	var b strings.Builder
	for i := range s.rule.Pools.Regular() {
		p := &s.view.Pools[i]
		fmt.Fprintf(&b, "view of pool %d: looked %s, pauses", i, ago(now, p.ScannedBefore))
		for _, pause := range p.Outages {
			fmt.Fprintf(&b, " %s-%s", ago(now, pause.From), ago(now, pause.To))
		}
		b.WriteString("\n")
		for k := range p.Groups {
			g := &p.Groups[k]
			fmt.Fprintf(&b, "  %s %s %s since %s, moved %s, nodes %d, starting %d, last ready %s, shapes", g.Name, g.State, g.Reason.Code, ago(now, g.Since), ago(now, g.LastActivity), g.Nodes, g.Starting, ago(now, g.LastReady))
			for _, shape := range g.NodeTemplates {
				fmt.Fprintf(&b, " (%s %v %s)", shape.Labels["disk"], shape.Taints, shape.Allocatable.Cpu())
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}
