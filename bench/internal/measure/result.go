package measure

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tenurelock/tenure/bench/internal/peer"
)

// Result is what was measured.
type Result struct {
	peers    []*peer.Peer
	inFlight []int
	groups   []group // by operation, and then by number in flight
}

// String returns for each operation a table in Markdown: the median times, with their ratios to the reference.
func (r *Result) String() string {
	var b strings.Builder
	for i, operation := range peer.Operations() {
		fmt.Fprintf(&b, "### %s%s\n\n| µs (ratio to %s), in flight |", strings.ToUpper(string(operation[:1])),
			operation[1:], peer.Reference)
		for _, inFlight := range r.inFlight {
			fmt.Fprintf(&b, " %d |", inFlight)
		}
		b.WriteString("\n|---|" + strings.Repeat("--:|", len(r.inFlight)) + "\n")
		notes := ""
		for place, p := range r.peers {
			fmt.Fprintf(&b, "| %s |", p.Name)
			for _, g := range r.groups[i*len(r.inFlight):][:len(r.inFlight)] {
				c := g.cells[place]
				fmt.Fprintf(&b, " %s |", c)
				if c.late > 0 {
					notes += fmt.Sprintf("- %s: with %d in flight %d turns did not end within %v.\n", p.Name,
						c.inFlight, c.late, turnPatience)
				}
			}
			b.WriteString("\n")
			if why := p.Lacks[operation]; why != "" {
				notes += fmt.Sprintf("- n/a for %s: %s.\n", p.Name, why)
			}
		}
		if b.WriteString("\n"); notes != "" {
			b.WriteString(notes + "\n")
		}
	}
	b.WriteString("### The peers\n\n| peer | how it is configured |\n|---|---|\n")
	for _, p := range r.peers {
		fmt.Fprintf(&b, "| %s | %s |\n", p.Name, p.About)
	}
	return b.String()
}

func (c *cell) String() string {
	if len(c.turns) == 0 {
		return "n/a"
	}
	var times, ratios []float64
	for _, t := range c.turns {
		times, ratios = append(times, t.time), append(ratios, t.ratio)
	}
	return fmt.Sprintf("%s (%.2f)", Digits(median(times)/1e3), median(ratios))
}

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
