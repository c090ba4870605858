package latency

import (
	"fmt"
	"io"
	"math/bits"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The targets: what renewals should take at half of the capacity, on two quiet processors.
const (
	TargetP99  = time.Millisecond
	TargetP999 = 5 * time.Millisecond
)

// barWidth is the length of the longest bar in characters.
const barWidth = 50

// Write writes the result as text.
func (r *Result) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Capacity: %.0f renewals a second with %d in flight on %s.\n",
		r.Capacity, r.Options.InFlight, connections(r.Options.Connections))
	fmt.Fprintf(&b, "Load: %.0f renewals a second (%.0f %% of it) were due at times of a clock, for %v; latency counts from those times.\n",
		r.Rate, 100*r.Options.Share, r.Options.Duration)
	fmt.Fprintf(&b, "Other programs used %.0f %% of the processors.\n\n", 100*r.Others)
	fmt.Fprintf(&b, "| µs | count | p50 | p90 | p99 | p99.9 | p99.99 | max |\n|---|--:|--:|--:|--:|--:|--:|--:|\n")
	percentiles(&b, "due to answered", r.Latency)
	percentiles(&b, "of that: due to started", r.Departure)
	b.WriteString("\n")
	r.target(&b, "p99", 99, TargetP99)
	r.target(&b, "p99.9", 99.9, TargetP999)
	b.WriteString("\n")
	bars(&b, r.Latency)
	r.processes(&b)
	r.tail(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func connections(n int) string {
	if n == 1 {
		return "one connection"
	}
	return fmt.Sprintf("%d connections", n)
}

func at(h *hdrhistogram.Histogram, percentile float64) time.Duration {
	return time.Duration(min(h.ValueAtPercentile(percentile), h.Max())) * time.Microsecond
}

func percentiles(b *strings.Builder, what string, h *hdrhistogram.Histogram) {
	fmt.Fprintf(b, "| %s | %d |", what, h.TotalCount())
	for _, percentile := range []float64{50, 90, 99, 99.9, 99.99, 100} {
		fmt.Fprintf(b, " %d |", at(h, percentile).Microseconds())
	}
	b.WriteString("\n")
}

func (r *Result) target(b *strings.Builder, name string, percentile float64, target time.Duration) {
	verdict := "met"
	if at(r.Latency, percentile) > target {
		verdict = "NOT met"
	}
	fmt.Fprintf(b, "Target: %s at most %v: %s (%v).\n", name, target, verdict, at(r.Latency, percentile))
}

// bars draws how many operations took less than each power of two of microseconds.
func bars(b *strings.Builder, h *hdrhistogram.Histogram) {
	var counts [64]int64 // by the number of bits of the microseconds
	first, last, most := len(counts), 0, int64(1)
	for _, bar := range h.Distribution() {
		if bar.Count > 0 {
			size := bits.Len64(uint64(bar.From))
			counts[size] += bar.Count
			first, last, most = min(first, size), max(last, size), max(most, counts[size])
		}
	}
	b.WriteString("```\n")
	for size := first; size <= last; size++ {
		length := int(counts[size] * barWidth / most)
		if counts[size] > 0 {
			length = max(1, length)
		}
		fmt.Fprintf(b, "below %9v %10d %s\n", time.Duration(1<<size)*time.Microsecond, counts[size], strings.Repeat("█", length))
	}
	b.WriteString("```\n\n")
}

// processes writes what each process did.
func (r *Result) processes(b *strings.Builder) {
	b.WriteString("| process | processors used | collections | share of its time for them | standing still, of the run | longest pause, µs | waits for a processor: p99, p99.9, longest, µs |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, p := range []struct {
		name string
		*Process
	}{{"client", &r.Client}, {"server", &r.Server}} {
		collecting := 0.0
		if p.Snapshot.Used > 0 {
			collecting = p.Collecting / p.Snapshot.Used
		}
		still := p.Pauses.Sum().Seconds() / r.Options.Duration.Seconds()
		fmt.Fprintf(b, "| %s | %.2f | %d | %.1f %% | %.3f %% | %d | %d, %d, %d |\n", p.name, p.Process.Used, len(p.Collections),
			100*collecting, 100*still, p.Pauses.At(1).Microseconds(),
			p.Waits.At(0.99).Microseconds(), p.Waits.At(0.999).Microseconds(), p.Waits.At(1).Microseconds())
	}
	l := r.Idle.Lateness
	fmt.Fprintf(b, "\nA process that only sleeps, a millisecond at a time, woke late by (µs): p50 %d, p99 %d, p99.9 %d, longest %d. Nothing of ours can be more punctual than that.\n\n",
		l.At(0.5).Microseconds(), l.At(0.99).Microseconds(), l.At(0.999).Microseconds(), l.At(1).Microseconds())
}

// tail writes what happened near the slow operations.
func (r *Result) tail(b *strings.Builder) {
	if r.SlowCount == 0 {
		fmt.Fprintf(b, "No renewal took longer than %v.\n", Slow)
		return
	}
	fmt.Fprintf(b, "%d renewals (%.3f %%) took longer than %v. Within %v of them there was:\n\n| what | of the slow renewals | by chance alone |\n|---|--:|--:|\n",
		r.SlowCount, 100*float64(r.SlowCount)/float64(max(1, r.Latency.TotalCount())), Slow, vicinity)
	if !r.Idle.AwayKnown {
		b.WriteString("| (without the right to use real-time priorities it is not known whether a processor was away) | | |\n")
	}
	for _, n := range r.Near {
		fmt.Fprintf(b, "| %s | %.0f %% | %.0f %% |\n", n.What, 100*float64(n.Slow)/float64(r.SlowCount), 100*n.Chance)
	}
}
