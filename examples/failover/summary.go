//go:build unix || windows

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

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
	faults := r.Faults[1:] // without the start
	if s.Faults == nil {
		for _, f := range faults {
			s.Faults = append(s.Faults, &faultSummary{Name: f.Name, Limit: f.Limit})
		}
	}
	s.Writes += r.Faults[0].Accepted
	for i, f := range faults {
		s.Writes += f.Accepted
		total := s.Faults[i]
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
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d runs, %d writes accepted, stale writes accepted: %d, runs with a failed check: %d\n",
		s.Runs, s.Writes, s.Stale, s.Failed)
	return err
}

// promise is a promised time as the tables show it.
func promise(limit time.Duration) string {
	if limit == 0 {
		return "0s"
	}
	return "≤ " + limit.String()
}

func round(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// writeJSON prints a result or a summary for programs.
func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
