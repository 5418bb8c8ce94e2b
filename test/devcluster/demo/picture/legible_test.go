package picture

import (
	"encoding/xml"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// element is one of an SVG.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Text     string     `xml:",chardata"`
	Elements []element  `xml:",any"`
}

func (e *element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

func (e *element) text() string {
	s := e.Text
	for i := range e.Elements {
		s += e.Elements[i].text()
	}
	return s
}

// box is where a text is, as far as that can be told.
type box struct {
	text                     string
	left, right, top, bottom float64
}

func (b box) touches(other box) bool {
	return b.left < other.right && other.left < b.right && b.top < other.bottom && other.top < b.bottom
}

func (e *element) box(t *testing.T) box {
	x, y := coordinate(t, e.attr("x")), coordinate(t, e.attr("y"))
	class := e.attr("class")
	b := box{text: e.text(), left: x, top: y - sizeOf(class)*0.75, bottom: y + sizeOf(class)*0.15}
	wide := widthOf(b.text, sizeOf(class))
	switch {
	case strings.Contains(class, "middle"):
		b.left -= wide / 2
	case strings.Contains(class, "end"):
		b.left -= wide
	}
	b.right = b.left + wide
	return b
}

func coordinate(t *testing.T, s string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var coordinates = regexp.MustCompile(`[^MLZ ]+`)

// shapes checks that the element's lines and areas are within the picture.
func (e *element) shapes(t *testing.T) {
	t.Helper()
	within := func(value string, limit float64) {
		if n := coordinate(t, value); !(n >= -0.1 && n <= limit+0.1) { //nolint:staticcheck // NaN is not within it either
			t.Errorf("%s %+v: %s is not within the picture", e.XMLName.Local, e.Attrs, value)
		}
	}
	switch e.XMLName.Local {
	case "line":
		within(e.attr("x1"), width)
		within(e.attr("x2"), width)
		within(e.attr("y1"), height)
		within(e.attr("y2"), height)
	case "rect":
		within(strconv.FormatFloat(coordinate(t, e.attr("x"))+coordinate(t, e.attr("width")), 'f', -1, 64), width)
		within(strconv.FormatFloat(coordinate(t, e.attr("y"))+coordinate(t, e.attr("height")), 'f', -1, 64), height)
	case "path":
		for i, value := range coordinates.FindAllString(e.attr("d"), -1) {
			within(value, []float64{width, height}[i%2])
		}
	}
}

// crosses are where the marks of wrong placements are.
func (e *element) crosses(t *testing.T) []box {
	var crosses []box
	if e.attr("class") != "cross" {
		return nil
	}
	for _, stroke := range strings.Split(e.attr("d"), "M")[1:] {
		p := coordinates.FindAllString(stroke, -1)
		left, y0, right, y1 := coordinate(t, p[0]), coordinate(t, p[1]), coordinate(t, p[2]), coordinate(t, p[3])
		crosses = append(crosses, box{text: mark, left: left, right: right, top: min(y0, y1), bottom: max(y0, y1)})
	}
	return crosses
}

// TestLegible draws timelines of all kinds: the picture is XML, all of it is within its bounds, no text is upon another, and no mark upon a
// text.
func TestLegible(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 500 {
		timeline := random(r)
		svg, err := SVG(timeline)
		if err != nil {
			t.Fatal(err)
		}
		var picture element
		if err := xml.Unmarshal(svg, &picture); err != nil {
			t.Fatalf("timeline %d: %v", i, err)
		}
		var boxes, crosses []box
		for j := range picture.Elements {
			e := &picture.Elements[j]
			if e.XMLName.Local != "text" {
				e.shapes(t)
				crosses = append(crosses, e.crosses(t)...)
				continue
			}
			b := e.box(t)
			if b.left < 0 || b.right > width || b.top < 0 || b.bottom > height {
				t.Errorf("%+v is not within the picture", b)
			}
			for _, other := range boxes {
				if b.touches(other) {
					t.Errorf("%+v is upon %+v", b, other)
				}
			}
			boxes = append(boxes, b)
		}
		for _, cross := range crosses {
			if i := slices.IndexFunc(boxes, cross.touches); i >= 0 {
				t.Errorf("%+v is upon %+v", cross, boxes[i])
			}
		}
		if t.Failed() {
			data, err := Write(timeline)
			t.Fatalf("timeline %d (%v):\n%s", i, err, data)
		}
	}
}

func random(r *rand.Rand) Timeline {
	const letters = "aaeeiinorst-lmW WM<&>\"×é日\x00\xff…"
	text := func() string {
		s := make([]byte, r.IntN(90))
		for i := range s {
			s[i] = letters[r.IntN(len(letters))]
		}
		return string(s)
	}
	timeline := Timeline{Title: text(), Note: text()}
	replicas, vms := 1+r.IntN([]int{3, 30, 5000}[r.IntN(3)]), 1+r.IntN([]int{2, 300}[r.IntN(2)])
	for range 1 + r.IntN(2) {
		run := Run{Title: text(), Gated: r.IntN(2) == 0, Seconds: []float64{0.01, 1, 60, 5000}[r.IntN(4)] * (r.Float64() + 0.1)}
		for range 1 + r.IntN(maxPools) {
			run.Pools = append(run.Pools, Pool{Name: text(), MaxVMs: r.IntN(vms)})
		}
		at := 0.0
		for range 1 + r.IntN(12) {
			s := Step{Seconds: at, Gate: []Gate{NotAsked, Closed, Open}[r.IntN(3)], Replicas: r.IntN(replicas)}
			for range run.Pools {
				s.Pods = append(s.Pods, r.IntN(s.Replicas+1)*r.IntN(2))
				s.VMs = append(s.VMs, r.IntN(vms))
			}
			run.Steps = append(run.Steps, s)
			at += r.Float64() * (run.Seconds - at)
		}
		for range r.IntN(30) {
			run.Wrong = append(run.Wrong, Placement{Seconds: r.Float64() * run.Seconds, Pool: r.IntN(len(run.Pools)+1) - 1})
		}
		timeline.Runs = append(timeline.Runs, run)
	}
	return timeline
}
