package picture

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// panel draws one run.
type panel struct {
	*canvas
	run                *Run
	start, x0, x1, end float64 // of the panel, and within it of the plots
	seconds, pods      float64 // what the plots are wide and, without headroom, high
}

func (p *panel) draw() {
	p.text("head", p.start, headLine, p.end-p.start, p.run.Title)
	p.text("", p.start, figuresLine, p.end-p.start, figures(p.run, p.end-p.start))
	p.grid()
	pods := p.bands(podsTop, podsBottom, p.pods*headroom, func(s *Step) []int { return s.Pods })
	p.asked()
	marks := p.crosses()
	p.askedLabel(marks)
	p.waiting(marks)
	p.names(pods)
	p.vms()
	p.gate()
	p.time()
}

// x is where a time is.
func (p *panel) x(seconds float64) float64 { return p.x0 + (p.x1-p.x0)*seconds/p.seconds }

// level is where a number of pods is.
func (p *panel) level(pods float64) float64 {
	return podsBottom - (podsBottom-podsTop)*pods/(p.pods*headroom)
}

// until is when the step with the index ends.
func (p *panel) until(i int) float64 {
	if i+1 < len(p.run.Steps) {
		return p.run.Steps[i+1].Seconds
	}
	return p.run.Seconds
}

func (p *panel) grid() {
	p.text("muted end", p.x0-6, podsTop+8, left, "pods")
	step := max(nice(p.pods/4), 1)
	for n := 0.0; n <= p.pods; n += step {
		y := p.level(n)
		p.line("grid", p.x0, y, p.x1, y)
		p.text("muted end", p.x0-6, y+4, left, number(n))
	}
}

// nice is the smallest of 1, 2, 5, 10, 20 …, and of their tenths and so on, that is at least x.
func nice(x float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= x*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// class is that of a pool's area.
func (p *panel) class(pool int) string {
	regular := 0
	for _, q := range p.run.Pools {
		if q.MaxVMs > 0 {
			regular++
		}
	}
	if p.run.Pools[pool].MaxVMs == 0 {
		return "virtual"
	}
	rank := 0
	for _, q := range p.run.Pools[:pool] {
		if q.MaxVMs > 0 {
			rank++
		}
	}
	if regular == 2 {
		rank *= 2 // further apart
	}
	return fmt.Sprintf("p%d", rank%4)
}

// span is where a pool's area is at the right end.
type span struct{ top, bottom float64 }

// bands draws a figure of each pool, upon one another, and returns where they end.
func (p *panel) bands(top, bottom, full float64, of func(*Step) []int) []span {
	y := func(n int) float64 { return bottom - (bottom-top)*float64(n)/full }
	ends := make([]span, len(p.run.Pools))
	var edges strings.Builder
	for pool := range p.run.Pools {
		var d strings.Builder
		var forth, back []string
		flush := func() {
			if len(forth) > 0 {
				fmt.Fprintf(&d, "M%sL%sZ", strings.Join(forth, "L"), strings.Join(back, "L"))
			}
			forth, back = nil, nil
		}
		for i := range p.run.Steps {
			s := of(&p.run.Steps[i])
			below := sum(s[:pool])
			low, high := y(below), y(below+s[pool])
			ends[pool] = span{high, low}
			x0, x1 := number(p.x(p.run.Steps[i].Seconds)), number(p.x(p.until(i)))
			if s[pool] == 0 {
				flush()
				continue
			}
			if low-high >= thin {
				fmt.Fprintf(&edges, "M%s %sL%s %[2]s", x0, number(high), x1)
			}
			forth = append(forth, x0+" "+number(high), x1+" "+number(high))
			back = append([]string{x1 + " " + number(low), x0 + " " + number(low)}, back...)
		}
		flush()
		p.path(p.class(pool), d.String())
	}
	p.path("edge", edges.String())
	return ends
}

// asked draws the replicas that were asked for.
func (p *panel) asked() {
	var d strings.Builder
	for i, s := range p.run.Steps {
		y := number(p.level(float64(s.Replicas)))
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&d, "%s%s %sL%s %s", command, number(p.x(s.Seconds)), y, number(p.x(p.until(i))), y)
	}
	p.path("asked", d.String())
}

