package chart_test

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/bench/internal/chart"
)

func drawing(points ...chart.Point) chart.Chart {
	return chart.Chart{Title: "Cost <& growth>", X: "keys", Panels: []chart.Panel{
		{Title: "Memory", Lines: []chart.Line{{Name: "server", Points: points}, {Name: "clients"}}},
		{Title: "Time", Format: func(v float64) string { return strconv.Itoa(int(v)) + " µs" }, Lines: []chart.Line{{Name: "p50", Points: points}}},
	}}
}

// texts returns the text that a reader sees.
func texts(t *testing.T, svg string) (seen []string) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(svg))
	inside := ""
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return seen
		}
		if err != nil {
			t.Fatalf("the drawing is not XML: %v\n%s", err, svg)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inside = token.Name.Local
		case xml.EndElement:
			inside = ""
		case xml.CharData:
			if inside == "text" {
				seen = append(seen, string(token))
			}
		}
	}
}

func TestADrawingHasItsTextsAsText(t *testing.T) {
	seen := "\n" + strings.Join(texts(t, drawing(chart.Point{X: 1000, Y: 20}, chart.Point{X: 100_000, Y: 300}).SVG()), "\n") + "\n"
	for _, want := range []string{"Cost <& growth>", "keys", "Memory", "Time", "server", "clients", "p50", "1k", "10k", "100k", "100", "100 µs"} {
		if !strings.Contains(seen, "\n"+want+"\n") {
			t.Errorf("the drawing lacks %q; it has\n%s", want, seen)
		}
	}
}

func TestADrawingFollowsTheColoursOfItsReader(t *testing.T) {
	if svg := drawing().SVG(); !strings.Contains(svg, "prefers-color-scheme:dark") {
		t.Error("the drawing has no colours for dark readers")
	}
}

var circle = regexp.MustCompile(`<circle class="m0" cx="([\d.]+)" cy="([\d.]+)" r="[\d.]+"><title>`)

func TestEqualRatiosHaveEqualDistances(t *testing.T) {
	svg := drawing(chart.Point{X: 10, Y: 10}, chart.Point{X: 100, Y: 100}, chart.Point{X: 1000, Y: 1000}).SVG()
	marks := circle.FindAllStringSubmatch(svg, -1)
	if len(marks) != 6 { // three in each panel
		t.Fatalf("there are %d marks in\n%s", len(marks), svg)
	}
	for axis := 1; axis <= 2; axis++ {
		var at [3]float64
		for i := range at {
			at[i], _ = strconv.ParseFloat(marks[i][axis], 64)
		}
		if first, second := at[1]-at[0], at[2]-at[1]; math.Abs(first-second) > 0.2 || math.Abs(first) < 50 {
			t.Errorf("on axis %d the distances are %.1f and %.1f", axis, first, second)
		}
	}
	if up, _ := strconv.ParseFloat(marks[0][2], 64); up < 100 {
		t.Errorf("the smallest value is at the top: %.1f", up)
	}
}

func TestPointsWithoutALogarithmAreLeftOut(t *testing.T) {
	svg := drawing(chart.Point{X: 10, Y: 0}, chart.Point{X: 0, Y: 10}, chart.Point{X: 10, Y: math.NaN()}, chart.Point{X: 10, Y: math.Inf(1)}).SVG()
	texts(t, svg)
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || circle.MatchString(svg) {
		t.Errorf("the drawing is\n%s", svg)
	}
}
