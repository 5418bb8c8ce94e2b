package picture

import (
	"fmt"
	"html"
	"strings"
)

// Chart has figures over time, which start at 0 on the vertical axis.
type Chart struct {
	Title string
	Lines []Line // at most two
}

// Line is one figure over time. Each point is a number of seconds and the figure's value.
type Line struct {
	Name   string
	Points [][2]float64
}

// Charts draws up to three charts, one below the other, over the same seconds. The marks are times in seconds.
func Charts(title, note string, seconds float64, charts []Chart, marks []float64) []byte {
	const left, right, height, gap = 60.0, 720.0, 88.0, 32.0
	p := &canvas{}
	fmt.Fprintf(p, frame, html.EscapeString(title), html.EscapeString(note))
	p.WriteString("<style>.line0, .line1 { fill: none; stroke: #1f6feb; stroke-width: 1.5; } .line1 { stroke: #bc4c00; }</style>\n")
	p.text("title", margin, 31, title)
	p.text("muted", margin, 51, note)
	for i, c := range charts {
		top, most := 78+float64(i)*(height+gap), 1.0
		for _, line := range c.Lines {
			for _, point := range line.Points {
				most = max(most, point[1])
			}
		}
		p.text("head", left, top-6, c.Title)
		p.text("muted end", left-6, top+4, fmt.Sprintf("%.4g", most))
		p.line("axis", left, top+height, right, top+height)
		for _, mark := range marks {
			p.line("grid", left+(right-left)*mark/seconds, top, left+(right-left)*mark/seconds, top+height)
		}
		for n, line := range c.Lines {
			var d []string
			for _, point := range line.Points {
				d = append(d, fmt.Sprintf("%.4g %.4g", left+(right-left)*point[0]/seconds, top+height-height*point[1]/most))
			}
			p.path(fmt.Sprintf("line%d", n), fmt.Sprintf("M%sM%g %gh14", strings.Join(d, "L"), right+labelGap, top+float64(n+1)*lineHeight-4))
			p.text("", right+labelGap+20, top+float64(n+1)*lineHeight, line.Name)
		}
	}
	p.text("muted", left, 426, fmt.Sprintf("0 to %.0f s", seconds))
	p.WriteString("</svg>\n")
	return p.Bytes()
}
