package bench_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// The library is measured against an exchange of messages by plain paho and plain mochi.

// The SET of the benchmarks, and its reply.
const (
	speedClient = "speed"
	speedKey    = "press-7/setpoint-000"
	speedValue  = "sixteen bytes --"
	echoTopic   = "clients/" + speedClient + "/services/statestore/_any_/command/invoke/response"
	echoReply   = "+OK\r\n"
)

// stockBroker is plain mochi with a hook that publishes an answer to each request.
type stockBroker struct {
	mochi.HookBase
	broker  *mochi.Server
	inline  *mochi.Client
	address string
}

// startStockBroker runs one on a listener until the benchmark ends.
func startStockBroker(t testing.TB, socket net.Listener) *stockBroker {
	t.Helper()
	s := &stockBroker{
		broker:  mochi.New(&mochi.Options{InlineClient: true, Logger: testsupport.Discard}),
		address: socket.Addr().String(),
	}
	s.inline = s.broker.NewClient(nil, "local", "echo", true)
	err := errors.Join(
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

// OnPublish answers a request, at QoS 0, as our store does.
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
func dialStock(t testing.TB, conn net.Conn) *stockClient {
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
	if _, err := c.paho.Connect(ctx, &paho.Connect{ClientID: speedClient, CleanStart: true, KeepAlive: 60}); err != nil {
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

// dialStockBroker connects one over plain TCP.
func dialStockBroker(t testing.TB, address string) *stockClient {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return dialStock(t, conn)
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
	correlation, answer := make([]byte, 16), make(chan *paho.Publish, 1)
	binary.BigEndian.PutUint64(correlation, c.last.Add(1))
	c.mu.Lock()
	c.waiting[string(correlation)] = answer
	c.mu.Unlock()
	_, err := c.paho.Publish(ctx, &paho.Publish{
		QoS: 1, Topic: testsupport.InvokeTopic, Payload: c.payload,
		Properties: &paho.PublishProperties{ResponseTopic: echoTopic, CorrelationData: correlation},
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
