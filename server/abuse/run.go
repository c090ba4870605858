package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// A runner runs attacks, one at a time or several side by side.
type runner struct {
	tenure   string // the command
	scratch  string // a folder for files
	short    bool
	duration time.Duration
	slack    int64 // bytes that may stay beyond 1.5 times what was there before
}

const (
	// freedWithin is how long the server may take to give memory back.
	freedWithin = 30 * time.Second
	// quiet is the p99 of the healthy client on a machine that has nothing else to do. A full
	// run waits for that before an attack, within reason.
	quiet = 10 * time.Millisecond
	// patience bounds the start and the stop of a process.
	patience = 20 * time.Second
)

// measure is how long the healthy client is measured before an attack, and after it.
func (r *runner) measure() time.Duration {
	if r.short {
		return 300 * time.Millisecond
	}
	return 3 * time.Second
}

// A row is the result of an attack.
type row struct {
	attack                          attack
	before, during, after           phase
	memoryBefore, peak, memoryAfter int64         // bytes; 0: not measured
	freedAfter                      time.Duration // when memoryAfter was measured
	log                             int64         // bytes
	death                           string        // empty: it lives
	breach                          string        // which limit the attack passed
	unmet                           []string      // limits that do not hold
	lethal                          []string      // the unmet limits that are not about time
}

// run runs one attack against a server of its own. The error says why it could not.
func (r *runner) run(ctx context.Context, a attack) (*row, error) {
	a = a.completed()
	folder, err := os.MkdirTemp(r.scratch, "attack-")
	if err != nil {
		return nil, err
	}
	s, err := r.startServer(ctx, a, folder)
	if err != nil {
		return nil, err
	}
	defer s.stop()
	h, err := startHealthy(ctx, a, s.address, r.short)
	if err != nil {
		return nil, fmt.Errorf("the healthy client did not start: %w", err)
	}
	defer h.stop()
	row := &row{attack: a}
	sleep.For(ctx, r.measure()/3) // without what its first connections cost
	h.next()
	for try := 0; try < 10 && (try == 0 || !r.short && row.before.p99 >= quiet); try++ {
		sleep.For(ctx, r.measure())
		row.before = h.next()
	}
	row.memoryBefore = memoryOf(s, resident)
	begin := time.Now()
	if row.breach, err = r.attack(ctx, a, s); err != nil {
		return nil, err
	}
	sleep.For(ctx, r.measure()-time.Since(begin)) // what a short attack did may show later
	row.during = h.next()
	over := time.Now()
	row.peak = memoryOf(s, peak)
	row.after = r.aftermath(ctx, s, h)
	row.memoryAfter, row.freedAfter = r.awaitMemory(ctx, s, row.memoryBefore, over)
	row.death = s.death()
	row.log = s.logSize()
	row.judge(r)
	return row, ctx.Err()
}

// aftermath measures the healthy client after an attack. It repeats the measurement for a while if
// the client is not served at once, since the machine may be busy.
func (r *runner) aftermath(ctx context.Context, s *serverProcess, h *healthyClient) (p phase) {
	for begin := time.Now(); ; {
		sleep.For(ctx, r.measure())
		p = h.next()
		if p.renewals > p.failed || s.death() != "" || ctx.Err() != nil || time.Since(begin) > patience {
			return p
		}
	}
}

// awaitMemory waits, for freedWithin at most, until the server has freed the memory of an attack.
// It returns the memory then and the time that it took, or zeros where memory cannot be measured.
func (r *runner) awaitMemory(ctx context.Context, s *serverProcess, before int64, over time.Time) (now int64, took time.Duration) {
	for {
		now = memoryOf(s, resident)
		took = time.Since(over)
		if now == 0 || before == 0 || now <= r.allowed(before) || took >= freedWithin || s.death() != "" || ctx.Err() != nil {
			return now, took
		}
		sleep.For(ctx, 100*time.Millisecond)
	}
}

// allowed is how many bytes the server may have after an attack.
func (r *runner) allowed(before int64) int64 { return before*3/2 + r.slack }

// judge returns which limits hold.
func (w *row) judge(r *runner) {
	limit, allowed := w.memoryBefore+w.attack.memory<<20, r.allowed(w.memoryBefore)
	if w.death != "" {
		w.lethal = []string{"the server is dead: " + w.death}
		w.unmet = w.lethal
		return
	}
	for _, rule := range []struct {
		broken, lethal bool
		text           string
	}{
		{w.after.failed >= w.after.renewals, true, "the healthy client is not served afterwards (" + w.after.first + ")"},
		{w.during.lost+w.after.lost > 0, true, fmt.Sprintf("the healthy client lost its lease %d times", w.during.lost+w.after.lost)},
		{w.breach != "", true, w.breach},
		{w.memoryBefore > 0 && w.peak > limit, true, fmt.Sprintf("peak above %d MiB", limit>>20)},
		{w.memoryBefore > 0 && w.memoryAfter > allowed, true, fmt.Sprintf("memory after %.0f s above %d MiB", w.freedAfter.Seconds(), allowed>>20)},
		{w.log > w.attack.log<<10, true, fmt.Sprintf("log above %d KiB", w.attack.log)},
		{w.during.p99 >= w.attack.p99 && w.before.p99 < quiet, false, fmt.Sprintf("p99 not under %v", w.attack.p99)},
		{w.during.p99 >= w.attack.p99 && w.before.p99 >= quiet, false, fmt.Sprintf("p99 not under %v (the machine was busy before)", w.attack.p99)},
		{w.attack.change > 0 && w.during.changeP99 >= w.attack.change, false, fmt.Sprintf("p99 of changes not under %v", w.attack.change)},
		{w.during.changesFailed > 0, false, fmt.Sprintf("%d changes failed", w.during.changesFailed)},
		{w.during.failed > 0, false, fmt.Sprintf("%d renewals failed (%.80s)", w.during.failed, w.during.first)},
	} {
		if rule.broken {
			w.unmet = append(w.unmet, rule.text)
		}
		if rule.broken && rule.lethal {
			w.lethal = append(w.lethal, rule.text)
		}
	}
}

// String returns the row of the table.
func (w *row) String() string {
	alive, met, afterwards := "alive", "yes", "–"
	if w.death != "" {
		alive = "dead: " + w.death
	}
	if len(w.unmet) > 0 {
		met = "**no**: " + strings.Join(w.unmet, "; ")
	}
	if w.memoryAfter > 0 {
		afterwards = fmt.Sprintf("%s (%.0f s)", mebibytes(w.memoryAfter), w.freedAfter.Seconds())
	}
	limits := fmt.Sprintf("p99 < %d ms, +%d MiB", w.attack.p99.Milliseconds(), w.attack.memory)
	if w.attack.change > 0 {
		limits += fmt.Sprintf("; changes p99 < %d ms", w.attack.change.Milliseconds())
	}
	if w.attack.limit != "" {
		limits += "; " + w.attack.limit
	}
	return fmt.Sprintf("| %s | %v | %v | %v | %d of %d | %d | %s | %s | %s | %d | %s | %s | %s |",
		w.attack.name, w.before, w.during, w.after, w.during.failed, w.during.renewals, w.during.lost+w.after.lost,
		mebibytes(w.memoryBefore), mebibytes(w.peak), afterwards, (w.log+1023)>>10, cell(alive), cell(limits), cell(met))
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
