package integration_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// heldLogger is the handler of a Logger that does not return once it is held.
type heldLogger struct {
	slog.Handler
	held atomic.Bool
	open chan struct{}
}

func (h *heldLogger) Enabled(context.Context, slog.Level) bool { return true }
func (h *heldLogger) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *heldLogger) Handle(context.Context, slog.Record) error {
	h.pass()
	return nil
}

func (h *heldLogger) pass() {
	if h.held.Load() {
		await.Receive(h.open)
	}
}

// The broker releases the lease when it sees the end of the connection. A client that notices the
// end after a function of the program has returned acts beside the next holder.
func TestInvariant8NoFunctionOfTheProgramDelaysTheEndOfATenureWithItsConnection(t *testing.T) {
	for _, test := range []struct {
		name     string
		farewell bool // the broker sends a DISCONNECT
		options  func(h *heldLogger) transport.ClientOptions
	}{
		{"Logger, and the connection is cut", false, func(h *heldLogger) transport.ClientOptions {
			return transport.ClientOptions{Logger: slog.New(h)}
		}},
		{"Trace.Lost, and the broker disconnects", true, func(h *heldLogger) transport.ClientOptions {
			return transport.ClientOptions{Trace: &transport.Trace{Lost: func(transport.ConnectionStatus) { h.pass() }}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, _, stop := testsupport.StartStoppable(t, server.Options{})
			through := testsupport.NewProxy(t, address)
			h := &heldLogger{open: make(chan struct{})}
			client := mustDial(t, "mqtt://"+through.Address(), transport.Options{ClientID: "node-a", ClientOptions: test.options(h)})
			defer close(h.open) // before the client is closed
			const long = 10 * time.Minute
			l, err := lease.New(client, testsupport.LeaseKey, lease.Options{TTL: long, EndOnDisconnect: true})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := l.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h.held.Store(true)
			if test.farewell {
				stop()
			} else {
				through.Cut()
			}
			await.Receive(tenure.Context().Done())
			if !errors.Is(context.Cause(tenure.Context()), lease.ErrConnectionLost) {
				t.Errorf("the tenure ended with %v, want ErrConnectionLost", context.Cause(tenure.Context()))
			}
		})
	}
}
