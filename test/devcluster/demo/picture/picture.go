package picture

import (
	"bytes"
	_ "embed"
	"fmt"
	"html"
	"strings"
)

// The picture has a title and a note, and below them two runs side by side. A run has, from top to bottom, a title, the
// figures, the pods, the VMs, the gate and the time.
const (
	margin     = 18.0
	runWidth   = 433.0 // from one run to the next
	plotLeft   = 34.0  // from a run's left end
	plotWidth  = 273.0
	labelGap   = 12.0 // between a plot and the words beside it
	lineHeight = 15.0

	podsTop, podsBottom = 117.0, 317.0
	vmsTop, vmsBottom   = 331.0, 367.0
	gateTop, gateBottom = 379.0, 397.0
	headroom            = 1.16 // times the most pods: space above them for words
)

// frame is the part of the picture around the runs: the size, the colours, the title and the description.
//
//go:embed frame.svg.txt
var frame string

// SVG draws one or two runs on the same scales. The result is one file, without scripts, fonts or references.
func SVG(t Timeline) []byte {
	p := &panel{}
	description := "Pods by pool over time, with the replicas asked for, the VMs and the gate."
	for i := range t.Runs {
		r := &t.Runs[i]
		p.seconds = max(p.seconds, r.Seconds)
		p.pods = max(p.pods, float64(r.last().Replicas))
		description += fmt.Sprintf(" %s: %s.", r.Title, figures(r))
	}
	p.frame(434, t.Title, description)
	p.text("title", margin, 31, t.Title)
	p.text("muted", margin, 51, t.Note+" · × a better pool had room or could grow")
	for i := range t.Runs {
		left := margin + float64(i)*runWidth
		p.Run, p.x0, p.x1 = &t.Runs[i], left+plotLeft, left+plotLeft+plotWidth
		p.text("head", left, 84, p.Title)
		p.text("", left, 103, figures(p.Run))
		p.draw()
	}
	p.WriteString("</svg>\n")
	return p.Bytes()
}

// figures returns the figures of a run as one line.
func figures(r *Run) string {
	s, wrong := r.Summary(), "none misplaced"
	if s.Wrong > 0 {
		wrong = fmt.Sprintf("× %d misplaced", s.Wrong)
	}
	return fmt.Sprintf("%d of %d VMs · %d of %d pods on %s · %s", s.VMs, s.MaxVMs, s.Virtual, s.Replicas, r.Pools[len(r.Pools)-1].Name, wrong)
}

// canvas collects an SVG's elements, each with a class of the frame's style.
type canvas struct{ bytes.Buffer }

// frame begins a picture of this height.
func (c *canvas) frame(height float64, title, description string) {
	fmt.Fprintf(c, frame, height, html.EscapeString(title), html.EscapeString(description), height-1)
}

func (c *canvas) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(c, `<rect class="%s" x="%.4g" y="%.4g" width="%.4g" height="%.4g"/>`+"\n", class, x, y, w, h)
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="%s" x1="%.4g" y1="%.4g" x2="%.4g" y2="%.4g"/>`+"\n", class, x1, y1, x2, y2)
}

func (c *canvas) path(class, d string) {
	fmt.Fprintf(c, `<path class="%s" d="%s"/>`+"\n", class, d)
}

// text writes a line whose baseline is at y.
func (c *canvas) text(class string, x, y float64, s string) {
	s = strings.ReplaceAll(html.EscapeString(s), "×", `<tspan class="mark">×</tspan>`)
	fmt.Fprintf(c, `<text class="%s" x="%.4g" y="%.4g">%s</text>`+"\n", class, x, y, s)
}
