// Package latency measures renewals under a steady load: an open loop, in which requests are due at
// times of a clock, whatever the store does, and their latency counts from those times.
//
// A closed loop would send less while a store pauses, and so hide most of what a pause costs.
package latency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tenurelock/tenure/bench/internal/async"
	"github.com/tenurelock/tenure/bench/internal/measure"
	"github.com/tenurelock/tenure/bench/internal/pauses"
	"github.com/tenurelock/tenure/bench/internal/peer"
)

// Options say what is measured.
type Options struct {
	// Connections is how many connections the client has, and Names how many leases it holds, on all
	// of them together, in turn.
	Connections, Names int
	// InFlight is how many renewals are under way at once while the capacity is measured.
	InFlight int
	// Capacity is for how long the capacity is measured, and Duration for how long renewals are due.
	Capacity, Duration time.Duration
	// Share of the capacity at which renewals are due, more than 0 and less than 1.
	Share float64
	// Tick is how long the clock sleeps at least: the renewals that are due meanwhile leave together,
	// late by up to one tick, which counts as latency.
	Tick time.Duration
	// Spare is how many bytes of garbage the client may have beside what Go allows, before its collector
	// runs. With 0 a client that does nothing but renew collects its small heap many times a second,
	// which no program does that has data of its own.
	Spare int
	// Progress gets a line now and then.
	Progress io.Writer
}

// Check returns what is wrong with the options.
func (o Options) Check() error {
	switch {
	case o.Connections < 1 || o.Connections > maxConnections:
		return fmt.Errorf("%d connections: choose from 1 to %d", o.Connections, maxConnections)
	case o.Names < o.Connections || o.Names > maxNames:
		return fmt.Errorf("%d leases: choose from %d, the number of connections, to %d", o.Names, o.Connections, maxNames)
	case o.InFlight < 1 || o.InFlight > maxNames:
		return fmt.Errorf("%d renewals in flight: choose from 1 to %d", o.InFlight, maxNames)
	case o.Capacity < minTime || o.Duration < minTime || o.Duration > maxDuration:
		return fmt.Errorf("%v for the capacity and %v for the load: choose at least %v, and at most %v for the load", o.Capacity, o.Duration, minTime, maxDuration)
	case o.Tick < minTick || o.Tick > maxTick:
		return fmt.Errorf("a tick of %v: choose from %v to %v", o.Tick, minTick, maxTick)
	case o.Spare < 0 || o.Spare > maxSpare:
		return fmt.Errorf("%d bytes to spare for garbage: choose from 0 to %d", o.Spare, maxSpare)
	case !(o.Share > 0 && o.Share < 1):
		return fmt.Errorf("a load of %v of the capacity: choose more than 0 and less than 1", o.Share)
	}
	return nil
}

const (
	maxConnections = 1000
	maxNames       = 10_000
	minTime        = 10 * time.Millisecond
	maxDuration    = time.Hour
	// Slow is the time above which an operation counts as slow.
	Slow = time.Millisecond
	// patience is how much longer than Duration the run may take, with all answers.
	patience = 30 * time.Second
	// maxWaiting bounds how many renewals may wait for an answer at once. A store that lets so many wait
	// is too slow for the load.
	maxWaiting = 100_000
	// maxSlow bounds how many slow operations are remembered one by one: 16 MB.
	maxSlow  = 1 << 20
	maxSpare = 1 << 30
	// minTick and maxTick bound Options.Tick.
	minTick, maxTick = 50 * time.Microsecond, 10 * time.Millisecond
	// awakeAgain is how long the clock sleeps at most, so that it sees the end of a run.
	awakeAgain = 100 * time.Millisecond
	// progressEvery is how often Progress gets a line.
	progressEvery = 5 * time.Second
)

// Result is what was measured.
type Result struct {
	Options Options
	// Capacity is how many renewals a second the closed loop made, and Rate how many were due.
	Capacity, Rate float64
	// Latency has the times from when a renewal was due to its answer, in microseconds.
	Latency *hdrhistogram.Histogram
	// Departure has the times from when a renewal was due until the client began it, in microseconds:
	// what the clock of the measurement itself is late by, a part of the tick included.
	Departure *hdrhistogram.Histogram
	// Client, Server and Idle are the processes, during the load. Idle only sleeps.
	Client, Server, Idle Process
	// SlowCount is how many operations took longer than Slow, and Slow what happened near them. It is of
	// the first million.
	SlowCount int
	Near      []Near
	// Others is the share of the processors that other programs used, from 0 to 1.
	Others float64
}

