package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/protocol"
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

// newDirectLink returns a connection over TCP whose sending goroutine does not run, and its far
// end. It skips the test where no write is possible without a wait.
func newDirectLink(t *testing.T) (conn *mqttConn, l *link, far net.Conn) {
	t.Helper()
	conn, l = newTestLink(t, 1000)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	out, err := mqttnet.Dial(t.Context(), conn.server(), nil, mqttnet.Options{WriteTimeout: time.Minute,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, listener.Addr().String())
		}})
	if err != nil {
		t.Fatal(err)
	}
	if far, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = out.Close(), far.Close() })
	if !out.CanTrySend() {
		t.Skip("this system has no write without a wait")
	}
	l.net = out
	l.path = newFastPath(l)
	return conn, l, far
}

func TestARequestAloneLeavesInTheGoroutineOfItsCaller(t *testing.T) {
	conn, l, far := newDirectLink(t)
	first := newExchange(t.Context(), Request{Payload: []byte("first")})
	if _, err := conn.post(first); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.post(newExchange(t.Context(), Request{Payload: []byte("second")})); err != nil {
		t.Fatal(err)
	}
	if len(l.path.unacked) != 1 || !first.sent || l.path.claimed || len(l.wake) != 1 {
		t.Errorf("%d requests are sent; want the first alone, and the second left to the sending goroutine", len(l.path.unacked))
	}
	l.path.send()
	_ = l.net.Close()
	arrived := await.Result(func() []byte { all, _ := io.ReadAll(far); return all })
	if one, two := bytes.Index(arrived, []byte("first")), bytes.Index(arrived, []byte("second")); one < 0 || two < one {
		t.Errorf("%q arrives", arrived)
	}
}

func TestACallerDoesNotWaitForABrokerThatDoesNotRead(t *testing.T) {
	conn, l, far := newDirectLink(t)
	const size = 8 << 20 // more than a socket takes
	if _, err := conn.post(newExchange(t.Context(), Request{Payload: bytes.Repeat([]byte("a"), size)})); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	claimed, handed := l.path.claimed, l.path.handed
	l.mu.Unlock()
	if !claimed || !handed || len(l.wake) != 1 {
		t.Errorf("claimed: %t, handed over: %t; want the rest left to the sending goroutine", claimed, handed)
	}
	if _, err := conn.post(newExchange(t.Context(), Request{Payload: bytes.Repeat([]byte("b"), size)})); err != nil {
		t.Fatal(err)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		l.path.send()
		_ = l.net.Close()
	}()
	arrived := await.Result(func() []byte { all, _ := io.ReadAll(far); return all })
	await.Receive(sent)
	for _, letter := range []string{"a", "b"} {
		if !bytes.Contains(arrived, bytes.Repeat([]byte(letter), size)) {
			t.Errorf("the request of letters %s does not arrive as a whole", letter)
		}
	}
	if l.path.claimed {
		t.Error("the claim is not given back")
	}
}

// Paho writes a packet of its own meanwhile.
func TestACallerLeavesItsRequestToTheSendingGoroutineWhileAnotherPacketIsWritten(t *testing.T) {
	conn, l, far := newDirectLink(t)
	l.net.Lock()
	_, _ = l.net.Write([]byte("whole "))
	if _, err := conn.post(newExchange(t.Context(), Request{Payload: []byte("request")})); err != nil {
		t.Fatal(err)
	}
	_, _ = l.net.Write([]byte("packet"))
	l.net.Unlock()
	l.path.send()
	_ = l.net.Close()
	arrived := await.Result(func() []byte { all, _ := io.ReadAll(far); return all })
	if !bytes.HasPrefix(arrived, []byte("whole packet")) || bytes.Count(arrived, []byte("request")) != 1 {
		t.Errorf("%q arrives", arrived)
	}
}

// oddContext is a context of the program that panics when a request is about to leave.
type oddContext struct{ context.Context }

func (oddContext) Err() error { panic("odd") }

