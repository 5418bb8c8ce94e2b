package picture

import (
	"fmt"
	"strings"
)

// panel draws one run.
type panel struct {
	canvas
	*Run
	x0, x1        float64 // the left and the right end of the plots
	seconds, pods float64 // full scale, without headroom
}

// The CSS classes of the pools and of the gate's states.
var (
	poolClasses = []string{"pool0", "pool1", "virtual"}
	gateClasses = []string{Closed, Open}
	gateBands   = map[string][]int{"": {0, 0}, Closed: {1, 0}, Open: {0, 1}}
)

func (p *panel) draw() {
	p.text("muted end", p.x0-6, podsTop+8, "pods")
	for n := 0.0; n <= p.pods; n += 5 {
		p.line("grid", p.x0, p.level(n), p.x1, p.level(n))
		p.text("muted end", p.x0-6, p.level(n)+4, fmt.Sprint(n))
	}
	bands := p.bands(podsTop, podsBottom, p.pods*headroom, poolClasses, func(s Step) []int { return s.Pods })
	p.asked()
	p.crosses()
	p.names(bands)
	p.vms()
	p.gate()
	p.time()
}

// x returns the x coordinate of a time.
func (p *panel) x(seconds float64) float64 { return p.x0 + plotWidth*seconds/p.seconds }

// level returns the y coordinate of a number of pods.
func (p *panel) level(pods float64) float64 {
	return podsBottom - (podsBottom-podsTop)*pods/(p.pods*headroom)
}

// span returns the x coordinates of a step's begin and end.
func (p *panel) span(step int) (from, to float64) {
	until := p.Seconds
	if step+1 < len(p.Steps) {
		until = p.Steps[step+1].Seconds
	}
	return p.x(p.Steps[step].Seconds), p.x(until)
}

// band is the drawn area of one class, which is a pool or a state of the gate. from and to are the x coordinates of its
// left and right edges. middle is the y coordinate of its middle at the panel's last step.
type band struct{ from, to, middle float64 }

// bands draws the number of each class over time, one class on top of the other.
func (p *panel) bands(top, bottom, full float64, classes []string, of func(Step) []int) []band {
	y := func(n int) float64 { return bottom - (bottom-top)*float64(n)/full }
	bands := make([]band, len(classes))
	edges := ""
	for c, class := range classes {
		b, areas := &bands[c], ""
		for i, s := range p.Steps {
			low, high := y(sum(of(s)[:c])), y(sum(of(s)[:c+1]))
			b.middle = (low + high) / 2
			if low == high {
				continue
			}
			from, to := p.span(i)
			if areas == "" {
				b.from = from
			}
			b.to = to
			areas += fmt.Sprintf("M%.4g %.4gH%.4gV%.4gH%.4gZ", from, high, to, low, from)
			edges += fmt.Sprintf("M%.4g %.4gH%.4g", from, high, to)
		}
		p.path(class, areas)
	}
	p.path("edge", edges)
	return bands
}

// asked draws the number of replicas over time, with its last value, and writes "waiting" where pods are pending.
func (p *panel) asked() {
	var steps []string
	for i, s := range p.Steps {
		from, to := p.span(i)
		low, high := p.level(float64(sum(s.Pods))), p.level(float64(s.Replicas))
		steps = append(steps, fmt.Sprintf("%.4g %.4gH%.4g", from, high, to))
		if low-high > lineHeight && to-from > 55 { // there is room for the word
			p.text("muted middle", (from+to)/2, (low+high)/2+4, "waiting")
		}
	}
	p.path("asked", "M"+strings.Join(steps, "L"))
	replicas := p.last().Replicas
	p.text("end", p.x1, p.level(float64(replicas))-6, fmt.Sprintf("%d replicas asked for", replicas))
}

// glance is a number of seconds. The step that shows a placement begins at most this long after the placement.
const glance = 0.1

// crosses draws one cross for each wrong placement, on the top unmarked pod of its pool.
func (p *panel) crosses() {
	const r = 2.6              // half the width of a cross
	marks := map[[2]int]bool{} // by pool and pod
	d, step := "", 0
	for _, w := range p.Wrong {
		for step+1 < len(p.Steps) && p.Steps[step+1].Seconds <= w.Seconds+glance {
			step++
		}
		s, pool := p.Steps[step], max(w.Pool, 0)
		pod := max(s.Pods[pool]-1, 0)
		for pod > 0 && marks[[2]int{pool, pod}] {
			pod--
		}
		marks[[2]int{pool, pod}] = true
		x, y := p.x(s.Seconds)+7, p.level(float64(sum(s.Pods[:pool])+pod)+0.5)
		d += fmt.Sprintf("M%.4g %.4gL%.4g %.4gM%.4[1]g %.4[4]gL%.4[3]g %.4[2]g", x-r, y-r, x+r, y+r)
	}
	p.path("halo", d)
	p.path("cross", d)
}

// names writes the name and the last number of each band beside the band. The names do not overlap.
func (p *panel) names(bands []band) {
	y := podsBottom + lineHeight
	for i, b := range bands {
		y = min(b.middle, y-lineHeight)
		p.rect(poolClasses[i], p.x1+labelGap, y-4.5, 9, 9)
		p.text("", p.x1+labelGap+14, y+4, fmt.Sprintf("%s %d", p.Pools[i].Name, p.last().Pods[i]))
	}
}

// vms draws the VMs of all pools.
func (p *panel) vms() {
	most := p.Summary().MaxVMs
	p.rect("empty", p.x0, vmsTop, plotWidth, vmsBottom-vmsTop)
	p.bands(vmsTop, vmsBottom, float64(most), poolClasses, func(s Step) []int { return s.VMs })
	for n := 1; n < most; n++ {
		y := vmsBottom - (vmsBottom-vmsTop)*float64(n)/float64(most)
		p.line("edge", p.x0, y, p.x1, y)
	}
	p.line("limit", p.x0, vmsTop, p.x1, vmsTop)
	p.text("muted end", p.x0-6, 353, "VMs")
	p.text("", p.x1+labelGap, 353, fmt.Sprintf("%d of %d", sum(p.last().VMs), most))
}

// gate draws the times at which the gate was closed and open.
func (p *panel) gate() {
	end := "none"
	if p.Gated {
		end = ""
	}
	p.line("limit", p.x0, (gateTop+gateBottom)/2, p.x1, (gateTop+gateBottom)/2)
	for i, b := range p.bands(gateTop, gateBottom, 1, gateClasses, func(s Step) []int { return gateBands[s.Gate] }) {
		state := gateClasses[i]
		if b.to-b.from > 42 { // there is room for the word
			p.text("middle on-"+state, (b.from+b.to)/2, 392, state)
		} else if state == p.last().Gate {
			end = state
		}
	}
	p.text("muted end", p.x0-6, 392, "gate")
	p.text("", p.x1+labelGap, 392, end)
}

// time draws the time axis.
func (p *panel) time() {
	step := 2.0
	for p.seconds/step > 6 {
		step *= 2
	}
	for t := 0.0; t <= p.seconds; t += step {
		p.line("axis", p.x(t), gateBottom+2, p.x(t), gateBottom+6)
		p.text("muted middle", p.x(t), 418, fmt.Sprintf("%g s", t))
	}
}
