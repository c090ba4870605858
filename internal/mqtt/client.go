package mqtt

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

const (
	// maxHead is how much of a broker's first packet is kept, for the error if it is none.
	maxHead = 32
	// MaxControl is the size in bytes of the largest packet to accept that is not a message, such as a
	// CONNACK. MQTT would allow 256 MiB of properties, which paho v0.23.0 decodes in a minute, to gigabytes.
	MaxControl = 64 << 10
	// disconnectTimeout bounds a DISCONNECT, and the end of TLS after it.
	disconnectTimeout = time.Second
	// maxInFlight bounds the messages without a PUBACK, so that a free packet identifier is near.
	maxInFlight = 1 << 15
)

// Options configures [Dial]. The last four functions are called in the goroutine of [Client.Run], one at a
// time: nothing is read meanwhile, so they must not wait for the broker.
type Options struct {
	// MaxPacket is the size in bytes of the largest message to accept. A larger one ends the
	// connection, as does any other packet that is larger than [MaxControl] too.
	MaxPacket int
	// WriteTimeout bounds the writing of each packet. A packet that takes longer ends the
	// connection, so that a broker that stopped reading cannot block a caller for longer.
	WriteTimeout time.Duration
	// TLS is for an address that asks for it, from [TLS.ClientConfig].
	TLS *tls.Config
	// Dialer opens the connection below TLS and WebSocket. Nil: net.Dialer.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// WebSocket adds WebSocket to a connection to server, which TLS encrypts already where the
	// address asks for it. It must not be nil where the address asks for it: see [CheckWebSocket].
	WebSocket func(ctx context.Context, conn net.Conn, server *url.URL) (net.Conn, error)
	// Local is the program that should answer at an address of this machine, for errors. Empty:
	// "a broker".
	Local string

	// Authenticate returns the answer to a broker that sends an AUTH with Continue Authentication
	// [MQTT-4.12.0-3]. Connect calls it too, in the goroutine of its caller. Nil: such an AUTH ends the
	// connection.
	Authenticate func() *packets.Auth
	// Received is called with each PUBLISH before it is acknowledged. It must not keep it, but its Clone.
	Received func(*Publish)
	// Acknowledged, if not nil, is called with each PUBACK, which it must not keep: for a program that
	// sends its messages with [Client.Write]. [Client.Publish] and [Client.PublishAsync] need nil.
	Acknowledged func(*Puback)
	// Lost is called when the connection has ended, after [Client.Disconnect] too, and before Run
	// returns: first with the broker's DISCONNECT if there was one, and then with nil.
	Lost func(*packets.Disconnect)
}

// Client is one connection to a broker. A packet that MQTT does not allow, or that is too large, ends it.
// Its methods are safe for concurrent use.
type Client struct {
	options Options
	server  *url.URL
	socket  net.Conn // below TLS and WebSocket
	conn    net.Conn // socket itself if there is neither
	done    chan struct{}
	ending  sync.Once      // guards Disconnect
	tasks   sync.WaitGroup // the call of beat that is due or under way, and write
	writing chan struct{}  // full while packets are being written

	cause  atomic.Pointer[error] // why this end closes the connection; nil if it does not
	unsent atomic.Pointer[error] // the error of the write for which it was closed; nil if it was not
	heard  atomic.Bool           // something has arrived since the latest PINGREQ

	// Used by the goroutine that reads only.
	reader    *Filter
	gate      *Gate  // checks the packets of the broker
	head      []byte // the first bytes that arrived
	answered  bool   // a packet has come
	anonymous bool   // the broker asked for a client certificate, and got none

	// What the broker's CONNACK says, and Connect sets.
	ReceiveMaximum int           // how many messages with QoS 1 it takes that it has not acknowledged [MQTT-3.3.4-7]
	MaxPacket      int           // bytes that it takes in one packet [MQTT-3.2.2-15]
	Silence        time.Duration // how long it waits before it takes a silent connection for lost; zero: forever

	keepAlive  time.Duration // between two PINGREQs
	maxUnacked int           // how many messages of the broker may wait for their PUBACKs
	inFlight   chan struct{} // an item for each message of PublishAsync without a PUBACK

	mu       sync.Mutex
	over     bool                // Run has stopped reading: nothing new begins
	timer    *time.Timer         // calls beat
	due      time.Time           // when it does
	probe    time.Duration       // within which a Probe that is under way wants an answer; 0: there is none
	packetID uint16              // the latest
	pending  map[uint16]exchange // by packet identifier; nil if there are none
	answers  []byte              // PINGREQs, PUBACKs and AUTHs that are to be written; take empties it
	asked    int                 // PUBACKs and AUTHs among them; the broker may have those that are being written
	writes   bool                // write runs
}

// exchange is a packet that waits for an answer.
type exchange struct {
	answer   byte      // its type
	answered func(any) // called with the decoded answer
}

