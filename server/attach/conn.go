package attach

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/gate"
	"github.com/tenurelock/tenure/internal/secure"
)

// brokerConn fits a network connection to paho, which reads a packet in three small
// pieces and writes it in several: reads are buffered, and what paho writes between Lock
// and Unlock leaves as one.
type brokerConn struct {
	net.Conn
	gate   *gate.Gate // checks what the broker sends; the reading goroutine's
	reader *frame.Filter
	cause  atomic.Pointer[error] // why this end closes the connection; nil if it does not

	mu     sync.Mutex // held by paho for a packet; guards writer
	writer *bufio.Writer
}

func newBrokerConn(conn net.Conn, maxPacket uint32) *brokerConn {
	c := &brokerConn{Conn: conn, gate: gate.New(gate.FromServer, gate.Limits{}), writer: bufio.NewWriter(conn)}
	c.reader = frame.NewFilter(conn, frame.FilterOptions{
		Limit: int(min(maxPacket, math.MaxInt32)), // MQTT's own limit is lower
		Check: c.gate.Check,
	})
	return c
}

func (c *brokerConn) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	if err != nil && c.closeCause() == nil {
		c.refuse(err)
	}
	return n, err
}

// refuse notes why this end closes the connection, and tells the broker, if that has sent
// what it may not. It does nothing if err is another one.
func (c *brokerConn) refuse(err error) {
	farewell, refused := c.gate.AppendFarewell(nil, err)
	if !refused {
		return
	}
	why := fmt.Errorf("the broker sent what MQTT does not allow: %w", err)
	var tooLarge *frame.TooLargeError
	if errors.As(err, &tooLarge) {
		why = fmt.Errorf("the broker begins a packet of %d bytes, and this store takes at most %d (Options.MaxPacketSize)", tooLarge.Size, tooLarge.Limit)
	}
	c.cause.Store(&why)
	if len(farewell) == 0 || !c.mu.TryLock() {
		return // a packet is being written, perhaps for long
	}
	defer c.mu.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(farewellTimeout)) // if it fails, so does the write
	_, _ = c.writer.Write(farewell)
	_ = c.writer.Flush() // the connection is over either way
}

// closeCause returns why this end closes the connection, or nil if it does not.
func (c *brokerConn) closeCause() error {
	if why := c.cause.Load(); why != nil {
		return *why
	}
	return nil
}

// Write is called by paho between Lock and Unlock.
func (c *brokerConn) Write(p []byte) (int, error) { return c.writer.Write(p) }

// Lock begins a packet. A broker that does not read for writeTimeout is given up.
func (c *brokerConn) Lock() {
	c.mu.Lock()
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout)) // if it fails, so does the write
}

// Unlock sends the packet.
func (c *brokerConn) Unlock() {
	if c.writer.Flush() != nil {
		_ = c.Close() // paho notices by its next read
	}
	c.mu.Unlock()
}

// brokerAddress is where a broker is.
type brokerAddress struct {
	host string // with port
	tls  *tls.Config
}

// parseBroker reads the URL of a broker. config may be nil.
func parseBroker(text string, config *tls.Config) (brokerAddress, error) {
	const form = "write mqtt://host:1883, or mqtts://host:8883 for TLS"
	if strings.Contains(text, "@") { // not to be quoted: what is before it may be a password
		return brokerAddress{}, fmt.Errorf("credentials do not belong in the URL, but in Options; %s", form)
	}
	broker, err := url.Parse(text)
	if err != nil {
		return brokerAddress{}, fmt.Errorf("%w; %s", err, form)
	}
	var address brokerAddress
	port := "1883"
	switch broker.Scheme {
	case "mqtt", "tcp":
		if config != nil {
			return brokerAddress{}, fmt.Errorf("%q is not encrypted, but Options.TLS is set; %s", text, form)
		}
	case "mqtts", "tls", "ssl":
		port = "8883"
		if address.tls = config.Clone(); config == nil {
			address.tls = new(tls.Config)
		}
		if address.tls.ServerName == "" {
			address.tls.ServerName = broker.Hostname()
		}
		secure.Restrict(address.tls)
	default:
		return brokerAddress{}, fmt.Errorf("%q has no scheme that is known here; %s", text, form)
	}
	if broker.Hostname() == "" || broker.RawQuery != "" || broker.Fragment != "" || broker.Path != "" && broker.Path != "/" {
		return brokerAddress{}, fmt.Errorf("%q has no host, or more than host and port; %s", text, form)
	}
	if broker.Port() != "" {
		port = broker.Port()
	}
	address.host = net.JoinHostPort(broker.Hostname(), port)
	return address, nil
}

// dial connects. A packet of more than maxPacket bytes ends the connection.
func (a brokerAddress) dial(ctx context.Context, maxPacket uint32) (*brokerConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", a.host)
	if err != nil {
		return nil, err
	}
	if a.tls == nil {
		return newBrokerConn(conn, maxPacket), nil
	}
	secure := tls.Client(conn, a.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return newBrokerConn(secure, maxPacket), nil
}
