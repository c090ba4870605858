//go:build unix

package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tenurelock/tenure/internal/pair"
)

// fault is one thing that happened, and what followed.
type fault struct {
	name  string
	gap   time.Duration // for which no write was answered
	keeps bool          // the node that leads is to keep its lease
	lease string        // what became of it
}

// result is what a run showed. The director guards it.
type result struct {
	faults []*fault
	checks pair.Checks
	writes pair.Writes // to the protected key
}

// write prints the result.
func (r *result) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\twrites without an answer for\tlease of the node that leads\n")
	for _, f := range r.faults {
		fmt.Fprintf(table, "%s\t%v\t%s\n", f.name, f.gap.Round(time.Millisecond), f.lease)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	return r.checks.Write(w)
}