func TestACallerWhoseContextPanicsKeepsNoOtherFromSending(t *testing.T) {
	_, l, far := newDirectLink(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it does not panic")
			}
		}()
		l.enqueue(newExchange(oddContext{t.Context()}, Request{}))
	}()
	l.enqueue(newExchange(t.Context(), Request{Payload: []byte("other")}))
	l.path.send()
	_ = l.net.Close()
	if arrived := await.Result(func() []byte { all, _ := io.ReadAll(far); return all }); !bytes.Contains(arrived, []byte("other")) {
		t.Errorf("%q arrives", arrived)
	}
}

// endingContext is a context of the program that ends the goroutine in which a request is about to leave.
type endingContext struct{ context.Context }

func (c endingContext) Err() error {
	if bytes.Contains(debug.Stack(), []byte("(*mqttConn).serve")) {
		runtime.Goexit()
	}
	return c.Context.Err()
}

func TestAFunctionOfTheProgramThatEndsTheSendingGoroutineEndsOneConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		client := mustDialTo(t, storeBroker(), options)
		if _, err := client.Get(endingContext{t.Context()}, "k"); err == nil {
			t.Error("it is answered")
		}
		time.Sleep(time.Minute)
		if _, err := client.Get(t.Context(), "k"); err != nil {
			t.Errorf("the next request: %v", err)
		}
	})
}

// lendingClient returns a client whose callers read their replies themselves after aloneOften requests
// in a row, and the connection of it. The goroutine that always reads goes on by itself only after a
// tick. byCallers counts the packets that callers have read.
func lendingClient(t *testing.T, broker *pipeBroker, tick time.Duration) (client *Client, conn *mqttConn, byCallers *atomic.Int64) {
	t.Helper()
	broker.tcp = true
	client = mustDialTo(t, broker, Options{ClientID: "a"})
	conn = client.mqtt
	l, err := conn.awaitLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !l.net.CanTrySend() {
		t.Skip("this system has no write without a wait")
	}
	l.mu.Lock()
	l.path.within = time.Hour
	l.mu.Unlock()
	l.net.Lend(tick, l.path.callersRead)
	byCallers = new(atomic.Int64)
	l.net.Intercept(func(packet []byte, p *frame.Publish) bool {
		if bytes.Contains(debug.Stack(), []byte("(*mqttConn).roundTrip")) {
			byCallers.Add(1)
		}
		return l.path.take(packet, p)
	})
	return client, conn, byCallers
}

// untilCallersRead makes requests until callers read the replies.
func untilCallersRead(t *testing.T, client *Client, byCallers *atomic.Int64) {
	t.Helper()
	for before, end := byCallers.Load(), time.Now().Add(await.Patience); byCallers.Load() == before; {
		if _, err := client.Get(t.Context(), "k"); err != nil || time.Now().After(end) {
			t.Fatalf("callers do not read their replies: %v", err)
		}
	}
}

// storeBroker answers each request, and acknowledges it.
func storeBroker() *pipeBroker {
	return &pipeBroker{answer: func(conn net.Conn, packet *packets.ControlPacket) bool {
		if request, ok := packet.Content.(*packets.Publish); ok {
			reply(conn, request)
		}
		return false
	}}
}

// No request depends on a tick: whoever reads knows of the others, or is told.
func TestEachRequestIsAnsweredWhoeverReads(t *testing.T) {
	client, _, byCallers := lendingClient(t, storeBroker(), time.Hour)
	for range 20 {
		untilCallersRead(t, client, byCallers)
		result := make(chan error, 1)
		call := &async.Call{Done: func(r async.Result) { result <- r.Err }}
		client.BeginGet(call, "k", GetOptions{}) // none waits for it
		if err := await.Receive(result); err != nil {
			t.Fatal(err)
		}
		untilCallersRead(t, client, byCallers)
		for _, outcome := range get(t.Context(), client, "a", "b", "c", "d") {
			if got := await.Receive(outcome); got.err != nil {
				t.Fatal(got.err)
			}
		}
	}
}

func TestACallerThatReadsObeysItsContext(t *testing.T) {
	broker, silent := storeBroker(), new(atomic.Bool)
	asked := make(chan struct{}, 100)
	answers := broker.answer
	broker.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, ok := packet.Content.(*packets.Publish); ok && silent.Load() {
			asked <- struct{}{}
			return true
		}
		return answers(conn, packet)
	}
	client, _, byCallers := lendingClient(t, broker, time.Millisecond)
	untilCallersRead(t, client, byCallers)
	silent.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	outcomes := get(ctx, client, "k")
	await.Receive(asked)
	cancel()
	if got := await.Receive(outcomes["k"]); !errors.Is(got.err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", got.err)
	}
}

