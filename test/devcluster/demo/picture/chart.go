package picture

import (
	"fmt"
	"strings"
)

// Chart has figures over time, which start at 0 on the vertical axis.
type Chart struct {
	Title string
	Lines []Line // at most three
}

// Line is one figure over time. Each point is a number of seconds and the figure's value.
type Line struct {
	Name   string
	Points [][2]float64
}

// Charts draws charts, one below the other, over the same time. The marks are times. unit is the unit of all times.
func Charts(title, note, unit string, seconds float64, charts []Chart, marks []float64) []byte {
	const left, right, height, gap = 60.0, 720.0, 88.0, 32.0
	p, bottom := &canvas{}, 74+float64(len(charts))*(height+gap)
	p.frame(bottom, title, note)
	p.WriteString("<style>.line0, .line1, .line2 { fill: none; stroke: #1f6feb; stroke-width: 1.5; } .line1 { stroke: #bc4c00; } .line2 { stroke: #818b98; }</style>\n")
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
	p.text("muted", left, bottom-8, fmt.Sprintf("0 to %.0f %s", seconds, unit))
	p.WriteString("</svg>\n")
	return p.Bytes()
}
