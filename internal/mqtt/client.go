package mqtt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
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
	// [MQTT-4.12.0-3]. Connect calls it too, in the goroutine of its caller. Nil: such an AUTH ends the
	// connection.
	Authenticate func() *packets.Auth
	// Received is called with each PUBLISH before it is acknowledged. It must not keep it, but its Clone.
	Received func(*Publish)
	// Acknowledged, if not nil, is called with each PUBACK, which it must not keep: for a program that
	// writes its messages to the Conn. [Client.Publish] and [Client.PublishAsync] need nil.
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
	ending    sync.Once      // guards Disconnect
	tasks     sync.WaitGroup // the call of beat that is due or under way, and write

	// What the broker's CONNACK says.
	ReceiveMaximum int           // how many messages with QoS 1 it takes that it has not acknowledged [MQTT-3.3.4-7]
	MaxPacket      int           // bytes that it takes in one packet [MQTT-3.2.2-15]
	Silence        time.Duration // how long it waits before it takes a silent connection for lost; zero: forever
	WithoutQoS1    error         // why it takes no message with QoS 1; nil: it does [MQTT-3.2.2-11]

	maxUnacked int           // how many messages of the broker may wait for their PUBACKs
	inFlight   chan struct{} // an item for each message of PublishAsync without a PUBACK; nil: there are none

	mu         sync.Mutex
	over       bool                // Run has stopped reading: nothing new begins
	timer      *time.Timer         // calls beat
	unanswered bool                // a PINGREQ was sent, and no PINGRESP has come since
	packetID   uint16              // the latest
	pending    map[uint16]exchange // by packet identifier; nil if there are none
	answers    []byte              // PUBACKs and AUTHs that are to be written; take empties it
	acks       int                 // PUBACKs among them; the broker may have those that are being written
	auths      int                 // AUTHs among them, likewise
	writing    bool                // write runs
}

// exchange is a packet that waits for an answer.
type exchange struct {
	answer   byte      // its type
	answered func(any) // called with the decoded answer
}

// maxInFlight bounds the messages without a PUBACK, so that a free packet identifier is near.
const maxInFlight = 1 << 15

// Connect sends connect over conn and waits for the CONNACK until ctx ends. If it fails, it closes
// conn; if the broker refused the connection, its CONNACK comes beside the error. The caller must not
// read from conn from now on. After success it has to call [Client.Run].
//
// The keep-alive of connect counts, or the broker's Server Keep Alive if that is shorter. With a longer
// one the client would notice a dead connection later than it was told to. connect must have a Receive
// Maximum.
func Connect(ctx context.Context, conn *Conn, connect *paho.Connect, options ClientOptions) (*Client, *paho.Connack, error) {
	c := &Client{
		conn: conn, options: options, done: make(chan struct{}), maxUnacked: int(*connect.Properties.ReceiveMaximum),
	}
	stop := context.AfterFunc(ctx, conn.Abort) // the broker may neither answer nor read
	connack, err := c.handshake(connect.Packet())
	if !stop() && (err == nil || connack == nil) { // a refusal counts, even if ctx has ended since
		connack, err = nil, ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		c.tasks.Wait()
		return nil, connack, err
	}
	c.obey(connack.Properties, connect.KeepAlive)
	if options.Acknowledged == nil {
		c.inFlight = make(chan struct{}, min(maxInFlight, c.ReceiveMaximum))
	}
	if c.keepAlive > 0 {
		c.tasks.Add(1)
		c.mu.Lock()
		c.timer = time.AfterFunc(c.keepAlive, c.beat)
		c.mu.Unlock()
	}
	return c, connack, nil
}

// obey notes the conditions in the broker's CONNACK.
func (c *Client) obey(conditions *paho.ConnackProperties, keepAlive uint16) {
	c.ReceiveMaximum = int(valueOr(conditions.ReceiveMaximum, math.MaxUint16))
	const most = MaxHeader + MaxRemaining // an int of 32 bits would not hold every size
	c.MaxPacket = int(min(valueOr(conditions.MaximumPacketSize, most), most))
	if valueOr(conditions.MaximumQoS, 1) == 0 {
		c.WithoutQoS1 = errors.New("the broker does not accept QoS 1: raise its Maximum QoS")
	}
	server := valueOr(conditions.ServerKeepAlive, keepAlive)
	// One and a half times the keep-alive [MQTT-3.1.2-22], which some brokers round down to whole seconds.
	c.Silence = time.Duration(server) * 3 / 2 * time.Second
	if server > 0 {
		keepAlive = min(keepAlive, server)
	}
	c.keepAlive = time.Duration(keepAlive) * time.Second
}

