package server

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

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/frame"
)

// brokerConn fits a network connection to paho, which reads a packet in three small
// pieces and writes it in several: reads are buffered, and what paho writes between Lock
// and Unlock leaves as one.
type brokerConn struct {
	net.Conn
	reader *frame.Filter
	cause  atomic.Pointer[error] // why this end closes the connection; nil if it does not

	mu     sync.Mutex // held by paho for a packet; guards writer
	writer *bufio.Writer
}

func newBrokerConn(conn net.Conn, maxPacket uint32) *brokerConn {
	none := func([]byte) bool { return false } // paho gets every packet
	limit := int(min(maxPacket, math.MaxInt32))
	return &brokerConn{Conn: conn, reader: frame.NewFilter(conn, limit, none, func() {}), writer: bufio.NewWriter(conn)}
}

func (c *brokerConn) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	var tooLarge *frame.TooLargeError
	if errors.As(err, &tooLarge) && c.closeCause() == nil {
		why := fmt.Errorf("the broker begins a packet of %d bytes, and this store takes at most %d (AttachOptions.MaxPacketSize)", tooLarge.Size, tooLarge.Limit)
		c.cause.Store(&why)
		c.sayTooLarge()
	}
	return n, err
}

// sayTooLarge tells the broker why the connection ends, unless a packet is being written,
// perhaps for long.
func (c *brokerConn) sayTooLarge() {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(farewellTimeout)) // if it fails, so does the write
	_, _ = c.writer.Write([]byte{packets.DISCONNECT << 4, 2, packets.DisconnectPacketTooLarge, 0})
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
		return brokerAddress{}, fmt.Errorf("credentials do not belong in the URL, but in AttachOptions; %s", form)
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
			return brokerAddress{}, fmt.Errorf("%q is not encrypted, but AttachOptions.TLS is set; %s", text, form)
		}
	case "mqtts", "tls", "ssl":
		port = "8883"
		if address.tls = config; config == nil {
			address.tls = new(tls.Config)
		}
		if address.tls.ServerName == "" {
			address.tls = address.tls.Clone()
			address.tls.ServerName = broker.Hostname()
		}
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
