package load

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	// dialing bounds how many clients connect at a time, and preparing how many keys are set or
	// removed.
	dialing   = 32
	preparing = 64
	// cleanupTime bounds the removal of the keys, and keysOutlive how long they live if that fails.
	cleanupTime = 10 * time.Second
	keysOutlive = time.Minute
	leaseTTL    = 10 * time.Second
	// interruptTime is how long operations may go on after an interruption.
	interruptTime = time.Second
	// timerSlack is how late a timer may be that wakes a worker: Go's are up to a millisecond or so.
	timerSlack = 3 * time.Millisecond
	// maxErrors bounds how many different errors a Report has.
	maxErrors = 10
)

// Progress is how far a run is.
type Progress struct {
	Elapsed, Duration time.Duration
	// Done and Failed count operations. PerSecond is the rate since the last call.
	Done, Failed int64
	PerSecond    float64
	// P50 and P99 are of all operations so far.
	P50, P99 time.Duration
}

// Report is what a run has measured.
type Report struct {
	// Elapsed is how long requests were sent. Interrupted says that the run ended before its time.
	Elapsed     output.Millis `json:"elapsedMillis"`
	Interrupted bool          `json:"interrupted"`
	Clients     int           `json:"clients"`
	InFlight    int           `json:"inFlight"`
	// Rate is the rate that was asked for; 0: none.
	Rate float64 `json:"rate"`
	// Done counts operations that were answered, PerSecond is their rate, and Failed counts those
	// that failed. Latencies are of the former.
	Done      int64   `json:"done"`
	PerSecond float64 `json:"perSecond"`
	Failed    int64   `json:"failed"`
	// Omitted counts operations that were due and never sent, because all clients waited for
	// answers. Latency has them, with the time that they had waited at the end.
	Omitted int64 `json:"omitted"`
	// Latency is the time from when an operation was due, or sent if there is no rate, to its answer.
	Latency Latency `json:"latency"`
	// Service is the time from when an operation was sent to its answer.
	Service Latency `json:"service"`
	// Verbs has the Latency for each kind of operation, without those that were omitted.
	Verbs map[Verb]Latency `json:"verbs"`
	// Errors counts failures by text, of the first ten different texts.
	Errors map[string]int64 `json:"errors,omitempty"`
	// KeysLeft counts keys that could not be removed; they expire within ExpireWithin.
	KeysLeft     int           `json:"keysLeft"`
	ExpireWithin output.Millis `json:"expireWithinMillis,omitzero"`
}

// run is one run.
type run struct {
	options Options
	workers []*worker
	clients []*transport.Client

	began   time.Time
	next    atomic.Int64 // the number of the next operation
	done    atomic.Int64
	failed  atomic.Int64
	latency *recorder
	service *recorder
	verbs   map[Verb]*recorder

	mu     sync.Mutex
	errors map[string]int64
}

// worker has one operation under way at a time, with a key and a lease of its own.
type worker struct {
	run    *run
	client *transport.Client
	key    string
	lease  *lease.Lease
	value  []byte
}

// Run measures until the duration is over or ctx ends, and removes its keys. A run that ctx ended while
// requests were sent has a Report too. The error says which option makes no sense, which client could
// not connect, or that the first requests were refused.
func Run(ctx context.Context, options Options) (Report, error) {
	options.ProgressEvery = cmp.Or(options.ProgressEvery, 500*time.Millisecond)
	if err := options.Check(); err != nil {
		return Report{}, err
	}
	r := &run{options: options, latency: newRecorder(), service: newRecorder(), verbs: make(map[Verb]*recorder), errors: make(map[string]int64)}
	for _, verb := range options.Verbs {
		r.verbs[verb] = newRecorder()
	}
	defer r.close()
	if err := r.connect(ctx); err != nil {
		return Report{}, err
	}
	if err := r.prepare(ctx); err != nil {
		r.clean(ctx)
		return Report{}, err
	}
	elapsed := r.measure(ctx)
	report := r.report(elapsed, ctx.Err() != nil)
	report.KeysLeft = r.clean(ctx)
	if report.KeysLeft > 0 {
		report.ExpireWithin.Duration = r.keyTTL()
	}
	return report, nil
}

// keyTTL is how long a key lives after its last SET.
func (r *run) keyTTL() time.Duration {
	return (r.options.Duration + keysOutlive).Truncate(time.Millisecond)
}