// A caller that gives up does not go on reading while others have much to tell this client.
func TestACallerThatReadsObeysItsContextAmongNotifications(t *testing.T) {
	for name, with := range map[string]func(ctx context.Context, client *Client) error{
		"its context": func(ctx context.Context, client *Client) error {
			_, err := client.Get(ctx, "k")
			return err
		},
		"its tenure": func(ctx context.Context, client *Client) error {
			_, err := client.GetWith(context.Background(), "k", GetOptions{Binding: Binding{While: ctx}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			broker, silent := storeBroker(), new(atomic.Bool)
			asked := make(chan struct{}, 100)
			answers := broker.answer
			broker.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
				if _, ok := packet.Content.(*packets.Publish); ok && silent.Load() {
					asked <- struct{}{}
					return true
				}
				return answers(conn, packet)
			}
			client, _, byCallers := lendingClient(t, broker, 100*time.Millisecond)
			untilCallersRead(t, client, byCallers)
			silent.Store(true)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- with(ctx, client) }()
			await.Receive(asked)
			cancel()
			for end := time.Now().Add(await.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if len(result) > 0 {
					if err := await.Receive(result); !errors.Is(err, context.Canceled) {
						t.Errorf("%v, want context.Canceled", err)
					}
					return
				}
				send(broker.present(), packets.PUBLISH, func(p *packets.Publish) { p.Topic = protocol.NotifyTopic("a", "k") })
			}
			t.Error("it does not return while notifications arrive")
		})
	}
}

// What arrives after the latest request is read at once, however much it is.
func TestManyNotificationsAfterRequestsThatCallersReadAreReadAtOnce(t *testing.T) {
	broker := storeBroker()
	client, conn, byCallers := lendingClient(t, broker, 50*time.Millisecond)
	untilCallersRead(t, client, byCallers)
	l, _ := conn.awaitLink(t.Context())
	l.mu.Lock()
	l.path.within = time.Millisecond
	l.mu.Unlock()
	time.Sleep(200 * time.Millisecond) // the reader goes on
	const notifications = 500
	var arrived atomic.Int64
	l.net.Intercept(func(packet []byte, p *frame.Publish) bool {
		arrived.Add(1)
		return l.path.take(packet, p)
	})
	began := time.Now()
	for range notifications {
		send(broker.present(), packets.PUBLISH, func(p *packets.Publish) {
			p.Topic, p.Payload = protocol.NotifyTopic("a", "k"), make([]byte, 300)
		})
	}
	await.Until(func() bool { return arrived.Load() == notifications })
	if took := time.Since(began); took > time.Second {
		t.Errorf("%d notifications took %v", notifications, took)
	}
}

func TestRequestsFailAtOnceWhenAConnectionIsLostThatCallersRead(t *testing.T) {
	broker := storeBroker()
	client, conn, byCallers := lendingClient(t, broker, time.Hour)
	untilCallersRead(t, client, byCallers)
	l, _ := conn.awaitLink(t.Context())
	broker.cut()
	await.Done(func() {
		for !isClosed(l.down) { // a caller that reads notices, and tells the goroutine that always reads
			_, _ = client.Get(t.Context(), "k")
		}
	})
}

// More requests may come to wait while the connection that is to be replaced is being ended.
func TestAConnectionThatIsToBeReplacedStaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, l := newTestLink(t, 1)
		l.path = newFastPath(l)
		l.serve = func() { conn.serve(l, nil) }
		l.seat = make(chan struct{}, 1)
		l.seat <- struct{}{}
		l.ending.Do(func() {}) // the DISCONNECT is sent, and the goroutine that reads has not noticed yet
		signal(l.quiet)
		l.start()
		synctest.Wait()
		l.wakeUp()
		synctest.Wait()
		conn.lost(l, nil)
		await.Receive(l.seat)
		if !l.replaced {
			t.Error("it is taken for one that was lost")
		}
	})
}
