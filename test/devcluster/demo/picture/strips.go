package picture

import (
	"fmt"
	"math"
	"strconv"
)

// names writes beside the ends of the areas what they are.
func (p *panel) names(ends []span) {
	middles := make([]float64, len(ends))
	for i, e := range ends {
		middles[i] = (e.top + e.bottom) / 2
	}
	const chip = 9
	for i, y := range apart(middles, podsTop+lineHeight/2, podsBottom-2, lineHeight) {
		x := p.x1 + 12
		if math.Abs(y-middles[i]) > 2 && ends[i].top < ends[i].bottom {
			p.path("leader", fmt.Sprintf("M%s %sL%s %s", number(p.x1+1), number(middles[i]), number(x-2), number(y)))
		}
		p.rect(p.class(i), x, y-chip/2, chip, chip)
		count := " " + strconv.Itoa(p.run.last().Pods[i])
		x += chip + 5
		room := p.end - x - widthOf(count, textSize)
		p.text("", x, y+4, p.end-x, fit(p.run.Pools[i].Name, room, textSize)+count)
	}
}

// apart moves positions, which fall, no further than needed for them to be that far from one another and within the bounds.
func apart(wanted []float64, low, high, distance float64) []float64 {
	distance = min(distance, (high-low)/max(float64(len(wanted)-1), 1))
	result := make([]float64, len(wanted))
	ceiling := high
	for i, y := range wanted {
		result[i] = min(max(y, low), ceiling)
		ceiling = result[i] - distance
	}
	floor := low
	for i := len(result) - 1; i >= 0; i-- {
		result[i] = max(result[i], floor)
		floor = result[i] + distance
	}
	return result
}

// vms draws the VMs of all pools, and their maximum.
func (p *panel) vms() {
	summary := p.run.Summary()
	p.text("muted end", p.x0-6, (vmsTop+vmsBottom)/2+4, left, "VMs")
	full := max(summary.MaxVMs, summary.VMs)
	if full == 0 {
		return
	}
	slot := (vmsBottom - vmsTop) / float64(full)
	maximum := vmsBottom - float64(summary.MaxVMs)*slot
	p.rect("empty", p.x0, maximum, p.x1-p.x0, vmsBottom-maximum)
	p.bands(vmsTop, vmsBottom, float64(full), func(s *Step) []int { return s.VMs })
	for n := 1; n < full && slot >= thin; n++ {
		y := vmsBottom - float64(n)*slot
		p.line("edge", p.x0, y, p.x1, y)
	}
	p.line("limit", p.x0, maximum, p.x1, maximum)
	p.text("", p.x1+12, (vmsTop+vmsBottom)/2+4, right-12, fmt.Sprintf("%d of %d", sum(p.run.last().VMs), summary.MaxVMs))
}

// gate draws when the gate was closed and open.
func (p *panel) gate() {
	middle := (gateTop + gateBottom) / 2
	p.text("muted end", p.x0-6, middle+4, left, "gate")
	p.line("limit", p.x0, middle, p.x1, middle)
	if !p.run.Gated {
		p.text("", p.x1+12, middle+4, right-12, "none")
		return
	}
	written := NotAsked
	for i := 0; i < len(p.run.Steps); {
		state, from := p.run.Steps[i].Gate, p.x(p.run.Steps[i].Seconds)
		to := from
		for ; i < len(p.run.Steps) && p.run.Steps[i].Gate == state; i++ {
			to = p.x(p.until(i))
		}
		written = NotAsked
		if state == NotAsked {
			continue
		}
		p.rect(string(state), from, gateTop, to-from, gateBottom-gateTop)
		if widthOf(string(state), textSize)+6 <= to-from {
			p.text("middle on-"+string(state), (from+to)/2, middle+4, to-from, string(state))
			written = state
		}
	}
	switch state := p.run.last().Gate; state {
	case NotAsked:
		p.text("", p.x1+12, middle+4, right-12, "not asked")
	case written:
	default:
		p.text("", p.x1+12, middle+4, right-12, string(state))
	}
}

// time draws the axis of the time.
func (p *panel) time() {
	label := func(t float64) string { return strconv.FormatFloat(t, 'g', 6, 64) + " s" }
	wide := p.x1 - p.x0
	step := nice(p.seconds / wide * max(34, wide/12))
	for step/p.seconds*wide < widthOf(label(p.seconds+step), textSize)+6 {
		step = nice(step * 1.01)
	}
	for i := 0; float64(i)*step <= p.seconds*(1+1e-9); i++ {
		x := p.x(float64(i) * step)
		p.line("axis", x, gateBottom+2, x, gateBottom+6)
		p.text("muted middle", x, timeLine, 2*left, label(float64(i)*step))
	}
}
