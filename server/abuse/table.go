package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// A row is the result of an attack.
type row struct {
	attack                          attack
	before, during, after           phase
	memoryBefore, peak, memoryAfter int64         // bytes; 0: not measured
	freedAfter                      time.Duration // when memoryAfter was measured
	log                             int64         // bytes
	death                           string        // empty: it lives
	outcome                         outcome
	unmet                           []string // limits that do not hold
	lethal                          []string // the unmet limits that are not about time
}

// judge returns which limits hold.
func (w *row) judge(r *runner) {
	harm := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		w.unmet, w.lethal = append(w.unmet, text), append(w.lethal, text)
	}
	if w.death != "" {
		harm("the server is dead: %s", w.death)
		return
	}
	if w.after.Failed >= w.after.Renewals {
		harm("the healthy client is not served afterwards (%s)", w.after.First)
	}
	if lost := w.during.Lost + w.after.Lost; lost > 0 {
		harm("the healthy client lost its lease %d times", lost)
	}
	if w.outcome.Breach != "" {
		harm("%s", w.outcome.Breach)
	}
	if limit := w.memoryBefore + w.attack.memory<<20; w.memoryBefore > 0 && w.peak > limit {
		harm("peak above %d MiB", limit>>20)
	}
	if w.memoryBefore > 0 && w.memoryAfter > r.allowed(w.memoryBefore) {
		harm("memory after %.0f s above %d MiB", w.freedAfter.Seconds(), r.allowed(w.memoryBefore)>>20)
	}
	if w.log > w.attack.log<<10 {
		harm("log above %d KiB", w.attack.log)
	}
	if w.during.P99 >= w.attack.p99 {
		text := fmt.Sprintf("p99 not under %v", w.attack.p99)
		if w.before.P99 >= quiet {
			text += " (the machine was busy before)"
		}
		w.unmet = append(w.unmet, text)
	}
	if w.attack.change > 0 && w.during.ChangeP99 >= w.attack.change {
		w.unmet = append(w.unmet, fmt.Sprintf("p99 of changes not under %v", w.attack.change))
	}
	if w.during.ChangesFailed > 0 {
		w.unmet = append(w.unmet, fmt.Sprintf("%d changes failed", w.during.ChangesFailed))
	}
	if w.during.Failed > 0 {
		w.unmet = append(w.unmet, fmt.Sprintf("%d renewals failed (%s)", w.during.Failed, cut(w.during.First, 80)))
	}
}

func writeHeader(to io.Writer, r *runner) {
	fmt.Fprintf(to, "%d cores, %s/%s; attacks of %v and more; renewals p50 / p99 / max in ms; memory in MiB\n\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, r.duration)
	fmt.Fprintln(to, "| attack | renewals before | during | after | failed | leases lost | memory before | peak | after | log KiB | server | what must hold | met |")
	fmt.Fprintln(to, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")
}

func (w *row) write(to io.Writer) {
	alive, met := "alive", "yes"
	if w.death != "" {
		alive = "dead: " + w.death
	}
	if len(w.unmet) > 0 {
		met = "**no**: " + strings.Join(w.unmet, "; ")
	}
	fmt.Fprintf(to, "| %s | %s | %s | %s | %d of %d | %d | %s | %s | %s | %d | %s | %s | %s |\n",
		w.attack.name, times(w.before), times(w.during), times(w.after), w.during.Failed, w.during.Renewals, w.during.Lost+w.after.Lost,
		mebibytes(w.memoryBefore), mebibytes(w.peak), w.afterwards(), (w.log+1023)>>10, cell(alive), cell(w.limits()), cell(met))
}

func (w *row) afterwards() string {
	if w.memoryAfter == 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%.0f s)", mebibytes(w.memoryAfter), w.freedAfter.Seconds())
}

func (w *row) limits() string {
	text := fmt.Sprintf("p99 < %d ms, +%d MiB", w.attack.p99.Milliseconds(), w.attack.memory)
	if w.attack.change > 0 {
		text += fmt.Sprintf("; changes p99 < %d ms", w.attack.change.Milliseconds())
	}
	if w.attack.limit != "" {
		text += "; " + w.attack.limit
	}
	return text
}

func times(p phase) string {
	if p.Renewals == 0 {
		return "–"
	}
	text := fmt.Sprintf("%s / %s / %s", milliseconds(p.P50), milliseconds(p.P99), milliseconds(p.Max))
	if p.Changes > 0 {
		text += fmt.Sprintf("; changes %s / %s / %s", milliseconds(p.ChangeP50), milliseconds(p.ChangeP99), milliseconds(p.ChangeMax))
	}
	return text
}

func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.1f", ms)
	}
	return fmt.Sprintf("%.0f", ms)
}

func mebibytes(bytes int64) string {
	if bytes == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", float64(bytes)/(1<<20))
}

// cell escapes a text for a cell of a Markdown table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
