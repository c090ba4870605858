package transport

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"testing"

	"github.com/tenurelock/tenure/internal/frame"
)

// newTestLink returns a connection that is ready, as far as those who send can tell.
func newTestLink(t *testing.T, receiveMaximum int) (*mqttConn, *link) {
	t.Helper()
	servers, err := parseAddresses("mqtt://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	conn := newMQTTConn(servers, Options{ClientID: "a", ClientOptions: ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	l := newLink()
	l.maxPacket, l.slots = math.MaxInt32, make(chan struct{}, receiveMaximum)
	if !conn.established(l) {
		t.Fatal("not established")
	}
	return conn, l
}

func TestInvariant21ARequestWhoseCallerHasLeftIsNotSent(t *testing.T) {
	for name, leaves := range map[string]func(*mqttConn, *link, *exchange){
		"and does not know it yet": func(*mqttConn, *link, *exchange) {},
		"and has taken it back": func(conn *mqttConn, l *link, e *exchange) {
			if waiting, sent := conn.abandonExchange(l, e); !waiting || sent {
				t.Errorf("waiting: %t, sent: %t", waiting, sent)
			}
			e.end(result{err: notSent(context.Canceled)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn, l := newTestLink(t, 1)
			ctx, cancel := context.WithCancel(t.Context())
			e := newExchange(ctx, Request{})
			if _, err := conn.post(e); err != nil {
				t.Fatal(err)
			}
			cancel()
			leaves(conn, l, e)
			conn.mu.Lock()
			next := conn.nextLocked(l, new(frame.Message))
			conn.mu.Unlock()
			if next != nil {
				t.Error("it is sent")
			}
			if outcome := e.outcome(); !errors.Is(outcome.err, ErrNotSent) || !errors.Is(outcome.err, context.Canceled) {
				t.Errorf("%v, want ErrNotSent and Canceled", outcome.err)
			}
			if len(l.slots) != 0 || len(l.pending) != 0 {
				t.Errorf("%d slots are in use and %d exchanges wait", len(l.slots), len(l.pending))
			}
		})
	}
}

// outcome waits for the result of an exchange.
func (e *exchange) outcome() result {
	<-e.done
	return e.result
}
