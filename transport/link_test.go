package transport

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

func TestInvariant21ARequestWhoseCallerHasLeftIsNotSent(t *testing.T) {
	servers, err := parseAddresses("mqtt://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	conn := newMQTTConn(servers, Options{ClientID: "a", ClientOptions: ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	l := newLink()
	if !conn.established(l) {
		t.Fatal("not established")
	}
	ctx, cancel := context.WithCancel(t.Context())
	e := conn.newExchange(ctx, Request{})
	if _, err := conn.awaitLink(ctx, e); err != nil {
		t.Fatal(err)
	}
	cancel()
	conn.send(nil, l, e) // there is no client to send it with
	if outcome := <-e.result; !errors.Is(outcome.err, ErrNotSent) || !errors.Is(outcome.err, context.Canceled) {
		t.Errorf("%v, want ErrNotSent and Canceled", outcome.err)
	}
}
