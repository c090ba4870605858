package bench_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// BenchmarkSpeed measures operations over one connection, with both of its ends in this
// process, against exchanges of messages by plain paho and plain mochi (op=Stock):
//
//	x-stock    how many times as fast as Stock, in the same seconds
//	B/op, allocs/op   of client and server together
//	x-wanted, allocs-wanted   what x-stock and allocs/op are meant to be, at least and at most
//
// Times of a shared machine differ from second to second by more than what is to be
// measured, so an operation and the echoes take turns of some 50 ms, and the ratios are
// medians over the turns. Only ratios should be quoted.
func BenchmarkSpeed(b *testing.B) {
	stock := newStock(dialStockBroker(b, startStockBroker(b, testsupport.Listen(b)).address))
	stock.bench(b, "Stock", row{run: stock.run}, 1, 16, 64, 256)
	ours := newSpeed(b)
	stock.bench(b, "Set", row{run: workers(ours.set), echoes: 1, wanted: wanted, allocations: wantedSetAllocations}, 1, 16, 64, 256)
	stock.bench(b, "GuardSet", row{run: workers(ours.guardSet(b)), echoes: 1}, 1, 16, 64, 256)
	stock.bench(b, "LeasePair", row{run: workers(ours.leasePair(b)), echoes: 2, wanted: wanted, allocations: wantedPairAllocations}, 1, 16, 64, 256)
}

// BenchmarkSpeedTLS is BenchmarkSpeed with all connections encrypted, also the connections of stock.
func BenchmarkSpeedTLS(b *testing.B) {
	ca := certificates.New(b, "authority")
	ofServer := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	ofClient := &tls.Config{RootCAs: ca.Pool}
	broker := startStockBroker(b, tls.NewListener(testsupport.Listen(b), ofServer))
	conn, err := tls.Dial("tcp", broker.address, ofClient)
	if err != nil {
		b.Fatal(err)
	}
	// paho v0.23.0 needs a connection with writes that are safe for concurrent use.
	stock := newStock(dialStock(b, packets.NewThreadSafeConn(conn)))
	stock.bench(b, "Stock", row{run: stock.run}, 1, 64)
	address := "mqtts://" + testsupport.Start(b, server.Options{TLS: ofServer})
	ours := &speed{client: dialSpeed(b, address, transport.TLSOptions{Config: ofClient})}
	stock.bench(b, "Set", row{run: workers(ours.set), echoes: 1}, 1, 64)
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
	return &speed{client: dialSpeed(t, startSpeed(t, server.Options{}), transport.TLSOptions{})}
}

func startSpeed(t testing.TB, options server.Options) (address string) {
	t.Helper()
	return "mqtt://" + testsupport.Start(t, options)
}

func dialSpeed(t testing.TB, address string, tls transport.TLSOptions) *transport.Client {
	t.Helper()
	client, err := transport.Dial(t.Context(), address, transport.Options{ClientID: speedClient, TLS: tls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
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
func (s *speed) leasePair(b testing.TB) func(context.Context, int) error {
	b.Helper()
	leases := make([]*lease.Lease, len(keys))
	for i := range leases {
		var err error
		if leases[i], err = lease.New(s.client, fmt.Sprintf("press-%03d/active", i), lease.Options{}); err != nil {
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

func newStock(client *stockClient) *stock { return &stock{workers(client.ask), make(map[int]int)} }

// row is a line of the table, but for the number in flight.
type row struct {
	run    lap
	echoes float64         // how many echoes an operation is compared with; 0: it is not compared
	wanted map[int]float64 // the x-stock to reach, by requests in flight
	// allocations is how often it may allocate, where x-stock has a target.
	allocations float64
}

// bench measures a row with each number in flight.
func (s *stock) bench(b *testing.B, operation string, r row, inFlights ...int) {
	stock := row{run: s.run}
	for _, inFlight := range inFlights {
		perTurn := 0
		b.Run(fmt.Sprintf("op=%s/inflight=%d", operation, inFlight), func(b *testing.B) {
			if perTurn == 0 { // once, not for each b.N that is tried
				perTurn = r.calibrate(b, inFlight, turn)
			}
			if r.echoes > 0 && s.turns[inFlight] == 0 {
				s.turns[inFlight] = stock.calibrate(b, inFlight, echoTurn)
			}
			s.measure(b, r, inFlight, perTurn)
		})
	}
}

// turn is how long an operation is measured before the echoes are, and echoTurn how long
// each of these.
const turn, echoTurn = 50 * time.Millisecond, 20 * time.Millisecond

// calibrate returns how many operations take about so long, and warms up on the way.
func (r row) calibrate(b *testing.B, inFlight int, long time.Duration) int {
	b.Helper()
	for operations := 4 * inFlight; ; operations *= 2 {
		if took := r.time(b, operations, inFlight); took >= long/2 {
			return max(int(float64(operations)*float64(long)/float64(took)), 4*inFlight)
		}
	}
}

// time starts the benchmark's timer for some operations, and returns how long they took.
// They begin after a garbage collection, so that none pays for the garbage of another.
func (r row) time(b *testing.B, operations, inFlight int) time.Duration {
	b.Helper()
	runtime.GC()
	b.StartTimer()
	began := time.Now()
	err := r.run(b.Context(), operations, inFlight)
	took := time.Since(began)
	b.StopTimer()
	if err != nil {
		b.Fatal(err)
	}
	return took
}

// measure performs b.N operations in turns. Before, between and after them the echoes
// have theirs, and each turn is compared with the mean of those around it.
func (s *stock) measure(b *testing.B, row row, inFlight, perTurn int) {
	echo := func() float64 {
		if row.echoes == 0 {
			return 0
		}
		runtime.GC()
		began := time.Now()
		if err := s.run(b.Context(), s.turns[inFlight], inFlight); err != nil {
			b.Fatal(err)
		}
		return row.echoes * float64(time.Since(began)) / float64(s.turns[inFlight])
	}
	b.ReportAllocs()
	b.StopTimer()
	b.ResetTimer()
	var ratios []float64
	before := echo()
	for left := b.N; left > 0; {
		operations := min(perTurn, left)
		left -= operations
		took := float64(row.time(b, operations, inFlight)) / float64(operations)
		after := echo()
		// The last turn may be too short to say anything.
		if operations > perTurn/2 || ratios == nil {
			ratios = append(ratios, (before+after)/2/took)
		}
		before = after
	}
	if row.echoes > 0 {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], "x-stock")
	}
	if wanted, ok := row.wanted[inFlight]; ok {
		b.ReportMetric(wanted, "x-wanted")
		b.ReportMetric(row.allocations, "allocs-wanted")
	}
}
