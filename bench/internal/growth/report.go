package growth

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tenurelock/tenure/bench/internal/measure"
)

// All returns the subjects, in the order of the document.
func All() []*Subject {
	return []*Subject{leases(), connections(), keys(), watchers(), load()}
}

var aRequest = latencyOf("a request of another client")

func columns(groups ...[]Column) []Column { return slices.Concat(groups...) }

// memoryOf, timeOf and latencyOf are the columns of what the methods memory and time of a client, and
// percentiles, return.
func memoryOf(item string) []Column {
	return []Column{{"memory of a " + item + ": server", size}, {"clients", size}}
}

func timeOf(what string) []Column {
	return []Column{{"processor time of " + what + ": server", duration}, {"clients", duration}}
}

func latencyOf(what string) []Column {
	return []Column{{what + ": p50", duration}, {"p99", duration}}
}

// String returns the figures as Markdown.
func (r Result) String() string {
	var b strings.Builder
	for _, s := range r {
		s.write(&b)
	}
	return strings.TrimSpace(b.String()) + "\n"
}

func (s Series) write(b *strings.Builder) {
	fmt.Fprintf(b, "### %s%s\n\n%s\n\n| %s |", strings.ToUpper(s.Name[:1]), s.Name[1:], s.About, s.Name)
	for _, column := range s.Columns {
		fmt.Fprintf(b, " %s |", column.Name)
	}
	b.WriteString("\n|--:|" + strings.Repeat("--:|", len(s.Columns)) + "\n")
	for _, p := range s.Points {
		fmt.Fprintf(b, "| %s |", thousands(p.Size))
		for i, column := range s.Columns {
			cell := "n/a"
			if p.Lacks == "" {
				cell = column.Format(p.Values[i])
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
}

func number(value float64) string { return thousands(int(value)) }

// thousands writes a number with commas.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func size(bytes float64) string {
	units := []string{"B", "kB", "MB"}
	for len(units) > 1 && bytes >= 1e3 {
		bytes, units = bytes/1e3, units[1:]
	}
	return measure.Digits(bytes) + " " + units[0]
}

func duration(seconds float64) string {
	value, units := seconds*1e9, []string{"ns", "µs", "ms", "s"}
	for len(units) > 1 && value >= 1e3 {
		value, units = value/1e3, units[1:]
	}
	return measure.Digits(value) + " " + units[0]
}