// connect connects all clients.
func (r *run) connect(ctx context.Context) error {
	r.clients = make([]*transport.Client, r.options.Clients)
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(dialing)
	for i := range r.clients {
		tasks.Go(func() error {
			client, err := r.options.Dial(ctx, i)
			if err != nil {
				return fmt.Errorf("client %d of %d: %w", i+1, r.options.Clients, err)
			}
			r.clients[i] = client
			return nil
		})
	}
	return tasks.Wait()
}

// close closes the clients.
func (r *run) close() {
	var tasks errgroup.Group
	tasks.SetLimit(dialing)
	for _, client := range r.clients {
		if client != nil {
			tasks.Go(client.Close)
		}
	}
	_ = tasks.Wait() // a connection that does not end well does not change what was measured
}

// prepare sets the key of each worker. It is also the first look whether the client may do all that.
func (r *run) prepare(ctx context.Context) error {
	for c, client := range r.clients {
		for i := range r.options.InFlight {
			w := &worker{run: r, client: client, value: make([]byte, r.options.ValueSize)}
			w.key = fmt.Sprintf("%s/%d-%d", r.options.Prefix, c, i)
			var err error
			w.lease, err = lease.New(client, w.key+"-lease", lease.Options{TTL: leaseTTL, NoWatch: true})
			if err != nil {
				return err
			}
			r.workers = append(r.workers, w)
		}
	}
	if !r.usesKeys() {
		return nil
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.SetLimit(preparing)
	for _, w := range r.workers {
		tasks.Go(func() error { return w.do(ctx, Set, 0) })
	}
	return tasks.Wait()
}

// usesKeys reports whether the run needs keys besides its leases.
func (r *run) usesKeys() bool { return r.verbs[Set] != nil || r.verbs[Get] != nil }

// measure sends requests until the time is over or ctx ends, and returns for how long it did.
func (r *run) measure(ctx context.Context) time.Duration {
	r.began = time.Now()
	ended := make(chan struct{})
	var workers, others sync.WaitGroup
	if r.options.Progress != nil {
		others.Go(func() { r.tell(ended) })
	}
	// What is under way at the end may be answered; a request has a timeout of its own. After an
	// interruption it has a moment, so that no lease stays behind.
	operations, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	others.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		moment := time.NewTimer(interruptTime)
		defer moment.Stop()
		select {
		case <-ended:
		case <-moment.C:
			abandon()
		}
	})
	for _, w := range r.workers {
		workers.Go(func() { w.work(ctx, operations) })
	}
	workers.Wait()
	elapsed := time.Since(r.began)
	close(ended)
	others.Wait()
	return min(elapsed, max(r.options.Duration, time.Nanosecond))
}

// due returns when an operation is due, and false if that is after the end.
func (r *run) due(number int64) (time.Time, bool) {
	if r.options.Rate == 0 {
		now := time.Now()
		return now, now.Sub(r.began) < r.options.Duration
	}
	if number >= r.total(r.options.Duration) {
		return time.Time{}, false
	}
	return r.began.Add(time.Duration(float64(number) / r.options.Rate * float64(time.Second))), true
}

// total returns how many operations are due within a time, with a rate.
func (r *run) total(within time.Duration) int64 {
	return int64(math.Ceil(within.Seconds() * r.options.Rate))
}

// work sends one operation after the other until ctx ends. operations ends those that are under way.
func (w *worker) work(ctx, operations context.Context) {
	r := w.run
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		if r.options.Rate > 0 && time.Since(r.began) >= r.options.Duration {
			return // the operations that were due are counted as omitted
		}
		number := r.next.Add(1) - 1
		due, more := r.due(number)
		if !more {
			return
		}
		idle := false
		if wait := time.Until(due); wait > 0 {
			idle = true
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		verb := r.options.Verbs[number%int64(len(r.options.Verbs))]
		sent := time.Now()
		if late := sent.Sub(due); idle && late < timerSlack {
			due = sent // this end's timer was late, not the store
		}
		err := w.do(operations, verb, number)
		now := time.Now()
		switch {
		case err == nil:
			r.done.Add(1)
			r.latency.record(now.Sub(due), 1)
			r.service.record(now.Sub(sent), 1)
			r.verbs[verb].record(now.Sub(due), 1)
		case ctx.Err() != nil: // interrupted: neither answered nor failed
			return
		default:
			r.fail(err)
			// A store that refuses at once must not make this a loop without a pause.
			if took := now.Sub(sent); took < time.Millisecond {
				timer.Reset(time.Millisecond)
				select {
				case <-timer.C:
				case <-ctx.Done():
				}
			}
		}
	}
}

