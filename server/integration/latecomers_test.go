package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// slowNetwork is the network of one client. Each message takes a time. It can be made to keep the CONNECT of the next
// connection, and to deliver it when the client has given that connection up.
type slowNetwork struct {
	server  *servertest.Server
	client  *transport.Client
	latency time.Duration
	tasks   sync.WaitGroup

	mu      sync.Mutex
	present net.Conn // the client's end
	keep    func() (deliver func(connect []byte))
}

// delayed is a connection over which each write takes a time.
type delayed struct {
	net.Conn
	writes chan delivery
	open   context.Context // ends with Close
	end    context.CancelFunc
}

type delivery struct {
	at   time.Time
	data []byte
}

func (d *delayed) Write(data []byte) (int, error) {
	select {
	case d.writes <- delivery{time.Now(), append([]byte(nil), data...)}:
		return len(data), nil
	case <-d.open.Done():
		return 0, net.ErrClosed
	}
}

func (d *delayed) Close() error {
	d.end()
	return d.Conn.Close()
}

func (d *delayed) deliver(latency time.Duration) {
	for {
		select {
		case next := <-d.writes:
			time.Sleep(time.Until(next.at.Add(latency)))
			if _, err := d.Conn.Write(next.data); err != nil {
				return
			}
		case <-d.open.Done():
			return
		}
	}
}

func (w *slowNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if keep := w.keep; keep != nil {
		w.keep = nil
		deliver := keep()
		near, far := net.Pipe()
		w.tasks.Go(func() {
			connect := make([]byte, 4096)
			n, _ := far.Read(connect)
			deliver(connect[:n])
			_ = far.Close()
		})
		return near, nil
	}
	conn, err := w.server.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	slow := &delayed{Conn: conn, writes: make(chan delivery, 1000)}
	slow.open, slow.end = context.WithCancel(context.Background())
	w.tasks.Go(func() { slow.deliver(w.latency) })
	w.present = slow
	return slow, nil
}

// loseWithStaleConnect ends the connection. The CONNECT of the next one reaches the server after a time: over
// a connection that the server has accepted at once, as from the backlog of a frozen process, or only then,
// as from a proxy.
func (w *slowNetwork) loseWithStaleConnect(after time.Duration, acceptedAtOnce bool) {
	open := func() net.Conn {
		conn, err := w.server.DialContext(context.Background(), "", "")
		if err != nil {
			return nil
		}
		return conn
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep = func() func([]byte) {
		var conn net.Conn
		if acceptedAtOnce {
			conn = open()
		}
		return func(connect []byte) {
			time.Sleep(after)
			if conn == nil {
				conn = open()
			}
			if conn == nil {
				return
			}
			_, _ = conn.Write(connect)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, _ = conn.Read(make([]byte, 4096)) // the CONNACK
			_ = conn.Close()
		}
	}
	_ = w.present.Close()
}

// The faults that package internal/simulation does not have, because it has no CONNECT and no Receive Maximum:
// five minutes of virtual time, in which two nodes contend for a lease while each writes all the time.
func TestNodesHoldTheirLeaseUnderStaleConnectsAndSmallReceiveMaximums(t *testing.T) {
	if testsupport.UnderRace {
		t.Skip("Go 1.26.8: so many timers of one bubble crash the race detector now and then")
	}
	t.Parallel()
	for i, receiveMaximum := range []int{1, 4, 7} {
		for _, stale := range []bool{false, true} {
			t.Run(fmt.Sprintf("Receive Maximum %d, stale CONNECTs %t", receiveMaximum, stale), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { fiveMinutes(t, receiveMaximum, stale, rand.New(rand.NewPCG(uint64(i), 1))) })
			})
		}
	}
}

func fiveMinutes(t *testing.T, receiveMaximum int, stale bool, random *rand.Rand) {
	const ttl, writers, lasts = 10 * time.Second, 20, 5 * time.Minute
	s := servertest.NewWithOptions(t, servertest.Options{InMemory: true,
		Server: server.Options{Store: statestore.Options{DedupWindow: receiveMaximum}}})
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var work sync.WaitGroup
	var holders, tenures, writes atomic.Int64
	networks := make([]*slowNetwork, 2)
	for i := range networks {
		w := &slowNetwork{server: s, latency: 50 * time.Millisecond}
		networks[i] = w
		// With two addresses an attempt is given up after a second.
		client, err := transport.Dial(ctx, "mqtt://a,mqtt://b", transport.Options{ClientID: fmt.Sprint("node-", i), Dialer: w.dial})
		if err != nil {
			t.Fatal(err)
		}
		w.client = client
		l, err := lease.New(client, "press-7/active", lease.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		for range writers {
			work.Go(func() {
				for ctx.Err() == nil {
					switch _, err := client.Set(ctx, "k", nil, transport.SetOptions{}); {
					case err == nil:
						writes.Add(1)
					case errors.Is(err, transport.ErrSessionTakenOver):
						return // which the acquisition reports
					}
				}
			})
		}
		work.Go(func() {
			for sleep.For(ctx, time.Second) {
				tenure, err := l.Acquire(ctx)
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("node %d: %v", i, err)
					}
					continue
				}
				tenures.Add(1)
				if holders.Add(1) > 1 {
					t.Error("two nodes hold the lease")
				}
				select {
				case <-ctx.Done():
				case <-tenure.Context().Done():
					t.Errorf("node %d: its tenure ended: %v", i, context.Cause(tenure.Context()))
				case <-time.After(3 * ttl):
				}
				holders.Add(-1)
				_ = tenure.Release(context.WithoutCancel(ctx))
			}
		})
	}
	for stale && sleep.For(ctx, 20*time.Second+time.Duration(random.Int64N(int64(10*time.Second)))) {
		networks[random.IntN(len(networks))].loseWithStaleConnect(1500*time.Millisecond+time.Duration(random.Int64N(int64(10*time.Second))), random.IntN(2) == 0)
	}
	await.Done(work.Wait)
	for _, w := range networks {
		_ = w.client.Close()
		await.Done(w.tasks.Wait)
	}
	if tenures.Load() < 5 || writes.Load() < 1000 {
		t.Errorf("only %d tenures and %d writes", tenures.Load(), writes.Load())
	}
}
