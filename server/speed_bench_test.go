package server_test

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
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkSpeed measures operations over one connection, with both of its ends in this
// process, against exchanges of messages by plain paho and plain mochi (op=Stock, and
// op=StockAlike with all the properties that a SET has):
//
//	x-stock    how many times as fast as Stock, in the same seconds
//	x-alike    how many times as fast as StockAlike
//	x-wanted   the x-stock that it is meant to have
//	B/op, allocs/op   of client and server together
//
// Times of a shared machine differ from second to second by more than what is to be
// measured, so an operation and the echoes take turns of some 50 ms, and the ratios are
// medians over the turns. Only ratios should be quoted.
func BenchmarkSpeed(b *testing.B) {
	echo := dialStockBroker(b, startStockBroker(b, nil).address)
	stock := echoes(echo)
	stock.bench(b, "Stock", row{run: workers(echo.ask)})
	stock.bench(b, "StockAlike", row{run: workers(echo.askAlike), echoes: 1})

	ours := newSpeed(b)
	stock.bench(b, "Raw", row{run: ours.raw(b).lap, echoes: 1})
	stock.bench(b, "Set", row{run: workers(ours.set), echoes: 1, wanted: wanted})
	stock.bench(b, "GuardSet", row{run: workers(ours.guardSet(b)), echoes: 1})
	stock.bench(b, "LeasePair", row{run: workers(ours.leasePair(b, lease.Options{})), echoes: 2, wanted: wanted})
	stock.bench(b, "LeasePairNoWatch", row{run: workers(ours.leasePair(b, lease.Options{NoWatch: true})), echoes: 2, wanted: wanted})
}

// inFlights is how many requests are under way at once.
var inFlights = []int{1, 16, 64, 256}

// wanted is how many times as fast as stock an operation is meant to be, by requests in
// flight.
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
		failures := make([]error, inFlight)
		var working sync.WaitGroup
		for i := range min(inFlight, operations) {
			working.Go(func() {
				for failures[i] == nil && left.Add(-1) >= 0 {
					failures[i] = operation(ctx, i)
				}
			})
		}
		working.Wait()
		return errors.Join(failures...)
	}
}

// speed is our side: one client of one server.
type speed struct{ client *transport.Client }

func newSpeed(b *testing.B) *speed {
	b.Helper()
	return &speed{client: dialSpeed(b, start(b, server.Options{}))}
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
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	s.WrapListener(wire.wrap)
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(ctx); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	return s.Addr().String()
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

// guardSet writes in the name of a tenure, whose renewals go on meanwhile.
func (s *speed) guardSet(b *testing.B) func(context.Context, int) error {
	b.Helper()
	l, err := lease.New(s.client, "press-7/active", lease.Options{})
	if err != nil {
		b.Fatal(err)
	}
	tenure, err := l.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := tenure.Release(context.Background()); err != nil {
			b.Error(err)
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
	run    lap
	echoes float64         // how many echoes an operation is compared with; 0: it is not compared
	wanted map[int]float64 // the x-stock to reach, by requests in flight
}

// bench measures a row with each number in flight.
func (r references) bench(b *testing.B, operation string, row row) {
	for _, inFlight := range inFlights {
		perTurn := 0
		b.Run(fmt.Sprintf("op=%s/inflight=%d", operation, inFlight), func(b *testing.B) {
			if perTurn == 0 { // once, not for each b.N that is tried
				perTurn = calibrate(b, row.run, inFlight, turn)
				for _, reference := range r {
					if reference.turns[inFlight] == 0 {
						reference.turns[inFlight] = calibrate(b, reference.run, inFlight, turn/2)
					}
				}
			}
			r.measure(b, row, inFlight, perTurn)
		})
	}
}

// turn is how long an operation is measured before the echoes are, for half as long each.
const turn = 50 * time.Millisecond

// calibrate returns how many operations take about so long, and warms up on the way.
func calibrate(b *testing.B, run lap, inFlight int, long time.Duration) int {
	b.Helper()
	for operations := 4 * inFlight; ; operations *= 2 {
		if took := timeOf(b, run, operations, inFlight); took >= long/2 {
			return max(int(float64(operations)*float64(long)/float64(took)), 4*inFlight)
		}
	}
}

// timeOf begins without garbage, so that nobody pays for what another left.
func timeOf(b *testing.B, run lap, operations, inFlight int) time.Duration {
	b.Helper()
	runtime.GC()
	began := time.Now()
	err := run(b.Context(), operations, inFlight)
	took := time.Since(began)
	if err != nil {
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
			times[i] = row.echoes * float64(timeOf(b, reference.run, operations, inFlight)) / float64(operations)
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
		runtime.GC()
		b.StartTimer()
		began := time.Now()
		err := row.run(b.Context(), operations, inFlight)
		took := float64(time.Since(began)) / float64(operations)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
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
