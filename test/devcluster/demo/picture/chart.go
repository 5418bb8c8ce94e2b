package picture

import (
	"fmt"
	"html"
	"slices"
	"strings"
)

// Chart has figures over time. Its lines have the same unit, and start at 0 on the vertical axis.
type Chart struct {
	Title string
	Lines []Line // at most two
}

// Line is one figure over time. Each point is a number of seconds and the figure's value.
type Line struct {
	Name   string
	Points [][2]float64
}

const chartHeight, chartGap = 88.0, 32.0

// Charts draws up to three charts, one below the other, on the same axis of time. The marks are times in seconds.
func Charts(title, note string, charts []Chart, marks []float64) []byte {
	p := &panel{Run: &Run{}, x0: 60, x1: 700}
	for _, mark := range marks {
		p.seconds = max(p.seconds, mark)
	}
	for _, c := range charts {
		for _, line := range c.Lines {
			for _, point := range line.Points {
				p.seconds = max(p.seconds, point[0])
			}
		}
	}
	x := func(seconds float64) float64 { return p.x0 + (p.x1-p.x0)*seconds/max(p.seconds, 1) }
	fmt.Fprintf(p, frame, html.EscapeString(title), html.EscapeString(note))
	p.WriteString("<style>.line0, .line1 { fill: none; stroke: #1f6feb; stroke-width: 1.5; } .line1 { stroke: #bc4c00; }</style>\n")
	p.text("title", margin, 31, title)
	p.text("muted", margin, 51, note)
	for i, c := range charts {
		top := 78 + float64(i)*(chartHeight+chartGap)
		bottom, most := top+chartHeight, 0.0
		for _, line := range c.Lines {
			for _, point := range line.Points {
				most = max(most, point[1])
			}
		}
		p.text("head", p.x0, top-6, c.Title)
		p.line("grid", p.x0, bottom, p.x1, bottom)
		p.line("grid", p.x0, top, p.x1, top)
		p.text("muted end", p.x0-6, bottom+4, "0")
		p.text("muted end", p.x0-6, top+4, fmt.Sprintf("%.4g", most))
		for _, mark := range marks {
			p.line("grid", x(mark), top, x(mark), bottom)
		}
		for n, line := range c.Lines {
			var d []string
			for _, point := range line.Points {
				d = append(d, fmt.Sprintf("%.4g %.4g", x(point[0]), bottom-chartHeight*point[1]/max(most, 1e-9)))
			}
			p.path(fmt.Sprintf("line%d", n), "M"+strings.Join(d, "L"))
			y := bottom - float64(n)*lineHeight
			p.path(fmt.Sprintf("line%d", n), fmt.Sprintf("M%.4g %.4gh14", p.x1+labelGap, y-4))
			p.text("", p.x1+labelGap+20, y, fmt.Sprintf("%s %.4g", line.Name, slices.Concat(line.Points, [][2]float64{{}})[max(0, len(line.Points)-1)][1]))
		}
	}
	p.text("muted", p.x0, 426, fmt.Sprintf("0 to %.0f s", p.seconds))
	p.WriteString("</svg>\n")
	return p.Bytes()
}
