package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqttnet"
)

// newTestLink returns a connection that is ready, with no network below it.
func newTestLink(t *testing.T, receiveMaximum int) (*mqttConn, *link) {
	t.Helper()
	servers, err := mqttnet.ParseAddresses("mqtt://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	conn := newMQTTConn(servers, Options{ClientID: "a", ClientOptions: ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	conn.events.Down = func() {} // established has no Up
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
			err := l.abandon(e, context.Canceled)
			if !errors.Is(err, ErrNotSent) {
				t.Errorf("%v, want ErrNotSent", err)
			}
			e.end(Reply{}, err)
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
			path := newFastPath(l)
			path.encode()
			if len(path.packets) > 0 {
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

// Its connection takes it while the tenure lasts, and sends it a moment later.
func TestInvariant21ARequestWhoseTenureIsOverIsNotSent(t *testing.T) {
	conn, l := newTestLink(t, 1)
	usable, end := context.WithCancelCause(t.Context())
	e := newExchange(t.Context(), Request{Binding: Binding{While: usable}})
	if _, err := conn.post(e); err != nil {
		t.Fatal(err)
	}
	over := errors.New("over")
	end(over)
	path := newFastPath(l)
	path.encode()
	if len(path.packets) > 0 {
		t.Fatal("it is sent")
	}
	if outcome := e.outcome(); !errors.Is(outcome.err, ErrNotSent) || !errors.Is(outcome.err, over) {
		t.Errorf("%v, want ErrNotSent and why", outcome.err)
	}
	if l.slots.inUse() != 0 || len(l.pending) != 0 {
		t.Errorf("%d slots are in use and %d exchanges wait", l.slots.inUse(), len(l.pending))
	}
}

// outcome waits for the result of an exchange.
func (e *exchange) outcome() *exchange {
	await.Receive(e.done)
	return e
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

// The request waits for a connection when its own is found to be lost, and then comes too late for it.
func TestInvariant53ABoundRequestIsNotQueuedForTheNextConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, first := newTestLink(t, 1)
		conn.lost(first, nil)
		connection := make(chan struct{})
		bound := Request{Binding: Binding{Connection: connection}}
		posted := make(chan error, 1)
		go func() {
			_, err := conn.post(newExchange(t.Context(), bound))
			posted <- err
		}()
		synctest.Wait()
		close(connection)
		_, next := newTestLink(t, 1)
		if !conn.established(next) {
			t.Fatal("not established")
		}
		if err := await.Receive(posted); !errors.Is(err, ErrNotSent) || len(next.pending) > 0 {
			t.Errorf("while it waits: %v, want ErrNotSent", err)
		}
		conn.lost(next, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := conn.post(newExchange(ctx, bound)); !errors.Is(err, errBoundConnection) {
			t.Errorf("later: %v, want the reason without a wait for the next connection", err)
		}
	})
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
		"no limits": {&paho.ConnackProperties{}, math.MaxUint16, math.MaxInt32},
		"limits":    {&paho.ConnackProperties{ReceiveMaximum: &few, MaximumPacketSize: &many}, 3, math.MaxInt32},
	} {
		l := newLink("a", Events{}, nil, nil)
		if err := l.adopt(test.properties, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
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

func TestAWindowKeepsAFewSlotsForUrgentRequests(t *testing.T) {
	for size, reserved := range map[int]int{1: 0, 7: 0, 8: 1, 20: 2, 128: 16, 65535: 16} {
		w := newWindow(size)
		none, cancel := context.WithCancel(t.Context())
		cancel()
		for range size - reserved {
			if !w.acquire(none, nil, false) {
				t.Fatalf("of %d, ordinary requests get %d", size, w.inUse())
			}
		}
		if w.acquire(none, nil, false) {
			t.Errorf("of %d, ordinary requests get more than %d", size, size-reserved)
		}
		for range reserved {
			if !w.acquire(none, nil, true) {
				t.Fatalf("of %d, urgent requests get %d", size, w.inUse()-(size-reserved))
			}
		}
		if w.acquire(none, nil, true) || w.inUse() != size {
			t.Errorf("of %d, %d are in use", size, w.inUse())
		}
	}
}

func TestAWindowTakesTurnsInOrderAndUrgentOnesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(1)
		w.acquire(t.Context(), nil, false)
		var got []string
		leaver, leave := context.WithCancel(t.Context())
		for _, name := range []string{"o1", "leaves", "o2", "u1", "u2"} {
			ctx := t.Context()
			if name == "leaves" {
				ctx = leaver
			}
			go func() {
				if w.acquire(ctx, nil, name[0] == 'u') {
					got = append(got, name)
				}
			}()
			synctest.Wait()
		}
		leave()
		for range 5 {
			synctest.Wait()
			w.free()
		}
		synctest.Wait()
		if want := []string{"u1", "u2", "o1", "o2"}; !slices.Equal(got, want) || w.inUse() != 0 {
			t.Errorf("turns %q, want %q; %d slots are in use", got, want, w.inUse())
		}
	})
}

func TestAWindowLosesNoSlotToARequestThatGivesUpAsItsTurnComes(t *testing.T) {
	w := newWindow(1)
	for range 20 {
		w.acquire(t.Context(), nil, true)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan bool, 1)
		go func() { got <- w.acquire(ctx, nil, true) }()
		for waiting := 0; waiting == 0; {
			w.mu.Lock()
			waiting = len(w.urgent)
			w.mu.Unlock()
		}
		w.mu.Lock()
		cancel()
		time.Sleep(time.Millisecond) // it leaves, and cannot say so yet
		w.freeLocked()
		w.mu.Unlock()
		select {
		case turn := <-got:
			if turn { // it was slow to leave
				w.free()
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it does not return")
		}
		if w.inUse() != 0 {
			t.Fatalf("%d slots are in use", w.inUse())
		}
	}
}

// inUse returns how many slots are taken.
func (w *window) inUse() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}

