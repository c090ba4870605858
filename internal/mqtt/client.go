package mqtt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// ClientOptions configures [Connect]. The functions are called in the goroutine of [Client.Run], one at a
// time: nothing is read meanwhile, so they must not wait for the broker.
type ClientOptions struct {
	// Authenticate returns the answer to a broker that sends an AUTH with Continue Authentication
	// [MQTT-4.12.0-3]. Connect calls it too, in the goroutine of its caller.
	Authenticate func() *packets.Auth
	// Received is called with each PUBLISH before it is acknowledged, and Acknowledged with each PUBACK. They
	// must not keep them.
	Received     func(*Publish)
	Acknowledged func(*Puback)
	// Lost is called when the connection has ended, after [Client.Disconnect] too, and before Run
	// returns: first with the broker's DISCONNECT if there was one, and then with nil.
	Lost func(*packets.Disconnect)
}

// Client is one connection. Its methods are safe for concurrent use.
type Client struct {
	conn      *Conn
	options   ClientOptions
	keepAlive time.Duration  // between two PINGREQs; zero: there are none
	done      chan struct{}  // closed by Run
	tasks     sync.WaitGroup // the call of beat that is due or under way, and write

	receiveMaximum int // of the CONNECT: how many messages of the broker may wait for their PUBACKs

	mu         sync.Mutex
	over       bool                 // Run has stopped reading: nothing new begins
	timer      *time.Timer          // calls beat
	unanswered bool                 // a PINGREQ was sent, and no PINGRESP has come since
	packetID   uint16               // of the latest SUBSCRIBE
	granted    chan *packets.Suback // takes the answer to it; nil if none is awaited
	answers    []byte               // PUBACKs and AUTHs that are to be written; take empties it
	acks       int                  // PUBACKs among them; the broker may have those that are being written
	auths      int                  // AUTHs among them, likewise
	writing    bool                 // write runs
}

// Connect sends connect over conn and waits for the CONNACK until ctx ends. If it fails, it closes
// conn; if the broker refused the connection, its CONNACK comes beside the error. The caller must not
// read from conn from now on. After success it has to call [Client.Run].
//
// The keep-alive of connect counts, or the broker's Server Keep Alive if that is shorter. With a longer
// one the client would notice a dead connection later than it was told to. connect must have a Receive
// Maximum.
func Connect(ctx context.Context, conn *Conn, connect *paho.Connect, options ClientOptions) (*Client, *paho.Connack, error) {
	stop := context.AfterFunc(ctx, conn.Abort) // the broker may neither answer nor read
	connack, err := handshake(conn, connect.Packet(), options)
	if !stop() && (err == nil || connack == nil) { // a refusal counts, even if ctx has ended since
		connack, err = nil, ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, connack, err
	}
	seconds := connect.KeepAlive
	if server := connack.Properties.ServerKeepAlive; server != nil && *server > 0 {
		seconds = min(seconds, *server)
	}
	c := &Client{
		conn:           conn,
		options:        options,
		keepAlive:      time.Duration(seconds) * time.Second,
		receiveMaximum: int(*connect.Properties.ReceiveMaximum),
		done:           make(chan struct{}),
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
func handshake(conn *Conn, connect *packets.Connect, options ClientOptions) (*paho.Connack, error) {
	conn.Send(encodeConnect(connect))
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
			conn.Send(Encode(options.Authenticate()))
		case *packets.Connack:
			connack := paho.ConnackFromPacketConnack(p)
			if p.ReasonCode >= Failure {
				return connack, fmt.Errorf("the broker refused the connection: %s", p.Reason())
			}
			return connack, nil
		default:
			return nil, fmt.Errorf("%T came in place of a CONNACK", content) // the gate lets none through
		}
	}
}

// Encode returns a control packet as paho writes it.
func Encode(packet packets.Packet) []byte {
	var encoded bytes.Buffer
	_, _ = packet.WriteTo(&encoded) // a Buffer takes everything
	return encoded.Bytes()
}

