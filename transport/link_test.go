package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
)

// newTestLink returns a connection that is ready, with no network below it.
func newTestLink(t *testing.T, receiveMaximum int) (*mqttConn, *link) {
	t.Helper()
	servers, err := mqtt.ParseAddresses("mqtt://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	conn := newMQTTConn(servers, Options{ClientID: "a", ClientOptions: ClientOptions{program: new(dispatcher)}})
	conn.events.Down = func() {} // established has no Up
	l := newLink("a", Events{}, slog.New(slog.DiscardHandler), nil)
	l.maxPacket, l.slots = math.MaxInt32, newWindow(receiveMaximum)
	if !conn.established(l) {
		t.Fatal("not established")
	}
	return conn, l
}

// The connection may become ready at any moment of the look for one.
func TestARequestThatWaitsForAConnectionGetsTheOneThatComes(t *testing.T) {
	for range 2000 {
		conn, l := newTestLink(t, 1)
		conn.mu.Lock()
		conn.link, conn.ready = nil, make(chan struct{})
		conn.mu.Unlock()
		go conn.established(l)
		if got, err := conn.awaitLink(t.Context()); got != l || err != nil {
			t.Fatalf("%p, %v, want %p", got, err, l)
		}
	}
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
	conn := newMQTTConn([]*url.URL{{Host: "192.0.2.1:1883"}}, Options{ClientOptions: ClientOptions{program: new(dispatcher)}})
	conn.will = &pendingWill{result: make(chan willResult, 1)}
	return conn, conn.will
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

// silent returns a broker that, once mute is set, answers only the packets in answers.
func silent(mute *atomic.Bool, answers ...byte) *pipeBroker {
	return &pipeBroker{answer: func(_ net.Conn, packet *packets.ControlPacket) bool {
		if packet.Type == packets.CONNECT {
			mute.Store(false)
		}
		for _, kind := range answers {
			if packet.Type == kind {
				return false
			}
		}
		return mute.Load()
	}}
}

func TestInvariant52ADeadConnectionThatIsProbedCostsOneTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		var mute atomic.Bool
		b := silent(&mute)
		client := mustDialTo(t, b, options)
		time.Sleep(time.Second)
		mute.Store(true)
		outcomes := get(t.Context(), client, "k")
		synctest.Wait()
		began := time.Now()
		client.Probe(300 * time.Millisecond)
		client.Probe(time.Millisecond) // one is under way
		if took := time.Since(began); took != 0 {
			t.Errorf("it waits for %v", took)
		}
		got := await.Receive(outcomes["k"])
		if took := time.Since(began); took != 300*time.Millisecond || !errors.Is(got.err, ErrOutcomeUnknown) || !strings.Contains(got.err.Error(), "PINGREQ for 300ms") {
			t.Errorf("after %v the request ends with %v", took, got.err)
		}
		time.Sleep(200 * time.Millisecond)
		if status := client.Connection(); status.State != Connected || status.Connections != 2 {
			t.Errorf("it does not connect again at once: %+v", status)
		}
	})
}

func TestAProbedConnectionStaysIfAnythingArrives(t *testing.T) {
	for name, arrives := range map[string]func(*pipeBroker){
		"the answer to the PINGREQ": nil,
		"a message": func(b *pipeBroker) {
			send(b.present(), packets.PUBLISH, func(p *packets.Publish) { p.Topic = "news" })
		},
		"a part of one": func(b *pipeBroker) { _, _ = b.present().Write([]byte{0x30, 100, 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, options Options) {
				var mute atomic.Bool
				b := silent(&mute)
				if arrives == nil {
					b = silent(&mute, packets.PINGREQ)
				}
				client := mustDialTo(t, b, options)
				time.Sleep(time.Second)
				mute.Store(true)
				for range 3 {
					client.Probe(300 * time.Millisecond)
					time.Sleep(299 * time.Millisecond)
					if arrives != nil {
						arrives(b)
					}
					time.Sleep(2 * time.Millisecond)
				}
				mute.Store(false)
				if status := client.Connection(); status.Connections != 1 || status.State != Connected {
					t.Errorf("the connection was given up: %+v", status)
				}
			})
		})
	}
}

