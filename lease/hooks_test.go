package lease_test

import (
	"context"
	"errors"
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

func (c deafConn) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	if hasVerb(request, "SET") {
		c.gate.pass()
	}
	return c.Conn.RoundTrip(ctx, request)
}

// hooked has functions of a program that wait at a gate, and that note their names before.
type hooked struct {
	*gate
	traced
}

func (h *hooked) options() (lease.Options, transport.ClientOptions) {
	call := func(name string) {
		h.pass()
		h.add("%s", name)
	}
	with := func(name string) func(context.Context, lease.TraceInfo) {
		return func(context.Context, lease.TraceInfo) { call(name) }
	}
	without := func(name string) func(lease.TraceInfo) { return func(lease.TraceInfo) { call(name) } }
	return lease.Options{
			Logger: h.logger(slog.LevelInfo),
			Trace: &lease.Trace{
				Attempt: with("Attempt"), Acquired: with("Acquired"), Renewed: without("Renewed"),
				RenewalFailed: without("RenewalFailed"), Ended: without("Ended"), Refused: with("Refused"),
			},
		}, transport.ClientOptions{Trace: &transport.Trace{
			Request: func(context.Context, transport.RequestInfo) { call("Request") },
		}}
}

// Invariants 8 and 45: while a function of the program blocks, leases are acquired, renewed, lost in time and
// released as if there were none. All calls come later, in order.
func TestInvariant8AFunctionThatBlocksDelaysNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		h := &hooked{gate: newGate(t)}
		h.shut.Store(true)
		options, clientOptions := h.options()
		n, other := nodeOn(t, store.Connect("node-a"), clientOptions, options), newNode(t, store, "node-b", lease.Options{})
		t.Cleanup(h.open)
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
		mustRelease(t, tenure)
		next := await.Receive(acquired)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the release and the next holder took %v", waited)
		}
		mustRelease(t, next)

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
		if err := n.client.Close(); err != nil {
			t.Error(err)
		}
		var pairs []string
		called := make(map[string]bool)
		for _, name := range h.all() {
			called[name] = true
			if name == "Acquired" || name == "Refused" || name == "Ended" {
				pairs = append(pairs, name)
			}
		}
		if want := []string{"Acquired", "Refused", "Ended", "Acquired", "Ended"}; !slices.Equal(pairs, want) || len(called) != 7 {
			t.Errorf("called %v, in the order %v, want seven, in the order %v", called, pairs, want)
		}
	})
}

// A holder that learns of the end of its tenure late acts beside the next holder.
func TestInvariant8ATenureEndsInTimeWhateverItsConnDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		g := newGate(t)
		first := nodeOn(t, deafConn{store.Connect("node-a"), g}, transport.ClientOptions{}, lease.Options{})
		second := newNode(t, store, "node-b", lease.Options{})
		t.Cleanup(g.open)
		tenure := first.mustAcquire(t)
		time.Sleep(ttl/4 + time.Millisecond) // renewed, so that no other look at the clock is due with the end
		g.shut.Store(true)
		await.Receive(g.reached)
		blocked := time.Now()
		await.Receive(tenure.Context().Done())
		if left := tenure.Remaining(); left > ttl/10 || left < ttl/10-time.Millisecond {
			t.Errorf("when the context ends %v remain, want GracePeriod %v", left, ttl/10)
		}
		await.Receive(tenure.TokenContext().Done())
		if after := time.Since(blocked); after > ttl {
			t.Errorf("the tenure lasted %v with a request that does not end", after)
		}
		mustBeOver(t, tenure, lease.ErrDeadlinePassed)
		mustRelease(t, second.mustAcquire(t))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tenure.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want the end of its context", err)
		}
		g.open()
		mustRelease(t, tenure)
	})
}

// A tenure that begins late has less time left, and each attempt would be late again.
func TestInvariant19AProcessThatStandsStillLeavesNoSilentHolder(t *testing.T) {
	for _, pause := range []time.Duration{ttl - 2*ttl/10 - ttl/6 + time.Millisecond, 3 * ttl} { // after each reply to an attempt
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			var waiting waitingCauses
			var replied atomic.Bool
			slow := newNode(t, store, "node-a", lease.Options{OnWaiting: waiting.hear, Clock: func() time.Duration {
				if replied.Swap(false) {
					time.Sleep(pause)
				}
				return lease.SystemClock()
			}})
			slow.scripted("SET", func(int64) transporttest.Fault {
				replied.Store(true)
				return transporttest.Fault{}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			tenure, err := slow.Acquire(ctx)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "too late") {
				t.Errorf("Acquire returned %v, %v; want the end of its context, and why", tenure, err)
			}
			if got := waiting.all(); len(got) == 0 || !strings.Contains(got[0].Error(), "too late") {
				t.Errorf("OnWaiting got %v", got)
			}
			if err := slow.AwaitReleases(t.Context()); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * ttl)
			mustBeFree(t, slow)
		})
	}
}
