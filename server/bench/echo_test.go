package bench_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	mqttpackets "github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// The library is measured against an exchange of messages by plain paho and plain mochi (stock),
// the same with all properties that our messages have (alike), and the same bytes without MQTT (raw).

// The SET of the benchmarks, and its reply.
const (
	speedClient    = "speed"
	speedKey       = "press-7/setpoint-000"
	speedValue     = "sixteen bytes --"
	echoTopic      = "clients/" + speedClient + "/services/statestore/_any_/command/invoke/response"
	echoReply      = "+OK\r\n"
	echoTimestamp  = "1796374425000:1:speed"
	echoVersion    = "1796374425000:2:StateStore"
	echoExpiry     = 10 // seconds
	protocolFormat = "application/octet-stream"
)

// stockBroker is plain mochi with a hook that publishes an answer to each request.
type stockBroker struct {
	mochi.HookBase
	broker  *mochi.Server
	inline  *mochi.Client
	address string
}

// startStockBroker runs one on a free port until the benchmark ends. wrap may put
// something between it and its socket, such as TLS; nil does not.
func startStockBroker(t testing.TB, wrap func(net.Listener) net.Listener) *stockBroker {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stockBroker{
		broker:  mochi.New(&mochi.Options{InlineClient: true, Logger: testsupport.Discard}),
		address: socket.Addr().String(),
	}
	s.inline = s.broker.NewClient(nil, "local", "echo", true)
	if wrap != nil {
		socket = wrap(socket)
	}
	err = errors.Join(
		s.broker.AddHook(s, nil),
		s.broker.AddListener(listeners.NewNet("tcp", socket)),
		s.broker.Serve(),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// mochi v2.7.9: Close may deadlock with a client that disconnects at the same time.
		for end := time.Now().Add(testsupport.Patience); s.broker.Clients.Len() > 1 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		_ = s.broker.Close()
	})
	return s
}

// ID names the hook in the broker.
func (s *stockBroker) ID() string { return "echo" }

// Provides lists the calls that the broker should make.
func (s *stockBroker) Provides(call byte) bool {
	return call == mochi.OnConnectAuthenticate || call == mochi.OnACLCheck || call == mochi.OnPublish
}

// OnConnectAuthenticate admits every client.
func (s *stockBroker) OnConnectAuthenticate(*mochi.Client, mqttpackets.Packet) bool { return true }

// OnACLCheck allows everything.
func (s *stockBroker) OnACLCheck(*mochi.Client, string, bool) bool { return true }

// OnPublish answers a request, at QoS 0, as our store does, and with user properties if
// the request has some.
func (s *stockBroker) OnPublish(cl *mochi.Client, pk mqttpackets.Packet) (mqttpackets.Packet, error) {
	if pk.TopicName != testsupport.InvokeTopic {
		return pk, nil
	}
	answer := mqttpackets.Packet{
		FixedHeader: mqttpackets.FixedHeader{Type: mqttpackets.Publish},
		TopicName:   pk.Properties.ResponseTopic,
		Payload:     []byte(echoReply),
		Properties:  mqttpackets.Properties{CorrelationData: pk.Properties.CorrelationData},
	}
	if len(pk.Properties.User) > 0 {
		answer.Properties.ContentType = protocolFormat
		answer.Properties.User = []mqttpackets.UserProperty{
			{Key: "__stat", Val: "200"},
			{Key: "__protVer", Val: "1.0"},
			{Key: "__ts", Val: echoVersion},
		}
	}
	return pk, s.broker.InjectPacket(s.inline, answer)
}

// stockClient is plain paho with the requests that await an answer.
type stockClient struct {
	paho    *paho.Client
	last    atomic.Uint64
	payload []byte

	mu      sync.Mutex
	waiting map[string]chan *paho.Publish // by correlation
}

// dialStock connects a client that leaves when the benchmark ends.
func dialStock(t testing.TB, conn net.Conn, connect *paho.Connect) *stockClient {
	t.Helper()
	c := &stockClient{
		payload: testsupport.Command("SET", speedKey, speedValue),
		waiting: make(map[string]chan *paho.Publish),
	}
	c.paho = paho.NewClient(paho.ClientConfig{
		Conn:              conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){c.received},
	})
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	if _, err := c.paho.Connect(ctx, connect); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.paho.Disconnect(&paho.Disconnect{})
		await.Receive(c.paho.Done())
	})
	_, err := c.paho.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: echoTopic, QoS: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func stockConnect(id string) *paho.Connect {
	return &paho.Connect{ClientID: id, CleanStart: true, KeepAlive: 60}
}

// dialStockBroker connects one over plain TCP.
func dialStockBroker(t testing.TB, address string) *stockClient {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return dialStock(t, conn, stockConnect(speedClient))
}

func (c *stockClient) received(event paho.PublishReceived) (bool, error) {
	if properties := event.Packet.Properties; properties != nil {
		c.mu.Lock()
		answer := c.waiting[string(properties.CorrelationData)]
		delete(c.waiting, string(properties.CorrelationData))
		c.mu.Unlock()
		if answer != nil {
			answer <- event.Packet
		}
	}
	return true, nil
}

// ask sends a request with only the properties that a reply needs.
func (c *stockClient) ask(ctx context.Context, _ int) error {
	return c.exchange(ctx, &paho.PublishProperties{ResponseTopic: echoTopic})
}