func TestAProbeGivesTheBrokerATenthOfASecondAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mute atomic.Bool
		b := silent(&mute)
		client := mustDialTo(t, b, Options{})
		time.Sleep(time.Second)
		mute.Store(true)
		outcomes := get(t.Context(), client, "k")
		synctest.Wait()
		began := time.Now()
		client.Probe(0)
		if await.Receive(outcomes["k"]); time.Since(began) != 100*time.Millisecond {
			t.Errorf("it gives up after %v", time.Since(began))
		}
	})
}

// The PINGREQ is not written, because the broker does not read the packet before it.
func TestAProbeDoesNotWaitForAPacketThatIsStuck(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		block := make(chan struct{})
		var stuck atomic.Bool
		b := &pipeBroker{answer: func(_ net.Conn, packet *packets.ControlPacket) bool {
			if packet.Type == packets.PUBLISH && stuck.CompareAndSwap(false, true) {
				await.Receive(block)
			}
			return false
		}}
		client := mustDialTo(t, b, options)
		defer close(block)
		outcomes := get(t.Context(), client, "k1", "k2", "k3")
		synctest.Wait()
		began := time.Now()
		client.Probe(time.Second)
		for key, c := range outcomes {
			if got := await.Receive(c); !errors.Is(got.err, ErrOutcomeUnknown) && !errors.Is(got.err, ErrNotSent) {
				t.Errorf("%s: %v", key, got.err)
			}
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it takes %v", took)
		}
	})
}

func TestInvariant42CloseDuringAProbeLeavesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		var mute atomic.Bool
		client := mustDialTo(t, silent(&mute), options)
		time.Sleep(time.Second)
		mute.Store(true)
		client.Probe(time.Hour)
		synctest.Wait()
		began := time.Now()
		if err := client.Close(); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		client.Probe(time.Hour) // on no connection
	})
}

func TestAnUrgentRequestOvertakesThoseThatWait(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		const slots, ordinary = 16, 14 // two are kept
		b := newQuietBroker(slots)
		client := mustDialTo(t, b.pipeBroker, options)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		large := strings.Repeat("v", 100_000)
		for i := range 40 {
			go func() { _, _ = client.Set(ctx, fmt.Sprint("large", i), []byte(large), SetOptions{}) }()
		}
		if got := len(b.received()); got != ordinary {
			t.Fatalf("%d of %d requests are sent; %d slots of %d are for urgent ones", got, 40, slots-ordinary, slots)
		}
		for i := range 4 {
			go func() {
				switch i {
				case 0:
					_, _ = client.Set(ctx, "urgent0", nil, SetOptions{Urgent: true})
				case 1:
					_, _ = client.VDel(ctx, "urgent1", nil, DelOptions{Urgent: true})
				default:
					_, _ = client.GetWith(ctx, fmt.Sprint("urgent", i), GetOptions{Urgent: true})
				}
			}()
			synctest.Wait()
		}
		requests := b.received()
		if len(requests) != slots {
			t.Fatalf("%d requests are sent, want %d", len(requests), slots)
		}
		for i := range 2 { // the next two slots
			b.acknowledge(requests[i].PacketID, 0)
			synctest.Wait()
		}
		requests = b.received()[ordinary:]
		for i, request := range requests {
			if want := fmt.Sprint("urgent", i); !strings.Contains(string(request.Payload), want) {
				t.Errorf("request %d is %.50q, want %s", i, request.Payload, want)
			}
		}
		if len(requests) != 4 {
			t.Errorf("%d requests are sent after the ordinary ones", len(requests))
		}
	})
}

func TestAnUrgentRequestLeavesBeforeThoseThatWaitForTheConnectionToTakeThem(t *testing.T) {
	conn, l := newTestLink(t, 100)
	keys := map[*exchange]string{}
	for _, key := range []string{"o1", "o2", "u1", "o3", "u2"} {
		e := newExchange(t.Context(), Request{Urgent: key[0] == 'u'})
		keys[e] = key
		if _, err := conn.post(e); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for range keys {
		l.mu.Lock()
		e := l.popLocked()
		l.mu.Unlock()
		got = append(got, keys[e])
	}
	if want := "u1 u2 o1 o2 o3"; strings.Join(got, " ") != want {
		t.Errorf("they leave as %q, want %q", got, want)
	}
}
