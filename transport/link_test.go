package transport

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"testing"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/mqttnet"
)

// newTestLink returns a connection that is ready, as far as those who send can tell.
func newTestLink(t *testing.T, receiveMaximum int) (*mqttConn, *link) {
	t.Helper()
	servers, err := mqttnet.ParseAddresses("mqtt://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	conn := newMQTTConn(servers, Options{ClientID: "a", ClientOptions: ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	l := newLink("a", Events{}, slog.New(slog.DiscardHandler), nil)
	l.maxPacket, l.slots = math.MaxInt32, newWindow(receiveMaximum)
	if !conn.established(l) {
		t.Fatal("not established")
	}
	return conn, l
}

func TestInvariant21ARequestWhoseCallerHasLeftIsNotSent(t *testing.T) {
	for name, leaves := range map[string]func(*mqttConn, *link, *exchange){
		"and does not know it yet": func(*mqttConn, *link, *exchange) {},
		"and has taken it back": func(conn *mqttConn, l *link, e *exchange) {
			if waiting, sent := l.abandon(e); !waiting || sent {
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
			l.mu.Lock()
			next := l.nextLocked(new(frame.Message))
			l.mu.Unlock()
			if next != nil {
				t.Error("it is sent")
			}
			if outcome := e.outcome(); !errors.Is(outcome.err, ErrNotSent) || !errors.Is(outcome.err, context.Canceled) {
				t.Errorf("%v, want ErrNotSent and Canceled", outcome.err)
			}
			if l.slots.inUse() != 0 || len(l.pending) != 0 {
				t.Errorf("%d slots are in use and %d exchanges wait", l.slots.inUse(), len(l.pending))
			}
		})
	}
}

// outcome waits for the result of an exchange.
func (e *exchange) outcome() result {
	await.Receive(e.done)
	return e.result
}

func TestAConnectionThatLeavesOrIsLostTakesNoMoreRequests(t *testing.T) {
	for name, end := range map[string]func(*mqttConn, *link){
		"leaves":  func(conn *mqttConn, l *link) { conn.leave(l) },
		"is lost": func(conn *mqttConn, l *link) { conn.lost(l, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			conn, l := newTestLink(t, 1)
			end(conn, l)
			if l.enqueue(newExchange(t.Context(), Request{})) || len(l.pending) > 0 {
				t.Error("it takes one")
			}
		})
	}
}

func TestAQueueIsFirstInFirstOutAndDoesNotGrowWithWhatWentThrough(t *testing.T) {
	var q queue
	pushed, popped := make(map[*exchange]int), 0
	push := func() {
		e := new(exchange)
		pushed[e] = len(pushed)
		q.push(e)
	}
	pop := func() {
		e := q.pop()
		if number, ok := pushed[e]; !ok || number != popped {
			t.Fatalf("number %d comes out (it went in: %t), want %d", number, ok, popped)
		}
		popped++
	}
	const waiting, through = 5, 10_000
	for range waiting {
		push()
	}
	for range through {
		push()
		pop()
	}
	if room := cap(q.exchanges); room > 10*waiting {
		t.Errorf("it has room for %d; never were there more than %d", room, waiting+1)
	}
	for range waiting {
		pop()
	}
	if e := q.pop(); e != nil {
		t.Error("something comes out of an empty queue")
	}
	push()
	pop()
}

func TestWhatABrokerDoesNotLimitMQTTDoes(t *testing.T) {
	few, many := uint16(3), uint32(math.MaxUint32)
	for name, test := range map[string]struct {
		properties     *paho.ConnackProperties
		receiveMaximum int
		maxPacket      int
	}{
		"no properties": {nil, math.MaxUint16, math.MaxInt32},
		"no limits":     {&paho.ConnackProperties{}, math.MaxUint16, math.MaxInt32},
		"limits":        {&paho.ConnackProperties{ReceiveMaximum: &few, MaximumPacketSize: &many}, 3, math.MaxInt32},
	} {
		l := newLink("a", Events{}, nil, nil)
		l.setLimits(&paho.Connack{Properties: test.properties})
		if l.slots.size != test.receiveMaximum || l.maxPacket != test.maxPacket {
			t.Errorf("%s: %d requests, packets of %d bytes; want %d and %d", name, l.slots.size, l.maxPacket, test.receiveMaximum, test.maxPacket)
		}
	}
}

func TestAConnectionThatWasLostBeforeItWasReadyIsNotUsed(t *testing.T) {
	conn, l := newTestLink(t, 1)
	conn.lost(l, nil)
	if conn.established(l) {
		t.Error("it is the present one")
	}
}
