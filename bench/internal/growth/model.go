package growth

import (
	"fmt"
	"strings"
	"time"
)

const (
	// renewalsPerTTL is how often a lease is renewed within its TTL, on average: each sixth of it, less a
	// twentieth, because up to a tenth is taken off at random.
	renewalsPerTTL = 6 / 0.95
	// planned is the share of a processor that a plan uses. The rest is for bursts, and for the clients that
	// connect again all at once after a loss.
	planned = 0.5
)

// A coefficient is a figure that docs/performance.md calculates with.
type coefficient struct {
	name, subject, key string
	letter             string
}

// coefficients are what a store costs. docs/performance.md uses the same letters.
var coefficients = []coefficient{
	{"processor time of a renewal", "leases", serverTime, "r"},
	{"processor time of a SET", "keys", serverTime, "s"},
	{"processor time of a notification", "watchers", serverTime, "n"},
	{"processor time to open a connection", "connections", serverIdleTime, "o"},
	{"memory of a lease", "leases", serverMemory, "L"},
	{"memory of an idle connection", "connections", serverIdleMemory, "C"},
	{"memory of a key", "keys", serverMemory, "K"},
	{"memory of a watcher, with its connection", "watchers", serverMemory, "W"},
}

// value returns the figure of the largest size that has one.
func (r *Result) value(c coefficient) (value float64, m Metric, size int, ok bool) {
	for _, s := range r.Series {
		if s.Name != c.subject {
			continue
		}
		for _, m = range s.Metrics {
			if m.key != c.key {
				continue
			}
			for i := len(s.Points) - 1; i >= 0; i-- {
				if value, ok = s.Points[i].Value(m); ok {
					return value, m, s.Points[i].Size, true
				}
			}
		}
	}
	return 0, Metric{}, 0, false
}

// writeModel writes the figures of a store for the formulas of docs/performance.md, and what they give.
func (r *Result) writeModel(b *strings.Builder) {
	var rows []string
	renewal := 0.0
	for _, c := range coefficients {
		value, m, size, ok := r.value(c)
		if !ok {
			continue
		}
		if c.letter == "r" {
			renewal = value
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | %s | with %s %s |", c.letter, c.name, m.Format(value), thousands(size), c.subject))
	}
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "### Figures for the formulas\n\nOf the server, at the largest size of each chart:\n\n| | | | measured |\n|---|---|--:|---|\n%s\n\n", strings.Join(rows, "\n"))
	if renewal <= 0 {
		return
	}
	fmt.Fprintf(b, "With half of one processor of the server for renewals, that is %s renewals a second, and as many leases as this:\n\n| TTL | leases |\n|--:|--:|\n",
		thousands(int(planned/renewal)))
	for _, ttl := range []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second} {
		fmt.Fprintf(b, "| %v | %s |\n", ttl, thousands(int(planned/renewal*ttl.Seconds()/renewalsPerTTL)))
	}
	b.WriteString("\n")
}
