package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/eclipse/paho.golang/paho"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	mqttpackets "github.com/mochi-mqtt/server/v2/packets"
)

// echoes returns the peers without locks: what messages cost.
func echoes() []*Peer {
	lacks := map[Operation]string{HandOver: "messages alone have no locks"}
	return []*Peer{
		{
			Name:  "paho + mochi",
			About: "An echo with the same MQTT libraries and nothing else: a request at QoS 1, its PUBACK, and an answer at QoS 0, one connection. A pair is two echoes, a renewal and a guarded write are one.",
			Lacks: lacks,
			Serve: func(ctx context.Context, h *Host) (*Server, error) { return h.child(ctx, "stock") },
			Lock:  dialStock,
		},
		{
			Name: "raw echo",
			About: "160 bytes and the same back, without MQTT, over a connection for each that is in flight. " +
				"Nothing over TCP can be faster with one in flight.",
			Lacks: lacks,
			Serve: func(ctx context.Context, h *Host) (*Server, error) { return h.child(ctx, "raw") },
			Lock:  dialRaw,
		},
	}
}

// echoLocker is a client without locks: each request is an exchange.
type echoLocker struct {
	exchange func(ctx context.Context) error
	close    func()
}

func (l echoLocker) TryObtain(ctx context.Context, _ string) (Held, error) {
	return nil, l.exchange(ctx)
}
func (l echoLocker) Obtain(context.Context, string) (Held, error) { return nil, errors.ErrUnsupported }
func (l echoLocker) Release(ctx context.Context, _ Held) error    { return l.exchange(ctx) }
func (l echoLocker) Close()                                       { l.close() }

func (l echoLocker) Renewal(context.Context, Held) (func(context.Context) error, error) {
	return l.exchange, nil
}

func (l echoLocker) Writer(context.Context, Held, string) (func(context.Context, []byte) error, error) {
	return func(ctx context.Context, _ []byte) error { return l.exchange(ctx) }, nil
}

// What the echo exchanges: the SET of a key of 20 bytes to a value of 16, and its reply.
const (
	requestTopic = "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke"
	request      = "*3\r\n$3\r\nSET\r\n$20\r\npress-7/setpoint-000\r\n$16\r\nsixteen bytes --\r\n"
	answer       = "+OK\r\n"
)

// stockBroker is plain mochi with a hook that publishes an answer to each request.
type stockBroker struct {
	mochi.HookBase
	broker *mochi.Server
	inline *mochi.Client
}

func serveStock(ctx context.Context, _ string, said func(address string)) error {
	socket, err := net.Listen("tcp", loopback)
	if err != nil {
		return err
	}
	// The default capabilities: https://pkg.go.dev/github.com/mochi-mqtt/server/v2#Capabilities
	s := &stockBroker{broker: mochi.New(&mochi.Options{InlineClient: true, Logger: slog.New(slog.DiscardHandler)})}
	s.inline = s.broker.NewClient(nil, "local", "echo", true)
	err = errors.Join(
		s.broker.AddHook(s, nil),
		s.broker.AddListener(listeners.NewNet("tcp", socket)),
		s.broker.Serve(),
	)
	if err != nil {
		return err
	}
	said(socket.Addr().String())
	<-ctx.Done()
	// mochi v2.7.9: Close may deadlock with a client that disconnects at the same time. The
	// process ends now, which closes everything.
	return nil
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

// OnPublish answers a request, at QoS 0, as our store does.
func (s *stockBroker) OnPublish(_ *mochi.Client, pk mqttpackets.Packet) (mqttpackets.Packet, error) {
	if pk.TopicName != requestTopic {
		return pk, nil
	}
	return pk, s.broker.InjectPacket(s.inline, mqttpackets.Packet{
		FixedHeader: mqttpackets.FixedHeader{Type: mqttpackets.Publish},
		TopicName:   pk.Properties.ResponseTopic,
		Payload:     []byte(answer),
		Properties:  mqttpackets.Properties{CorrelationData: pk.Properties.CorrelationData},
	})
}

// stockClient is plain paho with the requests that await an answer.
type stockClient struct {
	paho    *paho.Client
	answers string // the topic
	last    atomic.Uint64

	mu      sync.Mutex // guards waiting
	waiting map[string]chan *paho.Publish
}

func dialStock(ctx context.Context, server *Server, id string) (Locker, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server.Address)
	if err != nil {
		return nil, err
	}
	c := &stockClient{
		answers: "clients/" + id + "/services/statestore/_any_/command/invoke/response",
		waiting: make(map[string]chan *paho.Publish),
	}
	c.paho = paho.NewClient(paho.ClientConfig{
		Conn:              conn,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){c.received},
	})
	// Without a Receive Maximum paho makes room for 65,535 messages; more than are in flight
	// are not needed: https://pkg.go.dev/github.com/eclipse/paho.golang/paho#ConnectProperties
	most := uint16(1000)
	_, err = c.paho.Connect(ctx, &paho.Connect{
		ClientID: id, CleanStart: true, KeepAlive: 60, Properties: &paho.ConnectProperties{ReceiveMaximum: &most},
	})
	if err == nil {
		_, err = c.paho.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: c.answers, QoS: 1}}})
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return echoLocker{c.exchange, func() { _ = c.paho.Disconnect(&paho.Disconnect{}) }}, nil
}

func (c *stockClient) received(event paho.PublishReceived) (bool, error) {
	if properties := event.Packet.Properties; properties != nil {
		c.mu.Lock()
		waiting := c.waiting[string(properties.CorrelationData)]
		delete(c.waiting, string(properties.CorrelationData))
		c.mu.Unlock()
		if waiting != nil {
			waiting <- event.Packet
		}
	}
	return true, nil
}

// exchange sends a request, waits for its PUBACK and for its answer, and checks that.
func (c *stockClient) exchange(ctx context.Context) error {
	correlation, answered := make([]byte, 16), make(chan *paho.Publish, 1)
	binary.BigEndian.PutUint64(correlation, c.last.Add(1))
	c.mu.Lock()
	c.waiting[string(correlation)] = answered
	c.mu.Unlock()
	_, err := c.paho.Publish(ctx, &paho.Publish{
		QoS: 1, Topic: requestTopic, Payload: []byte(request),
		Properties: &paho.PublishProperties{ResponseTopic: c.answers, CorrelationData: correlation},
	})
	if err != nil {
		return err
	}
	select {
	case message := <-answered:
		if string(message.Payload) != answer {
			return fmt.Errorf("the echo answers %q", message.Payload)
		}
		return nil
	case <-c.paho.Done():
		return errors.New("the connection to the echo was lost")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
