package lease_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
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

// A holder that learns of the end of its tenure late acts beside the next holder.
func TestInvariant8ATenureEndsInTimeWhateverAFunctionOfTheProgramDoes(t *testing.T) {
	failed := transporttest.Fault{LoseReply: true}
	for _, test := range []struct {
		name   string
		fault  transporttest.Fault // of renewals
		lease  func(*gate) lease.Options
		client func(*gate) transport.ClientOptions
		deaf   bool
	}{
		{name: "Trace.Renewed", lease: func(g *gate) lease.Options {
			return lease.Options{Trace: &lease.Trace{Renewed: func(lease.TraceInfo) { g.pass() }}}
		}},
		{name: "Trace.RenewalFailed", fault: failed, lease: func(g *gate) lease.Options {
			return lease.Options{Trace: &lease.Trace{RenewalFailed: func(lease.TraceInfo) { g.pass() }}}
		}},
		{name: "Logger", fault: failed, lease: func(g *gate) lease.Options {
			return lease.Options{Logger: g.logger(slog.LevelInfo)}
		}},
		{name: "Logger, with a Trace", fault: failed, lease: func(g *gate) lease.Options {
			return lease.Options{Logger: g.logger(slog.LevelWarn), Trace: &lease.Trace{Ended: func(lease.TraceInfo) { g.pass() }}}
		}},
		{name: "Trace.Request of the client", client: func(g *gate) transport.ClientOptions {
			return transport.ClientOptions{Trace: &transport.Trace{Request: func(context.Context, transport.RequestInfo) { g.pass() }}}
		}},
		{name: "the clock of the client", client: func(g *gate) transport.ClientOptions {
			return transport.ClientOptions{Now: func() time.Time { g.pass(); return time.Now() }}
		}},
		{name: "a Conn of the program", deaf: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				g := newGate(t)
				var options lease.Options
				var clientOptions transport.ClientOptions
				if test.lease != nil {
					options = test.lease(g)
				}
				if test.client != nil {
					clientOptions = test.client(g)
				}
				conn := store.Connect("node-a")
				var seam transport.Conn = conn
				if test.deaf {
					seam = deafConn{conn, g}
				}
				client, err := transport.NewClient(seam, clientOptions)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { g.open(); _ = client.Close() })
				options.TTL = ttl
				l, err := lease.New(client, name, options)
				if err != nil {
					t.Fatal(err)
				}
				first := node{Lease: l, client: client, conn: conn}
				second := newNode(t, store, "node-b", lease.Options{})
				tenure := first.mustAcquire(t)
				time.Sleep(ttl/4 + time.Millisecond) // renewed, so that no other look at the clock is due with the end
				if test.fault != (transporttest.Fault{}) {
					first.scripted("SET", always(test.fault))
				}
				g.shut.Store(true)
				await.Receive(g.reached)
				blocked := time.Now()

				await.Receive(tenure.Done())
				if !errors.Is(tenure.Err(), lease.ErrDeadlinePassed) {
					t.Errorf("the context ended with %v, want ErrDeadlinePassed", tenure.Err())
				}
				if left := tenure.Remaining(); left > ttl/10 || left < ttl/10-time.Millisecond {
					t.Errorf("when the context ends %v remain, want GracePeriod %v", left, ttl/10)
				}
				await.Receive(tenure.TokenContext().Done())
				if after := time.Since(blocked); after > ttl {
					t.Errorf("the tenure lasted %v with a function that blocks", after)
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
					t.Errorf("Release after the function returned: %v", err)
				}
			})
		})
	}
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
		{"the clock of the client, instant failover", blockedNow, true, cut, lease.ErrConnectionLost},
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
				await.Receive(tenure.Done())
				if after := time.Since(lost); after > 0 || !errors.Is(tenure.Err(), test.want) {
					t.Errorf("the tenure ended %v after its connection, with %v", after, tenure.Err())
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

func blockedNow(g *gate) (lease.Options, transport.ClientOptions) {
	return lease.Options{}, transport.ClientOptions{Now: func() time.Time { g.pass(); return time.Now() }}
}

// Acquired runs before the tenure renews itself.
func TestInvariant8ATenureThatASlowAcquiredOutlastsIsOverWhenAcquireReturnsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		for _, slow := range []time.Duration{ttl * 8 / 10, ttl} {
			n := newNode(t, store, "node-a", lease.Options{Trace: &lease.Trace{
				Acquired: func(context.Context, lease.TraceInfo) { time.Sleep(slow) },
			}})
			tenure := n.mustAcquire(t)
			if tenure.Err() == nil {
				t.Errorf("Acquired took %v of %v, and the tenure's context goes on", slow, ttl)
			}
			if isOver := tenure.TokenContext().Err() != nil; isOver != (slow == ttl) {
				t.Errorf("Acquired took %v of %v: the context of the token has ended: %t", slow, ttl, isOver)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestEndedDelaysNoRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		g := newGate(t)
		a := newNode(t, store, "node-a", lease.Options{Trace: &lease.Trace{Ended: func(lease.TraceInfo) { g.pass() }}})
		t.Cleanup(g.open)
		b := newNode(t, store, "node-b", lease.Options{})
		tenure := a.mustAcquire(t)
		acquired := acquireInBackground(t.Context(), t, b)
		synctest.Wait()
		g.shut.Store(true)
		released := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		go func() { released <- tenure.Release(ctx) }()
		next := await.Receive(acquired)
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the next holder waited %v for a function of the first", waited)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		// The store holds nothing of the tenure, so there is no error.
		if err := await.Receive(released); err != nil || time.Since(began) != time.Minute {
			t.Errorf("Release returned %v after %v, want nil at the end of its context", err, time.Since(began))
		}
	})
}