// valueOr returns what p points to, or otherwise if it is nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// handshake sends CONNECT and reads up to the CONNACK.
func (c *Client) handshake(connect *packets.Connect) (*paho.Connack, error) {
	c.conn.Send(encodeConnect(connect))
	for {
		packet, err := c.conn.Next()
		if err != nil {
			return nil, err
		}
		content, err := decode(packet)
		if err != nil {
			return nil, err
		}
		p, ok := content.(*packets.Connack)
		switch {
		case !ok && !c.control(content): // an AUTH: the gate lets nothing else through
			return nil, c.conn.CloseCause()
		case ok && p.ReasonCode >= Failure:
			return paho.ConnackFromPacketConnack(p), fmt.Errorf("the broker refused the connection: %s", p.Reason())
		case ok:
			return paho.ConnackFromPacketConnack(p), nil
		}
	}
}

var errAuth = Refuse(ProtocolError, "an AUTH came, and this client has no answer to it")

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

// open gives a packet a free identifier and sends it. answered is called with the answer of the broker, a
// packet of that type, in the goroutine of Run, unless the connection ends before.
func (c *Client) open(answer byte, encode func(id uint16) ([]byte, error), answered func(any)) error {
	c.mu.Lock()
	id := c.packetID + 1
	for id == 0 || c.pending[id].answered != nil { // [MQTT-2.2.1-3]
		id++
	}
	packet, err := encode(id)
	if err == nil {
		if c.pending == nil {
			c.pending = make(map[uint16]exchange)
		}
		c.packetID, c.pending[id] = id, exchange{answer, answered}
	}
	c.mu.Unlock()
	if err == nil {
		c.conn.Send(packet)
	}
	return err
}

// answer handles the answer to a packet of open. Any other is ignored: it may come too late.
func (c *Client) answer(kind byte, id uint16, content any) {
	c.mu.Lock()
	asked := c.pending[id]
	if asked.answer == kind {
		delete(c.pending, id)
	}
	if len(c.pending) == 0 {
		c.pending = nil // an idle connection needs none
	}
	c.mu.Unlock()
	if asked.answer == kind {
		asked.answered(content)
	}
}

// awaitAnswer returns the answer to a packet of open.
func awaitAnswer[T any](ctx context.Context, c *Client, answers <-chan T) (answer T, err error) {
	select {
	case answer = <-answers:
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.done:
		err = errLost
	}
	return answer, err
}

// ask sends a packet and waits for the answer of the broker until ctx or the connection ends. If ctx ends while
// the packet is being written, so does the connection.
func ask[T any](ctx context.Context, c *Client, kind byte, encode func(id uint16) packets.Packet) (answer T, err error) {
	if err = ctx.Err(); err != nil {
		return answer, err
	}
	answers := make(chan T, 1)
	stop := context.AfterFunc(ctx, c.conn.Abort) // a part of the packet may have left
	packet := func(id uint16) ([]byte, error) { return Encode(encode(id)), nil }
	_ = c.open(kind, packet, func(answer any) { answers <- answer.(T) })
	if !stop() {
		return answer, ctx.Err()
	}
	return awaitAnswer(ctx, c, answers)
}

// Subscribe sends SUBSCRIBE and waits for the SUBACK until ctx or the connection ends. If the broker refuses a
// subscription, the SUBACK comes beside the error.
func (c *Client) Subscribe(ctx context.Context, subscriptions ...packets.SubOptions) (*packets.Suback, error) {
	suback, err := ask[*packets.Suback](ctx, c, packets.SUBACK, func(id uint16) packets.Packet {
		return &packets.Subscribe{PacketID: id, Properties: &packets.Properties{}, Subscriptions: subscriptions}
	})
	if err != nil {
		return nil, err
	}
	if len(suback.Reasons) != len(subscriptions) { // [MQTT-3.9.3-1]; first: a caller may show all codes
		return nil, fmt.Errorf("the broker answered %d subscriptions of %d", len(suback.Reasons), len(subscriptions))
	}
	for i, code := range suback.Reasons {
		if code >= Failure {
			return suback, fmt.Errorf("the broker refused a subscription: %s", suback.Reason(i))
		}
	}
	return suback, nil
}

// Unsubscribe sends UNSUBSCRIBE and waits for the UNSUBACK until ctx or the connection ends.
func (c *Client) Unsubscribe(ctx context.Context, filter string) error {
	unsuback, err := ask[*packets.Unsuback](ctx, c, packets.UNSUBACK, func(id uint16) packets.Packet {
		return &packets.Unsubscribe{PacketID: id, Properties: &packets.Properties{}, Topics: []string{filter}}
	})
	if err == nil && unsuback.Reasons[0] >= Failure { // the gate lets none through without a code
		return fmt.Errorf("the broker refused an UNSUBSCRIBE: %s", unsuback.Reason(0))
	}
	return err
}

// Publish sends a message with QoS 1 like [Client.PublishAsync], and waits for the PUBACK until ctx or the
// connection ends. If the broker refuses the message, the PUBACK comes beside the error.
func (c *Client) Publish(ctx context.Context, m *Message) (*Puback, error) {
	acks := make(chan *Puback, 1)
	err := c.PublishAsync(ctx, m, func(ack *Puback) {
		acks <- &Puback{PacketID: ack.PacketID, ReasonCode: ack.ReasonCode, ReasonString: bytes.Clone(ack.ReasonString)}
	})
	if err != nil {
		return nil, err
	}
	ack, err := awaitAnswer(ctx, c, acks)
	if err == nil && ack.ReasonCode >= Failure {
		return ack, fmt.Errorf("the broker refused the message (MQTT reason code 0x%02X): %s", ack.ReasonCode, ack.ReasonString)
	}
	return ack, err
}

