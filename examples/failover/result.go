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

// fault is one thing that happened to the pair, and what followed.
type fault struct {
	Name string `json:"fault"`
	// Gap is how long no node was active; Limit what the project promises.
	Gap   time.Duration `json:"without_active_ns"`
	Limit time.Duration `json:"promised_ns"`
	// Token is the successor's.
	Token hlc.Timestamp `json:"successor_token"`
	// The writes from this fault to the next.
	Accepted       int `json:"writes_accepted"`
	RefusedByGuard int `json:"writes_refused_by_guard"`
	RefusedByStore int `json:"writes_refused_by_store"`
	Unknown        int `json:"writes_of_unknown_outcome"`

	since time.Time // when the last active node stopped
}

// check is something that must be true at the end.
type check struct {
	Name   string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// result is what a run showed.
type result struct {
	TTL    time.Duration `json:"ttl_ns"`
	Faults []*fault      `json:"faults"`
	Stale  int           `json:"stale_writes_accepted"`
	Checks []check       `json:"checks"`

	current *fault
	tokens  []hlc.Timestamp                 // of the terms, in the order of their beginning
	late    []event                         // answers to writes that were sent past the guard
	written map[hlc.Timestamp]hlc.Timestamp // version → token of each write that the store applied, as far as known
	highest event                           // the accepted write with the highest version
}

func newResult(ttl time.Duration) *result {
	first := &fault{Name: "none (start)"}
	return &result{TTL: ttl, Faults: []*fault{first}, current: first, written: make(map[hlc.Timestamp]hlc.Timestamp)}
}

// begin opens the row of a fault. It becomes current with awaitSuccessor.
func (r *result) begin(name string, limit time.Duration, since time.Time) *fault {
	f := &fault{Name: name, Limit: limit, since: since}
	r.Faults = append(r.Faults, f)
	return f
}

// leads notes the beginning of a term.
func (r *result) leads(e event) {
	r.tokens = append(r.tokens, e.Token)
	if r.current.Token.IsZero() {
		r.current.Token = e.Token
		if !r.current.since.IsZero() {
			r.current.Gap = e.At.Sub(r.current.since)
		}
	}
}

// drains notes the end of a term that its node ended itself.
func (r *result) drains(e event) {
	if r.current.Limit > 0 && r.current.since.IsZero() {
		r.current.since = e.At
	}
}

// wrote notes a write.
func (r *result) wrote(e event) {
	switch e.Outcome {
	case accepted:
		r.current.Accepted++
		r.saw(e.Version, e.Token)
		if e.Version.Compare(r.highest.Version) > 0 {
			r.highest = e
		}
	case refusedByGuard:
		r.current.RefusedByGuard++
	case refusedByStore:
		r.current.RefusedByStore++
	default:
		r.current.Unknown++
	}
	if e.Late {
		r.late = append(r.late, e)
	}
}

// saw notes a version of the protected key and the token in its value.
func (r *result) saw(version, token hlc.Timestamp) {
	if _, known := r.written[version]; !known {
		r.written[version] = token
	}
}

// conclude makes the checks, given how many nodes still ran and what the store
// holds in the end.
func (r *result) conclude(running int, version hlc.Timestamp, last counter) {
	r.saw(version, last.Token)
	// Versions are the store's own order of writes. In that order a token that
	// is lower than one before belongs to a write that should have been refused.
	var newest hlc.Timestamp
	for _, version := range slices.SortedFunc(maps.Keys(r.written), hlc.Timestamp.Compare) {
		token := r.written[version]
		if token.Compare(newest) < 0 {
			r.Stale++
		} else {
			newest = token
		}
	}
	r.check("stale writes accepted: 0", r.Stale == 0,
		"%d versions of the key, in the store's order; %d of them with a token older than one before", len(r.written), r.Stale)
	r.check("tokens rise from term to term", slices.IsSortedFunc(r.tokens, hlc.Timestamp.Compare) && len(r.tokens) >= 4,
		"%d terms", len(r.tokens))
	refused := len(r.late) > 0
	for _, e := range r.late {
		refused = refused && e.Outcome == refusedByStore
	}
	r.check("the woken node's late write was refused", refused, "%d sent past the guard", len(r.late))
	r.check("the store holds the last accepted write", version == r.highest.Version && last.Count == r.highest.Count && last.Token == r.highest.Token,
		"count %d by %s", last.Count, last.Node)
	r.check("it ends as a pair", running == 2, "%d nodes run", running)
}

func (r *result) check(name string, ok bool, format string, arguments ...any) {
	r.Checks = append(r.Checks, check{Name: name, OK: ok, Detail: fmt.Sprintf(format, arguments...)})
}

func (r *result) ok() bool {
	return !slices.ContainsFunc(r.Checks, func(c check) bool { return !c.OK })
}

// write prints the result for people.
func (r *result) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\twithout an active node\tpromised\taccepted\trefused by guard\tby store\tunknown\ttoken of the successor\n")
	for _, f := range r.Faults {
		gap, limit := "–", "–"
		if f.Limit > 0 {
			gap = round(f.Gap).String()
			limit = "≤ " + f.Limit.String()
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%v\n",
			f.Name, gap, limit, f.Accepted, f.RefusedByGuard, f.RefusedByStore, f.Unknown, f.Token)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, c := range r.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		if _, err := fmt.Fprintf(w, "%s  %s (%s)\n", mark, c.Name, c.Detail); err != nil {
			return err
		}
	}
	return nil
}