// Process is what a process did during the load.
type Process struct {
	pauses.Snapshot
	// Used is its processor time as a share of one processor.
	Used float64
}

// Near says how many slow operations were near a kind of event, and for which share of the time there
// was such an event near: the share that chance alone would give.
type Near struct {
	What   string
	Slow   int
	Chance float64
}

// Run starts the server on host, and measures. An answer that is an error ends the run.
func Run(ctx context.Context, host *peer.Host, options Options) (*Result, error) {
	if err := options.Check(); err != nil {
		return nil, err
	}
	server, serverPauses, err := host.Observed(ctx)
	if err != nil {
		return nil, err
	}
	idle, idlePauses, err := host.Idle(ctx)
	if err != nil {
		return nil, err
	}
	r := &run{options: options, sleeper: pauses.Sleeper}
	defer r.close()
	ballast := make([]byte, options.Spare) // counts as heap; it is never touched, so it takes no memory
	defer runtime.KeepAlive(ballast)
	if err := r.connect(ctx, server); err != nil {
		return nil, err
	}
	fmt.Fprintf(options.Progress, "measuring the capacity for %v, with %d renewals in flight\n", options.Capacity, options.InFlight)
	if _, err := r.capacity(ctx, options.Capacity/2); err != nil { // warms up
		return nil, err
	}
	capacity, err := r.capacity(ctx, options.Capacity)
	if err != nil {
		return nil, err
	}
	result := &Result{Options: options, Capacity: capacity, Rate: capacity * options.Share}
	fmt.Fprintf(options.Progress, "the capacity is %.0f renewals a second; %.0f a second are due now, for %v\n", capacity, result.Rate, options.Duration)

	processes := []int{os.Getpid(), server.Processes[0], idle.Processes[0]}
	watch, err := measure.WatchOthers(ctx, processes)
	if err != nil {
		return nil, err
	}
	own := pauses.Start(false)
	defer own.Stop()
	observe := func() (all [3]pauses.Snapshot, used [3]time.Duration, err error) {
		var errs [2]error
		all[0] = own.Snapshot()
		all[1], errs[0] = pauses.Fetch(ctx, serverPauses)
		all[2], errs[1] = pauses.Fetch(ctx, idlePauses)
		for i, process := range processes {
			used[i], _ = measure.ProcessorTime(process)
		}
		return all, used, errors.Join(errs[:]...)
	}
	r.prepare()
	before, usedBefore, err := observe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := r.load(ctx, result.Rate); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, usedAfter, err := observe()
	if err != nil {
		return nil, err
	}
	if result.Others, err = watch.Share(ctx); err != nil {
		return nil, err
	}
	for i, process := range []*Process{&result.Client, &result.Server, &result.Idle} {
		process.Snapshot = since(after[i], before[i], began)
		process.Used = (usedAfter[i] - usedBefore[i]).Seconds() / took.Seconds()
	}
	result.Latency, result.Departure = r.latencies.merged(), r.departures.merged()
	result.SlowCount = len(r.slow)
	result.Near = near(r.slow, began, took, result)
	return result, nil
}

// since returns what happened between two snapshots of a process.
func since(after, before pauses.Snapshot, began time.Time) pauses.Snapshot {
	return pauses.Snapshot{
		Collections: later(after.Collections, began), Stalls: later(after.Stalls, began),
		Away: later(after.Away, began), AwayKnown: after.AwayKnown,
		Pauses: after.Pauses.Since(before.Pauses), Waits: after.Waits.Since(before.Waits), Lateness: after.Lateness.Since(before.Lateness),
		Collecting: after.Collecting - before.Collecting, Used: after.Used - before.Used,
	}
}

func later(events []pauses.Event, began time.Time) (after []pauses.Event) {
	for _, event := range events {
		if event.End.After(began.Round(0)) { // without its monotonic part: other processes have other ones
			after = append(after, event)
		}
	}
	return after
}

// run is one run.
type run struct {
	options Options
	sleeper func() (sleep func(time.Duration), done func()) // of the clock
	clients []*peer.Renewer
	begin   []func(*async.Call) // begins one renewal of a lease

	latencies, departures shards
	mu                    sync.Mutex // guards slow
	slow                  []span
}

// span is the time from when an operation was due to its answer, since the load began.
type span struct{ from, to time.Duration }

