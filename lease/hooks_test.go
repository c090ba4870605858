package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// gate is a function of the program that does not return while the gate is shut.
type gate struct {
	shut    atomic.Bool
	reached chan struct{} // closed when a call met the shut gate
	opened  chan struct{}
	once    sync.Once
}

// newGate returns a gate that is open, and that opens at the end of the test.
func newGate(t *testing.T) *gate {
	g := &gate{reached: make(chan struct{}), opened: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *gate) open() {
	if g.shut.Swap(false) {
		close(g.opened)
	}
}

func (g *gate) pass() {
	if g.shut.Load() {
		g.once.Do(func() { close(g.reached) })
		await.Receive(g.opened)
	}
}

// blockingHandler is a slog.Handler that waits at a gate before each record of at least level.
type blockingHandler struct {
	slog.Handler
	gate  *gate
	level slog.Level
}

func (h blockingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h blockingHandler) Handle(_ context.Context, record slog.Record) error {
	if record.Level >= h.level {
		h.gate.pass()
	}
	return nil
}
func (h blockingHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (g *gate) logger(level slog.Level) *slog.Logger {
	return slog.New(blockingHandler{slog.DiscardHandler, g, level})
}

// deafConn is a connection of a program that does not end a request with its context.
type deafConn struct {
	*transporttest.Conn
	gate *gate
}

func (c deafConn) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	if bytes.Contains(request.Payload, []byte("\r\nSET\r\n")) {
		c.gate.pass()
	}
	return c.Conn.RoundTrip(ctx, request)
}

// hooked has functions of a program that wait at a gate, and that note their names before.
type hooked struct {
	*gate
	traced
}

func (h *hooked) call(name string) {
	h.pass()
	h.add("%s", name)
}

func (h *hooked) options() (lease.Options, transport.ClientOptions) {
	with := func(name string) func(context.Context, lease.TraceInfo) {
		return func(context.Context, lease.TraceInfo) { h.call(name) }
	}
	without := func(name string) func(lease.TraceInfo) { return func(lease.TraceInfo) { h.call(name) } }
	return lease.Options{
			Logger: h.logger(slog.LevelInfo),
			Trace: &lease.Trace{
				Attempt: with("Attempt"), Acquired: with("Acquired"), Renewed: without("Renewed"),
				RenewalFailed: without("RenewalFailed"), Ended: without("Ended"), Refused: with("Refused"),
			},
		}, transport.ClientOptions{Trace: &transport.Trace{
			Request: func(context.Context, transport.RequestInfo) { h.call("Request") },
		}}
}

// Invariants 8 and 45: while a function of the program blocks, leases are acquired, renewed, lost in time and
// released as if there were none. All calls come later, in order.
func TestInvariant8AFunctionThatBlocksDelaysNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		h := &hooked{gate: newGate(t)}
		h.shut.Store(true)
		options, clientOptions := h.options()
		client, conn := store.Client(t, "node-a", clientOptions)
		t.Cleanup(h.open)
		options.TTL = ttl
		l, err := lease.New(client, name, options)
		if err != nil {
			t.Fatal(err)
		}
		n, other := node{Lease: l, client: client, conn: conn}, newNode(t, store, "node-b", lease.Options{})

		n.conn.Cut() // so that Acquire waits
		time.AfterFunc(ttl, n.conn.Restore)
		began := time.Now()
		tenure := n.mustAcquire(t)
		if waited := time.Since(began); waited > 2*ttl {
			t.Errorf("Acquire took %v", waited)
		}
		n.scripted("SET", func(number int64) transporttest.Fault { return transporttest.Fault{LoseReply: number%2 == 0} })
		time.Sleep(5 * ttl)
		if context.Cause(tenure.Context()) != nil || tenure.Remaining() < ttl/3 {
			t.Errorf("after five TTLs: %v", tenure)
		}
		tenure.NoteRefusal(t.Context(), "set", "k", true, errors.New("why"))
		acquired := acquireInBackground(t.Context(), t, other)
		synctest.Wait()
		began = time.Now()
		if err := tenure.Release(t.Context()); err != nil {
			t.Error(err)
		}
		next := await.Receive(acquired)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the release and the next holder took %v", waited)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}

		n.scripted("SET", harmless)
		tenure = n.mustAcquire(t)
		n.scripted("SET", always(transporttest.Fault{LoseReply: true}))
		await.Receive(tenure.Context().Done())
		if left := tenure.Remaining(); left > ttl/10 || left < ttl/10-time.Millisecond {
			t.Errorf("when the context ends %v remain, want GracePeriod %v", left, ttl/10)
		}
		await.Receive(tenure.TokenContext().Done())
		if got := h.all(); len(got) > 0 {
			t.Errorf("%v were called while the gate was shut", got)
		}
		h.open()
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		got := h.all()
		for _, name := range []string{"Request", "Attempt", "Acquired", "Renewed", "RenewalFailed", "Ended", "Refused"} {
			if !slices.Contains(got, name) {
				t.Errorf("%s was not called, of %v", name, got)
			}
		}
		got = slices.DeleteFunc(got, func(name string) bool { return name != "Acquired" && name != "Refused" && name != "Ended" })
		if want := []string{"Acquired", "Refused", "Ended", "Acquired", "Ended"}; !slices.Equal(got, want) {
			t.Errorf("called in the order %v, want %v", got, want)
		}
	})
}