func TestAFunctionThatEndsItsGoroutineEndsNoTenure(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var calls atomic.Int64
		n := newNode(t, store, "node-a", lease.Options{Trace: &lease.Trace{Renewed: func(lease.TraceInfo) {
			if calls.Add(1) == 1 {
				runtime.Goexit()
			}
		}}})
		tenure := n.mustAcquire(t)
		time.Sleep(10 * ttl)
		if tenure.Err() != nil || calls.Load() < 10 {
			t.Errorf("after 10 TTLs and %d renewals the tenure is %v", calls.Load(), tenure)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A tenure that begins late has less time left, and each attempt would be late again.
func TestInvariant19ASlowFunctionLeavesNoSilentHolder(t *testing.T) {
	for _, test := range []struct {
		name   string
		slow   time.Duration
		usable bool // there is a tenure in spite of it
		client func(sleep func()) transport.ClientOptions
	}{
		{name: "Trace.Attempt, of more than a RequestTimeout", slow: ttl/6 + time.Millisecond, usable: true},
		{name: "Trace.Attempt, of half of the TTL", slow: ttl / 2, usable: true},
		{name: "Trace.Attempt, of the TTL without Margin, GracePeriod and RequestTimeout", slow: ttl - 2*ttl/10 - ttl/6 + time.Millisecond},
		{name: "Trace.Attempt, of three TTLs", slow: 3 * ttl},
		{name: "Trace.Request, of more than a RequestTimeout", slow: ttl/6 + time.Millisecond, usable: true, client: func(sleep func()) transport.ClientOptions {
			return transport.ClientOptions{Trace: &transport.Trace{Request: func(context.Context, transport.RequestInfo) { sleep() }}}
		}},
		{name: "Trace.Request, of the TTL", slow: ttl, client: func(sleep func()) transport.ClientOptions {
			return transport.ClientOptions{Trace: &transport.Trace{Request: func(context.Context, transport.RequestInfo) { sleep() }}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				var clientOptions transport.ClientOptions
				var waiting waitingCauses
				options := lease.Options{TTL: ttl, OnWaiting: waiting.hear}
				sleep := func() { time.Sleep(test.slow) }
				if test.client != nil {
					clientOptions = test.client(sleep)
				} else {
					options.Trace = &lease.Trace{Attempt: func(context.Context, lease.TraceInfo) { sleep() }}
				}
				client, _ := store.Client(t, "node-a", clientOptions)
				slow, err := lease.New(client, name, options)
				if err != nil {
					t.Fatal(err)
				}
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
					if tenure.Err() != nil {
						t.Errorf("the tenure does not renew itself: %v", tenure.Err())
					}
					if err := tenure.Release(t.Context()); err != nil {
						t.Error(err)
					}
					return
				}
				if tenure != nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "too slow for the TTL") {
					t.Errorf("Acquire returned %v, %v; want the end of its context, and why", tenure, err)
				}
				if got := waiting.all(); len(got) == 0 || !strings.Contains(got[0].Error(), "too slow for the TTL") {
					t.Errorf("OnWaiting got %v", got)
				}
				again, cancelAgain := context.WithTimeout(t.Context(), time.Minute)
				defer cancelAgain()
				if tenure, err := slow.TryAcquire(again); tenure != nil || err == nil {
					t.Errorf("TryAcquire returned %v, %v; want an error", tenure, err)
				}
				time.Sleep(2 * ttl)
				if holder, err := newNode(t, store, "node-b", lease.Options{}).Holder(t.Context()); err != nil || holder.Held {
					t.Errorf("later the holder is %v, %v; want none", holder, err)
				}
			})
		})
	}
}

// A program may recover from it, as net/http does for a handler.
func TestInvariant19AnAcquireThatPanicsLeavesNoHolder(t *testing.T) {
	for _, test := range []struct {
		name string
		with func(options *lease.Options, panics func())
	}{
		{"Trace.Attempt", func(o *lease.Options, panics func()) {
			o.Trace = &lease.Trace{Attempt: func(context.Context, lease.TraceInfo) { panics() }}
		}},
		{"Trace.Acquired", func(o *lease.Options, panics func()) {
			o.Trace = &lease.Trace{Acquired: func(context.Context, lease.TraceInfo) { panics() }}
		}},
	} {
		for _, instant := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					broken := true
					options := lease.Options{InstantFailover: instant}
					test.with(&options, func() {
						if broken {
							panic("a fault of the program")
						}
					})
					n := newNode(t, store, "node-a", options)
					func() {
						defer func() {
							if recover() == nil {
								t.Error("Acquire hides the panic")
							}
						}()
						_, _ = n.Acquire(t.Context())
					}()
					synctest.Wait()
					if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
						t.Errorf("after the panic the holder is %v, %v; want none", holder, err)
					}
					broken = false
					if err := n.mustAcquire(t).Release(t.Context()); err != nil { // the Will is free again, too
						t.Error(err)
					}
				})
			})
		}
	}
}
