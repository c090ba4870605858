//go:build unix || windows

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

// fault is one thing that happened to the pair.
type fault struct {
	name       string
	gap, limit time.Duration // how long no node was active, and what the project promises
	since      time.Time     // when the last active node stopped
}

// result is what a run showed.
type result struct {
	faults  []*fault
	current *fault
	tokens  []hlc.Token                 // of the terms, in the order of their beginning
	applied map[hlc.Timestamp]hlc.Token // the token of each write that the store applied
	late    []event                     // the writes that were sent past the guard
	stale   int                         // writes that the store accepted after one of a later term
}

func newResult() *result {
	return &result{applied: make(map[hlc.Timestamp]hlc.Token), current: new(fault)}
}

// begin opens the row of a fault. since is when the last active node stopped; without it, when its node
// ends the term.
func (r *result) begin(name string, limit time.Duration, since time.Time) {
	r.current = &fault{name: name, limit: limit, since: since}
	r.faults = append(r.faults, r.current)
}

// leads notes the beginning of a term.
func (r *result) leads(e event) {
	r.tokens = append(r.tokens, e.Token)
	if f := r.current; f.gap == 0 && !f.since.IsZero() {
		f.gap = e.At.Sub(f.since)
	}
}

// drains notes the end of a term that its node ended itself.
func (r *result) drains(e event) {
	if r.current.since.IsZero() {
		r.current.since = e.At
	}
}

// wrote notes a write to the protected key.
func (r *result) wrote(e event) {
	if e.Late {
		r.late = append(r.late, e)
	}
	if e.Error == "" {
		r.applied[e.Version] = e.Token
	}
}

// conclude prints what must be true at the end, and reports whether all of it is.
func (r *result) conclude(w io.Writer) bool {
	passed := true
	check := func(name string, ok bool, format string, arguments ...any) {
		passed = passed && ok
		fmt.Fprintf(w, "%s  %s (%s)\n", map[bool]string{true: "ok  ", false: "FAIL"}[ok], name,
			fmt.Sprintf(format, arguments...))
	}
	var newest hlc.Token
	for _, version := range slices.SortedFunc(maps.Keys(r.applied), hlc.Timestamp.Compare) { // the store's own order
		if token := r.applied[version]; token.Compare(newest) < 0 {
			r.stale++
		} else {
			newest = token
		}
	}
	check("stale writes accepted: 0", r.stale == 0,
		"%d versions of the key, in the store's order; %d of them with a token older than one before",
		len(r.applied), r.stale)
	check("tokens rise from term to term", slices.IsSortedFunc(r.tokens, hlc.Token.Compare) &&
		len(r.tokens) > 3, "%d terms", len(r.tokens))
	if canFreeze {
		wasAccepted := func(e event) bool { return !e.Stale }
		check("the woken node's late write was refused", len(r.late) > 0 && !slices.ContainsFunc(r.late, wasAccepted),
			"%d sent past the guard", len(r.late))
	}
	return passed
}

// summarize prints what all runs showed together.
func summarize(w io.Writer, all []*result) error {
	stale, writes := 0, 0
	for _, r := range all {
		stale, writes = stale+r.stale, writes+len(r.applied)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\tmedian without an active node\tworst\tpromised\n")
	for i, f := range all[0].faults {
		var gaps []time.Duration
		for _, r := range all {
			gaps = append(gaps, r.faults[i].gap)
		}
		slices.Sort(gaps)
		worst, note := gaps[len(gaps)-1], ""
		if worst > f.limit {
			note = ": is this machine busy?"
		}
		fmt.Fprintf(table, "%s\t%v\t%v\t≤ %v%s\n", f.name, round(gaps[len(gaps)/2]), round(worst), f.limit, note)
	}
	fmt.Fprintf(table, "\n%d runs, %d writes accepted, stale writes accepted: %d\n", len(all), writes, stale)
	return table.Flush()
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