// Abort closes the connection at once. Closing it would first wait up to five seconds to send
// TLS's close_notify.
func (c *Client) Abort() { _ = c.socket.Close() }

// CloseCause returns why this end closed the connection, or nil if it did not.
func (c *Client) CloseCause() error {
	if why := c.cause.Load(); why != nil {
		return *why
	}
	return nil
}

// refuse records why this end closes the connection if err says that the broker broke
// MQTT's rules, and tells the broker. For any other err it does nothing.
func (c *Client) refuse(err error) {
	refusal := RefusalIn(err)
	if refusal == nil {
		return
	}
	why := fmt.Errorf("the broker sent what MQTT does not allow: %w", err)
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) {
		why = fmt.Errorf("the broker began %w", tooLarge)
		if tooLarge.Limit != MaxControl { // which no option changes
			why = fmt.Errorf("%w (MaxPacketSize)", why)
		}
	}
	c.cause.Store(&why)
	c.endWith(&packets.Disconnect{ReasonCode: refusal.Code,
		Properties: &packets.Properties{ReasonString: refusal.Short()}})
}

// endWith sends a DISCONNECT and closes the connection, lost already or not. A broker that does not read
// delays it by a second at most.
func (c *Client) endWith(packet *packets.Disconnect) {
	abort := time.AfterFunc(disconnectTimeout, c.Abort)
	defer abort.Stop()
	c.Write(Encode(packet))
	_ = c.conn.Close() // an error says that it was lost
}

// Disconnect sends DISCONNECT and closes the connection, once. Run then returns.
func (c *Client) Disconnect() { c.ending.Do(func() { c.endWith(&packets.Disconnect{}) }) }

// Write sends whole packets. A failure closes the connection, which ends Run.
func (c *Client) Write(packets []byte) {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.options.WriteTimeout)) // on a closed connection, the write fails
	if _, err := c.conn.Write(packets); err != nil {
		cause := err // a variable of its own, which a write that succeeds does not allocate
		c.unsent.CompareAndSwap(nil, &cause)
		c.Abort()
	}
	// It would end what TLS writes while it reads, such as the answer to a change of keys.
	_ = c.conn.SetWriteDeadline(time.Time{})
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
		c.Write(packet)
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

// ask sends a packet and waits for the answer of the broker until ctx or the connection ends.
func ask[T any](ctx context.Context, c *Client, send func(answered func(any)) error) (answer T, err error) {
	answers := make(chan T, 1)
	if err = ctx.Err(); err == nil {
		err = send(func(answer any) { answers <- answer.(T) })
	}
	if err != nil {
		return answer, err
	}
	select {
	case answer = <-answers:
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.done:
		err = errLost
	}
	return answer, err
}

// askFor sends a packet that paho encodes, and waits like ask. If ctx ends while it is being written, so does the
// connection.
func askFor[T any](ctx context.Context, c *Client, answer byte, packet func(id uint16) packets.Packet) (T, error) {
	return ask[T](ctx, c, func(answered func(any)) error {
		stop := context.AfterFunc(ctx, c.Abort) // a part of the packet may have left
		defer stop()
		return c.open(answer, func(id uint16) ([]byte, error) { return Encode(packet(id)), nil }, answered)
	})
}

