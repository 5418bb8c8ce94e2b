package picture

import (
	"fmt"
	"math"
	"strings"
)

// The picture is 880 px wide, what GitHub gives a README. From top to bottom: title and note, and for each run, side by side, a title and
// the figures, the pods, the VMs, the gate and the time.
const (
	width   = 880.0
	margin  = 18.0
	between = 22.0  // two runs
	left    = 34.0  // for the figures at the left of a plot
	right   = 104.0 // for what things are called, at its right

	titleLine, noteLine   = 31.0, 51.0
	headLine, figuresLine = 84.0, 103.0
	podsTop, podsBottom   = 117.0, 317.0
	vmsTop, vmsBottom     = 331.0, 367.0
	gateTop, gateBottom   = 379.0, 397.0
	timeLine, height      = 418.0, 434.0
	lineHeight            = 15.0
	headroom              = 1.16 // above the most pods, for what is asked for
	thin                  = 4.0  // areas that are thinner are not told apart by an edge
)

// sideBySide is how many runs there is room for.
const sideBySide = 2

// SVG draws the timeline's runs, one or two, side by side on the same scales. It is one file, without scripts, fonts or references.
func SVG(t Timeline) ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	if len(t.Runs) > sideBySide {
		return nil, fmt.Errorf("runs: there are %d, and a picture has room for %d", len(t.Runs), sideBySide)
	}
	c := &canvas{}
	fmt.Fprintf(c, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%s\" height=\"%s\" viewBox=\"0 0 %[1]s %[2]s\" role=\"img\" "+
		"aria-labelledby=\"title desc\">\n", number(width), number(height))
	fmt.Fprintf(c, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n<style>%s</style>\n", escape(t.Title), escape(describe(t)), style)
	c.WriteString("<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">" +
		"<rect class=\"v\" width=\"6\" height=\"6\"/><line class=\"hatch\" x1=\"3\" y1=\"0\" x2=\"3\" y2=\"6\"/></pattern></defs>\n")
	fmt.Fprintf(c, "<rect class=\"ground\" x=\"0.5\" y=\"0.5\" width=\"%s\" height=\"%s\" rx=\"6\"/>\n", number(width-1), number(height-1))
	c.text("title", margin, titleLine, width-2*margin, t.Title)
	note, seconds, pods := t.Note, 0.0, 1
	for _, r := range t.Runs {
		if len(r.Wrong) > 0 {
			note = legend(t.Note)
		}
		seconds = max(seconds, r.Seconds)
		for _, s := range r.Steps {
			pods = max(pods, s.Replicas, sum(s.Pods))
		}
	}
	c.text("muted", margin, noteLine, width-2*margin, note)
	room := (width - 2*margin - between*float64(len(t.Runs)-1)) / float64(len(t.Runs))
	for i := range t.Runs {
		x := margin + float64(i)*(room+between)
		p := &panel{canvas: c, run: &t.Runs[i], start: x, x0: x + left, x1: x + room - right, end: x + room, seconds: seconds, pods: float64(pods)}
		p.draw()
	}
	c.WriteString("</svg>\n")
	return c.Bytes(), nil
}

// legend is the note, with what the mark means.
func legend(note string) string {
	words := mark + " a better pool had room or could grow"
	if note == "" {
		return words
	}
	words = " · " + words
	return fit(note, width-2*margin-widthOf(words, textSize), textSize) + words
}

// describe is the picture in words.
func describe(t Timeline) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Pods by pool over time, with the replicas asked for, the VMs and the gate. %s", t.Note)
	for i := range t.Runs {
		r := &t.Runs[i]
		parts := make([]string, len(r.Pools))
		for j, p := range r.Pools {
			parts[j] = fmt.Sprintf("%s %d", p.Name, r.last().Pods[j])
		}
		fmt.Fprintf(&b, " %s: %s. Pods by pool in the end: %s.", r.Title, figures(r, math.Inf(1)), strings.Join(parts, ", "))
	}
	return strings.TrimSpace(b.String())
}

// figures is a run in a line of at most the width.
func figures(r *Run, width float64) string {
	s := r.Summary()
	vms, wrong := fmt.Sprintf("%d of %d VMs", s.VMs, s.MaxVMs), "none misplaced"
	if s.Wrong > 0 {
		wrong = fmt.Sprintf("%s %d misplaced", mark, s.Wrong)
	}
	var virtual []string
	for _, p := range r.Pools {
		if p.MaxVMs == 0 {
			virtual = append(virtual, p.Name)
		}
	}
	if len(virtual) == 0 {
		return vms + " · " + wrong
	}
	line := func(on string) string {
		return fmt.Sprintf("%s · %d of %d pods %s · %s", vms, s.Virtual, s.Replicas, on, wrong)
	}
	if full := line("on " + strings.Join(virtual, " and ")); widthOf(full, textSize) <= width {
		return full
	}
	return line("virtual")
}
