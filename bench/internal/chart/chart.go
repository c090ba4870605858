// Package chart draws lines in SVG, on axes in a log scale. Text stays text, and the colours follow
// the reader's system, light or dark.
package chart

import (
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Chart is a drawing of panels side by side, with the same horizontal axis.
type Chart struct {
	// Title is above the panels, and X is below the horizontal axes.
	Title, X string
	Panels   []Panel
}

// Panel is one pair of axes.
type Panel struct {
	// Title is above the axes.
	Title string
	// Format writes a value of the vertical axis. nil writes a plain number.
	Format func(float64) string
	Lines  []Line
}

// Line is drawn through its points, in order.
type Line struct {
	Name   string
	Points []Point
}

// Point is a point of a line. One without a logarithm is left out.
type Point struct{ X, Y float64 }

func (p Point) hasPlace() bool {
	return p.X > 0 && p.Y > 0 && !math.IsInf(p.X, 1) && !math.IsInf(p.Y, 1) // not-a-number is not above 0
}

// The measures, in pixels.
const (
	perRow       = 2
	panelWidth   = 420
	panelHeight  = 320
	left, right  = 72, 18
	top, bottom  = 46, 84
	titleHeight  = 40
	plotWidth    = panelWidth - left - right
	plotHeight   = panelHeight - top - bottom
	legendOffset = 52
	legendRow    = 18
	legendColumn = plotWidth / 2
	radius       = 3.5
)

// style has colours for light and dark. Lines differ in their dashes and marks too, for readers that
// see no difference of colour.
const style = `
svg{--paper:#ffffff;--ink:#1f2328;--faint:#59636e;--grid:#d1d9e0;--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;background:var(--paper)}
@media (prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#f0f6fc;--faint:#9198a1;--grid:#30363d;--c0:#4493f8;--c1:#f0883e;--c2:#3fb950;--c3:#ab7df8}}
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--faint)}
.title{font-size:16px;font-weight:600;fill:var(--ink)}.panel{font-size:13px;font-weight:600;fill:var(--ink)}
.paper{fill:var(--paper)}.grid{stroke:var(--grid)}.axis{stroke:var(--faint)}
.line{fill:none;stroke-width:2}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1);stroke-dasharray:6 3}.s2{stroke:var(--c2);stroke-dasharray:2 3}.s3{stroke:var(--c3);stroke-dasharray:9 3 2 3}
.m0{fill:var(--c0)}.m1{fill:var(--c1)}.m2{fill:var(--c2)}.m3{fill:var(--c3)}
.end{text-anchor:end}.middle{text-anchor:middle}
`

// colours is how many lines of a panel differ.
const colours = 4

// SVG returns the drawing. The same chart gives the same text.
func (c Chart) SVG() string {
	columns := max(1, min(perRow, len(c.Panels)))
	rows := (len(c.Panels) + columns - 1) / columns
	width, height := columns*panelWidth, titleHeight+rows*panelHeight
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", escape(c.Title), style)
	fmt.Fprintf(&b, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", width, height)
	fmt.Fprintf(&b, "<text class=\"title middle\" x=\"%d\" y=\"26\">%s</text>\n", width/2, escape(c.Title))
	x := c.horizontal()
	for i, p := range c.Panels {
		fmt.Fprintf(&b, "<g transform=\"translate(%d %d)\">\n", i%columns*panelWidth, titleHeight+i/columns*panelHeight)
		p.draw(&b, x, c.X)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// horizontal returns the axis that all panels have.
func (c Chart) horizontal() axis {
	var values []float64
	for _, p := range c.Panels {
		for _, line := range p.Lines {
			for _, point := range line.Points {
				if point.hasPlace() {
					values = append(values, point.X)
				}
			}
		}
	}
	return newAxis(values, left, left+plotWidth)
}

func (p Panel) draw(b *strings.Builder, x axis, label string) {
	var values []float64
	for _, line := range p.Lines {
		for _, point := range line.Points {
			if point.hasPlace() {
				values = append(values, point.Y)
			}
		}
	}
	y := newAxis(values, top+plotHeight, top)
	fmt.Fprintf(b, "<text class=\"panel\" x=\"%d\" y=\"%d\">%s</text>\n", left, top-16, escape(p.Title))
	for _, tick := range x.ticks() {
		at := x.place(tick)
		fmt.Fprintf(b, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", at, top, at, top+plotHeight)
		fmt.Fprintf(b, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>\n", at, top+plotHeight+16, short(tick))
	}
	format := p.Format
	if format == nil {
		format = short
	}
	for _, tick := range y.ticks() {
		at := y.place(tick)
		fmt.Fprintf(b, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n", left, at, left+plotWidth, at)
		fmt.Fprintf(b, "<text class=\"end\" x=\"%d\" y=\"%.1f\">%s</text>\n", left-6, at+4, escape(format(tick)))
	}
	fmt.Fprintf(b, "<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", left, top, top+plotHeight, left+plotWidth)
	fmt.Fprintf(b, "<text class=\"middle\" x=\"%d\" y=\"%d\">%s</text>\n", left+plotWidth/2, top+plotHeight+32, escape(label))
	for i, line := range p.Lines {
		line.draw(b, x, y, i%colours)
		at, under := left+i%2*legendColumn, top+plotHeight+legendOffset+i/2*legendRow
		fmt.Fprintf(b, "<path class=\"line s%d\" d=\"M%d %dh22\"/>", i%colours, at, under-4)
		mark(b, float64(at+11), float64(under-4), i%colours, "")
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\">%s</text>\n", at+28, under, escape(line.Name))
	}
}

func (l Line) draw(b *strings.Builder, x, y axis, colour int) {
	command := "M"
	var path strings.Builder
	for _, p := range l.Points {
		if p.hasPlace() {
			fmt.Fprintf(&path, "%s%.1f %.1f", command, x.place(p.X), y.place(p.Y))
			command = "L"
		}
	}
	if path.Len() == 0 {
		return
	}
	fmt.Fprintf(b, "<path class=\"line s%d\" d=\"%s\"/>\n", colour, path.String())
	for _, p := range l.Points {
		if p.hasPlace() {
			mark(b, x.place(p.X), y.place(p.Y), colour, fmt.Sprintf("%s at %s", l.Name, short(p.X)))
		}
	}
}

// mark draws a point: another shape for each line.
func mark(b *strings.Builder, x, y float64, colour int, title string) {
	shape := ""
	switch colour {
	case 0:
		shape = fmt.Sprintf("<circle class=\"m0\" cx=\"%.1f\" cy=\"%.1f\" r=\"%v\"", x, y, radius)
	case 1:
		shape = fmt.Sprintf("<rect class=\"m1\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"", x-radius, y-radius)
	case 2:
		shape = fmt.Sprintf("<path class=\"m2\" d=\"M%.1f %.1fl4.5 8h-9z\"", x, y-5)
	default:
		shape = fmt.Sprintf("<path class=\"m3\" d=\"M%.1f %.1fl4.5 4.5l-4.5 4.5l-4.5 -4.5z\"", x, y-4.5)
	}
	if title == "" {
		b.WriteString(shape + "/>")
		return
	}
	fmt.Fprintf(b, "%s><title>%s</title></%s>\n", shape, escape(title), strings.Fields(shape)[0][1:])
}

// axis places values between two pixels, by their logarithm.
type axis struct {
	low, high float64 // logarithms to the base 10
	from, to  float64 // pixels
}

// margin is the room between the outermost values and the ends of the axis, in decades, and minDecades
// the shortest axis: noise should not fill a panel.
const margin, minDecades = 0.05, 1.0

func newAxis(values []float64, from, to float64) axis {
	a := axis{low: math.Inf(1), high: math.Inf(-1), from: from, to: to}
	for _, value := range values {
		a.low, a.high = min(a.low, math.Log10(value)), max(a.high, math.Log10(value))
	}
	if len(values) == 0 {
		a.low, a.high = 0, 0
	}
	a.low, a.high = a.low-margin, a.high+margin
	if missing := minDecades - (a.high - a.low); missing > 0 {
		a.low, a.high = a.low-missing/2, a.high+missing/2
	}
	return a
}

func (a axis) place(value float64) float64 {
	return a.from + (math.Log10(value)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// ticks returns the powers of ten on the axis, with 2 and 5 times them if there are few, and every
// second or third power if there are many.
func (a axis) ticks() (ticks []float64) {
	factors, step := []float64{1}, 1
	switch decades := a.high - a.low; {
	case decades <= 2.2:
		factors = []float64{1, 2, 5}
	case decades > 6:
		step = int(math.Ceil(decades / 6))
	}
	for power := int(math.Floor(a.low)); power <= int(math.Ceil(a.high)); power += step {
		for _, factor := range factors {
			tick := factor * math.Pow10(power)
			if l := math.Log10(tick); l >= a.low && l <= a.high {
				ticks = append(ticks, tick)
			}
		}
	}
	return ticks
}

// short writes a number with k for thousands and M for millions.
func short(value float64) string {
	suffix := ""
	switch {
	case value >= 1e6:
		value, suffix = value/1e6, "M"
	case value >= 1e3:
		value, suffix = value/1e3, "k"
	}
	return strconv.FormatFloat(value, 'g', 4, 64) + suffix
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder returns no error
	return b.String()
}
