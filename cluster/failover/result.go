//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tenurelock/tenure/internal/pair"
)

// row is what a step showed, each time that it was done.
type row struct {
	step
	gaps []time.Duration // for which no write was answered
	took []time.Duration // until the other node led, if the machine of the leader was lost
	kept int             // how often the node that leads kept its lease
}

// result is what a run showed. The director guards it.
type result struct {
	rows   []*row
	checks pair.Checks
	writes pair.Writes // to the protected key
	late   pair.Writes // of nodes that were frozen
}

// write prints the result.
func (r *result) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\truns\tno write answered for: p50\tworst\tlease of the node that leads\tother node leads after: p50\tworst\n")
	for _, row := range r.rows {
		lease := "passed on"
		if !row.lost && !row.late {
			lease = fmt.Sprintf("kept %d of %d", row.kept, len(row.gaps))
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\n", row.name, len(row.gaps), spread(row.gaps), lease, spread(row.took))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nload average at the end: %s\n\n", loadAverage())
	return r.checks.Write(w)
}

// spread returns the median and the worst of some times, as two columns.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "\t"
	}
	sorted := slices.Sorted(slices.Values(times))
	return fmt.Sprintf("%v\t%v", rounded(sorted[(len(sorted)-1)/2]), rounded(sorted[len(sorted)-1]))
}

// loadAverage returns the load of this machine, of 1, 5 and 15 minutes.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(text)); err == nil && len(fields) >= 3 {
		return strings.Join(fields[:3], ", ")
	}
	return "unknown"
}