// askAlike sends one with all the properties that a SET has.
func (c *stockClient) askAlike(ctx context.Context, _ int) error {
	expiry := uint32(echoExpiry)
	return c.exchange(ctx, &paho.PublishProperties{
		ResponseTopic: echoTopic,
		ContentType:   protocolFormat,
		MessageExpiry: &expiry,
		User: paho.UserProperties{
			{Key: "__srcId", Value: speedClient},
			{Key: "__protVer", Value: "1.0"},
			{Key: "$partition", Value: speedClient},
			{Key: "__ts", Value: echoTimestamp},
		},
	})
}

// exchange sends a request, waits for its PUBACK and for its answer, and checks that.
func (c *stockClient) exchange(ctx context.Context, properties *paho.PublishProperties) error {
	correlation, answer := make([]byte, 16), make(chan *paho.Publish, 1)
	binary.BigEndian.PutUint64(correlation, c.last.Add(1))
	properties.CorrelationData = correlation
	c.mu.Lock()
	c.waiting[string(correlation)] = answer
	c.mu.Unlock()
	_, err := c.paho.Publish(ctx, &paho.Publish{
		QoS: 1, Topic: testsupport.InvokeTopic, Payload: c.payload, Properties: properties,
	})
	if err != nil {
		return err
	}
	select {
	case message := <-answer:
		if string(message.Payload) != echoReply {
			return fmt.Errorf("the echo answers %q", message.Payload)
		}
		return nil
	case <-c.paho.Done():
		return errors.New("the connection to the echo was lost")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// rawEcho exchanges as many bytes as a SET and its answer have, PUBACK included, with as
// few system calls as can be: it is what sockets alone cost.
type rawEcho struct {
	conn            net.Conn
	in              *bufio.Reader
	out             *bufio.Writer
	request, answer []byte
}

const rawBuffer = 64 << 10

// startRawEcho runs both sides until the benchmark ends.
func startRawEcho(t testing.TB, request, answer int) *rawEcho {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { answerRaw(server, request, answer) })
	t.Cleanup(func() {
		_ = client.Close()
		await.Done(serving.Wait)
		_ = server.Close()
	})
	return &rawEcho{
		conn:    client,
		in:      bufio.NewReaderSize(client, rawBuffer),
		out:     bufio.NewWriterSize(client, rawBuffer),
		request: make([]byte, request),
		answer:  make([]byte, answer),
	}
}

// answerRaw holds answers back as long as there is a request to read.
func answerRaw(conn net.Conn, request, answer int) {
	in, out := bufio.NewReaderSize(conn, rawBuffer), bufio.NewWriterSize(conn, rawBuffer)
	asked, answered := make([]byte, request), make([]byte, answer)
	for {
		if _, err := io.ReadFull(in, asked); err != nil {
			return
		}
		_, _ = out.Write(answered) // what fails shows in the next flush
		if in.Buffered() < request && out.Flush() != nil {
			return
		}
	}
}

// lap exchanges a number of requests, so many in flight, from one goroutine.
func (r *rawEcho) lap(_ context.Context, operations, inFlight int) error {
	sent := min(operations, inFlight)
	for range sent {
		_, _ = r.out.Write(r.request)
	}
	for range operations {
		if r.in.Buffered() < len(r.answer) {
			if err := r.out.Flush(); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(r.in, r.answer); err != nil {
			return err
		}
		if sent < operations {
			sent++
			_, _ = r.out.Write(r.request)
		}
	}
	return nil
}

// meter counts what goes over the connections that a server accepts.
type meter struct{ read, written atomic.Int64 }

func (m *meter) wrap(listener net.Listener) net.Listener { return metered{listener, m} }

type metered struct {
	net.Listener
	meter *meter
}

func (m metered) Accept() (net.Conn, error) {
	conn, err := m.Listener.Accept()
	return meteredConn{conn, m.meter}, err
}

type meteredConn struct {
	net.Conn
	meter *meter
}

func (c meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.meter.read.Add(int64(n))
	return n, err
}

func (c meteredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.meter.written.Add(int64(n))
	return n, err
}

// perOperation returns how many bytes an operation sends and is answered.
func (m *meter) perOperation(t testing.TB, operation func(context.Context, int) error) (request, answer int) {
	t.Helper()
	const operations = 100
	read, written := m.read.Load(), m.written.Load()
	if err := workers(operation)(t.Context(), operations, 1); err != nil {
		t.Fatal(err)
	}
	return int(m.read.Load()-read) / operations, int(m.written.Load()-written) / operations
}

// The echo is a measure only if it transfers as much as the operation that it is compared with.
func TestTheStockAlikeEchoTransfersAsMuchAsASet(t *testing.T) {
	var ofSet, ofEcho meter
	set := &speed{client: dialSpeed(t, startMetered(t, &ofSet))}
	echo := dialStockBroker(t, startStockBroker(t, ofEcho.wrap).address)
	want, wantAnswer := ofSet.perOperation(t, set.set)
	got, gotAnswer := ofEcho.perOperation(t, echo.askAlike)
	// A counter in a timestamp may have more than one digit.
	if got < want-4 || got > want+4 || gotAnswer < wantAnswer-4 {
		t.Errorf("a SET is %d bytes and answered by %d, its echo %d and %d", want, wantAnswer, got, gotAnswer)
	}
}