// askedLabel says how many replicas were asked for, above all that is drawn there.
func (p *panel) askedLabel(marks []point) {
	label := fmt.Sprintf("%d replicas asked for", p.run.last().Replicas)
	from, y := p.x1-widthOf(label, textSize)-5, podsBottom
	for i, s := range p.run.Steps {
		if p.x(p.until(i)) >= from {
			y = min(y, p.level(float64(max(s.Replicas, sum(s.Pods)))))
		}
	}
	for _, m := range marks {
		if m.x >= from {
			y = min(y, m.y)
		}
	}
	p.text("end", p.x1, y-6, p.x1-p.x0, label)
}

// waiting says, where there is the most room, that pods wait, but not upon marks.
func (p *panel) waiting(marks []point) {
	const label = "waiting"
	wide := widthOf(label, textSize) + 8
	var at, middle, best float64
	for i := 0; i < len(p.run.Steps); i++ {
		high := p.run.Steps[i].Replicas
		low := 0
		// As long as there is room for the words below what is asked for, at any height.
		for j := i; j < len(p.run.Steps) && p.run.Steps[j].Replicas == high; j++ {
			low = max(low, sum(p.run.Steps[j].Pods))
			room := p.level(float64(low)) - p.level(float64(high))
			from, to := p.x(p.run.Steps[i].Seconds), p.x(p.until(j))
			x, y := (from+to)/2, p.level(float64(low))-room/2
			if room < lineHeight+4 || to-from < wide || slices.ContainsFunc(marks, func(m point) bool {
				return math.Abs(m.x-x) < wide/2+5 && math.Abs(m.y-y) < lineHeight
			}) {
				continue
			}
			if area := room * (to - from); area > best {
				best, at, middle = area, x, y
			}
		}
	}
	if best > 0 {
		p.text("muted middle", at, middle+4, p.x1-p.x0, label)
	}
}

// glance is how much later than a placement, in seconds, it may be in a step.
const glance = 0.1

type point struct{ x, y float64 }

// crosses marks the wrong placements, each at the height of a pod that its pool got then, and returns where.
func (p *panel) crosses() []point {
	var marks []point
	perRow := int(math.Ceil(7 / (p.level(0) - p.level(1)))) // pods of one height, beside one another
	var halo, cross strings.Builder
	i := 0
	used := map[int]map[int]bool{} // by pool, the pods that have a mark, counted from below
	for _, w := range p.run.Wrong {
		for i+1 < len(p.run.Steps) && p.run.Steps[i+1].Seconds <= w.Seconds+glance {
			i++
		}
		s := &p.run.Steps[i]
		below, pods := 0, sum(s.Pods)
		if w.Pool >= 0 {
			below, pods = sum(s.Pods[:w.Pool]), s.Pods[w.Pool]
		}
		if used[w.Pool] == nil {
			used[w.Pool] = map[int]bool{}
		}
		pod := highestFree(pods, used[w.Pool])
		used[w.Pool][pod] = true
		y := max(p.level(float64(below)+(float64(pod/perRow)+0.5)*float64(perRow)), p.level(p.pods)+3)
		x := min(p.x(s.Seconds)+7+float64(pod%perRow)*9, p.x1-5)
		marks = append(marks, point{x, y})
		const r = 2.6
		d := fmt.Sprintf("M%s %sL%s %sM%[1]s %[4]sL%[3]s %[2]s", number(x-r), number(y-r), number(x+r), number(y+r))
		halo.WriteString(d)
		cross.WriteString(d)
	}
	p.path("halo", halo.String())
	p.path("cross", cross.String())
	return marks
}

// highestFree is the highest number below n that is not used; if all are, or n is 0, the highest.
func highestFree(n int, used map[int]bool) int {
	for i := n - 1; i >= 0; i-- {
		if !used[i] {
			return i
		}
	}
	return max(n-1, 0)
}
