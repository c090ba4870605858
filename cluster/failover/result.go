//go:build unix

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// fault is one thing that happened, and what followed.
type fault struct {
	name  string
	gap   time.Duration // for which no write was answered
	keeps bool          // the node that leads is to keep its lease
	lease string        // what became of it
}

// check is something that must be true at the end.
type check struct {
	name, detail string
	ok           bool
}

// result is what a run showed. The director guards it.
type result struct {
	faults  []*fault
	checks  []check
	history map[hlc.Timestamp]hlc.Token // of the protected key: the version of each write, and its term
	highest event                       // the accepted write with the highest version
	late    []event
}

// wrote notes a write of a node.
func (r *result) wrote(e event) {
	if e.Late {
		r.late = append(r.late, e)
	}
	if e.Outcome != accepted {
		return
	}
	r.history[e.Version] = e.Token
	if e.Version.Compare(r.highest.Version) > 0 {
		r.highest = e
	}
}

// stale counts the writes of a term that came after one of a later term. Versions are the store's
// own order of writes.
func (r *result) stale() (n int) {
	var newest hlc.Token
	for _, version := range slices.SortedFunc(maps.Keys(r.history), hlc.Timestamp.Compare) {
		if token := r.history[version]; token.Compare(newest) < 0 {
			n++
		} else {
			newest = token
		}
	}
	return n
}

func (r *result) check(name string, ok bool, format string, arguments ...any) {
	r.checks = append(r.checks, check{name: name, ok: ok, detail: fmt.Sprintf(format, arguments...)})
}

func (r *result) ok() bool {
	return !slices.ContainsFunc(r.checks, func(c check) bool { return !c.ok })
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
	for _, c := range r.checks {
		mark := "ok  "
		if !c.ok {
			mark = "FAIL"
		}
		if _, err := fmt.Fprintf(w, "%s  %s (%s)\n", mark, c.name, c.detail); err != nil {
			return err
		}
	}
	return nil
}