// do does one operation.
func (w *worker) do(ctx context.Context, verb Verb, number int64) error {
	switch verb {
	case Get:
		entry, err := w.client.Get(ctx, w.key)
		if err == nil && !entry.Exists {
			return errors.New("the key is gone: the store has lost it, or another client has deleted it")
		}
		return err
	case Lease:
		tenure, err := w.lease.TryAcquire(ctx)
		if err != nil {
			return err
		}
		return tenure.Release(ctx)
	default:
		binary.BigEndian.PutUint64(w.value, uint64(number)) // another value: a change
		_, err := w.client.Set(ctx, w.key, w.value, transport.SetOptions{TTL: w.run.keyTTL()})
		return err
	}
}

// fail counts a failed operation.
func (r *run) fail(err error) {
	r.failed.Add(1)
	text := reason(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.errors[text]; !known && len(r.errors) >= maxErrors {
		text = "other errors"
	}
	r.errors[text]++
}

// reason returns the text of an error without the operation and the key, so that alike errors of all
// workers are one.
func reason(err error) string {
	for _, known := range []error{
		transport.ErrServerBusy, transport.ErrNotAuthorized, transport.ErrQuotaExceeded, transport.ErrPacketTooLarge,
		transport.ErrNoStore, transport.ErrOutcomeUnknown, transport.ErrNotSent, transport.ErrClosed,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	for {
		below := errors.Unwrap(err)
		if below == nil {
			return err.Error()
		}
		err = below
	}
}

// tell calls Progress until the run has ended.
func (r *run) tell(ended <-chan struct{}) {
	ticks := time.NewTicker(r.options.ProgressEvery)
	defer ticks.Stop()
	last, before := r.began, int64(0)
	for {
		select {
		case <-ended:
			return
		case now := <-ticks.C:
			done, latency := r.done.Load(), r.latency.latency()
			p := Progress{Elapsed: now.Sub(r.began), Duration: r.options.Duration, Done: done, Failed: r.failed.Load(), P50: latency.P50.Duration, P99: latency.P99.Duration}
			if since := now.Sub(last); since > 0 {
				p.PerSecond = float64(done-before) / since.Seconds()
			}
			last, before = now, done
			r.options.Progress(p)
		}
	}
}

// report returns what was measured.
func (r *run) report(elapsed time.Duration, interrupted bool) Report {
	report := Report{
		Elapsed: output.Millis{Duration: elapsed}, Interrupted: interrupted && elapsed < r.options.Duration,
		Clients: r.options.Clients, InFlight: r.options.InFlight, Rate: r.options.Rate,
		Done: r.done.Load(), Failed: r.failed.Load(), Verbs: make(map[Verb]Latency), Errors: r.errors,
	}
	report.PerSecond = float64(report.Done) / max(elapsed.Seconds(), 1e-9)
	if r.options.Rate > 0 {
		if taken := r.next.Load(); taken < r.total(elapsed) {
			report.Omitted = r.total(elapsed) - taken
			first, _ := r.due(taken)
			r.latency.recordOmitted(elapsed-first.Sub(r.began), report.Omitted)
		}
	}
	report.Latency, report.Service = r.latency.latency(), r.service.latency()
	for verb, recorder := range r.verbs {
		report.Verbs[verb] = recorder.latency()
	}
	return report
}

// clean removes the keys, also after an interruption, and returns how many it could not remove.
func (r *run) clean(ctx context.Context) int {
	if !r.usesKeys() {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	var left atomic.Int64
	var tasks errgroup.Group
	tasks.SetLimit(preparing)
	for _, w := range r.workers {
		tasks.Go(func() error {
			if _, err := w.client.Del(ctx, w.key, transport.DelOptions{}); err != nil {
				left.Add(1)
			}
			return nil
		})
	}
	_ = tasks.Wait() // no task fails
	return int(left.Load())
}
