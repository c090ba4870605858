package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// traced collects what the functions of a Trace get, as text.
type traced struct {
	mu    sync.Mutex
	calls []string
}

func (c *traced) add(format string, arguments ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, arguments...))
}

func (c *traced) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (c *traced) trace() *lease.Trace {
	return &lease.Trace{
		Attempt: func(_ context.Context, i lease.TraceInfo) {
			c.add("attempt %s %v held=%t", i.Lease, i.RoundTrip, errors.Is(i.Err, lease.ErrHeld))
		},
		Acquired: func(_ context.Context, i lease.TraceInfo) {
			c.add("acquired %s by %s token=%t %v waited %v", i.Lease, i.Holder, !i.Token.IsZero(), i.RoundTrip, i.Lasted)
		},
		Renewed: func(i lease.TraceInfo) {
			c.add("renewed %v headroom=%t", i.RoundTrip, i.Headroom > ttl/3 && i.Headroom < ttl)
		},
		RenewalFailed: func(i lease.TraceInfo) {
			c.add("failed unknown=%t headroom=%t", errors.Is(i.Err, transport.ErrOutcomeUnknown), i.Headroom > 0 && i.Headroom < ttl)
		},
		Ended: func(i lease.TraceInfo) { c.add("ended %s after %v", lease.CauseText(i.Err), i.Lasted) },
	}
}

func TestATenureIsTracedFromItsFirstAttemptToItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var a, b traced
		first := newNode(t, store, "node-a", lease.Options{Trace: a.trace()})
		second := newNode(t, store, "node-b", lease.Options{Trace: b.trace()})
		tenure := first.mustAcquire(t)
		acquired := acquireInBackground(t.Context(), t, second)
		first.scripted("SET", func(number int64) transporttest.Fault {
			return transporttest.Fault{LoseReply: number == 2}
		})
		time.Sleep(2 * ttl)
		mustRelease(t, tenure)
		synctest.Wait()
		got := a.all()
		// The client's first request cannot be bound to a store: it is sent again.
		want := []string{
			"attempt press-7/active 0s held=false", "attempt press-7/active 0s held=false",
			"acquired press-7/active by node-a token=true 0s waited 0s",
			"renewed 0s headroom=true", "failed unknown=true headroom=true", "renewed 0s headroom=true",
		}
		if len(got) < 8 || !slices.Equal(got[:len(want)], want) || got[len(got)-1] != "ended released after 4s" {
			t.Errorf("traced\n%q, want\n%q, more renewals, and the end", got, want)
		}
		await.Receive(acquired).StopRenewing()
		time.Sleep(2 * ttl)
		got = b.all()
		if len(got) < 4 || got[0] != "attempt press-7/active 0s held=true" || got[len(got)-1] != "ended deadline_passed after 1.8s" {
			t.Errorf("traced %q", got)
		}
	})
}

// A client that may write the key of a lease chooses the name of its holder.
func TestTheNameOfAHolderFillsNoLog(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var log logbuffer.Buffer
		n, other := newNode(t, store, "node", lease.Options{Logger: log.Logger()}), newNode(t, store, "other", lease.Options{})
		take := func(i int) {
			value := strconv.Itoa(i) + strings.Repeat("n", 1<<20)
			if _, err := other.client.Set(t.Context(), name, []byte(value), transport.SetOptions{}); err != nil {
				t.Error(err)
			}
		}
		take(0)
		const changes = 5
		var taken sync.WaitGroup
		taken.Go(func() {
			for i := range changes {
				time.Sleep(ttl)
				take(i + 1)
			}
		})
		defer await.Done(taken.Wait)
		ctx, cancel := context.WithTimeout(t.Context(), (changes+1)*ttl)
		defer cancel()
		_, err := n.Acquire(ctx)
		if !errors.Is(err, lease.ErrHeld) || len(err.Error()) > 4096 {
			t.Errorf("%.1000v", err)
		}
		synctest.Wait()
		if lines := strings.Count(log.String(), "\n"); lines < 2 || len(log.String()) > lines*2048 {
			t.Errorf("%d lines of %d bytes in all", lines, len(log.String()))
		}
	})
}

func TestAFailureThatLastsIsNoFloodOfWarnings(t *testing.T) {
	for name, fault := range map[string]func(n node, store *transporttest.Store){
		"no store": func(n node, _ *transporttest.Store) { n.scripted("SET", always(transporttest.Fault{LoseReply: true})) },
		"no right": func(_ node, store *transporttest.Store) {
			store.Authorize(func(string, statestore.Verb, string) bool { return false })
		},
		"no look":       func(n node, _ *transporttest.Store) { n.scripted("GET", always(transporttest.Fault{LoseReply: true})) },
		"no connection": func(n node, _ *transporttest.Store) { n.conn.Cut() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				var log strings.Builder
				n := newNode(t, store, "node-a", lease.Options{AcquireDelay: ttl / 10, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
				fault(n, store)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				if tenure, err := n.Acquire(ctx); err == nil {
					t.Fatalf("acquired %v", tenure)
				}
				synctest.Wait()
				warnings, debug := strings.Count(log.String(), "level=WARN"), strings.Count(log.String(), "level=DEBUG")
				if warnings < 10 || warnings > 40 || debug < 100 {
					t.Errorf("in 10 minutes %d warnings, and %d lines at level Debug; want 10 to 40, and all others", warnings, debug)
				}
			})
		})
	}
}
