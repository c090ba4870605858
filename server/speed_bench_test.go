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
// process, against an exchange of the same messages by plain paho and plain mochi (op=Stock):
//
//	x-stock    how many times as fast as stock, in the same seconds
//	x-wanted   how many times as fast it is meant to be
//	B/op, allocs/op   of client and server together
//
// Times of a shared machine differ from second to second by more than what is to be
// measured, so an operation and the stock echo take turns of 50 ms, and x-stock is the
// median over the turns. Nothing else but x-stock should be quoted.
func BenchmarkSpeed(b *testing.B) {
	stock := newStock(b)
	b.Run("op=Stock", func(b *testing.B) { stock.each(b, row{run: stock.run}) })

	ours := newSpeed(b)
	raw := startRawEcho(b, ours.request, ours.answer)
	b.Run("op=Raw", func(b *testing.B) { stock.each(b, row{run: raw.lap, echoes: 1}) })
	b.Run("op=Set", func(b *testing.B) { stock.each(b, row{run: workers(ours.set), echoes: 1, wanted: wantedOfSet}) })
	b.Run("op=GuardSet", func(b *testing.B) { stock.each(b, row{run: workers(ours.guardSet(b)), echoes: 1}) })
	b.Run("op=LeasePair", func(b *testing.B) {
		stock.each(b, row{run: workers(ours.leasePair(b, lease.Options{})), echoes: 2, wanted: wantedOfSet})
	})
	b.Run("op=LeasePairNoWatch", func(b *testing.B) {
		stock.each(b, row{run: workers(ours.leasePair(b, lease.Options{NoWatch: true})), echoes: 2, wanted: wantedOfSet})
	})
}

// inFlights is how many requests are under way at once.
var inFlights = []int{1, 16, 64, 256}

// wantedOfSet is how many times as fast as stock a Set is meant to be, by requests in flight.
var wantedOfSet = map[int]float64{1: 2, 64: 4}

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
type speed struct {
	client          *transport.Client
	request, answer int // bytes of a Set on the wire
}

func newSpeed(b *testing.B) *speed {
	b.Helper()
	var wire meter
	address := startMetered(b, &wire)
	metered := &speed{client: dialSpeed(b, address)}
	request, answer, err := wire.perOperation(b.Context(), workers(metered.set))
	if err != nil {
		b.Fatal(err)
	}
	return &speed{client: dialSpeed(b, start(b, server.Options{})), request: request, answer: answer}
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

// stock is what everything is compared with.
type stock struct {
	run   lap
	turns map[int]int // operations in a turn, by those in flight
}

func newStock(b *testing.B) *stock {
	b.Helper()
	return stockOf(dialStockBroker(b, startStockBroker(b, nil).address))
}

func stockOf(client *stockClient) *stock {
	return &stock{run: workers(client.ask), turns: make(map[int]int)}
}

// row is a line of the table, but for the number in flight.
type row struct {
	run    lap
	echoes float64         // how many stock echoes an operation is compared with; 0: none
	wanted map[int]float64 // the x-stock to reach, by requests in flight
}

// each measures a row with each number in flight.
func (s *stock) each(b *testing.B, row row) {
	for _, inFlight := range inFlights {
		ours := 0 // operations in a turn
		b.Run(fmt.Sprint("inflight=", inFlight), func(b *testing.B) {
			if ours == 0 {
				ours = calibrate(b, row.run, inFlight)
			}
			if s.turns[inFlight] == 0 {
				s.turns[inFlight] = calibrate(b, s.run, inFlight)
			}
			s.measure(b, row, inFlight, ours)
		})
	}
}

// turn is how long one side is measured before it is the other's turn.
const turn = 50 * time.Millisecond

// calibrate returns how many operations take about one turn, and warms up on the way.
func calibrate(b *testing.B, run lap, inFlight int) int {
	b.Helper()
	for operations := 4 * inFlight; ; operations *= 2 {
		took := timeOf(b, run, operations, inFlight)
		if took >= turn/4 {
			return max(int(float64(operations)*float64(turn)/float64(took)), 4*inFlight)
		}
	}
}

// timeOf starts without garbage, so that neither side pays for what the other left.
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

// measure performs b.N operations in turns, with one of stock before, between and after.
func (s *stock) measure(b *testing.B, row row, inFlight, perTurn int) {
	stockTurn := func() float64 {
		if row.echoes == 0 {
			return 0
		}
		operations := s.turns[inFlight]
		return row.echoes * float64(timeOf(b, s.run, operations, inFlight)) / float64(operations)
	}
	b.ReportAllocs()
	b.StopTimer()
	b.ResetTimer()
	var ratios []float64
	before := stockTurn()
	for left := b.N; left > 0; {
		operations := min(perTurn, left)
		left -= operations
		runtime.GC()
		b.StartTimer()
		began := time.Now()
		err := row.run(b.Context(), operations, inFlight)
		took := time.Since(began)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		after := stockTurn()
		// The last turn may be too short to say anything.
		if operations > perTurn/2 || ratios == nil {
			ratios = append(ratios, (before+after)/2*float64(operations)/float64(took))
		}
		before = after
	}
	if row.echoes == 0 {
		return
	}
	b.ReportMetric(median(ratios), "x-stock")
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