// encodeConnect returns a CONNECT with all properties of its Will. paho v0.23.0 writes those of a CONNECT
// only, which leaves out what makes a Will on the store's topic a request [MQTT-3.1.3.2].
func encodeConnect(connect *packets.Connect) []byte {
	connect.ProtocolName, connect.ProtocolVersion = "MQTT", Version5
	will := connect.WillProperties.Pack(packets.PUBLISH)
	connect.WillProperties = nil // paho writes their length, 0, and no more
	body := connect.Buffers()[0]
	if connect.WillFlag {
		const before = 10 // bytes: the name of the protocol, its version, flags, keep-alive
		own := len(connect.Properties.Pack(packets.CONNECT))
		at := before + VariableLength(own) + own + 2 + len(connect.ClientID)
		body = slices.Concat(body[:at], AppendVariable(nil, len(will)), will, body[at+1:])
	}
	return append(AppendVariable([]byte{packets.CONNECT << 4}, len(body)), body...)
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

// Subscribe sends SUBSCRIBE and waits for the SUBACK until ctx or the connection ends. If ctx ends while
// the SUBSCRIBE is being written, so does the connection. If the broker refuses a subscription, the
// SUBACK comes beside the error. Only one call may be under way.
func (c *Client) Subscribe(ctx context.Context, subscriptions ...packets.SubOptions) (*packets.Suback, error) {
	granted := make(chan *packets.Suback, 1)
	c.mu.Lock()
	if c.packetID++; c.packetID == 0 { // [MQTT-2.2.1-3]
		c.packetID++
	}
	c.granted = granted
	packet := packets.Subscribe{PacketID: c.packetID, Properties: &packets.Properties{}, Subscriptions: subscriptions}
	c.mu.Unlock()
	stop := context.AfterFunc(ctx, c.conn.Abort) // a part of the packet may have left
	c.conn.Send(Encode(&packet))
	if !stop() {
		return nil, ctx.Err()
	}
	select {
	case suback := <-granted:
		if len(suback.Reasons) != len(subscriptions) { // [MQTT-3.9.3-1]; first: a caller may show all codes
			return nil, fmt.Errorf("the broker answered %d subscriptions of %d", len(suback.Reasons), len(subscriptions))
		}
		for i, code := range suback.Reasons {
			if code >= Failure {
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
	c.conn.Send(Encode(&packets.Disconnect{}))
	_ = c.conn.Close() // an error says that it was lost
}

// Run reads and handles packets until the connection has ended. When it returns, the connection is
// closed and no goroutine or timer of it is left. It must be called once.
//
// Its frame is small, and what needs a deep stack is below handle: an idle connection keeps the stack
// of this goroutine.
func (c *Client) Run() {
	defer c.ended() // also if a function of a program that is called here ends the goroutine
	for c.next() {
	}
}

func (c *Client) ended() {
	c.options.Lost(nil)
	c.conn.Abort() // without TLS's close_notify: the broker may not read
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

// handle handles a packet. It reports false if the connection is over.
func (c *Client) handle(packet []byte) (goOn bool) {
	switch Type(packet) {
	case packets.PUBLISH:
		return c.publish(c.conn.gate.Publish())
	case packets.PUBACK:
		c.options.Acknowledged(c.conn.gate.Puback())
	case packets.PINGRESP:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unanswered = false
		return true
	case packets.SUBACK, packets.AUTH, packets.DISCONNECT:
		content, err := decode(packet)
		return err == nil && c.control(content)
	}
	return true // or it answers what this client never sends
}

// control handles a packet that paho has decoded. It reports false if the connection is over.
func (c *Client) control(content packets.Packet) (goOn bool) {
	switch p := content.(type) {
	case *packets.Disconnect:
		c.options.Lost(p)
		return false
	case *packets.Auth:
		if p.ReasonCode == packets.AuthContinueAuthentication {
			if !c.answer(Encode(c.options.Authenticate()), 0, 1) {
				c.conn.Refuse(Refuse(ProtocolError, "an AUTH came before the answer to the one before was sent"))
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

// publish handles a message. It reports false if the broker must not send it.
func (c *Client) publish(p *Publish) (goOn bool) {
	if p.QoS > 1 {
		c.conn.Refuse(Refuse(ProtocolError, "a message has QoS 2, and the subscriptions have QoS 1"))
		return false
	}
	id := p.PacketID
	c.options.Received(p)
	if p.QoS == 0 {
		return true
	}
	if !c.answer(AppendPuback(nil, id), 1, 0) {
		c.conn.Refuse(Refuse(packets.DisconnectReceiveMaximumExceeded, "more messages are unacknowledged than the Receive Maximum of %d", c.receiveMaximum))
		return false
	}
	return true
}

// answer queues packets, which have these numbers of PUBACKs and AUTHs, to be written. It does not
// wait: a broker may read nothing more until this client has read what the broker writes. It reports
// false if more would wait than a broker may ask for: PUBACKs up to the Receive Maximum
// [MQTT-3.3.4-9], and one AUTH, since each side waits for the other's [MQTT-4.12.0-3].
func (c *Client) answer(encoded []byte, acks, auths int) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acks+acks > c.receiveMaximum || c.auths+auths > 1 {
		return false
	}
	c.acks += acks
	c.auths += auths
	c.answers = append(c.answers, encoded...)
	if !c.writing {
		c.writing = true
		c.tasks.Go(c.write)
	}
	return true
}

// write writes the answers until there are no more. The loss of the connection ends it.
func (c *Client) write() {
	for answers := c.take(); len(answers) > 0; answers = c.take() {
		c.conn.Send(answers)
	}
}

// take returns what is to be written next, and notes that write ends if that is nothing.
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
	c.conn.Send(pingreq)
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