// Subscribe sends SUBSCRIBE and waits for the SUBACK until ctx or the connection ends. If the broker refuses a
// subscription, the SUBACK comes beside the error.
func (c *Client) Subscribe(ctx context.Context, subscriptions ...packets.SubOptions) (*packets.Suback, error) {
	suback, err := askFor[*packets.Suback](ctx, c, packets.SUBACK, func(id uint16) packets.Packet {
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
	unsuback, err := askFor[*packets.Unsuback](ctx, c, packets.UNSUBACK, func(id uint16) packets.Packet {
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
	ack, err := ask[*Puback](ctx, c, func(answered func(any)) error {
		return c.PublishAsync(ctx, m, func(ack *Puback) {
			answered(&Puback{PacketID: ack.PacketID, ReasonCode: ack.ReasonCode, ReasonString: bytes.Clone(ack.ReasonString)})
		})
	})
	if err == nil && ack.ReasonCode >= Failure {
		return ack, fmt.Errorf("the broker refused the message (MQTT reason code 0x%02X): %s", ack.ReasonCode,
			ack.ReasonString)
	}
	return ack, err
}

// PublishAsync sends a message with QoS 1 as soon as the broker's Receive Maximum allows it
// [MQTT-3.3.4-9], for which it waits until ctx or the connection ends. acknowledged is called with the
// PUBACK, which it must not keep, in the goroutine of Run, unless the connection ends before. A message that
// is larger than the broker takes is not sent; the error is a *[TooLargeError] or [ErrTooLong].
func (c *Client) PublishAsync(ctx context.Context, m *Message, acknowledged func(*Puback)) error {
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
		c.Write(packet)
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
	c.Abort() // without TLS's close_notify: the broker may not read
	c.mu.Lock()
	c.over = true
	if c.timer.Stop() {
		c.tasks.Done()
	}
	c.mu.Unlock()
	c.tasks.Wait()
	close(c.done)
}

func (c *Client) next() (goOn bool) {
	packet, err := c.reader.Next()
	if err != nil {
		c.refuse(err)
		return false
	}
	return c.handle(packet)
}

// handle handles a packet. It reports false if the connection is over.
func (c *Client) handle(packet []byte) (goOn bool) {
	switch Type(packet) {
	case packets.PUBLISH:
		return c.message(c.gate.Publish())
	case packets.PUBACK:
		if ack := c.gate.Puback(); c.options.Acknowledged != nil {
			c.options.Acknowledged(ack)
		} else {
			c.answer(packets.PUBACK, ack.PacketID, ack)
		}
	case packets.SUBACK, packets.UNSUBACK, packets.AUTH, packets.DISCONNECT:
		content, err := decode(packet)
		return err == nil && c.control(content)
	}
	return true // a PINGRESP, or an answer to what this client never sends
}

// control handles a packet that paho has decoded. It reports false if the connection is over.
func (c *Client) control(content packets.Packet) (goOn bool) {
	switch p := content.(type) {
	case *packets.Disconnect:
		c.options.Lost(p)
		return false
	case *packets.Auth:
		switch {
		case p.ReasonCode != packets.AuthContinueAuthentication:
		case c.options.Authenticate == nil:
			c.refuse(Refuse(ProtocolError, "an AUTH came, and this client has no answer to it"))
			return false
		case !c.queue(Encode(c.options.Authenticate())):
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
		c.refuse(Refuse(ProtocolError, "a message has QoS 2, and the subscriptions have QoS 1"))
		return false
	}
	qos, id := p.QoS, p.PacketID
	c.options.Received(p)
	return qos == 0 || c.queue(AppendPuback(nil, id))
}

// queue queues a PUBACK or an AUTH to be written. It does not
// wait: a broker may read nothing more until this client has read what the broker writes. It reports
// false if more would wait than a broker may ask for, the Receive Maximum [MQTT-3.3.4-9].
func (c *Client) queue(answer []byte) (ok bool) {
	c.mu.Lock()
	if ok = c.asked < c.maxUnacked; ok {
		c.asked++
		c.queueLocked(answer)
	}
	c.mu.Unlock()
	if !ok {
		c.refuse(Refuse(packets.DisconnectReceiveMaximumExceeded,
			"more packets are unanswered than the Receive Maximum of %d", c.maxUnacked))
	}
	return ok
}

func (c *Client) queueLocked(encoded []byte) {
	c.answers = append(c.answers, encoded...)
	if !c.writes && !c.over {
		c.writes = true
		c.tasks.Go(c.write)
	}
}

// write writes the answers until there are no more. The loss of the connection ends it.
func (c *Client) write() {
	for answers := c.take(); len(answers) > 0; answers = c.take() {
		c.Write(answers)
	}
}

// take returns what is to be written next, and notes that write ends if that is nothing.
func (c *Client) take() (answers []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers, c.answers, c.asked = c.answers, nil, 0
	c.writes = len(answers) > 0
	return answers
}

// Probe sends a PINGREQ and closes the connection if nothing arrives within that time. It returns at once, and
// does nothing while an earlier Probe is under way.
func (c *Client) Probe(within time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probe == 0 && !c.over {
		c.probe = within
		c.pingLocked(within)
	}
}

// beat sends a PINGREQ in each keep-alive, and ends the connection if nothing has arrived since the one before.
// It is the function of a timer: a goroutine that waits would cost each idle connection a stack.
func (c *Client) beat() {
	defer c.tasks.Done()
	if c.isSilent() {
		c.Abort()
	}
}

func (c *Client) isSilent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over || time.Now().Before(c.due): // a Probe has set the timer anew
		return false
	case c.heard.Load():
		c.probe = 0
		c.pingLocked(c.keepAlive)
		return false
	}
	if c.probe > 0 {
		why := fmt.Errorf("a request went unanswered, and so did a PINGREQ for %v", c.probe)
		c.cause.CompareAndSwap(nil, &why)
	}
	return true
}

// pingLocked sends a PINGREQ and has beat called after that time.
func (c *Client) pingLocked(within time.Duration) {
	c.heard.Store(false)
	c.due = time.Now().Add(within)
	if !c.timer.Stop() { // else the call that was due does not come
		c.tasks.Add(1)
	}
	c.timer.Reset(within)
	c.queueLocked([]byte{packets.PINGREQ << 4, 0})
}