// A holder that learns of the end of its tenure late acts beside the next holder.
func TestInvariant8ATenureEndsInTimeWhateverItsConnDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		g := newGate(t)
		conn := store.Connect("node-a")
		client, err := transport.NewClient(deafConn{conn, g}, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.open(); _ = client.Close() })
		l, err := lease.New(client, name, lease.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		first, second := node{Lease: l, client: client, conn: conn}, newNode(t, store, "node-b", lease.Options{})
		tenure := first.mustAcquire(t)
		time.Sleep(ttl/4 + time.Millisecond) // renewed, so that no other look at the clock is due with the end
		g.shut.Store(true)
		await.Receive(g.reached)
		blocked := time.Now()

		await.Receive(tenure.Context().Done())
		if !errors.Is(context.Cause(tenure.Context()), lease.ErrDeadlinePassed) {
			t.Errorf("the context ended with %v, want ErrDeadlinePassed", context.Cause(tenure.Context()))
		}
		if left := tenure.Remaining(); left > ttl/10 || left < ttl/10-time.Millisecond {
			t.Errorf("when the context ends %v remain, want GracePeriod %v", left, ttl/10)
		}
		await.Receive(tenure.TokenContext().Done())
		if after := time.Since(blocked); after > ttl {
			t.Errorf("the tenure lasted %v with a request that does not end", after)
		}
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token: %v, want ErrDeadlinePassed", err)
		}
		next := second.mustAcquire(t)
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		// Release is bounded by its context, and its error says what is left at the store.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tenure.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want the end of its context", err)
		}
		g.open()
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("Release after the request ended: %v", err)
		}
	})
}

// The broker may have released the lease when the connection ended, and a store that replaced another one does not
// know it.
func TestInvariant8ATenureEndsWithItsConnectionWhateverAFunctionOfTheProgramDoes(t *testing.T) {
	cut := func(n node, _ *transporttest.Store) { n.conn.Cut() }
	closes := func(n node, _ *transporttest.Store) { go n.client.Close() }
	for _, test := range []struct {
		name    string
		options func(*gate) (lease.Options, transport.ClientOptions)
		instant bool
		end     func(node, *transporttest.Store)
		want    error
	}{
		{"Trace.Renewed", blockedRenewed, false, cut, lease.ErrConnectionLost},
		{"Trace.Renewed, instant failover", blockedRenewed, true, cut, lease.ErrConnectionLost},
		{"Trace.Request of the client", blockedRequest, false, cut, lease.ErrConnectionLost},
		{"Trace.Request of the client, instant failover", blockedRequest, true, cut, lease.ErrConnectionLost},
		{"Trace.Request of the client, and it is closed", blockedRequest, false, closes, transport.ErrClosed},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				g := newGate(t)
				options, clientOptions := test.options(g)
				options.TTL, options.EndOnDisconnect, options.InstantFailover, options.NoWatch = ttl, true, test.instant, true
				client, conn := store.Client(t, "node-a", clientOptions)
				l, err := lease.New(client, name, options)
				if err != nil {
					t.Fatal(err)
				}
				n := node{Lease: l, client: client, conn: conn}
				t.Cleanup(g.open)
				tenure := n.mustAcquire(t)
				g.shut.Store(true)
				await.Receive(g.reached)
				lost := time.Now()
				test.end(n, store)
				await.Receive(tenure.TokenContext().Done())
				await.Receive(tenure.Context().Done())
				if after := time.Since(lost); after > 0 || !errors.Is(context.Cause(tenure.Context()), test.want) {
					t.Errorf("the tenure ended %v after its connection, with %v", after, context.Cause(tenure.Context()))
				}
				g.open()
			})
		})
	}
}

