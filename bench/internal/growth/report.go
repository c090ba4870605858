package growth

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tenurelock/tenure/bench/internal/chart"
)

// Write writes the figures as Markdown. charts is where the document finds the charts: a folder, with
// slashes.
func (r *Result) Write(w io.Writer, charts string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "### What is not flat\n\n")
	flat := true
	for _, s := range r.Series {
		for _, sentence := range s.NotFlat() {
			fmt.Fprintf(&b, "- %s\n", sentence)
			flat = false
		}
	}
	if flat {
		fmt.Fprintf(&b, "No cost grows by more than %.1f times between sizes.\n", MaxGrowth)
	}
	b.WriteString("\n")
	r.writeModel(&b)
	for _, s := range r.Series {
		s.write(&b, charts)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s Series) write(b *strings.Builder, charts string) {
	fmt.Fprintf(b, "### %s%s\n\n![Cost against the number of %s](%s/%s)\n\n%s\n\n", strings.ToUpper(s.Name[:1]), s.Name[1:], s.Name, charts, s.file(), s.About)
	b.WriteString("| " + s.Name + " |")
	for _, m := range s.Metrics {
		fmt.Fprintf(b, " %s: %s |", m.Panel, m.Name)
	}
	b.WriteString("\n|--:|" + strings.Repeat("--:|", len(s.Metrics)) + "\n")
	for _, p := range s.Points {
		fmt.Fprintf(b, "| %s |", thousands(p.Size))
		for _, m := range s.Metrics {
			cell := "n/a"
			if value, ok := p.Value(m); ok {
				cell = m.Format(value)
			}
			fmt.Fprintf(b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, p := range s.Points {
		if p.Lacks != "" {
			fmt.Fprintf(b, "- n/a with %s: %s\n\n", thousands(p.Size), p.Lacks)
		}
	}
	s.writeSteps(b)
}

// writeSteps writes what one more item costs between the sizes.
func (s Series) writeSteps(b *strings.Builder) {
	var lines []string
	for _, m := range s.Metrics {
		if m.Kind != Total {
			continue
		}
		var steps []string
		for _, step := range s.Steps(m) {
			steps = append(steps, fmt.Sprintf("%s to %s %s", thousands(step.From), thousands(step.To), m.Format(step.Cost)))
		}
		if len(steps) > 0 {
			lines = append(lines, fmt.Sprintf("- %s, %s: %s.", m.Panel, m.Name, strings.Join(steps, "; ")))
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(b, "One more %s costs, from size to size, where that can be told from noise:\n\n%s\n\n", s.Item, strings.Join(lines, "\n"))
	}
}

// file is the name of the chart.
func (s Series) file() string { return s.Name + ".svg" }

// WriteCharts writes a chart for each subject into a directory, which it makes if it is missing.
func (r *Result) WriteCharts(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, s := range r.Series {
		drawing, ok := s.chart()
		if !ok {
			continue // nothing was measured
		}
		if err := os.WriteFile(filepath.Join(dir, s.file()), []byte(drawing.SVG()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// chart returns the chart, and false if there is nothing to draw.
func (s Series) chart() (c chart.Chart, ok bool) {
	c = chart.Chart{Title: "Cost against the number of " + s.Name, X: s.Name}
	for _, m := range s.Metrics {
		line := chart.Line{Name: m.Name}
		for _, p := range s.Points {
			if value, known := p.Value(m); known && value > 0 {
				line.Points = append(line.Points, chart.Point{X: float64(p.Size), Y: value})
				ok = true
			}
		}
		if last := len(c.Panels) - 1; last < 0 || c.Panels[last].Title != m.Panel {
			c.Panels = append(c.Panels, chart.Panel{Title: m.Panel, Format: m.Format})
		}
		panel := &c.Panels[len(c.Panels)-1]
		panel.Lines = append(panel.Lines, line)
	}
	return c, ok
}
