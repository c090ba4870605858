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

// fault is one thing that happened to the pair, and what followed.
type fault struct {
	name        string
	gap, limit  time.Duration  // how long no node was active, and what the project promises
	keepsLeader bool           // the fault is not one of a node, and the active node goes on leading
	token       hlc.Token      // of the leader after it
	writes      map[string]int // from this fault to the next, by outcome
	since       time.Time      // when the last active node stopped
}

// check is something that must be true at the end.
type check struct {
	name, detail string
	ok           bool
}

// history has the version of each write to a key that the store applied, as far as known, with the
// token of the term in which it was made.
type history map[hlc.Timestamp]hlc.Token

// saw adds a write, unless it is known.
func (h history) saw(version hlc.Timestamp, token hlc.Token) {
	if _, known := h[version]; !known {
		h[version] = token
	}
}

// stale counts the writes of a term that came after one of a later term. Versions are the store's own
// order of writes.
func (h history) stale() (n int) {
	var newest hlc.Token
	for _, version := range slices.SortedFunc(maps.Keys(h), hlc.Timestamp.Compare) {
		if token := h[version]; token.Compare(newest) < 0 {
			n++
		} else {
			newest = token
		}
	}
	return n
}

// result is what a run showed.
type result struct {
	faults []*fault
	stale  int // writes that the store accepted after one of a later term
	checks []check

	woke    bool // a node was frozen and woken, and then wrote late
	current *fault
	tokens  []hlc.Token // of the terms, in the order of their beginning, after the zero one
	fenced  history     // of the protected key
	control history     // of the key that nothing protects
	highest event       // the accepted write with the highest version
	late    []event     // the writes that were sent past the guard
	latest  time.Time   // when the node got the last acceptance
	unknown []event     // writes that got no answer, as when a node ends; the store may have applied them
}

func newResult(woke bool) *result {
	r := &result{woke: woke, fenced: make(history), control: make(history), tokens: make([]hlc.Token, 1)}
	r.begin("none (start)", 0, time.Time{})
	return r
}

// begin opens the row of a fault. since is when the last active node stopped; without it, when its node
// ends the term.
func (r *result) begin(name string, limit time.Duration, since time.Time) *fault {
	r.current = &fault{name: name, limit: limit, since: since, token: r.tokens[len(r.tokens)-1], writes: make(map[string]int)}
	r.faults = append(r.faults, r.current)
	return r.current
}

// leads notes the beginning of a term.
func (r *result) leads(e event) {
	r.tokens = append(r.tokens, e.Token)
	f := r.current
	if f.token = e.Token; f.gap == 0 && !f.since.IsZero() {
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
	r.current.writes[e.Outcome]++
	if e.Late {
		r.late = append(r.late, e)
	}
	switch e.Outcome {
	case accepted:
		r.latest = e.At
		r.fenced.saw(e.Version, e.Token)
		if e.Version.Compare(r.highest.Version) > 0 {
			r.highest = e
		}
	case unknown:
		r.unknown = append(r.unknown, e)
	}
}

// check adds a check. The format and its arguments are the detail.
func (r *result) check(name string, ok bool, format string, arguments ...any) {
	r.checks = append(r.checks, check{name, fmt.Sprintf(format, arguments...), ok})
}

// conclude makes the checks, given how many nodes still ran and what the store
// holds in the end.
func (r *result) conclude(running int, version hlc.Timestamp, last counter) {
	r.fenced.saw(version, last.Token)
	r.stale = r.fenced.stale()
	r.check("stale writes accepted: 0", r.stale == 0,
		"%d versions of the key, in the store's order; %d of them with a token older than one before", len(r.fenced), r.stale)
	if r.woke {
		lost := r.control.stale()
		r.check("without fencing updates are lost", lost > 0,
			"a key without a token, written beside it: %d stale writes accepted", lost)
	}
	r.check("tokens rise from term to term", slices.IsSortedFunc(r.tokens, hlc.Token.Compare) && len(r.tokens) > 4,
		"%d terms", len(r.tokens)-1)
	if r.woke {
		wasAccepted := func(e event) bool { return e.Outcome != refusedByStore }
		r.check("the woken node's late write was refused", len(r.late) > 0 && !slices.ContainsFunc(r.late, wasAccepted),
			"%d sent past the guard", len(r.late))
	}
	for _, f := range r.faults {
		if f.keepsLeader {
			r.check("the leader kept its lease while the store was killed", f.since.IsZero(), "its token is %v", f.token)
		}
	}
	holds := func(e event) bool { return last.Count == e.Count && last.Token == e.Token }
	r.check("the store holds the last accepted write",
		version == r.highest.Version && holds(r.highest) ||
			version.Compare(r.highest.Version) > 0 && slices.ContainsFunc(r.unknown, holds), // or one after it
		"count %d by %s", last.Count, last.Node)
	r.check("it ends as a pair", running == 2, "%d nodes run", running)
}

// failed returns the names of the checks that failed.
func (r *result) failed() (names []string) {
	for _, c := range r.checks {
		if !c.ok {
			names = append(names, c.name)
		}
	}
	return names
}

// write prints the result.
func (r *result) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\twithout an active node\tpromised\taccepted\trefused by guard\tby store\tunknown\ttoken of the leader after it\n")
	for _, f := range r.faults {
		gap, limit := "–", "–"
		if f.limit > 0 || f.keepsLeader {
			gap, limit = round(f.gap).String(), promise(f.limit)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%v\n", f.name, gap, limit,
			f.writes[accepted], f.writes[refusedByGuard], f.writes[refusedByStore], f.writes[unknown], f.token)
	}
	fmt.Fprintln(table)
	for _, f := range r.faults {
		if f.limit > 0 && f.gap > f.limit {
			fmt.Fprintf(table, "note  %s took %v, promised %s: is this machine busy?\n", f.name, round(f.gap), promise(f.limit))
		}
	}
	for _, c := range r.checks {
		mark := "ok  "
		if !c.ok {
			mark = "FAIL"
		}
		fmt.Fprintf(table, "%s  %s (%s)\n", mark, c.name, c.detail)
	}
	return table.Flush()
}

// summarize prints what several runs showed together.
func summarize(w io.Writer, all []*result, failed int) error {
	stale, writes := 0, 0
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\tmedian without an active node\tworst\tpromised\n")
	for i, f := range all[0].faults {
		var gaps []time.Duration
		for _, r := range all {
			gaps = append(gaps, r.faults[i].gap)
			writes += r.faults[i].writes[accepted]
		}
		if i > 0 { // the first is the start
			slices.Sort(gaps)
			fmt.Fprintf(table, "%s\t%v\t%v\t%s\n", f.name, round(gaps[len(gaps)/2]), round(gaps[len(gaps)-1]), promise(f.limit))
		}
	}
	for _, r := range all {
		stale += r.stale
	}
	fmt.Fprintf(table, "\n%d runs, %d writes accepted, stale writes accepted: %d, runs with a failed check: %d\n",
		len(all), writes, stale, failed)
	return table.Flush()
}

// promise is a promised time as the tables show it.
func promise(limit time.Duration) string {
	if limit == 0 {
		return "0s"
	}
	return "≤ " + limit.String()
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