// PublishAsync sends a message with QoS 1 as soon as the broker's Receive Maximum has room for it
// [MQTT-3.3.4-9], for which it waits until ctx or the connection ends. acknowledged is called with the
// PUBACK, which it must not keep, in the goroutine of Run, unless the connection ends before. A message that
// is larger than the broker takes is not sent; the error is a *[TooLargeError] or [ErrTooLong].
func (c *Client) PublishAsync(ctx context.Context, m *Message, acknowledged func(*Puback)) error {
	if c.WithoutQoS1 != nil {
		return c.WithoutQoS1
	}
	select {
	case c.inFlight <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		return errLost
	}
	err := c.open(packets.PUBACK, func(id uint16) ([]byte, error) { return c.encode(m, 1, id) }, func(answer any) {
		<-c.inFlight
		acknowledged(answer.(*Puback))
	})
	if err != nil {
		<-c.inFlight
	}
	return err
}

// Send sends a message with QoS 0. Its errors are those of PublishAsync for a message that is too large.
func (c *Client) Send(m *Message) error {
	packet, err := c.encode(m, 0, 0)
	if err == nil {
		c.conn.Send(packet)
	}
	return err
}

func (c *Client) encode(m *Message, qos byte, id uint16) ([]byte, error) {
	m.QoS, m.PacketID = qos, id
	packet, err := m.Append(nil)
	if err == nil && len(packet) > c.MaxPacket {
		err = &TooLargeError{Size: len(packet), Limit: c.MaxPacket}
	}
	return packet, err
}

// Disconnect sends DISCONNECT and closes the connection, lost already or not, once. Run then returns. A broker
// that does not read the DISCONNECT delays it by a second at most.
func (c *Client) Disconnect() {
	c.ending.Do(func() {
		abort := time.AfterFunc(farewellTimeout, c.conn.Abort)
		defer abort.Stop()
		c.conn.Send(Encode(&packets.Disconnect{}))
		_ = c.conn.Close() // an error says that it was lost
	})
}

// Run reads and handles packets until the connection has ended. When it returns, the connection is
// closed and no goroutine or timer of it is left. It must be called once.
//
// Its frame is small, and what needs a deep stack is below handle: an idle connection keeps the stack
// of this goroutine.
func (c *Client) Run() {
	for c.next() {
	}
	c.ended()
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
		return c.message(c.conn.gate.Publish())
	case packets.PUBACK:
		if ack := c.conn.gate.Puback(); c.options.Acknowledged != nil {
			c.options.Acknowledged(ack)
		} else {
			c.answer(packets.PUBACK, ack.PacketID, ack)
		}
	case packets.PINGRESP:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.unanswered = false
		return true
	case packets.SUBACK, packets.UNSUBACK, packets.AUTH, packets.DISCONNECT:
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
		if p.ReasonCode != packets.AuthContinueAuthentication {
			return true
		}
		if c.options.Authenticate == nil {
			c.conn.Refuse(errAuth)
			return false
		}
		if !c.queue(Encode(c.options.Authenticate()), 0, 1) {
			c.conn.Refuse(Refuse(ProtocolError, "an AUTH came before the answer to the one before was sent"))
			return false
		}
	case *packets.Suback:
		c.answer(packets.SUBACK, p.PacketID, p)
	case *packets.Unsuback:
		c.answer(packets.UNSUBACK, p.PacketID, p)
	}
	return true
}

// message handles a message of the broker. It reports false if the broker must not send it.
func (c *Client) message(p *Publish) (goOn bool) {
	if p.QoS > 1 {
		c.conn.Refuse(Refuse(ProtocolError, "a message has QoS 2, and the subscriptions have QoS 1"))
		return false
	}
	qos, id := p.QoS, p.PacketID
	c.options.Received(p)
	if qos == 0 {
		return true
	}
	if !c.queue(AppendPuback(nil, id), 1, 0) {
		c.conn.Refuse(Refuse(packets.DisconnectReceiveMaximumExceeded,
			"more messages are unacknowledged than the Receive Maximum of %d", c.maxUnacked))
		return false
	}
	return true
}

// queue queues packets, which have these numbers of PUBACKs and AUTHs, to be written. It does not
// wait: a broker may read nothing more until this client has read what the broker writes. It reports
// false if more would wait than a broker may ask for: PUBACKs up to the Receive Maximum
// [MQTT-3.3.4-9], and one AUTH, since each side waits for the other's [MQTT-4.12.0-3].
func (c *Client) queue(encoded []byte, acks, auths int) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acks+acks > c.maxUnacked || c.auths+auths > 1 {
		return false
	}
	c.acks += acks
	c.auths += auths
	c.answers = append(c.answers, encoded...)
	if !c.writing && !c.over {
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
