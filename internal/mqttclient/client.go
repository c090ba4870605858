// Package mqttclient is the client's half of a connection to an MQTT 5 broker, from CONNECT to its
// end: what is rare on it. Package transport takes requests and replies out of the stream.
//
// paho.golang v0.23.0 encodes and decodes the packets. Its Client takes no part: it has three
// goroutines and 6 KB of state for each connection, for sessions, QoS 2 and routes, which a client
// of ours has no use for (docs/performance.md has the figures). A [Client] has one goroutine, which
// reads. [mqttnet.Conn] bounds and checks each packet before it comes here.
package mqttclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/wire"
)

// Options configures [Connect]. The functions are called in the goroutine of [Client.Run], one at a
// time: nothing is read meanwhile, so they must not wait for the broker.
type Options struct {
	// Authenticate returns the answer to a broker that asks for more in the course of an
	// authentication [MQTT-4.12.0-3]. Connect calls it too, in the goroutine of its caller.
	Authenticate func() *packets.Auth
	// Received is called with each PUBLISH that no Interceptor of the connection took, before it
	// is acknowledged. It must not keep the packet.
	Received func(*frame.Publish)
	// Lost is called when the connection has ended, before Run returns: first with the
	// broker's DISCONNECT if there was one, and then with nil. [Client.Disconnect] ends it too.
	Lost func(*packets.Disconnect)
}

// Client is one connection. Its methods are safe for concurrent use.
type Client struct {
	conn      *mqttnet.Conn
	options   Options
	keepAlive time.Duration
	inbound   int            // our Receive Maximum: how many messages may wait for their PUBACKs
	done      chan struct{}  // closed by Run
	tasks     sync.WaitGroup // the call of beat that is due or under way, and write

	mu         sync.Mutex
	over       bool        // the reading has ended: nothing new begins
	timer      *time.Timer // calls beat
	unanswered bool        // a PINGREQ was sent, and no PINGRESP has come since
	packetID   uint16      // of the latest SUBSCRIBE
	granted    chan *packets.Suback
	answers    []byte // that are to be written, PUBACKs and AUTHs
	acks       int    // PUBACKs among them; the broker may have those that are being written already
	auths      int    // AUTHs among them, likewise
	writing    bool   // write runs
}

// Connect sends connect over conn and waits for the CONNACK until ctx ends. It closes conn if it
// fails; a broker that refuses the connection has its CONNACK beside the error. conn must not be
// read meanwhile, nor afterwards. The caller then has to call Run.
//
// The keep-alive is that of connect, or the broker's if it is shorter. With a longer one of the
// broker the client would notice a dead connection later than it was told to.
func Connect(ctx context.Context, conn *mqttnet.Conn, connect *paho.Connect, options Options) (*Client, *paho.Connack, error) {
	stop := context.AfterFunc(ctx, conn.Abort) // the broker may neither answer nor read
	connack, err := handshake(conn, connect.Packet(), options)
	if !stop() && (err == nil || connack == nil) { // else it is refused, whatever else has come
		connack, err = nil, ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, connack, err
	}
	c := &Client{
		conn:      conn,
		options:   options,
		keepAlive: keepAlive(connect.KeepAlive, connack.Properties.ServerKeepAlive),
		inbound:   inbound(connect.Properties),
		done:      make(chan struct{}),
	}
	if c.keepAlive > 0 {
		c.tasks.Add(1)
		c.mu.Lock()
		c.timer = time.AfterFunc(c.keepAlive, c.beat)
		c.mu.Unlock()
	}
	return c, connack, nil
}

// handshake sends CONNECT and reads up to the CONNACK.
func handshake(conn *mqttnet.Conn, connect *packets.Connect, options Options) (*paho.Connack, error) {
	connect.ProtocolName, connect.ProtocolVersion = "MQTT", wire.Version5
	if _, err := connect.WriteTo(conn); err != nil {
		return nil, err
	}
	for {
		packet, err := conn.Next()
		if err != nil {
			return nil, err
		}
		content, err := decode(packet)
		if err != nil {
			return nil, err
		}
		switch p := content.(type) {
		case *packets.Auth:
			if _, err := options.Authenticate().WriteTo(conn); err != nil {
				return nil, err
			}
		case *packets.Connack:
			connack := paho.ConnackFromPacketConnack(p)
			if p.ReasonCode >= failure {
				return connack, fmt.Errorf("the broker refused the connection: %s", p.Reason())
			}
			return connack, nil
		default:
			return nil, fmt.Errorf("%T came in place of a CONNACK", content) // the gate lets none through
		}
	}
}

// failure is the least reason code that says so [MQTT-2.4.0].
const failure = 0x80

// keepAlive returns the time between two PINGREQs; zero: there are none.
func keepAlive(own uint16, broker *uint16) time.Duration {
	if broker != nil && *broker > 0 && *broker < own {
		own = *broker
	}
	return time.Duration(own) * time.Second
}

// inbound returns the Receive Maximum of a CONNECT.
func inbound(properties *paho.ConnectProperties) int {
	if properties == nil || properties.ReceiveMaximum == nil {
		return 1<<16 - 1
	}
	return int(*properties.ReceiveMaximum)
}

func decode(packet []byte) (packets.Packet, error) {
	p, err := packets.ReadPacket(bytes.NewReader(packet))
	if err != nil {
		return nil, err
	}
	return p.Content, nil
}

// errLost is the error for what was under way when the connection ended.
var errLost = errors.New("the connection was lost")

