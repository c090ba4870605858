package growth

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/bench/internal/table"
)

// All returns the subjects, in the order of the document.
func All() []*Subject {
	return []*Subject{leases(), connections(), keys(), watchers(), load()}
}

var aRequest = latencyOf("a request of another client")

func columns(groups ...[]Column) []Column { return slices.Concat(groups...) }

// memoryOf, timeOf and latencyOf are the columns of what the methods memory and time of a client, and
// percentiles, return. A letter is of the server's part.
func memoryOf(item, letter string) []Column {
	return []Column{{"memory of a " + item + ": server", size, letter}, {"clients", size, ""}}
}

func timeOf(what, letter string) []Column {
	return []Column{{"processor time of " + what + ": server", duration, letter}, {"clients", duration, ""}}
}

func latencyOf(what string) []Column {
	return []Column{{what + ": p50", duration, ""}, {"p99", duration, ""}}
}

// String returns the figures as Markdown.
func (r *Result) String() string {
	var b strings.Builder
	r.writeModel(&b)
	for _, s := range r.Series {
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
		fmt.Fprintf(b, "| %s |", table.Thousands(p.Size))
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
			fmt.Fprintf(b, "- n/a with %s: %s\n\n", table.Thousands(p.Size), p.Lacks)
		}
	}
}

const (
	// renewalsPerTTL is how often a lease is renewed within its TTL, on average: each sixth of it, less a
	// twentieth, because up to a tenth is taken off at random.
	renewalsPerTTL = 6 / 0.95
	// planned is the share of a processor that a plan uses. The rest is for bursts, and for the clients that
	// connect again all at once after a loss.
	planned = 0.5
)

// writeModel writes the figures of a store for the formulas of docs/performance.md, of the largest sizes, and
// what they give.
func (r *Result) writeModel(b *strings.Builder) {
	var rows []string
	renewal := 0.0
	for _, s := range r.Series {
		measured := slices.DeleteFunc(slices.Clone(s.Points), func(p Point) bool { return p.Lacks != "" })
		if len(measured) == 0 {
			continue
		}
		last := measured[len(measured)-1]
		for i, column := range s.Columns {
			if column.Letter == "" {
				continue
			}
			if column.Letter == "r" {
				renewal = last.Values[i]
			}
			rows = append(rows, fmt.Sprintf("| %s | %s | %s | with %s %s |", column.Letter,
				strings.TrimSuffix(column.Name, ": server"), column.Format(last.Values[i]), table.Thousands(last.Size), s.Name))
		}
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "### Figures for the formulas\n\nOf the server, at the largest size of each table:\n\n"+
		"| | | | measured |\n|---|---|--:|---|\n%s\n\n", strings.Join(rows, "\n"))
	if renewal <= 0 {
		return
	}
	fmt.Fprintf(b, "With half of one processor of the server for renewals, that is %s renewals a second, and as many "+
		"leases as this:\n\n| TTL | leases |\n|--:|--:|\n", number(planned/renewal))
	for _, ttl := range []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second} {
		fmt.Fprintf(b, "| %v | %s |\n", ttl, number(planned/renewal*ttl.Seconds()/renewalsPerTTL))
	}
	b.WriteString("\n")
}

func number(value float64) string { return table.Thousands(int(value)) }

func size(bytes float64) string {
	units := []string{"B", "kB", "MB"}
	for len(units) > 1 && bytes >= 1e3 {
		bytes, units = bytes/1e3, units[1:]
	}
	return table.Digits(bytes) + " " + units[0]
}

func duration(seconds float64) string {
	value, units := seconds*1e9, []string{"ns", "µs", "ms", "s"}
	for len(units) > 1 && value >= 1e3 {
		value, units = value/1e3, units[1:]
	}
	return table.Digits(value) + " " + units[0]
}
