package picture

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
)

// style is that of GitHub's two themes. The picture has a ground of its own, so that it is legible where a page's theme is not the browser's.
// Pools are shades of blue, the most preferred the strongest, virtual nodes orange and hatched: in grey they differ, too.
const style = `
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; } .head { font-size: 13px; font-weight: 600; }
.muted { fill: #59636e; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.ground { fill: #ffffff; stroke: #d1d9e0; } .grid { stroke: #d1d9e0; } .axis { stroke: #818b98; } .leader { stroke: #818b98; fill: none; }
.edge { stroke: #ffffff; fill: none; } .empty { fill: #eff2f5; }
.p0 { fill: #0b4a8f; } .p1 { fill: #2f81d6; } .p2 { fill: #74b6f2; } .p3 { fill: #b4d8f8; } .virtual { fill: url(#hatch); } .v { fill: #ffb77c; } .hatch { stroke: #bc4c00; }
.asked { stroke: #1f2328; fill: none; stroke-width: 1.5; stroke-dasharray: 5 3; } .limit { stroke: #59636e; fill: none; stroke-dasharray: 3 3; }
.closed { fill: #59636e; } .open { fill: #ffb77c; } .on-closed { fill: #ffffff; } .on-open { fill: #1f2328; }
.halo { stroke: #ffffff; stroke-width: 4; stroke-linecap: round; fill: none; } .cross { stroke: #b3101d; stroke-width: 2; stroke-linecap: round; fill: none; }
.mark { fill: #b3101d; font-weight: 700; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.muted { fill: #9198a1; }
.ground { fill: #0d1117; stroke: #3d444d; } .grid { stroke: #2a313a; } .axis { stroke: #656c76; } .leader { stroke: #656c76; }
.edge { stroke: #0d1117; } .empty { fill: #1c222a; }
.p0 { fill: #1f5fbf; } .p1 { fill: #4493f8; } .p2 { fill: #8cc8ff; } .p3 { fill: #cae8ff; } .v { fill: #8a4a17; } .hatch { stroke: #f0a25c; }
.asked { stroke: #f0f6fc; } .limit { stroke: #9198a1; }
.closed { fill: #656c76; } .open { fill: #f0a25c; } .on-closed { fill: #ffffff; } .on-open { fill: #0d1117; }
.halo { stroke: #0d1117; } .cross { stroke: #ffaaa2; } .mark { fill: #ffaaa2; }
}
`

// mark stands for a wrong placement in words.
const mark = "×"

// canvas collects an SVG's elements.
type canvas struct{ bytes.Buffer }

// number is a coordinate, to a tenth of a pixel.
func number(x float64) string {
	return strconv.FormatFloat(math.Round(x*10)/10+0, 'f', -1, 64) // +0: never "-0"
}

func (c *canvas) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(c, "<rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"/>\n", class, number(x), number(y), number(w), number(h))
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, "<line class=\"%s\" x1=\"%s\" y1=\"%s\" x2=\"%s\" y2=\"%s\"/>\n", class, number(x1), number(y1), number(x2), number(y2))
}

func (c *canvas) path(class, d string) {
	if d != "" {
		fmt.Fprintf(c, "<path class=\"%s\" d=\"%s\"/>\n", class, d)
	}
}

// text writes a line whose baseline is at y, no wider than the width as far as that can be told.
func (c *canvas) text(class string, x, y, width float64, s string) {
	s = fit(s, width, sizeOf(class))
	marked := strings.ReplaceAll(escape(s), mark, "<tspan class=\"mark\">"+mark+"</tspan>")
	if s != "" {
		fmt.Fprintf(c, "<text class=\"%s\" x=\"%s\" y=\"%s\">%s</text>\n", class, number(x), number(y), marked)
	}
}

// escape is the string without what XML cannot have.
func escape(s string) string {
	return html.EscapeString(strings.Map(func(r rune) rune {
		if r < ' ' || r == '\uFFFE' || r == '\uFFFF' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD")))
}

const textSize, headSize, titleSize = 12, 13, 16

// bold is how much wider bold letters are.
const bold = 1.13

// sizeOf is the size of a class's letters, as widthOf takes it.
func sizeOf(class string) float64 {
	switch {
	case strings.Contains(class, "title"):
		return titleSize * bold
	case strings.Contains(class, "head"):
		return headSize * bold
	}
	return textSize
}

// widthOf is about how wide a text is, on the side of the wider system fonts.
func widthOf(s string, size float64) float64 {
	w := 0.0
	for _, r := range s {
		switch {
		case strings.ContainsRune("iljtfr.,:;'|!()[] ·-", r):
			w += 0.4
		case strings.ContainsRune("mwMW@%…—→×", r) || r > 0x2fff:
			w += 1
		case 'A' <= r && r <= 'Z':
			w += 0.72
		default:
			w += 0.62
		}
	}
	return w * size
}

// fit shortens a text to the width.
func fit(s string, width, size float64) string {
	if widthOf(s, size) <= width {
		return s
	}
	runes := []rune(s)
	for len(runes) > 0 && widthOf(string(runes)+"…", size) > width {
		runes = runes[:len(runes)-1]
	}
	if len(runes) == 0 {
		return ""
	}
	return strings.TrimRight(string(runes), " ,.·") + "…"
}
