package bench_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkSpeed measures operations over one connection, with both of its ends in this
// process, against exchanges of messages by plain paho and plain mochi (op=Stock, and
// op=StockAlike with all the properties that a SET has):
//
//	x-stock    how many times as fast as Stock, in the same seconds
//	x-alike    how many times as fast as StockAlike
//	B/op, allocs/op   of client and server together
//	x-wanted, allocs-wanted   what x-stock and allocs/op are meant to be, at least and at most
//
// Times of a shared machine differ from second to second by more than what is to be
// measured, so an operation and the echoes take turns of some 50 ms, and the ratios are
// medians over the turns. Only ratios should be quoted.
func BenchmarkSpeed(b *testing.B) {
	echo := dialStockBroker(b, startStockBroker(b, nil).address)
	stock := echoes(echo)
	stock.bench(b, "Stock", row{run: workers(echo.ask)}, 1, 16, 64, 256)
	stock.bench(b, "StockAlike", row{run: workers(echo.askAlike), echoes: 1}, 1, 16, 64, 256)

	ours := newSpeed(b)
	stock.bench(b, "Raw", row{run: ours.raw(b).lap, echoes: 1}, 1, 16, 64, 256)
	stock.bench(b, "Set", row{run: workers(ours.set), echoes: 1, wanted: wanted, allocations: wantedSetAllocations}, 1, 16, 64, 256)
	stock.bench(b, "GuardSet", row{run: workers(ours.guardSet(b)), echoes: 1}, 1, 16, 64, 256)
	pair, bare := ours.leasePair(b, lease.Options{}), ours.leasePair(b, lease.Options{NoWatch: true})
	stock.bench(b, "LeasePair", row{run: workers(pair), echoes: 2, wanted: wanted, allocations: wantedPairAllocations}, 1, 16, 64, 256)
	stock.bench(b, "LeasePairNoWatch", row{run: workers(bare), echoes: 2, wanted: wanted, allocations: wantedPairAllocations}, 1, 64)
	for _, renewal := range []struct {
		name    string
		noWatch bool
	}{{"Renewal", false}, {"RenewalNoWatch", true}} {
		renewals := newRenewals(b, lease.Options{NoWatch: renewal.noWatch})
		stock.bench(b, renewal.name, row{begin: renewals.begin, run: renewals.lap, echoes: 1}, heldLeases)
	}
}

// BenchmarkAlone is for profiles: operations of ours, and no echoes between them.
func BenchmarkAlone(b *testing.B) {
	ours := newSpeed(b)
	references{}.bench(b, "Set", row{run: workers(ours.set)}, 1, 64)
	references{}.bench(b, "LeasePair", row{run: workers(ours.leasePair(b, lease.Options{}))}, 1, 64)
}

// wanted is the target for x-stock, by requests in flight.
var wanted = map[int]float64{1: 2, 64: 4}

// lap performs a number of operations, so many at a time, and fails if one does.
type lap func(ctx context.Context, operations, inFlight int) error

// workers makes a lap of an operation: as many goroutines as may be in flight call it.
func workers(operation func(ctx context.Context, worker int) error) lap {
	return func(ctx context.Context, operations, inFlight int) error {
		if inFlight == 1 {
			for range operations {
				if err := operation(ctx, 0); err != nil {
					return err
				}
			}
			return nil
		}
		var left atomic.Int64
		left.Store(int64(operations))
		failed := make(chan error, inFlight)
		var working sync.WaitGroup
		for i := range min(inFlight, operations) {
			working.Go(func() {
				for left.Add(-1) >= 0 {
					if err := operation(ctx, i); err != nil {
						left.Store(0)
						failed <- err
						return
					}
				}
			})
		}
		await.Done(working.Wait)
		close(failed)
		return await.Receive(failed) // of several, one will do
	}
}

// speed is our side: one client of one server.
type speed struct{ client *transport.Client }

func newSpeed(t testing.TB) *speed {
	t.Helper()
	return &speed{client: dialSpeed(t, testsupport.Start(t, server.Options{}))}
}

// raw exchanges what a Set does.
func (s *speed) raw(b *testing.B) *rawEcho {
	b.Helper()
	var wire meter
	metered := &speed{client: dialSpeed(b, startMetered(b, &wire))}
	request, answer := wire.perOperation(b, metered.set)
	return startRawEcho(b, request, answer)
}

