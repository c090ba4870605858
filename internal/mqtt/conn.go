package mqtt

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// maxHead is how much of a broker's first packet is kept, for the error if it is none.
const maxHead = 32

// MaxControl is the size in bytes of the largest packet to accept that is not a message, such as a
// CONNACK. MQTT would allow 256 MiB of properties, which paho v0.23.0 decodes in a minute, to gigabytes.
const MaxControl = 64 << 10

// farewellTimeout bounds the DISCONNECT that tells the broker what it did wrong.
const farewellTimeout = time.Second

// Conn is a connection to a broker. A packet that MQTT does not allow, or that is too large, ends the
// connection before it is returned.
//
// One goroutine at a time may read. The other methods are safe for concurrent use, except
// where they say otherwise.
type Conn struct {
	conn      net.Conn
	server    *url.URL
	arrivals  atomic.Uint64 // reads that returned data
	head      []byte        // the first bytes that arrived; used by the reading goroutine only, like answered
	answered  bool          // Next has returned data
	socket    net.Conn      // the connection below TLS and WebSocket; conn itself if there is neither
	gate      *Gate         // checks the packets of the broker; used by the reading goroutine only
	reader    *Filter
	cause     atomic.Pointer[error] // why this end closes the connection; nil if it does not
	unsent    atomic.Pointer[error] // the error of the write for which it was closed; nil if it was not
	anonymous bool                  // the broker asked for a client certificate, and got none

	writeTimeout time.Duration
	writing      chan struct{} // full while a packet is being written
}

// DialOptions configures [Dial].
type DialOptions struct {
	// MaxPacket is the size in bytes of the largest message to accept. A larger one ends the
	// connection, as does any other packet that is larger than [MaxControl] too.
	MaxPacket int
	// WriteTimeout bounds the writing of each packet. A packet that takes longer ends the
	// connection, so that a broker that stopped reading cannot block a caller for longer.
	WriteTimeout time.Duration
	// Dialer opens the connection below TLS and WebSocket. Nil: net.Dialer.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// WebSocket adds WebSocket to a connection to server, which TLS encrypts already where the
	// address asks for it. Nil: there is no WebSocket; see [CheckWebSocket].
	WebSocket func(ctx context.Context, conn net.Conn, server *url.URL) (net.Conn, error)
	// Local is the program that should answer at an address of this machine, for errors. Empty:
	// "a broker".
	Local string
	// Step, if not nil, is called before each step with the error of a step that is not answered.
	Step func(unanswered error)
}

// Dial connects to server, an address from [ParseAddress], and adds TLS and WebSocket where
// the address asks for them. config is for TLS, from [TLS.ClientConfig].
func Dial(ctx context.Context, server *url.URL, config *tls.Config, options DialOptions) (*Conn, error) {
	dial := options.Dialer
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	step := options.Step
	if step == nil {
		step = func(error) {}
	}
	if err := CheckWebSocket(server, options.WebSocket != nil); err != nil {
		return nil, err
	}
	step(noConnection(server, nil))
	socket, err := dial(ctx, "tcp", server.Host)
	if err != nil {
		return nil, explainDial(server, cmp.Or(options.Local, "a broker"), err)
	}
	anonymous := false
	if config != nil && len(config.Certificates) == 0 && config.GetClientCertificate == nil {
		config = config.Clone()
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			anonymous = true
			return new(tls.Certificate), nil // none, as without this function
		}
	}
	conn, err := wrapConn(ctx, socket, server, config, options.WebSocket, step)
	if err != nil {
		_ = socket.Close()
		if anonymous {
			err = explainAnonymous(server, err)
		}
		return nil, err
	}
	step(NoAnswer(server, nil))
	c := newConn(conn, socket, options.MaxPacket, options.WriteTimeout)
	c.server, c.anonymous = server, anonymous
	return c, nil
}

// wrapConn adds TLS and WebSocket to a connection.
func wrapConn(ctx context.Context, socket net.Conn, server *url.URL, config *tls.Config, upgrade func(context.Context, net.Conn, *url.URL) (net.Conn, error), step func(unanswered error)) (net.Conn, error) {
	conn, scheme := socket, schemeOf(server)
	if scheme.encrypted {
		step(noTLS(server, nil))
		encrypted := tls.Client(socket, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, explainTLS(server, config, err)
		}
		conn = encrypted
	}
	if scheme.websocket {
		step(NoAnswer(server, nil))
		w, err := upgrade(ctx, conn, server)
		if err != nil {
			return nil, explainWebSocket(server, err)
		}
		return w, nil
	}
	return conn, nil
}

func newConn(conn, socket net.Conn, maxPacket int, writeTimeout time.Duration) *Conn {
	c := &Conn{
		writing:      make(chan struct{}, 1),
		conn:         conn,
		socket:       socket,
		gate:         NewGate(),
		writeTimeout: writeTimeout,
	}
	c.reader = NewFilter(countingReader{c}, FilterOptions{Limit: maxPacket, Others: MaxControl, Check: c.gate.Check})
	return c
}

