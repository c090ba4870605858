package transport

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/storeconn"
)

// newTestLink returns a connection that is ready, to a peer that reads and says nothing.
func newTestLink(t *testing.T, receiveMaximum int) (*mqttConn, *link) {
	t.Helper()
	servers, err := mqtt.ParseAddresses("mqtt://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	conn := newMQTTConn(t.Context(), servers, Options{ClientID: "a", KeepAlive: time.Minute, ClientOptions: ClientOptions{program: new(dispatcher)}})
	conn.events.Up, conn.events.Down = func() {}, func(error) {}
	l, far := conn.newPipeLink(t, receiveMaximum)
	go func() { _, _ = io.Copy(io.Discard, far) }()
	if conn.established(l) != nil {
		t.Fatal("not established")
	}
	return conn, l
}

// newPipeLink returns the next link, and the end of its peer.
func (c *mqttConn) newPipeLink(t *testing.T, receiveMaximum int) (*link, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	c.options.Dialer = func(context.Context, string, string) (net.Conn, error) { return near, nil }
	l := c.newLink(nil)
	if err := l.dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close(); l.client.Abort() })
	l.client.MaxPacket, l.client.ReceiveMaximum = math.MaxInt32, receiveMaximum
	return l, far
}

// begin enqueues a call for a request.
func (c *mqttConn) begin(t *testing.T, ctx context.Context, request storeconn.Request) *call {
	t.Helper()
	began := c.calls.get(ctx, request)
	if err := c.enqueue(began); err != nil {
		t.Fatal(err)
	}
	return began
}

// outcome waits for the result of a call.
func (c *call) outcome() *call {
	await.Receive(c.done)
	return c
}

// isIdle reports whether no call waits or is pending, and none counts against the Receive Maximum.
func (l *link) isIdle() bool {
	return len(l.conn.queue)+len(l.pending)+len(l.unacked) == 0
}

func TestInvariant21ARequestWhoseCallerHasLeftIsNotSent(t *testing.T) {
	for name, test := range map[string]struct{ tenure, takesBack bool }{
		"and does not know it yet": {}, "and has taken it back": {takesBack: true},
		"because its tenure is over": {tenure: true}, "because its tenure is over, and has taken it back": {tenure: true, takesBack: true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, l := newTestLink(t, 1)
			over := errors.New("over")
			ctx, cancel := context.WithCancelCause(t.Context())
			of, request := ctx, storeconn.Request{}
			if test.tenure {
				of, request.Binding.While = t.Context(), ctx
			}
			c := conn.begin(t, of, request)
			cancel(over)
			var err error
			if test.takesBack {
				err = conn.await(c)
			}
			if l.gather(); len(l.packets) > 0 {
				t.Error("it is sent")
			}
			if !test.takesBack {
				err = conn.await(c)
			}
			if !errors.Is(err, ErrNotSent) || !errors.Is(err, over) {
				t.Errorf("%v, want ErrNotSent and why", err)
			}
			if !l.isIdle() {
				t.Error("it waits or counts still")
			}
		})
	}
}

func TestAConnectionThatLeavesOrIsLostTakesNoMoreRequests(t *testing.T) {
	for name, end := range map[string]func(*mqttConn, *link){
		"leaves":  func(_ *mqttConn, l *link) { l.leave() },
		"is lost": func(conn *mqttConn, l *link) { conn.lost(l, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			conn, l := newTestLink(t, 1)
			end(conn, l)
			conn.begin(t, t.Context(), storeconn.Request{})
			if l.gather(); len(l.packets)+len(l.pending) > 0 {
				t.Error("it takes one")
			}
		})
	}
}

func TestWhatWasNotSentWhenTheConnectionDropsLeavesOverTheNext(t *testing.T) {
	conn, l := newTestLink(t, 10)
	sent := conn.begin(t, t.Context(), storeconn.Request{})
	l.gather()
	queued := conn.begin(t, t.Context(), storeconn.Request{})
	conn.lost(l, nil)
	if got := sent.outcome(); !errors.Is(got.err, ErrOutcomeUnknown) || errors.Is(got.err, ErrNotSent) {
		t.Errorf("the one that was sent: %v", got.err)
	}
	if l.gather(); len(l.packets) > 0 {
		t.Error("the one that was queued leaves over the lost connection")
	}
	next, _ := conn.newPipeLink(t, 10)
	if conn.established(next) != nil {
		t.Fatal("not established")
	}
	if next.gather(); next.pending[queued.correlation] != queued || len(next.pending) != 1 {
		t.Errorf("the next connection takes %d requests, want the one that was queued", len(next.pending))
	}
}