// withWill returns a connection whose next link is to carry a will.
func withWill() (*mqttConn, *pendingWill) {
	conn := newMQTTConn([]*url.URL{{Host: "192.0.2.1:1883"}}, Options{ClientOptions: ClientOptions{Logger: slog.New(slog.DiscardHandler)}})
	conn.will = &pendingWill{result: make(chan willResult, 1)}
	return conn, conn.will
}

func TestAWillThatCannotBeWrittenIsGivenUp(t *testing.T) {
	conn, will := withWill()
	why := errors.New("why")
	if err := conn.notConnected(will, will, why, nil, io.EOF); !errors.Is(err, why) || !errors.Is(err, ErrNoWill) {
		t.Errorf("%v, want ErrNoWill and why", err)
	}
	if s := await.Receive(will.result); !errors.Is(s.err, why) {
		t.Errorf("SetWill returns %v", s.err)
	}
	if conn.nextWill() != nil {
		t.Error("the next connection carries it, too")
	}
}

// The caller leaves at the moment in which the connection has the Will.
func TestAWillThatStandsIsNotGivenUp(t *testing.T) {
	conn, will := withWill()
	lost := make(chan struct{})
	conn.concluded(will, willResult{lost: lost})
	if s, known := conn.abandon(will); !known || s.lost != lost {
		t.Errorf("%+v, known: %t", s, known)
	}
	if conn.outdated(will) {
		t.Error("its connection is to be replaced")
	}
}

func TestAConnectionIsReplacedForAWillAndAfterItWasGivenUp(t *testing.T) {
	conn, will := withWill()
	if !conn.outdated(nil) {
		t.Error("a will waits, and the connection without is to stay")
	}
	if _, known := conn.abandon(will); known {
		t.Error("its result is known")
	}
	if !conn.outdated(will) {
		t.Error("the connection with the will is to stay")
	}
	if conn.outdated(nil) || conn.nextWill() != nil {
		t.Error("the next connection is to carry the will, too")
	}
	conn.concluded(will, willResult{})
	if len(will.result) != 0 {
		t.Error("no connection has it, and its result says so")
	}
	if len(conn.replace) != 1 {
		t.Error("serve is not woken up")
	}
}

func TestLossesHaveNames(t *testing.T) {
	for want, err := range map[string]error{
		"client_closed":      ErrClosed,
		"session_taken_over": ErrSessionTakenOver,
		"broker":             fmt.Errorf("%w: %w", errConnectionLost, &DisconnectError{Code: 0x8b}),
		"will_changed":       errConnectionReplaced,
		"network":            errConnectionLost,
	} {
		if got := LossText(err); got != want {
			t.Errorf("the name of %v is %q, want %q", err, got, want)
		}
	}
}