func blockedRenewed(g *gate) (lease.Options, transport.ClientOptions) {
	return lease.Options{Trace: &lease.Trace{Renewed: func(lease.TraceInfo) { g.pass() }}}, transport.ClientOptions{}
}

func blockedRequest(g *gate) (lease.Options, transport.ClientOptions) {
	return lease.Options{}, transport.ClientOptions{Trace: &transport.Trace{Request: func(context.Context, transport.RequestInfo) { g.pass() }}}
}

// The process stands still before the tenure renews itself.
func TestInvariant8ATenureThatAPauseOutlastsIsOverWhenAcquireReturnsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		for i, pause := range []time.Duration{ttl * 8 / 10, ttl} {
			n := newNode(t, store, "node-a", lease.Options{})
			_, _ = n.Holder(t.Context()) // the client knows the store
			l := n.another(t, fmt.Sprint(i), lease.Options{Clock: atReading(beginning, func() { time.Sleep(pause) })})
			tenure := mustTryAcquire(t, l)
			if context.Cause(tenure.Context()) == nil {
				t.Errorf("the process stood still for %v of %v, and the tenure's context goes on", pause, ttl)
			}
			if isOver := tenure.TokenContext().Err() != nil; isOver != (pause == ttl) {
				t.Errorf("the process stood still for %v of %v: the context of the token has ended: %t", pause, ttl, isOver)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// A tenure that begins late has less time left, and each attempt would be late again.
func TestInvariant19AProcessThatStandsStillLeavesNoSilentHolder(t *testing.T) {
	for _, test := range []struct {
		name   string
		pause  time.Duration // after each reply to an attempt
		usable bool          // there is a tenure in spite of it
	}{
		{name: "for more than a RequestTimeout", pause: ttl/6 + time.Millisecond, usable: true},
		{name: "for half of the TTL", pause: ttl / 2, usable: true},
		{name: "for the TTL without Margin, GracePeriod and RequestTimeout", pause: ttl - 2*ttl/10 - ttl/6 + time.Millisecond},
		{name: "for three TTLs", pause: 3 * ttl},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				var waiting waitingCauses
				var replied atomic.Bool
				slow := newNode(t, store, "node-a", lease.Options{OnWaiting: waiting.hear, Clock: func() time.Duration {
					if replied.Swap(false) {
						time.Sleep(test.pause)
					}
					return lease.SystemClock()
				}})
				slow.scripted("SET", func(number int64) transporttest.Fault {
					replied.Store(!test.usable || number <= 2) // the first one is bound to no store; the third is a renewal
					return transporttest.Fault{}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				tenure, err := slow.Acquire(ctx)
				if test.usable {
					if err != nil {
						t.Fatal(err)
					}
					if left := tenure.Remaining(); left < ttl/10+ttl/6 {
						t.Errorf("the tenure begins with %v", left)
					}
					time.Sleep(5 * ttl)
					if context.Cause(tenure.Context()) != nil {
						t.Errorf("the tenure does not renew itself: %v", context.Cause(tenure.Context()))
					}
					if err := tenure.Release(t.Context()); err != nil {
						t.Error(err)
					}
					return
				}
				if tenure != nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "too late") {
					t.Errorf("Acquire returned %v, %v; want the end of its context, and why", tenure, err)
				}
				if got := waiting.all(); len(got) == 0 || !strings.Contains(got[0].Error(), "too late") {
					t.Errorf("OnWaiting got %v", got)
				}
				if err := slow.Settle(t.Context()); err != nil {
					t.Error(err)
				}
				again, cancelAgain := context.WithTimeout(t.Context(), time.Minute)
				defer cancelAgain()
				if tenure, err := slow.TryAcquire(again); tenure != nil || err == nil || again.Err() == nil {
					t.Errorf("TryAcquire returned %v, %v; want the end of its context", tenure, err)
				}
				time.Sleep(2 * ttl)
				other := newNode(t, store, "node-b", lease.Options{})
				if holder, err := other.Holder(t.Context()); err != nil || holder.Held {
					t.Errorf("later the holder is %v, %v; want none", holder, err)
				}
				beside, cancelBeside := context.WithTimeout(t.Context(), time.Minute)
				defer cancelBeside()
				var acquiring sync.WaitGroup
				acquiring.Go(func() { _, _ = slow.Acquire(beside) })
				time.Sleep(ttl / 100)
				if err := other.mustAcquire(t).Release(t.Context()); err != nil || beside.Err() != nil {
					t.Errorf("another process holds the lease only after a minute: %v, %v", err, beside.Err())
				}
				await.Done(acquiring.Wait)
			})
		})
	}
}
