package server_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
)

// The names of the protocol, spelt out: these tests must notice if ours change.
const (
	invokeTopic    = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	reservedPrefix = "clients/statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8"
)

// patience is how long anything may take on a machine that is busy with something
// else. No test waits that long for what is to happen.
const patience = 20 * time.Second

var discard = slog.New(slog.DiscardHandler)

// start runs a server on a free port until the test ends.
func start(t testing.TB, options server.Options) (address string) {
	t.Helper()
	address, _ = startServer(t, options)
	return address
}

// startServer returns the server too.
func startServer(t testing.TB, options server.Options) (address string, s *server.Server) {
	t.Helper()
	options.Addr = "127.0.0.1:0"
	s, err := server.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve did not return")
		}
	})
	return s.Addr().String(), s
}

// peer is a client that nobody here wrote: plain paho, with what it received.
type peer struct {
	t            testing.TB
	id           string
	conn         net.Conn
	paho         *paho.Client
	connack      *paho.Connack
	received     chan *paho.Publish // all but:
	notified     chan *paho.Publish // notifications of the store
	disconnected chan *paho.Disconnect
	replyTo      string
	requests     int
}

// connect returns a peer that listens on its response topic. change may alter its
// CONNECT.
func connect(t testing.TB, address, id string, change func(*paho.Connect)) *peer {
	t.Helper()
	p, err := tryConnect(t, address, id, change)
	if err != nil {
		t.Fatalf("connect %q: %v", id, err)
	}
	p.subscribe(p.replyTo)
	return p
}

func tryConnect(t testing.TB, address, id string, change func(*paho.Connect)) (*peer, error) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{
		t:            t,
		id:           id,
		conn:         conn,
		received:     make(chan *paho.Publish, 4096),
		notified:     make(chan *paho.Publish, 4096),
		disconnected: make(chan *paho.Disconnect, 1),
		replyTo:      "clients/" + id + "/response",
	}
	p.paho = paho.NewClient(paho.ClientConfig{
		Conn: conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(r paho.PublishReceived) (bool, error) {
			if strings.HasPrefix(r.Packet.Topic, reservedPrefix) {
				p.notified <- r.Packet
			} else {
				p.received <- r.Packet
			}
			return true, nil
		}},
		OnServerDisconnect: func(d *paho.Disconnect) { p.disconnected <- d },
	})
	connect := &paho.Connect{
		ClientID:   id,
		CleanStart: true,
		KeepAlive:  60,
		Properties: &paho.ConnectProperties{RequestProblemInfo: true},
	}
	if change != nil {
		change(connect)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p.connack, err = p.paho.Connect(ctx, connect)
	if err == nil {
		t.Cleanup(func() { _ = p.paho.Disconnect(&paho.Disconnect{}) })
	}
	return p, err
}

// context ends with the connection, since paho's calls do not, and with patience.
func (p *peer) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		select {
		case <-p.paho.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func (p *peer) subscribe(topic string) {
	p.t.Helper()
	if code, err := p.trySubscribe(topic); err != nil {
		p.t.Fatalf("%s: subscribe to %q: %v (code %#x)", p.id, topic, err, code)
	}
}

func (p *peer) trySubscribe(topic string) (code byte, err error) {
	ctx, cancel := p.context()
	defer cancel()
	suback, err := p.paho.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: topic, QoS: 1}}})
	if suback != nil && len(suback.Reasons) == 1 {
		code = suback.Reasons[0]
	}
	return code, err
}

// request returns a request that lacks nothing; SETs get a timestamp.
func (p *peer) request(words ...string) *paho.Publish {
	p.requests++
	publish := &paho.Publish{
		QoS:     1,
		Topic:   invokeTopic,
		Payload: command(words...),
		Properties: &paho.PublishProperties{
			ResponseTopic:   p.replyTo,
			CorrelationData: fmt.Appendf(nil, "%016d", p.requests),
		},
	}
	publish.Properties.User.Add("__ts", fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), p.id))
	return publish
}

// command writes RESP3 by itself.
func command(words ...string) []byte {
	payload := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, word := range words {
		payload = fmt.Appendf(payload, "$%d\r\n%s\r\n", len(word), word)
	}
	return payload
}

// publish sends and returns the PUBACK.
func (p *peer) publish(message *paho.Publish) (*paho.PublishResponse, error) {
	ctx, cancel := p.context()
	defer cancel()
	return p.paho.Publish(ctx, message)
}

// next returns the next message that arrives, other than notifications.
func (p *peer) next() *paho.Publish { p.t.Helper(); return p.take(p.received) }

// nextNotification returns the next notification that arrives.
func (p *peer) nextNotification() *paho.Publish { p.t.Helper(); return p.take(p.notified) }

func (p *peer) take(from <-chan *paho.Publish) *paho.Publish {
	p.t.Helper()
	select {
	case message := <-from:
		return message
	case <-time.After(patience):
		p.t.Fatalf("%s: nothing arrives", p.id)
		return nil
	}
}

// do sends a request and returns the payload of its reply, which must be the next
// message.
func (p *peer) do(words ...string) string {
	p.t.Helper()
	request := p.request(words...)
	if _, err := p.publish(request); err != nil {
		p.t.Fatalf("%s: %q: %v", p.id, words, err)
	}
	reply := p.next()
	if reply.Topic != p.replyTo || string(reply.Properties.CorrelationData) != string(request.Properties.CorrelationData) {
		p.t.Fatalf("%s: %q: got %v, want the reply", p.id, words, reply)
	}
	return string(reply.Payload)
}

func (p *peer) mustGet(key, want string) {
	p.t.Helper()
	wanted := "$-1\r\n"
	if want != "" {
		wanted = fmt.Sprintf("$%d\r\n%s\r\n", len(want), want)
	}
	if got := p.do("GET", key); got != wanted {
		p.t.Errorf("%q holds %q, want %q", key, got, wanted)
	}
}

// mustBeSilent fails if anything arrived before the reply to one more request.
func (p *peer) mustBeSilent() {
	p.t.Helper()
	p.do("GET", "is anything before me?")
	if len(p.notified) > 0 {
		p.t.Errorf("%s: got %v", p.id, await.Receive(p.notified))
	}
}

// mustBeGone waits for the end of the connection, with or without a reason.
func (p *peer) mustBeGone() {
	p.t.Helper()
	select {
	case <-p.paho.Done():
	case <-time.After(patience):
		p.t.Errorf("%s: still connected", p.id)
	}
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// mustBeDisconnected returns the reason in words, if there is one.
func (p *peer) mustBeDisconnected(code byte) (reason string) {
	p.t.Helper()
	select {
	case got := <-p.disconnected:
		if got.ReasonCode != code {
			p.t.Errorf("%s: disconnected with %#x, want %#x", p.id, got.ReasonCode, code)
		}
		if got.Properties != nil {
			reason = got.Properties.ReasonString
		}
	case <-time.After(patience):
		p.t.Errorf("%s: still connected", p.id)
	}
	return reason
}

// syncBuffer collects a log that several goroutines write.
type syncBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

const (
	reasonTakenOver     = packets.DisconnectSessionTakenOver
	reasonShuttingDown  = packets.DisconnectServerShuttingDown
	reasonNotAuthorized = packets.DisconnectNotAuthorized
)