// connect connects the clients, which obtain all names.
func (r *run) connect(ctx context.Context, server *peer.Server) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i := range r.options.Connections {
		client, err := peer.DialRenewer(ctx, server, fmt.Sprintf("client-%d", i))
		if err != nil {
			return err
		}
		r.clients = append(r.clients, client)
	}
	for i := range r.options.Names {
		begin, err := r.clients[i%len(r.clients)].Obtain(ctx, fmt.Sprintf("press-%d/active", i))
		if err != nil {
			return err
		}
		r.begin = append(r.begin, begin)
	}
	return nil
}

// close ends the clients. Their leases end with the server.
func (r *run) close() {
	for _, client := range r.clients {
		client.Close()
	}
}

// capacity renews in a closed loop for a time, and returns the renewals of a second.
func (r *run) capacity(ctx context.Context, long time.Duration) (float64, error) {
	var done atomic.Int64
	began := time.Now()
	f := newFlight(ctx, long+patience)
	defer f.end(nil)
	for first := range r.options.InFlight {
		lease := first
		a := &arrival{}
		a.call.Done = func(result async.Result) {
			defer f.landed()
			if result.Err != nil {
				f.end(result.Err)
				return
			}
			done.Add(1)
			if f.ctx.Err() == nil && time.Since(began) < long {
				lease += r.options.InFlight
				f.depart(a, r.begin[lease%len(r.begin)])
			}
		}
		f.depart(a, r.begin[lease%len(r.begin)])
	}
	if err := f.wait(); err != nil {
		return 0, fmt.Errorf("measure the capacity: %w", err)
	}
	return float64(done.Load()) / time.Since(began).Seconds(), nil
}

// load renews at times of a clock, and returns after the last answer.
func (r *run) load(ctx context.Context, rate float64) error {
	total := max(1, int64(rate*r.options.Duration.Seconds()))
	due := func(number int64) time.Duration {
		return time.Duration(float64(number) / rate * float64(time.Second))
	}
	sleep, awake := r.sleeper()
	defer awake()
	f := newFlight(ctx, r.options.Duration+patience)
	defer f.end(nil)
	var free freeList
	began, told := time.Now(), time.Duration(0)
	for number := int64(0); number < total && f.ctx.Err() == nil; {
		now := time.Since(began)
		if early := due(number) - now; early > 0 {
			// Renewals that are due in the same tick leave together, as they do in a client with many
			// leases, and the clock does not take a processor.
			sleep(min(max(early, r.options.Tick), awakeAgain))
			continue
		}
		if f.underWay.Load() >= maxWaiting {
			f.end(fmt.Errorf("%d renewals wait for an answer: client and store cannot do %.0f a second; stop other programs, or choose a smaller --share", maxWaiting, rate))
			break
		}
		a := free.take()
		if a == nil {
			a = &arrival{}
			a.call.Done = func(result async.Result) {
				defer f.landed()
				number, to := a.number, time.Since(began)
				free.put(a) // may leave again from here on
				if result.Err != nil {
					f.end(result.Err)
					return
				}
				from := due(number)
				r.latencies.record(r.connection(number), to-from)
				if to-from > Slow {
					r.remember(span{from, to})
				}
			}
		}
		a.number = number
		r.departures.record(0, time.Since(began)-due(number))
		f.depart(a, r.begin[r.lease(number)])
		number++
		if now-told >= progressEvery {
			told = now
			fmt.Fprintf(r.options.Progress, "%v of %v\n", now.Round(time.Second), r.options.Duration)
		}
	}
	if err := f.wait(); err != nil {
		return fmt.Errorf("renew at %.0f a second: %w", rate, err)
	}
	return nil
}

// lease returns which lease a renewal is of, and connection over which connection it goes.
func (r *run) lease(number int64) int      { return int(number % int64(len(r.begin))) }
func (r *run) connection(number int64) int { return r.lease(number) % r.options.Connections }

// prepare makes the memory of the measurement resident, as shards.prepare does.
func (r *run) prepare() {
	r.latencies.prepare(r.options.Connections)
	r.departures.prepare(1)
	r.slow = make([]span, maxSlow)
	for i := range r.slow {
		r.slow[i] = span{from: 1}
	}
	r.slow = r.slow[:0]
}

func (r *run) remember(s span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.slow) < maxSlow {
		r.slow = append(r.slow, s)
	}
}
