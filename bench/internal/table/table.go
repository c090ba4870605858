// Package table writes what was measured as Markdown.
package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Row is a peer with an operation and a number of operations in flight.
type Row struct {
	Peer, Operation string
	InFlight        int
	// Lacks says why the peer has no figures, if it has none.
	Lacks string
	// Note is what is remarkable about the figures, if anything is.
	Note string
	// Time is the time of the lap, divided by its operations. Of hand-overs it is P50.
	Time time.Duration
	// P50 and P99 are percentiles of the time that one operation takes.
	P50, P99 time.Duration
	// ClientTime and ServerTime are processor time of one operation. Zero is not known.
	ClientTime, ServerTime time.Duration
	// Allocations of the client for one operation.
	Allocations float64
	// Ratio of Time to the reference.
	Ratio float64
}

// Report is all that is written.
type Report struct {
	// Reference is the peer with which all are compared.
	Reference string
	// About says for each peer how it is configured: pairs of a name and a sentence.
	About [][2]string
	Rows  []Row
}

// String returns the report. For each operation it has a short table of the times with their ratios
// to the reference, and a long one with everything.
func (r *Report) String() string {
	var b strings.Builder
	operations := distinct(r.Rows, func(row Row) string { return row.Operation })
	for _, operation := range operations {
		rows := slices.DeleteFunc(slices.Clone(r.Rows), func(row Row) bool { return row.Operation != operation })
		fmt.Fprintf(&b, "### %s%s\n\n", strings.ToUpper(operation[:1]), operation[1:])
		r.short(&b, rows)
		r.long(&b, rows)
	}
	b.WriteString("### The peers\n\n| peer | how it is configured |\n|---|---|\n")
	for _, about := range r.About {
		fmt.Fprintf(&b, "| %s | %s |\n", about[0], about[1])
	}
	return b.String()
}

// short writes the times and ratios of one operation: a line for each peer, a column for each
// number in flight.
func (r *Report) short(b *strings.Builder, rows []Row) {
	inFlights := distinct(rows, func(row Row) int { return row.InFlight })
	slices.Sort(inFlights)
	fmt.Fprintf(b, "| µs (ratio to %s), in flight |", r.Reference)
	for _, inFlight := range inFlights {
		fmt.Fprintf(b, " %d |", inFlight)
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(inFlights)) + "\n")
	for _, peer := range distinct(r.inOrder(rows), func(row Row) string { return row.Peer }) {
		fmt.Fprintf(b, "| %s |", peer)
		for _, inFlight := range inFlights {
			cell := "n/a"
			if row, ok := find(rows, peer, inFlight); ok && row.Lacks == "" {
				cell = fmt.Sprintf("%s (%.2f)", micros(row.Time), row.Ratio)
			}
			fmt.Fprintf(b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	notes := false
	said := make(map[[2]string]bool) // a peer lacks an operation for one reason with all numbers in flight
	for _, row := range r.inOrder(rows) {
		if why := [2]string{row.Peer, row.Lacks}; row.Lacks != "" && !said[why] {
			said[why] = true
			fmt.Fprintf(b, "- n/a for %s: %s.\n", row.Peer, row.Lacks)
			notes = true
		}
		if row.Note != "" {
			fmt.Fprintf(b, "- %s: %s.\n", row.Peer, row.Note)
			notes = true
		}
	}
	if notes {
		b.WriteString("\n")
	}
}

// long writes all figures of one operation.
func (r *Report) long(b *strings.Builder, rows []Row) {
	b.WriteString("| peer | in flight | p50 µs | p99 µs | allocations | client CPU µs | server CPU µs |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, row := range r.inOrder(rows) {
		if row.Lacks != "" {
			continue
		}
		fmt.Fprintf(b, "| %s | %d | %s | %s | %s | %s | %s |\n", row.Peer, row.InFlight, micros(row.P50), micros(row.P99),
			strconv.FormatFloat(row.Allocations, 'f', 1, 64), known(row.ClientTime), known(row.ServerTime))
	}
	b.WriteString("\n")
}

// inOrder returns the rows by peer, in the order of About, and then by their number in flight.
func (r *Report) inOrder(rows []Row) []Row {
	place := make(map[string]int)
	for i, about := range r.About {
		place[about[0]] = i
	}
	return slices.SortedStableFunc(slices.Values(rows), func(a, b Row) int {
		if a.Peer != b.Peer {
			return place[a.Peer] - place[b.Peer]
		}
		return a.InFlight - b.InFlight
	})
}

func find(rows []Row, peer string, inFlight int) (Row, bool) {
	i := slices.IndexFunc(rows, func(row Row) bool { return row.Peer == peer && row.InFlight == inFlight })
	if i < 0 {
		return Row{}, false
	}
	return rows[i], true
}

// distinct returns the values of rows without repetitions, in order.
func distinct[T comparable](rows []Row, of func(Row) T) (values []T) {
	for _, row := range rows {
		if value := of(row); !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	return values
}

// micros writes microseconds.
func micros(d time.Duration) string { return Digits(float64(d) / float64(time.Microsecond)) }

// Digits writes a number with three digits.
func Digits(value float64) string {
	switch {
	case value < 10:
		return strconv.FormatFloat(value, 'f', 2, 64)
	case value < 100:
		return strconv.FormatFloat(value, 'f', 1, 64)
	}
	return strconv.FormatFloat(value, 'f', 0, 64)
}

// Thousands writes a number with commas.
func Thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func known(d time.Duration) string {
	if d == 0 {
		return "n/a"
	}
	return micros(d)
}
