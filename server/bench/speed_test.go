package bench_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
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
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

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
	pair := ours.leasePair(b, lease.Options{})
	stock.bench(b, "LeasePair", row{run: workers(pair), echoes: 2, wanted: wanted, allocations: wantedPairAllocations}, 1, 16, 64, 256)
	for name, noWatch := range map[string]bool{"Renewal": false, "RenewalNoWatch": true} {
		renewals := newRenewals(b, lease.Options{NoWatch: noWatch})
		stock.bench(b, name, row{begin: renewals.begin, run: renewals.lap, echoes: 1}, heldLeases)
	}
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
func (s *speed) leasePair(b testing.TB, options lease.Options) func(context.Context, int) error {
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
	r.client = dialSpeed(b, startSpeed(b, server.Options{
		Authorizer: r,
		// The Receive Maximum, so that the leases do not wait for each other. paho v0.23.0
		// also prints to standard output when such a wait is cancelled.
		Store: statestore.Options{DedupWindow: 2 * heldLeases},
	}), transport.TLSOptions{})
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

// stock is what everything is compared with.
type stock struct {
	run   lap
	turns map[int]int // operations in a turn, by those in flight
}

func newStock(client *stockClient) *stock { return &stock{workers(client.ask), make(map[int]int)} }

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
func (s *stock) bench(b *testing.B, operation string, row row, inFlights ...int) {
	for _, inFlight := range inFlights {
		perTurn := 0
		b.Run(fmt.Sprintf("op=%s/inflight=%d", operation, inFlight), func(b *testing.B) {
			if perTurn == 0 { // once, not for each b.N that is tried
				perTurn = calibrate(b, row, inFlight, turn)
			}
			if row.echoes > 0 && s.turns[inFlight] == 0 {
				s.turns[inFlight] = calibrate(b, rowOf(s.run), inFlight, echoTurn)
			}
			s.measure(b, row, inFlight, perTurn)
		})
	}
}

func rowOf(run lap) row { return row{run: run} }

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