func dialSpeed(t testing.TB, address string) *transport.Client {
	t.Helper()
	client, err := transport.Dial(t.Context(), "mqtt://"+address, transport.Options{ClientID: speedClient})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// startMetered runs a server behind a meter, until the benchmark ends.
func startMetered(t testing.TB, wire *meter) (address string) {
	t.Helper()
	return testsupport.Start(t, server.Options{Listener: wire.wrap(testsupport.Listen(t))})
}

// keys are made ahead: naming them is not the library's work.
var keys = func() (keys [256]string) {
	for i := range keys {
		keys[i] = fmt.Sprintf("press-7/setpoint-%03d", i)
	}
	return keys
}()

func (s *speed) set(ctx context.Context, worker int) error {
	_, err := s.client.Set(ctx, keys[worker], []byte(speedValue), transport.SetOptions{})
	return err
}

// guardSet writes with the token of a tenure that is renewed meanwhile.
func (s *speed) guardSet(t testing.TB) func(context.Context, int) error {
	t.Helper()
	l, err := lease.New(s.client, "press-7/active", lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tenure.Release(context.Background()); err != nil {
			t.Error(err)
		}
	})
	guard := fencing.NewGuard(s.client, tenure)
	return func(ctx context.Context, worker int) error {
		_, err := guard.Set(ctx, keys[worker], []byte(speedValue))
		return err
	}
}

// leasePair acquires a lease and releases it; each worker has its own.
func (s *speed) leasePair(b *testing.B, options lease.Options) func(context.Context, int) error {
	b.Helper()
	leases := make([]*lease.Lease, len(keys))
	for i := range leases {
		var err error
		if leases[i], err = lease.New(s.client, fmt.Sprintf("press-%03d/active", i), options); err != nil {
			b.Fatal(err)
		}
	}
	return func(ctx context.Context, worker int) error {
		tenure, err := leases[worker].TryAcquire(ctx)
		if err != nil {
			return err
		}
		return tenure.Release(ctx)
	}
}

// heldLeases is the number of leases of the client that measures renewals.
const heldLeases = 1000

// renewals holds leases over one connection and lets all of them renew as often as the
// connection carries: each has at most one renewal under way, and begins the next a
// millisecond after the last. Apart from that they are ordinary tenures.
type renewals struct {
	client *transport.Client
	leases []*lease.Lease

	count, target atomic.Int64 // SETs that came to the server, and when to say so
	reached       chan struct{}

	watched bool         // the leases follow their keys
	reads   atomic.Int64 // GETs that came to the server: the last of what that takes
}

func newRenewals(b *testing.B, options lease.Options) *renewals {
	b.Helper()
	options.RenewEvery = time.Millisecond
	r := &renewals{leases: make([]*lease.Lease, heldLeases), reached: make(chan struct{}, 1), watched: !options.NoWatch}
	r.client = dialSpeed(b, testsupport.Start(b, server.Options{
		Authorizer: r,
		// The Receive Maximum, so that the leases do not wait for each other. paho v0.23.0
		// also prints to standard output when such a wait is cancelled.
		Store: statestore.Options{DedupWindow: 2 * heldLeases},
	}))
	for i := range r.leases {
		var err error
		if r.leases[i], err = lease.New(r.client, fmt.Sprintf("press-%04d/active", i), options); err != nil {
			b.Fatal(err)
		}
	}
	return r
}

// Authorize counts the requests that arrive at the server.
func (r *renewals) Authorize(_ access.Identity, verb statestore.Verb, _ string) bool {
	switch {
	case verb == statestore.VerbGet:
		r.reads.Add(1)
	case verb == statestore.VerbSet && r.count.Add(1) == r.target.Load():
		r.reached <- struct{}{}
	}
	return true
}

// begin acquires the leases, and returns when they follow their keys; end makes sure that they were held all the time.
func (r *renewals) begin(ctx context.Context) (end func() error, err error) {
	tenures := make([]*lease.Tenure, len(r.leases))
	failures := make([]error, len(r.leases))
	each := func(do func(i int) error) error {
		var working sync.WaitGroup
		for i := range r.leases {
			working.Go(func() { failures[i] = do(i) })
		}
		await.Done(working.Wait)
		return errors.Join(failures...)
	}
	before := r.reads.Load()
	err = each(func(i int) (err error) {
		tenures[i], err = r.leases[i].TryAcquire(ctx)
		return err
	})
	for deadline := time.Now().Add(testsupport.Patience); r.watched && r.reads.Load() < before+heldLeases; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			err = errors.Join(err, errors.New("the leases do not follow their keys"))
			break
		}
	}
	return func() error {
		return each(func(i int) error { return errors.Join(context.Cause(tenures[i].Context()), tenures[i].Release(ctx)) })
	}, err
}

