package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// An attack is a program that misuses a running server.
type attack struct {
	// name is a few words. A comment says what the attacker does, and what must hold beyond what always must:
	// the server lives, the healthy client keeps its lease, and the memory comes back.
	name string

	// users makes the server check passwords, with a bcrypt cost of 10 where costly, and
	// else with the least there is.
	users, costly bool
	// serve are more flags for `tenure serve`.
	serve []string
	// slowDisk keeps the store on a file whose commits take 20 ms more; else it is in memory. One in a
	// hundred changes of the healthy client may take maxChange then. The server has users.
	slowDisk bool

	// p99 is how long one in a hundred renewals of the healthy client may take during the
	// attack; 0: 50 ms.
	p99 time.Duration
	// memory is how many MiB the server may take at its peak beyond what it had before;
	// 0: 64, or 192 with slowDisk.
	memory int64
	// log is how many KiB the server may write to its log; 0: 256.
	log int64

	// run attacks and returns when it is over. Connections that it leaves open end with the process.
	run func(t *target)
}

// attacks returns all attacks, in the order of the table.
func attacks() []attack {
	all := slices.Concat(connectionAttacks, messageAttacks, memoryAttacks, journalAttacks)
	for i := range all {
		a := &all[i]
		if a.slowDisk {
			a.memory = cmp.Or(a.memory, 192)
		}
		a.p99, a.memory, a.log = cmp.Or(a.p99, 50*time.Millisecond), cmp.Or(a.memory, 64), cmp.Or(a.log, 256)
		a.users = a.users || a.costly || a.slowDisk
	}
	return all
}

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
	// maxChange is for changes before a slow disk.
	maxChange = 2 * time.Second
	// patience bounds the start and the stop of a process.
	patience = 20 * time.Second
)

// A row is the result of an attack.
type row struct {
	attack                          attack
	before, during, after           phase
	memoryBefore, peak, memoryAfter int64         // bytes; 0: not measured
	freedAfter                      time.Duration // when memoryAfter was measured
	log                             int64         // bytes
	death                           string        // empty: it lives
	breach                          string        // which limit the attack passed
	lethal, late                    []string      // limits that do not hold; late ones are about time
}

// run runs one attack against a server of its own. The error says why it could not.
func (r *runner) run(ctx context.Context, a attack) (*row, error) {
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
	measure := 3 * time.Second // the healthy client, before an attack and after it
	if r.short {
		measure /= 10
	}
	row := &row{attack: a}
	sleep.For(ctx, measure/3) // without what its first connections cost
	h.next()
	for try := 0; try < 10 && (try == 0 || !r.short && row.before.renewals.at(99) >= quiet); try++ {
		sleep.For(ctx, measure)
		row.before = h.next()
	}
	row.memoryBefore = memoryOf(s, resident)
	begin := time.Now()
	if row.breach, err = r.attack(ctx, a, s); err != nil {
		return nil, err
	}
	sleep.For(ctx, measure-time.Since(begin)) // what a short attack did may show later
	row.during = h.next()
	row.peak = memoryOf(s, peak)
	gone := func() bool { return s.death() != "" || ctx.Err() != nil }
	over := time.Now()
	for { // until the client is served, for the machine may be busy
		sleep.For(ctx, measure)
		row.after = h.next()
		if row.after.renewals.served() || gone() || time.Since(over) > patience {
			break
		}
	}
	for {
		row.memoryAfter, row.freedAfter = memoryOf(s, resident), time.Since(over)
		if row.memoryAfter <= r.allowed(row.memoryBefore) || row.freedAfter >= freedWithin || gone() {
			break
		}
		sleep.For(ctx, 100*time.Millisecond)
	}
	row.death, row.log = s.death(), s.logSize()
	row.judge(r)
	return row, ctx.Err()
}

// allowed is how many bytes the server may have after an attack.
func (r *runner) allowed(before int64) int64 { return before*3/2 + r.slack }

// judge finds the limits that do not hold.
func (w *row) judge(r *runner) {
	limit, allowed := w.memoryBefore+w.attack.memory<<20, r.allowed(w.memoryBefore)
	if w.death != "" {
		w.lethal = []string{"the server is dead: " + w.death}
		return
	}
	during := w.during.renewals
	slow := fmt.Sprintf("p99 not under %v", w.attack.p99)
	if w.before.renewals.at(99) >= quiet {
		slow += " (the machine was busy before)"
	}
	for _, rule := range []struct {
		broken, lethal bool
		text           string
	}{
		{!w.after.renewals.served(), true, "the healthy client is not served afterwards (" + w.after.renewals.first + ")"},
		{w.during.lost+w.after.lost > 0, true, fmt.Sprintf("the healthy client lost its lease %d times",
			w.during.lost+w.after.lost)},
		{w.breach != "", true, w.breach},
		{w.memoryBefore > 0 && w.peak > limit, true, fmt.Sprintf("peak above %d MiB", limit>>20)},
		{w.memoryBefore > 0 && w.memoryAfter > allowed, true,
			fmt.Sprintf("memory after %.0f s above %d MiB", w.freedAfter.Seconds(), allowed>>20)},
		{w.log > w.attack.log<<10, true, fmt.Sprintf("log above %d KiB", w.attack.log)},
		{during.at(99) >= w.attack.p99, false, slow},
		{w.during.changes.at(99) >= maxChange, false, fmt.Sprintf("p99 of changes not under %v", maxChange)},
		{w.during.changes.failed > 0, false, fmt.Sprintf("%d changes failed (%.80s)", w.during.changes.failed,
			w.during.changes.first)},
		{during.failed > 0, false, fmt.Sprintf("%d renewals failed (%.80s)", during.failed, during.first)},
	} {
		switch {
		case rule.broken && rule.lethal:
			w.lethal = append(w.lethal, rule.text)
		case rule.broken:
			w.late = append(w.late, rule.text)
		}
	}
}

// String returns what was measured, and which limits do not hold.
func (w *row) String() string {
	met := "all limits hold"
	if unmet := slices.Concat(w.lethal, w.late); len(unmet) > 0 {
		met = "BEYOND A LIMIT: " + strings.Join(unmet, "; ")
	}
	return fmt.Sprintf("%s: %s\n"+
		"  renewals %v ms before, %v during (%d of %d failed), %v after; leases lost: %d\n"+
		"  %d MiB before, %d at the peak, %d after %.0f s; log %d KiB",
		w.attack.name, met, w.before, w.during, w.during.renewals.failed, len(w.during.renewals.took),
		w.after, w.during.lost+w.after.lost,
		w.memoryBefore>>20, w.peak>>20, w.memoryAfter>>20, w.freedAfter.Seconds(), (w.log+1023)>>10)
}
