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
	Name string `json:"fault"`
	// Gap is how long no node was active; Limit what the project promises.
	Gap   time.Duration `json:"without_active_ns"`
	Limit time.Duration `json:"promised_ns"`
	// KeepsLeader: the fault is not one of a node, and the active node goes on leading.
	KeepsLeader bool `json:"keeps_leader,omitempty"`
	// Token is the successor's, or the leader's where KeepsLeader.
	Token hlc.Token `json:"successor_token"`
	// The writes from this fault to the next.
	Accepted       int `json:"writes_accepted"`
	RefusedByGuard int `json:"writes_refused_by_guard"`
	RefusedByStore int `json:"writes_refused_by_store"`
	Unknown        int `json:"writes_of_unknown_outcome"`

	since time.Time // when the last active node stopped
	over  bool      // with KeepsLeader: what follows is not due to the fault
}

// check is something that must be true at the end.
type check struct {
	Name   string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
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
	TTL    time.Duration `json:"ttl_ns"`
	Faults []*fault      `json:"faults"`
	Stale  int           `json:"stale_writes_accepted"`
	Lost   int           `json:"updates_lost_without_fencing"`
	Checks []check       `json:"checks"`

	woke    bool // a node was frozen and woken, and then wrote late
	current *fault
	tokens  []hlc.Token // of the terms, in the order of their beginning
	fenced  history     // of the protected key
	control history     // of the key that nothing protects
	highest event       // the accepted write with the highest version
	late    []event     // the writes that were sent past the guard
	latest  time.Time   // when the node got the last acceptance
	unknown []event     // writes that got no answer, as when a node ends; the store may have applied them
}

func newResult(ttl time.Duration) *result {
	first := &fault{Name: "none (start)"}
	return &result{
		TTL: ttl, Faults: []*fault{first}, woke: true, current: first,
		fenced: make(history), control: make(history),
	}
}

// begin opens the row of a fault. It becomes current with awaitSuccessor.
func (r *result) begin(name string, limit time.Duration, since time.Time) *fault {
	f := &fault{Name: name, Limit: limit, since: since}
	r.Faults = append(r.Faults, f)
	return f
}

// beginStore opens the row of a fault of the store, which becomes current at once. No node is to
// begin or end a term.
func (r *result) beginStore(name string) *fault {
	f := r.begin(name, 0, time.Time{})
	f.KeepsLeader, f.Token = true, r.tokens[len(r.tokens)-1]
	r.current = f
	return f
}

// leads notes the beginning of a term.
func (r *result) leads(e event) {
	r.tokens = append(r.tokens, e.Token)
	f := r.current
	lost := f.KeepsLeader && !f.over // its term should not have begun
	if (lost || f.Token.IsZero()) && f.Gap == 0 && !f.since.IsZero() {
		f.Gap = e.At.Sub(f.since)
	}
	if lost || f.Token.IsZero() {
		f.Token = e.Token
	}
}

// drains notes the end of a term that its node ended itself.
func (r *result) drains(e event) {
	if (r.current.Limit > 0 || r.current.KeepsLeader && !r.current.over) && r.current.since.IsZero() {
		r.current.since = e.At
	}
}

// wrote notes a write to the protected key.
func (r *result) wrote(e event) {
	if e.Late {
		r.late = append(r.late, e)
	}
	switch e.Outcome {
	case accepted:
		r.current.Accepted++
		r.latest = e.At
		r.fenced.saw(e.Version, e.Token)
		if e.Version.Compare(r.highest.Version) > 0 {
			r.highest = e
		}
	case refusedByGuard:
		r.current.RefusedByGuard++
	case refusedByStore:
		r.current.RefusedByStore++
	default:
		r.current.Unknown++
		r.unknown = append(r.unknown, e)
	}
}

// check adds a check. The format and its arguments are the detail.
func (r *result) check(name string, ok bool, format string, arguments ...any) {
	r.Checks = append(r.Checks, check{Name: name, OK: ok, Detail: fmt.Sprintf(format, arguments...)})
}