// The request waits for a connection when its own is found to be lost, or comes too late for it.
func TestInvariant53ABoundRequestIsNotQueuedForTheNextConnection(t *testing.T) {
	conn, l := newTestLink(t, 1)
	connection := make(chan struct{})
	conn.events.Down = func(error) { close(connection) }
	bound := storeconn.Request{Binding: storeconn.Binding{Connection: connection}}
	waits := conn.begin(t, t.Context(), bound)
	conn.lost(l, nil)
	if got := waits.outcome(); !errors.Is(got.err, ErrNotSent) || !errors.Is(got.err, errBoundConnection) {
		t.Errorf("while it waits: %v, want ErrNotSent", got.err)
	}
	if err := conn.enqueue(conn.calls.get(t.Context(), bound)); !errors.Is(err, errBoundConnection) {
		t.Errorf("later: %v, want the reason without a wait for the next connection", err)
	}
	if !l.isIdle() {
		t.Error("it waits still")
	}
}

func TestRequestsLeaveInOrderAndUrgentOnesFirst(t *testing.T) {
	conn, l := newTestLink(t, 1)
	ctx, leave := context.WithCancel(t.Context())
	names := map[*call]string{}
	for _, name := range []string{"first", "o1", "leaves", "o2", "u1", "u2"} {
		of := t.Context()
		if name == "leaves" {
			of = ctx
		}
		names[conn.begin(t, of, storeconn.Request{Binding: storeconn.Binding{Urgent: name[0] == 'u'}})] = name
		l.send()
	}
	leave()
	var got []string
	for len(l.unacked) > 0 {
		id := l.lastID
		got = append(got, names[l.pending[l.unacked[id]]])
		l.acknowledged(&mqtt.Puback{PacketID: id})
		l.send()
	}
	if want := []string{"first", "u1", "u2", "o1", "o2"}; !slices.Equal(got, want) {
		t.Errorf("they leave as %q, want %q", got, want)
	}
}

func TestACallThatIsGivenUpAsItsResultComesHasThatResult(t *testing.T) {
	conn, l := newTestLink(t, 1)
	for range 20 {
		c := conn.begin(t, t.Context(), storeconn.Request{})
		l.send()
		if !l.answer(&mqtt.Publish{CorrelationData: c.correlation[:]}) {
			t.Fatal("not taken")
		}
		l.acknowledged(&mqtt.Puback{PacketID: l.lastID})
		if err := conn.abandon(c, context.Canceled); err != nil || c.outcome().err != nil {
			t.Errorf("%v, %v", err, c.err)
		}
		conn.calls.put(c)
	}
	if !l.isIdle() {
		t.Error("one of them waits or counts still")
	}
}

// The caller leaves at the moment in which the connection has the Will.
func TestAWillThatStandsIsNotGivenUp(t *testing.T) {
	conn, l := newTestLink(t, 1)
	will := &pendingWill{result: make(chan willResult, 1)}
	conn.will = will
	conn.concluded(will, willResult{lost: l.down})
	if result := conn.withdraw(will, context.Canceled); result.err != nil || result.lost != l.down {
		t.Errorf("%+v", result)
	}
	if conn.outdated(will) {
		t.Error("its connection is to be replaced")
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
		if status := client.Connection(); !status.Connected || status.Connections != 2 {
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
				if status := client.Connection(); status.Connections != 1 || !status.Connected {
					t.Errorf("the connection was given up: %+v", status)
				}
			})
		})
	}
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
		stuckOne := get(t.Context(), client, "k1")["k1"]
		synctest.Wait()
		others := get(t.Context(), client, "k2", "k3") // they may go by the next connection
		synctest.Wait()
		began := time.Now()
		client.Probe(time.Second)
		if got := await.Receive(stuckOne); !errors.Is(got.err, ErrOutcomeUnknown) || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), got.err)
		}
		for _, c := range others {
			await.Receive(c)
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
