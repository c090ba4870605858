package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A wallClock is a machine's wall clock that can be stepped.
type wallClock struct{ off atomic.Int64 }

const defaultRequestTimeout = 10 * time.Second // of ClientOptions.RequestTimeout

func (w *wallClock) step(by time.Duration) { w.off.Add(int64(by)) }

func (w *wallClock) now() time.Time { return time.Now().Add(time.Duration(w.off.Load())) }

// terse is a connection to a store that sends no __ts with a refusal, like stores of other
// makers.
type terse struct{ *transporttest.Conn }

func (c terse) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	reply, err := c.Conn.RoundTrip(ctx, request)
	if strings.HasPrefix(string(reply.Payload), "-ERR") {
		reply.Timestamp = ""
	}
	return reply, err
}

// A clockBench is a client with a clock that can be wrong, in a bubble, and what its store saw.
type clockBench struct {
	t                 *testing.T
	store             *transporttest.Store
	conn              *transporttest.Conn
	client            *transport.Client
	clock             wallClock
	log               strings.Builder
	requests, refused int
}

// overClocks runs a test with a store that sends its time when it refuses a request for a
// clock, and with one that does not.
func overClocks(t *testing.T, test func(b *clockBench)) {
	for _, tells := range []bool{true, false} {
		t.Run(fmt.Sprintf("the store tells its clock: %v", tells), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &clockBench{t: t, store: transporttest.Start(t)}
				b.store.Tap(func(applied transporttest.Applied) {
					b.requests++
					if applied.Reply.Outcome == statestore.Refused {
						b.refused++
					}
				})
				b.conn = b.store.Connect("node-a")
				var conn storeconn.Conn = b.conn
				if !tells {
					conn = terse{b.conn}
				}
				client, err := transport.NewClient(conn, transport.ClientOptions{
					Now: b.clock.now, Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				b.client = client
				t.Cleanup(func() { _ = client.Close() })
				test(b)
			})
		})
	}
}

// mustSet sets a key and checks how many requests the store refused meanwhile.
func (b *clockBench) mustSet(what string, refused int) {
	b.t.Helper()
	before := b.refused
	version, err := b.client.Set(b.t.Context(), "k", []byte("v"), transport.SetOptions{})
	if err != nil || b.refused-before != refused {
		b.t.Fatalf("%s: %v, after %d refusals; want %d", what, err, b.refused-before, refused)
	}
	if off := time.Until(time.UnixMilli(version.Wall)); off.Abs() > time.Second {
		b.t.Errorf("%s: the version is %v off", what, off)
	}
}

// mustWarn checks that the log has a warning for each kind of disagreement, and no more.
func (b *clockBench) mustWarn(kinds int) {
	b.t.Helper()
	synctest.Wait()
	if got := strings.Count(b.log.String(), "level=WARN"); got != kinds {
		b.t.Errorf("%d warnings, want one for each of %d kinds:\n%s", got, kinds, b.log.String())
	}
}

func TestInvariant48AClientWhoseClockStepsForwardAndBackKeepsSettingKeys(t *testing.T) {
	overClocks(t, func(b *clockBench) {
		b.mustSet("a clock that is right", 0)
		b.clock.step(time.Hour)
		b.mustSet("an hour ahead", 1)
		for range 10 {
			time.Sleep(time.Minute)
			b.mustSet("an hour ahead, and adapted", 0)
		}
		b.clock.step(-time.Hour)
		for range 3 {
			time.Sleep(time.Second)
			b.mustSet("right again", 0)
		}
		b.clock.step(-time.Hour)
		b.mustSet("an hour behind", 0)
		b.clock.step(time.Hour)
		b.mustSet("right once more", 0)
		b.mustWarn(2)
	})
}

func TestATokenThatIsTooFarAheadIsNotSentAgain(t *testing.T) {
	overClocks(t, func(b *clockBench) {
		b.mustSet("a version", 0)
		token := hlc.Token{Wall: time.Now().Add(5 * time.Minute).UnixMilli(), Node: "StateStore"}
		before := b.requests
		_, err := b.client.Set(b.t.Context(), "k", nil, transport.SetOptions{FencingToken: token})
		if !errors.Is(err, transport.ErrFencingTokenTooFarAhead) || b.requests != before+1 {
			b.t.Errorf("%v, after %d requests", err, b.requests-before)
		}
	})
}

// receding is a store that refuses every request. Its clock goes back by five minutes with
// each.
type receding struct {
	scripted
	clock time.Time
}

func (r *receding) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	r.clock = r.clock.Add(-5 * time.Minute)
	r.reply.Timestamp = hlc.Timestamp{Wall: r.clock.UnixMilli(), Node: "StateStore"}.String()
	return r.scripted.RoundTrip(ctx, request)
}

func TestARequestIsRepeatedOnceForAClock(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	conn := &receding{clock: now}
	conn.reply.Payload = []byte("-ERR the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n")
	client, err := transport.NewClient(conn, transport.ClientOptions{Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	version, err := client.Set(t.Context(), "k", nil, transport.SetOptions{})
	if !version.IsZero() {
		t.Errorf("a refused Set returns version %v", version)
	}
	const want = "this node's clock reads 2026-11-21T12:00:00Z, and the store's 2026-11-21T11:50:00Z: synchronize"
	if !errors.Is(err, transport.ErrTimestampTooFarAhead) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
	if conn.requests != 2 {
		t.Errorf("%d requests were sent, want 2", conn.requests)
	}
	if sent, err := hlc.Parse(conn.sent.Timestamp); err != nil || sent.Wall != now.Add(-5*time.Minute).UnixMilli() {
		t.Errorf("the second request carried %v, %v", sent, err)
	}
}

// Both requests together have the caller's deadline.
func TestARepetitionForAClockKeepsTheCallersDeadline(t *testing.T) {
	overClocks(t, func(b *clockBench) {
		b.mustSet("a version", 0)
		b.clock.step(time.Hour)
		b.conn.SetFault(func(transporttest.Request) transporttest.Fault {
			return transporttest.Fault{HoldReply: defaultRequestTimeout * 3 / 4}
		})
		began := time.Now()
		_, err := b.client.Set(b.t.Context(), "k", nil, transport.SetOptions{})
		if took := time.Since(began); took != defaultRequestTimeout || !errors.Is(err, transport.ErrOutcomeUnknown) {
			b.t.Errorf("%v after %v; want an unknown outcome after %v", err, took, defaultRequestTimeout)
		}
	})
}

// Invariant 43: no lock is held while the user's clock is read. This clock calls the client,
// and with a lock held would deadlock.
func TestInvariant43NoLockIsHeldWhileTheNodesClockIsRead(t *testing.T) {
	var client atomic.Pointer[transport.Client]
	conn := &scripted{}
	c, err := transport.NewClient(conn, transport.ClientOptions{Now: func() time.Time {
		if c := client.Load(); c != nil {
			_ = c.Connection()
		}
		return time.Now()
	}})
	if err != nil {
		t.Fatal(err)
	}
	client.Store(c)
	await.Done(func() {
		for _, reply := range []string{"+OK\r\n", "-ERR the request timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n"} {
			conn.reply = transporttest.Reply{Payload: []byte(reply), Timestamp: "5:0:StateStore"}
			_, _ = c.Set(t.Context(), "k", nil, transport.SetOptions{})
		}
	})
	_ = c.Close()
}
