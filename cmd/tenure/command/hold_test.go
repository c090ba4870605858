package command

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// silentConn is a connection over which no GET arrives, once it is silent.
type silentConn struct {
	net.Conn
	silent *atomic.Bool
	asked  func() // called for each of them
}

func (c silentConn) Write(p []byte) (int, error) {
	if c.silent.Load() && bytes.Contains(p, []byte("GET\r\n")) {
		c.asked()
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A child that ended by itself while the lease was held keeps its code, though the broker is away, and the
// deadline passes while the store is asked once more.
func TestTheDeadlineMayPassWhileTheStoreIsAskedOnceMore(t *testing.T) {
	for _, test := range []struct {
		name        string
		passesFirst bool // the deadline passes before the child ends
	}{{"while it is asked", false}, {"before", true}} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			const ttl = time.Hour // so nothing else is sent meanwhile
			var silent atomic.Bool
			var ahead atomic.Int64
			pass := func() { ahead.Store(int64(2 * ttl)) }
			client, err := transport.Dial(ctx, startMemory(t), transport.Options{Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, address)
				return silentConn{conn, &silent, pass}, err
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			l, err := lease.New(client, "press", lease.Options{TTL: ttl, RequestTimeout: 100 * time.Millisecond,
				Clock: func() time.Duration { return lease.SystemClock() + time.Duration(ahead.Load()) }})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := l.Acquire(ctx)
			if err != nil {
				t.Fatal(err)
			}
			h := &holderProcess{holdFlags: &holdFlags{ttl: ttl, connection: connection{timeout: await.Patience}}, logger: slog.New(slog.DiscardHandler)}
			if err := h.confirm(tenure); err != nil {
				t.Errorf("%v, and the store has the tenure", err)
			}
			silent.Store(true)
			if test.passesFirst {
				pass()
			}
			if err := h.confirm(tenure); (err != nil) != test.passesFirst {
				t.Errorf("%v", err)
			}
			if tenure.Remaining() > 0 {
				t.Error("the deadline has not passed: nothing was tested")
			}
		})
	}
}

func TestWhatBecomesOfASignal(t *testing.T) {
	const end, child = true, true
	type step struct {
		after         time.Duration // the first one
		end, hasChild bool
		want          signalUse
	}
	for name, steps := range map[string][]step{
		"the child's":                        {{0, !end, child, forChild}, {time.Second, !end, !child, forChild}},
		"once":                               {{0, end, child, endsWork}, {0, !end, child, forChild}},
		"twice at once, as from timeout(1)":  {{0, end, child, endsWork}, {sameSignal - 1, end, child, repeated}},
		"the second one kills the child":     {{0, end, child, endsWork}, {sameSignal, end, child, forChild}},
		"twice at once without a child":      {{0, end, !child, endsWork}, {sameSignal - 1, end, !child, repeated}},
		"a further one without a child":      {{0, end, !child, endsWork}, {sameSignal, end, !child, givesUp}, {time.Hour, end, !child, givesUp}},
		"the child has ended after the kill": {{0, end, child, endsWork}, {time.Second, end, child, forChild}, {2 * time.Second, end, !child, givesUp}},
	} {
		var ends endSignals
		began := time.Now()
		for i, step := range steps {
			if got := ends.use(step.end, step.hasChild, began.Add(step.after)); got != step.want {
				t.Errorf("%s: %d: %v, want %v", name, i, got, step.want)
			}
		}
	}
}