// countingReader reads from the socket and counts the reads that return data.
type countingReader struct{ *Conn }

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.conn.Read(p)
	if n > 0 {
		r.arrivals.Add(1)
		if !r.answered {
			r.head = append(r.head, p[:min(n, maxHead-len(r.head))]...)
		}
	}
	return n, err
}

// Abort closes the connection at once. Close would first wait up to five seconds to send
// TLS's close_notify.
func (c *Conn) Abort() { _ = c.socket.Close() }

// Close closes the connection, and says so over TLS.
func (c *Conn) Close() error { return c.conn.Close() }

// Next returns the next packet, whole. It is valid until the next call of Next. An error ends the
// reading, and may be a *[DialError] before the first packet. A caller that waits in Next needs less of a stack
// than one that waits in paho's ReadPacket.
func (c *Conn) Next() ([]byte, error) {
	packet, err := c.reader.Next()
	if err != nil {
		return nil, c.explain(err)
	}
	c.answered = true
	return packet, nil
}

// explain handles the error that ends the reading, and adds what is known about it.
func (c *Conn) explain(err error) error {
	if unsent := c.unsent.Load(); unsent != nil && errors.Is(err, net.ErrClosed) {
		err = *unsent // the other end may have hung up, which the write met first
	}
	if c.CloseCause() == nil {
		c.Refuse(err)
	}
	if !c.answered && c.CloseCause() == nil && c.server != nil {
		err = explainFirstRead(c.server, c.head, err)
		if c.anonymous {
			err = explainAnonymous(c.server, err)
		}
	}
	return err
}

// Refuse records why this end closes the connection if err says that the broker broke
// MQTT's rules, and tells the broker, unless that takes long: the connection is over
// either way. For any other err it does nothing. Only the reading goroutine may call it.
func (c *Conn) Refuse(err error) {
	refusal := RefusalIn(err)
	if refusal == nil {
		return
	}
	farewell := Encode(&packets.Disconnect{ReasonCode: refusal.Code, Properties: &packets.Properties{ReasonString: refusal.Short()}})
	why := fmt.Errorf("the broker sent what MQTT does not allow: %w", err)
	if !c.answered && c.server != nil {
		if explained := (*DialError)(nil); errors.As(explainFirstRead(c.server, c.head, why), &explained) {
			why = explained
		}
	}
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) {
		why = fmt.Errorf("the broker began %w", tooLarge)
		if tooLarge.Limit != MaxControl { // which no option changes
			why = fmt.Errorf("%w (MaxPacketSize)", why)
		}
	}
	c.cause.Store(&why)
	patience := time.NewTimer(farewellTimeout)
	defer patience.Stop()
	select {
	case c.writing <- struct{}{}:
		c.write(farewell, farewellTimeout)
		<-c.writing
	case <-patience.C: // a packet is being written, and the broker does not read it
	}
}

// CloseCause returns why this end closed the connection, or nil if it did not.
func (c *Conn) CloseCause() error {
	if why := c.cause.Load(); why != nil {
		return *why
	}
	return nil
}

// Send sends whole packets. A failure closes the connection, which the goroutine that reads reports.
func (c *Conn) Send(packets []byte) {
	c.writing <- struct{}{}
	c.write(packets, c.writeTimeout)
	<-c.writing
}

// write is Send for a caller that has begun to write.
func (c *Conn) write(packets []byte, within time.Duration) {
	_ = c.conn.SetWriteDeadline(time.Now().Add(within)) // on a closed connection, the write fails
	if _, err := c.conn.Write(packets); err != nil {
		cause := err // a variable of its own, which a write that succeeds does not allocate
		c.unsent.CompareAndSwap(nil, &cause)
		c.Abort()
	}
	// It would end what TLS writes while it reads, such as the answer to a change of keys.
	_ = c.conn.SetWriteDeadline(time.Time{})
}

var pingreq = []byte{packets.PINGREQ << 4, 0}

// Probe sends a PINGREQ and closes the connection if nothing arrives within that time. It
// returns then, or when down is closed. The keep-alive takes the PINGRESP for the answer to a
// PINGREQ of its own, which does no harm: it too shows that the broker is there.
func (c *Conn) Probe(within time.Duration, down <-chan struct{}) {
	before := c.arrivals.Load()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	select {
	case c.writing <- struct{}{}:
		c.write(pingreq, within)
		<-c.writing
		select {
		case <-deadline.C:
		case <-down:
			return
		}
	case <-deadline.C: // a packet is being written for all this time
	case <-down:
		return
	}
	if c.arrivals.Load() != before {
		return
	}
	why := fmt.Errorf("a request went unanswered, and so did a PINGREQ for %v", within)
	c.cause.CompareAndSwap(nil, &why)
	c.Abort()
}
