package mqtt

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
)

// Dial opens a connection to server, an address from [ParseAddress], and adds TLS and WebSocket where
// the address asks for them. The caller has to call [Client.Connect] next.
func Dial(ctx context.Context, server *url.URL, options Options) (*Client, error) {
	dial := options.Dialer
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	socket, err := dial(ctx, "tcp", server.Host)
	if err != nil {
		return nil, explainDial(server, cmp.Or(options.Local, "a broker"), err)
	}
	c := &Client{
		options: options, server: server, socket: socket, conn: socket, gate: NewGate(),
		done: make(chan struct{}), writing: make(chan struct{}, 1),
	}
	c.reader = &Filter{Source: source{c}, Limit: options.MaxPacket, Others: MaxControl, Check: c.gate.Check}
	if err := c.wrap(ctx); err != nil {
		c.Abort()
		return nil, err
	}
	return c, nil
}

// wrap adds TLS and WebSocket to the connection.
func (c *Client) wrap(ctx context.Context) error {
	scheme := schemeOf(c.server)
	if scheme.encrypted {
		config := c.options.TLS
		if len(config.Certificates) == 0 && config.GetClientCertificate == nil {
			config = config.Clone()
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				c.anonymous = true
				return new(tls.Certificate), nil // none, as without this function
			}
		}
		encrypted := tls.Client(c.socket, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return c.explainAnonymous(explainTLS(c.server, config, err))
		}
		c.conn = encrypted
	}
	if scheme.websocket {
		upgraded, err := c.options.WebSocket(ctx, c.conn, c.server)
		if err != nil {
			return c.explainAnonymous(explainWebSocket(c.server, err))
		}
		c.conn = upgraded
	}
	return nil
}

// source reads from the connection, and notes what arrives.
type source struct{ *Client }

func (s source) Read(p []byte) (int, error) {
	n, err := s.conn.Read(p)
	if n > 0 {
		s.heard.Store(true)
		if !s.answered {
			s.head = append(s.head, p[:min(n, maxHead-len(s.head))]...)
		}
	}
	return n, err
}

// Connect sends connect and waits for the CONNACK until ctx ends. If it fails, it closes the connection; if
// the broker refused it, its CONNACK comes beside the error. After success the caller has to call [Client.Run].
//
// The keep-alive of connect counts, or the broker's Server Keep Alive if that is shorter. With a longer
// one the client would notice a dead connection later than it was told to. connect must have a keep-alive and
// a Receive Maximum.
func (c *Client) Connect(ctx context.Context, connect *paho.Connect) (*paho.Connack, error) {
	c.maxUnacked = int(*connect.Properties.ReceiveMaximum)
	stop := context.AfterFunc(ctx, c.Abort) // the broker may neither answer nor read
	connack, err := c.handshake(connect.Packet())
	if !stop() && (err == nil || connack == nil) { // a refusal counts, even if ctx has ended since
		connack, err = nil, noAnswer(c.server, ctx.Err())
	}
	if err != nil {
		_ = c.conn.Close()
		c.tasks.Wait()
		return connack, err
	}
	c.obey(connack.Properties, connect.KeepAlive)
	c.inFlight = make(chan struct{}, min(maxInFlight, c.ReceiveMaximum))
	c.tasks.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due = time.Now().Add(c.keepAlive)
	c.timer = time.AfterFunc(c.keepAlive, c.beat)
	return connack, nil
}

// obey notes the conditions in the broker's CONNACK.
func (c *Client) obey(conditions *paho.ConnackProperties, keepAlive uint16) {
	c.ReceiveMaximum = int(valueOr(conditions.ReceiveMaximum, math.MaxUint16))
	const most = MaxHeader + MaxRemaining // an int of 32 bits would not hold every size
	c.MaxPacket = int(min(valueOr(conditions.MaximumPacketSize, most), most))
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
	c.Write(encodeConnect(connect))
	for {
		packet, err := c.reader.Next()
		if err != nil {
			return nil, c.explain(err)
		}
		c.answered = true
		content, err := decode(packet)
		if err != nil {
			return nil, err
		}
		p, ok := content.(*packets.Connack)
		switch {
		case !ok && !c.control(content): // an AUTH: the gate lets nothing else through
			return nil, c.CloseCause()
		case ok && p.ReasonCode >= Failure:
			return paho.ConnackFromPacketConnack(p), fmt.Errorf("the broker refused the connection: %s", p.Reason())
		case ok:
			return paho.ConnackFromPacketConnack(p), nil
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
	connect.ProtocolName, connect.ProtocolVersion = "MQTT", Version
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