// Subscribe sends SUBSCRIBE and waits for the SUBACK until ctx or the connection ends. If the
// broker refuses a subscription, the error comes with the SUBACK. Only one call may be under way.
func (c *Client) Subscribe(ctx context.Context, subscriptions ...packets.SubOptions) (*packets.Suback, error) {
	granted := make(chan *packets.Suback, 1)
	c.mu.Lock()
	c.packetID++
	c.granted = granted
	packet := packets.Subscribe{PacketID: c.packetID, Properties: &packets.Properties{}, Subscriptions: subscriptions}
	c.mu.Unlock()
	if _, err := packet.WriteTo(c.conn); err != nil {
		return nil, err
	}
	select {
	case suback := <-granted:
		if len(suback.Reasons) != len(subscriptions) { // [MQTT-3.9.3-1]; first: a caller may show all codes
			return nil, fmt.Errorf("the broker answered %d subscriptions of %d", len(suback.Reasons), len(subscriptions))
		}
		for i, code := range suback.Reasons {
			if code >= failure {
				return suback, fmt.Errorf("the broker refused a subscription: %s", suback.Reason(i))
			}
		}
		return suback, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
		return nil, errLost
	}
}

// Disconnect sends DISCONNECT and closes the connection, lost already or not. Run then returns.
func (c *Client) Disconnect() {
	c.conn.Send(frame.AppendDisconnect(nil, packets.DisconnectNormalDisconnection, ""))
	_ = c.conn.Close() // an error says that it was lost
}

// Run handles the packets that arrive until the connection has ended. When it returns, the connection
// is closed and nothing of it runs any more. It is to be called once.
//
// Its frame is small, and all that needs a deep stack is below handle: an idle connection keeps the
// stack of this goroutine.
func (c *Client) Run() {
	for c.next() {
	}
	c.options.Lost(nil)
	c.conn.Abort() // the broker gets no goodbye: there is nothing more to say, and it may not read
	c.mu.Lock()
	c.over = true
	if c.timer != nil && c.timer.Stop() {
		c.tasks.Done()
	}
	c.mu.Unlock()
	c.tasks.Wait()
	close(c.done)
}

func (c *Client) next() (goOn bool) {
	packet, err := c.conn.Next()
	return err == nil && c.handle(packet)
}

// handle handles a packet, and reports false if the connection is over.
func (c *Client) handle(packet []byte) (goOn bool) {
	switch frame.Type(packet) {
	case wire.Publish:
		return c.publish(c.conn.Publish())
	case wire.Pingresp:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unanswered = false
		return true
	case wire.Suback, wire.Auth, wire.Disconnect:
		content, err := decode(packet)
		return err == nil && c.control(content)
	}
	return true // PUBACKs that come twice; and answers to what this client never sends
}

// control handles a packet that paho has decoded.
func (c *Client) control(content packets.Packet) (goOn bool) {
	switch p := content.(type) {
	case *packets.Disconnect:
		c.options.Lost(p)
		return false
	case *packets.Auth:
		if p.ReasonCode == packets.AuthContinueAuthentication {
			var answer bytes.Buffer
			_, _ = c.options.Authenticate().WriteTo(&answer) // a Buffer takes everything
			if !c.answer(answer.Bytes(), 0, 1) {
				c.conn.Refuse(wire.Refuse(wire.ProtocolError, "an AUTH came before the answer to the one before was sent"))
				return false
			}
		}
	case *packets.Suback:
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.granted != nil && p.PacketID == c.packetID { // else it came too late
			c.granted <- p
			c.granted = nil
		}
	}
	return true
}

// publish handles a message, and reports false if there must not be such a one.
func (c *Client) publish(p *frame.Publish) (goOn bool) {
	if p.QoS > 1 {
		c.conn.Refuse(wire.Refuse(wire.ProtocolError, "a message has QoS 2, and the subscriptions have QoS 1"))
		return false
	}
	id := p.PacketID
	c.options.Received(p)
	if p.QoS == 0 {
		return true
	}
	if !c.answer(frame.AppendPuback(nil, id), 1, 0) {
		c.conn.Refuse(wire.Refuse(packets.DisconnectReceiveMaximumExceeded, "more messages are unacknowledged than the Receive Maximum of %d", c.inbound))
		return false
	}
	return true
}

// answer lets a packet with so many PUBACKs and AUTHs be written. It does not wait: a broker may
// read nothing more until this client has read what the broker writes. It reports false if more
// wait than the broker can be owed: PUBACKs up to the Receive Maximum [MQTT-3.3.4-9], and one AUTH,
// since each side waits for the other's [MQTT-4.12.0-3].
func (c *Client) answer(packet []byte, acks, auths int) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acks+acks > c.inbound || c.auths+auths > 1 {
		return false
	}
	c.acks += acks
	c.auths += auths
	c.answers = append(c.answers, packet...)
	if !c.writing {
		c.writing = true
		c.tasks.Go(c.write)
	}
	return true
}

// write writes the answers until there are no more. The loss of the connection ends a write.
func (c *Client) write() {
	for answers := c.take(); len(answers) > 0; answers = c.take() {
		c.conn.Send(answers)
	}
}

// take returns what is to be written next.
func (c *Client) take() (answers []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers, c.answers, c.acks, c.auths = c.answers, nil, 0, 0
	c.writing = len(answers) > 0
	return answers
}

// beat sends a PINGREQ in each keep-alive, and ends the connection if the one before has no answer.
// It is the function of a timer: a goroutine that waits would cost each idle connection a stack.
func (c *Client) beat() {
	defer c.tasks.Done()
	if !c.isAlive() {
		c.conn.Abort()
		return
	}
	c.conn.Send([]byte{wire.Pingreq << 4, 0})
}

// isAlive reports whether the broker has answered the latest PINGREQ, and sets the timer for the
// next one, before this one is written: a write to a broker that does not read takes its time.
func (c *Client) isAlive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.unanswered {
		return false
	}
	c.unanswered = true
	c.tasks.Add(1)
	c.timer.Reset(c.keepAlive)
	return true
}
