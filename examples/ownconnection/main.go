// Command ownconnection holds a lease over an MQTT connection that belongs to the program, and
// publishes the program's own messages over the same connection. A program does this where its
// broker grants it one connection only.
//
//	tenure serve                       # in one terminal
//	go run ./examples/ownconnection    # in another
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

func main() {
	broker := flag.String("broker", "mqtt://localhost:1883", "address of the broker; without TLS")
	name := flag.String("name", "gateway-a", "client id")
	duration := flag.Duration("for", 2*time.Second, "how long to hold the lease")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := slog.New(slog.NewTextHandler(os.Stdout, nil))
	if err := run(ctx, *broker, *name, *duration, logger); err != nil {
		logger.Error("failed", "error", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, name string, duration time.Duration, logger *slog.Logger) error {
	address, err := url.Parse(broker)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second+duration)
	defer cancel()
	conn := NewConn(name)
	client, err := transport.NewClient(conn, transport.ClientOptions{Logger: logger})
	if err != nil {
		return err
	}
	defer client.Close()
	own := &connection{address: address.Host, clientID: name, conn: conn, logger: logger}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		own.run(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()

	l, err := lease.New(client, "press-7/active", lease.Options{TTL: 2 * time.Second})
	if err != nil {
		return err
	}
	tenure, err := l.Acquire(ctx)
	if err != nil {
		return err
	}
	logger.Info("the lease is held over the program's own connection", "value", tenure.Value())
	select {
	case <-time.After(duration):
	case <-tenure.Context().Done():
	}
	if err := context.Cause(tenure.Context()); err != nil {
		return fmt.Errorf("the lease was lost: %w", err)
	}
	return tenure.Release(context.WithoutCancel(ctx))
}

// A connection is what a program has without Tenure: an MQTT client that connects again.
type connection struct {
	address, clientID string
	conn              *Conn
	logger            *slog.Logger
}

const reconnectPause = 100 * time.Millisecond

// run connects, again and again, until ctx ends.
func (c *connection) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.connect(ctx); err != nil && ctx.Err() == nil {
			c.logger.Warn("no connection", "broker", c.address, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

// connect makes one connection, and returns when it is lost or ctx ends.
func (c *connection) connect(ctx context.Context) error {
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "tcp", c.address)
	if err != nil {
		return err
	}
	defer socket.Close()
	// paho v0.23.0 goes on waiting for an acknowledgement when its connection is lost: life ends then.
	life, end := context.WithCancel(ctx)
	defer end()
	client := paho.NewClient(paho.ClientConfig{
		Conn:               socket,
		OnPublishReceived:  []func(paho.PublishReceived) (bool, error){c.received},
		OnClientError:      func(error) { end() },
		OnServerDisconnect: func(*paho.Disconnect) { end() },
	})
	bounded, cancel := context.WithTimeout(life, 10*time.Second)
	defer cancel()
	if _, err := client.Connect(bounded, &paho.Connect{ClientID: c.clientID, CleanStart: true, KeepAlive: 30}); err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(&paho.Disconnect{}) }()
	subscribe := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "clients/" + c.clientID + "/echo", QoS: 1}}} // the program's own
	for _, filter := range c.conn.Filters() {
		subscribe.Subscriptions = append(subscribe.Subscriptions, paho.SubscribeOptions{Topic: filter, QoS: 1})
	}
	if _, err := client.Subscribe(bounded, subscribe); err != nil {
		return err
	}
	c.conn.Connected(func(ctx context.Context, m Message) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		return publish(ctx, client, m)
	})
	defer c.conn.Disconnected()
	// A message of the program's own, to itself.
	if err := publish(bounded, client, Message{Topic: "clients/" + c.clientID + "/echo", Payload: []byte("hello")}); err != nil {
		return err
	}
	<-life.Done()
	return errors.New("the connection was lost")
}

// received gets each message of a connection.
func (c *connection) received(received paho.PublishReceived) (bool, error) {
	m := Message{Topic: received.Packet.Topic, Payload: received.Packet.Payload, Properties: make(map[string]string)}
	if properties := received.Packet.Properties; properties != nil {
		m.CorrelationData = properties.CorrelationData
		for _, property := range properties.User {
			m.Properties[property.Key] = property.Value
		}
	}
	if !c.conn.Received(m) {
		c.logger.Info("a message of the program's own arrived", "topic", m.Topic, "payload", string(m.Payload))
	}
	return true, nil
}

// publish publishes a message over one connection, with QoS 1.
func publish(ctx context.Context, client *paho.Client, m Message) error {
	packet := &paho.Publish{Topic: m.Topic, QoS: 1, Payload: m.Payload, Properties: &paho.PublishProperties{
		ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData, ContentType: m.ContentType,
	}}
	if m.Expiry > 0 {
		packet.Properties.MessageExpiry = &m.Expiry
	}
	for name, value := range m.Properties {
		packet.Properties.User.Add(name, value)
	}
	const noMatchingSubscribers, failures = 0x10, 0x80
	acknowledged, err := client.Publish(ctx, packet)
	switch {
	case acknowledged == nil:
		return err
	case acknowledged.ReasonCode >= failures:
		return &transport.RejectedError{Code: int(acknowledged.ReasonCode), Reason: acknowledged.Properties.ReasonString}
	case acknowledged.ReasonCode == noMatchingSubscribers && m.ResponseTopic != "":
		return transport.ErrNoStore
	}
	return err
}
