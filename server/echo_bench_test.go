package server_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	mqttpackets "github.com/mochi-mqtt/server/v2/packets"
)

// Here is what the library is measured against: the same exchange of messages as
// somebody would write it with the two MQTT libraries under ours and nothing else
// (stock), and the same bytes with no MQTT at all (raw).

// What a SET of the benchmarks says, and what the store answers. The echoes send as much.
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
	mqtt.HookBase
	broker  *mqtt.Server
	inline  *mqtt.Client
	address string
}

// startStockBroker runs one on a free port until the benchmark ends. config nil: no TLS.
func startStockBroker(t testing.TB, config *tls.Config) *stockBroker {
	t.Helper()
	s := &stockBroker{broker: mqtt.New(&mqtt.Options{InlineClient: true, Logger: discard})}
	s.inline = s.broker.NewClient(nil, "local", "echo", true)
	listener := listeners.NewTCP(listeners.Config{ID: "tcp", Address: "127.0.0.1:0", TLSConfig: config})
	err := errors.Join(
		s.broker.AddHook(new(auth.AllowHook), nil),
		s.broker.AddHook(s, nil),
		s.broker.AddListener(listener),
		s.broker.Serve(),
	)
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Address()
	// Close may deadlock with a client that leaves at the same time; each client here
	// has left before, since it was started later.
	t.Cleanup(func() { _ = s.broker.Close() })
	return s
}

// ID names the hook in the broker.
func (s *stockBroker) ID() string { return "echo" }

// Provides says that the hook sees publishes.
func (s *stockBroker) Provides(call byte) bool { return call == mqtt.OnPublish }

// OnPublish answers a request, at QoS 0, as our store does.
func (s *stockBroker) OnPublish(cl *mqtt.Client, pk mqttpackets.Packet) (mqttpackets.Packet, error) {
	if pk.TopicName != invokeTopic {
		return pk, nil
	}
	err := s.broker.InjectPacket(s.inline, mqttpackets.Packet{
		FixedHeader: mqttpackets.FixedHeader{Type: mqttpackets.Publish},
		TopicName:   pk.Properties.ResponseTopic,
		Payload:     []byte(echoReply),
		Properties: mqttpackets.Properties{
			CorrelationData: pk.Properties.CorrelationData,
			ContentType:     protocolFormat,
			User: []mqttpackets.UserProperty{
				{Key: "__stat", Val: "200"},
				{Key: "__protVer", Val: "1.0"},
				{Key: "__ts", Val: echoVersion},
			},
		},
	})
	return pk, err
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
		payload: command("SET", speedKey, speedValue),
		waiting: make(map[string]chan *paho.Publish),
	}
	c.paho = paho.NewClient(paho.ClientConfig{
		Conn:              conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){c.received},
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.paho.Connect(ctx, connect); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.paho.Disconnect(&paho.Disconnect{})
		<-c.paho.Done()
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

// ask sends a request, waits for its PUBACK and for its answer, and checks that.
func (c *stockClient) ask(ctx context.Context, _ int) error {
	correlation := make([]byte, 16)
	binary.BigEndian.PutUint64(correlation, c.last.Add(1))
	answer, expiry := make(chan *paho.Publish, 1), uint32(echoExpiry)
	c.mu.Lock()
	c.waiting[string(correlation)] = answer
	c.mu.Unlock()
	_, err := c.paho.Publish(ctx, &paho.Publish{
		QoS: 1, Topic: invokeTopic, Payload: c.payload,
		Properties: &paho.PublishProperties{
			ResponseTopic:   echoTopic,
			CorrelationData: correlation,
			ContentType:     protocolFormat,
			MessageExpiry:   &expiry,
			User: paho.UserProperties{
				{Key: "__srcId", Value: speedClient},
				{Key: "__protVer", Value: "1.0"},
				{Key: "$partition", Value: speedClient},
				{Key: "__ts", Value: echoTimestamp},
			},
		},
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
		serving.Wait()
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
type meter struct{ read, written, writes atomic.Int64 }

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
	c.meter.writes.Add(1)
	return n, err
}

// perOperation is what an operation of a lap sends and receives, from the client's side.
func (m *meter) perOperation(ctx context.Context, run lap) (request, answer int, err error) {
	const operations = 100
	read, written := m.read.Load(), m.written.Load()
	err = run(ctx, operations, 1)
	return int(m.read.Load()-read) / operations, int(m.written.Load()-written) / operations, err
}