// conclude makes the checks, given how many nodes still ran and what the store
// holds in the end.
func (r *result) conclude(running int, version hlc.Timestamp, last counter) {
	r.fenced.saw(version, last.Token)
	r.Stale, r.Lost = r.fenced.stale(), r.control.stale()
	r.check("stale writes accepted: 0", r.Stale == 0,
		"%d versions of the key, in the store's order; %d of them with a token older than one before", len(r.fenced), r.Stale)
	if r.woke {
		r.check("without fencing updates are lost", r.Lost > 0,
			"a key without a token, written beside it: %d stale writes accepted", r.Lost)
	}
	r.check("tokens rise from term to term", slices.IsSortedFunc(r.tokens, hlc.Token.Compare) && len(r.tokens) >= 4,
		"%d terms", len(r.tokens))
	if r.woke {
		wasAccepted := func(e event) bool { return e.Outcome != refusedByStore }
		r.check("the woken node's late write was refused", len(r.late) > 0 && !slices.ContainsFunc(r.late, wasAccepted),
			"%d sent past the guard", len(r.late))
	}
	for _, f := range r.Faults {
		if f.KeepsLeader {
			r.check("the leader kept its lease while the store was killed", f.since.IsZero(), "its token is %v", f.Token)
		}
	}
	holds := func(e event) bool { return last.Count == e.Count && last.Token == e.Token }
	r.check("the store holds the last accepted write",
		version == r.highest.Version && holds(r.highest) ||
			version.Compare(r.highest.Version) > 0 && slices.ContainsFunc(r.unknown, holds), // or one after it
		"count %d by %s", last.Count, last.Node)
	r.check("it ends as a pair", running == 2, "%d nodes run", running)
}

func (r *result) ok() bool {
	return !slices.ContainsFunc(r.Checks, func(c check) bool { return !c.OK })
}

// write prints the result for people.
func (r *result) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\twithout an active node\tpromised\taccepted\trefused by guard\tby store\tunknown\ttoken of the leader after it\n")
	for _, f := range r.Faults {
		gap, limit := "–", "–"
		if f.Limit > 0 || f.KeepsLeader {
			gap, limit = round(f.Gap).String(), promise(f.Limit)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%v\n",
			f.Name, gap, limit, f.Accepted, f.RefusedByGuard, f.RefusedByStore, f.Unknown, f.Token)
	}
	fmt.Fprintln(table)
	for _, f := range r.Faults {
		if f.Limit > 0 && f.Gap > f.Limit {
			fmt.Fprintf(table, "note  %s took %v, promised %s: is this machine busy?\n", f.Name, round(f.Gap), promise(f.Limit))
		}
	}
	for _, c := range r.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(table, "%s  %s (%s)\n", mark, c.Name, c.Detail)
	}
	return table.Flush()
}

// summary is what several runs showed together.
type summary struct {
	TTL    time.Duration   `json:"ttl_ns"`
	Runs   int             `json:"runs"`
	Failed int             `json:"runs_with_a_failed_check"`
	Stale  int             `json:"stale_writes_accepted"`
	Writes int             `json:"writes_accepted"`
	Faults []*faultSummary `json:"faults"`
}

// faultSummary is what one kind of fault did in all runs.
type faultSummary struct {
	Name   string        `json:"fault"`
	Limit  time.Duration `json:"promised_ns"`
	Median time.Duration `json:"median_without_active_ns"`
	Worst  time.Duration `json:"worst_without_active_ns"`

	gaps []time.Duration
}

func (s *summary) add(r *result) {
	s.Runs++
	s.Stale += r.Stale
	if !r.ok() {
		s.Failed++
	}
	for i, f := range r.Faults {
		s.Writes += f.Accepted
		if i == 0 {
			continue // the start
		}
		if len(s.Faults) < i {
			s.Faults = append(s.Faults, &faultSummary{Name: f.Name, Limit: f.Limit})
		}
		total := s.Faults[i-1]
		total.gaps = append(total.gaps, f.Gap)
		slices.Sort(total.gaps)
		total.Median, total.Worst = total.gaps[len(total.gaps)/2], total.gaps[len(total.gaps)-1]
	}
}

func (s *summary) ok() bool { return s.Failed == 0 }

// write prints the summary for people.
func (s *summary) write(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\nfault\tmedian without an active node\tworst\tpromised\n")
	for _, f := range s.Faults {
		fmt.Fprintf(table, "%s\t%v\t%v\t%s\n", f.Name, round(f.Median), round(f.Worst), promise(f.Limit))
	}
	fmt.Fprintf(table, "\n%d runs, %d writes accepted, stale writes accepted: %d, runs with a failed check: %d\n",
		s.Runs, s.Writes, s.Stale, s.Failed)
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
