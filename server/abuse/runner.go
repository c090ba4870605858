package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
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
	h, err := r.startHealthy(ctx, a, s)
	if err != nil {
		return nil, err
	}
	defer h.stop()
	row := &row{attack: a}
	sleep(ctx, r.measure()/3) // without what its first connections cost
	if _, err := h.next(); err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		sleep(ctx, r.measure())
		if row.before, err = h.next(); err != nil {
			return nil, err
		}
		if r.short || row.before.P99 < quiet || try == 10 {
			break
		}
	}
	row.memoryBefore = memoryOf(s.cmd.Process.Pid, resident)

	begin := time.Now()
	if row.outcome, err = r.attack(ctx, a, s); err != nil {
		return nil, err
	}
	sleep(ctx, r.measure()-time.Since(begin)) // what a short attack did may show later
	if row.during, err = h.next(); err != nil {
		return nil, err
	}
	over := time.Now()
	row.peak = memoryOf(s.cmd.Process.Pid, peak)
	if row.after, err = r.aftermath(ctx, s, h); err != nil {
		return nil, err
	}
	row.memoryAfter, row.freedAfter = r.awaitMemory(ctx, s, row.memoryBefore, over)
	row.death = s.death()
	row.log = s.logSize()
	row.judge(r)
	return row, ctx.Err()
}

// aftermath measures the healthy client after an attack. It repeats the measurement for a while if
// the client is not served at once, since the machine may be busy.
func (r *runner) aftermath(ctx context.Context, s *serverProcess, h *healthyProcess) (p phase, err error) {
	for begin := time.Now(); ; {
		sleep(ctx, r.measure())
		if p, err = h.next(); err != nil || p.Renewals > p.Failed {
			return p, err
		}
		if s.death() != "" || ctx.Err() != nil || time.Since(begin) > patience {
			return p, nil
		}
	}
}

// attack runs the attacker until it ends. It kills an attacker that does not end and returns an
// error.
func (r *runner) attack(ctx context.Context, a attack, s *serverProcess) (outcome, error) {
	limit := 4*r.duration + 20*time.Second
	t := task{Attack: a.name, Address: s.address, Users: a.users, Short: r.short, Duration: r.duration, Limit: limit}
	bounded, cancel := context.WithTimeout(ctx, limit+10*time.Second)
	defer cancel()
	cmd, err := childCommand(bounded, t)
	if err != nil {
		return outcome{}, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var o outcome
	if decoding := json.Unmarshal(out.Bytes(), &o); err != nil || decoding != nil {
		return o, fmt.Errorf("the attacker failed: %w\n%s", errors.Join(err, decoding), errs.String())
	}
	if o.Error != "" && s.death() == "" {
		return o, errors.New(o.Error)
	}
	return o, nil
}

// awaitMemory waits, for freedWithin at most, until the server has freed the memory of an attack.
// It returns the memory then and the time that it took, or zeros where memory cannot be measured.
func (r *runner) awaitMemory(ctx context.Context, s *serverProcess, before int64, over time.Time) (now int64, took time.Duration) {
	for {
		now = memoryOf(s.cmd.Process.Pid, resident)
		took = time.Since(over)
		if now == 0 || before == 0 || now <= r.allowed(before) || took >= freedWithin || s.death() != "" || ctx.Err() != nil {
			return now, took
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// allowed is how many bytes the server may have after an attack.
func (r *runner) allowed(before int64) int64 { return before*3/2 + r.slack }

// sleep waits for a duration or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func cut(text string, limit int) string {
	if len(text) > limit {
		return text[:limit] + "…"
	}
	return text
}
