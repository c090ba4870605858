package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/protocol"
)

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

// The keep-alive may write a packet meanwhile.
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
// in a row, and its connection. The goroutine that always reads goes on by itself only after a tick.
// byCallers counts the packets that callers have read.
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
	var closing atomic.Bool
	l.net.Lend(tick, func() bool { return !closing.Load() && l.path.callersRead() })
	t.Cleanup(func() { // or Close waits for a tick
		closing.Store(true)
		l.net.Recall()
	})
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

// No request depends on a tick: the goroutine that reads knows of the other requests, or is told.
func TestEachRequestIsAnsweredWhicheverGoroutineReads(t *testing.T) {
	client, _, byCallers := lendingClient(t, storeBroker(), time.Hour)
	for range 20 {
		untilCallersRead(t, client, byCallers)
		result := make(chan error, 1)
		call := &async.Call{Done: func(r async.Result) { result <- r.Err }}
		client.BeginGet(call, "k", GetOptions{}) // no goroutine waits for it
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

// fallsSilent returns a broker that answers each request until silence is set. From then on asked has an
// item for each.
func fallsSilent() (broker *pipeBroker, silence *atomic.Bool, asked chan struct{}) {
	broker, silence, asked = storeBroker(), new(atomic.Bool), make(chan struct{}, 100)
	answers := broker.answer
	broker.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
		if _, ok := packet.Content.(*packets.Publish); ok && silence.Load() {
			asked <- struct{}{}
			return true
		}
		return answers(conn, packet)
	}
	return broker, silence, asked
}

func TestACallerThatReadsObeysItsContext(t *testing.T) {
	broker, silence, asked := fallsSilent()
	client, _, byCallers := lendingClient(t, broker, time.Millisecond)
	untilCallersRead(t, client, byCallers)
	silence.Store(true)
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
			broker, silence, asked := fallsSilent()
			client, _, byCallers := lendingClient(t, broker, 100*time.Millisecond)
			untilCallersRead(t, client, byCallers)
			silence.Store(true)
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