// lap waits until so many renewals came.
func (r *renewals) lap(ctx context.Context, operations, _ int) error {
	r.target.Store(r.count.Load() + int64(operations))
	select {
	case <-r.reached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(testsupport.Patience):
		return errors.New("the leases are not renewed")
	}
}

// references are what everything is compared with.
type references []*reference

type reference struct {
	unit  string // of the ratio
	run   lap
	turns map[int]int // operations in a turn, by those in flight
}

func echoes(client *stockClient) references {
	return references{
		{"x-stock", workers(client.ask), make(map[int]int)},
		{"x-alike", workers(client.askAlike), make(map[int]int)},
	}
}

// row is a line of the table, but for the number in flight.
type row struct {
	begin  func(context.Context) (end func() error, err error) // not timed; may be nil
	run    lap
	echoes float64         // how many echoes an operation is compared with; 0: it is not compared
	wanted map[int]float64 // the x-stock to reach, by requests in flight
	// allocations is how often it may allocate, where x-stock has a target.
	allocations float64
}

// bench measures a row with each number in flight.
func (r references) bench(b *testing.B, operation string, row row, inFlights ...int) {
	for _, inFlight := range inFlights {
		perTurn := 0
		b.Run(fmt.Sprintf("op=%s/inflight=%d", operation, inFlight), func(b *testing.B) {
			if perTurn == 0 { // once, not for each b.N that is tried
				perTurn = calibrate(b, row, inFlight, turn)
			}
			for _, reference := range r {
				if row.echoes > 0 && reference.turns[inFlight] == 0 {
					reference.turns[inFlight] = calibrate(b, reference.row(), inFlight, echoTurn)
				}
			}
			r.measure(b, row, inFlight, perTurn)
		})
	}
}

func (r *reference) row() row { return row{run: r.run} }

// turn is how long an operation is measured before the echoes are, and echoTurn how long
// each of these.
const turn, echoTurn = 50 * time.Millisecond, 20 * time.Millisecond

// calibrate returns how many operations take about so long, and warms up on the way.
func calibrate(b *testing.B, row row, inFlight int, long time.Duration) int {
	b.Helper()
	for operations := 4 * inFlight; ; operations *= 2 {
		if took := row.time(b, operations, inFlight); took >= long/2 {
			return max(int(float64(operations)*float64(long)/float64(took)), 4*inFlight)
		}
	}
}

// time starts the benchmark's timer for some operations, and returns how long they took.
// They begin after a garbage collection, so that none pays for the garbage of another.
func (r row) time(b *testing.B, operations, inFlight int) time.Duration {
	b.Helper()
	end := func() error { return nil }
	if r.begin != nil {
		var err error
		if end, err = r.begin(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	b.StartTimer()
	began := time.Now()
	err := r.run(b.Context(), operations, inFlight)
	took := time.Since(began)
	b.StopTimer()
	if err := errors.Join(err, end()); err != nil {
		b.Fatal(err)
	}
	return took
}

// measure performs b.N operations in turns. Before, between and after them the references
// have theirs, and each turn is compared with the mean of those around it.
func (r references) measure(b *testing.B, row row, inFlight, perTurn int) {
	if row.echoes == 0 {
		r = nil
	}
	turns := func() []float64 {
		times := make([]float64, len(r))
		for i, reference := range r {
			operations := reference.turns[inFlight]
			runtime.GC()
			began, err := time.Now(), reference.run(b.Context(), operations, inFlight)
			if err != nil {
				b.Fatal(err)
			}
			times[i] = row.echoes * float64(time.Since(began)) / float64(operations)
		}
		return times
	}
	b.ReportAllocs()
	b.StopTimer()
	b.ResetTimer()
	ratios := make([][]float64, len(r))
	before := turns()
	for left := b.N; left > 0; {
		operations := min(perTurn, left)
		left -= operations
		took := float64(row.time(b, operations, inFlight)) / float64(operations)
		after := turns()
		for i := range r {
			// The last turn may be too short to say anything.
			if operations > perTurn/2 || ratios[i] == nil {
				ratios[i] = append(ratios[i], (before[i]+after[i])/2/took)
			}
		}
		before = after
	}
	for i, reference := range r {
		b.ReportMetric(median(ratios[i]), reference.unit)
	}
	if wanted, ok := row.wanted[inFlight]; ok {
		b.ReportMetric(wanted, "x-wanted")
		b.ReportMetric(row.allocations, "allocs-wanted")
	}
}

func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}
