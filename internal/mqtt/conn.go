package mqtt

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode"

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

// DialError says in one line why there is no connection: the cause first, then a hint. Its
// text is the same for the same cause, so a caller can tell whether the cause has changed.
type DialError struct {
	text  string
	cause error
}

// Error returns the cause and the hint.
func (e *DialError) Error() string { return e.text }

// Unwrap returns the error of the network.
func (e *DialError) Unwrap() error { return e.cause }

// ErrClientCertificate is in the errors of connections that a server ended because of the certificate
// of this client: it wants one, or another one.
var ErrClientCertificate = errors.New("the server wants another certificate of this client")

// explained returns cause with an explanation. The end of an attempt by its caller needs none.
func explained(cause error, format string, arguments ...any) error {
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	return &DialError{fmt.Sprintf(format, arguments...), cause}
}

// noConnection says that server does not accept a connection, and does not refuse it either.
func noConnection(server *url.URL, cause error) error {
	return explained(cause, "no answer from %s: is the address right, and is a firewall in between?", server.Host)
}

// noTLS says that server does not answer a TLS handshake.
func noTLS(server *url.URL, cause error) error {
	return explained(cause, "TLS: no answer from %s: is this a port without TLS? Then write %s",
		server.Host, withTLS(server, false))
}

// NoAnswer says that server accepted a connection, and sent no answer to a CONNECT before cause ended the
// connection.
func NoAnswer(server *url.URL, cause error) error {
	if scheme := schemeOf(server); scheme.encrypted || scheme.websocket {
		return explained(cause, "no MQTT answer from %s: is a broker that speaks MQTT 5 behind this port?", server.Host)
	}
	return explained(cause, "no MQTT answer from %s: is this a TLS port (then write %s), the port of a web server, "+
		"or a broker that speaks MQTT 3 only?", server.Host, withTLS(server, true))
}

// webServer says that server answers HTTP.
func webServer(server *url.URL, cause error) error {
	return explained(cause, "%s answers HTTP: is this a web server? WebSocket needs ws:// or wss://", server.Host)
}

// withTLS returns the form of an address with or without TLS.
func withTLS(server *url.URL, encrypted bool) string {
	scheme := "mqtt"
	if schemeOf(server).websocket {
		scheme = "ws"
	}
	if encrypted {
		scheme += "s"
	}
	return scheme + "://" + server.Host
}

// explainDial explains why no connection to server could be opened. local is what should answer
// on this machine.
func explainDial(server *url.URL, local string, err error) error {
	peer, program := server.Host, "a broker"
	if ip := net.ParseIP(server.Hostname()); server.Hostname() == "localhost" || ip.IsLoopback() {
		program = local
	} else if op := (*net.OpError)(nil); ip == nil && errors.As(err, &op) && op.Addr != nil {
		peer = fmt.Sprintf("%s (%s)", server.Host, op.Addr) // that DNS gave
	}
	var lookup *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return explained(err, "DNS knows no address of %q: is the name right?", server.Hostname())
	case errors.As(err, &lookup):
		return explained(err, "no DNS answer for %q: is the DNS server up? (%s)", server.Hostname(), Shown(lookup.Err))
	case isErrno(err, syscall.ECONNREFUSED, 10061):
		return explained(err, "connection refused by %s: is %s running there, and is this its port?", peer, program)
	case isErrno(err, syscall.EHOSTUNREACH, 10065), isErrno(err, syscall.ENETUNREACH, 10051):
		return explained(err, "no route to %s: is this machine's network up, and is the address right?", peer)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return noConnection(server, err)
	}
	return err
}

// IsNoServer reports whether an attempt to connect failed because nothing listens at the address, or
// the host does not exist.
func IsNoServer(err error) bool {
	var lookup *net.DNSError
	return isErrno(err, syscall.ECONNREFUSED, 10061) || errors.As(err, &lookup) && lookup.IsNotFound
}

// isErrno reports whether err is an error of the operating system. windows is its number there,
// where package syscall does not have all of them.
func isErrno(err error, posix syscall.Errno, windows uintptr) bool {
	if runtime.GOOS == "windows" {
		return errors.Is(err, syscall.Errno(windows))
	}
	return errors.Is(err, posix)
}

// hungUp reports whether the other end closed the connection, as brokers do with a client that
// does not speak the protocol of the port.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		isErrno(err, syscall.ECONNRESET, 10054) || isErrno(err, syscall.EPIPE, 10053)
}

// explainTLS explains why a TLS handshake with server failed.
func explainTLS(server *url.URL, config *tls.Config, err error) error {
	var header tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &header) && bytes.HasPrefix(header.RecordHeader[:], []byte("HTTP")):
		return webServer(server, err)
	case errors.As(err, &header), hungUp(err),
		errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return noTLS(server, err)
	case errors.As(err, &authority):
		return explained(err, "TLS: the certificate of %s is signed by an unknown authority: "+
			"name the file with the authority's certificate (TLS.CAFile, --tls-ca)", server.Host)
	case errors.As(err, &hostname):
		return explained(err, "TLS: the certificate of %s is valid for %s, not for %s: write one of its names in the address",
			server.Host, CertificateNames(hostname.Certificate), config.ServerName)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return explained(err, "TLS: the certificate of %s is valid from %s to %s: replace it, or set this machine's clock",
			server.Host, invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return explainAlert(err)
}

// CertificateNames returns the names of a certificate, for a text.
func CertificateNames(certificate *x509.Certificate) string {
	names := slices.Clone(certificate.DNSNames)
	for _, ip := range certificate.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return "no name at all (it needs a subject alternative name)"
	}
	return Shown(strings.Join(names, ", "))
}

// isAboutCertificate reports whether a server refused this client's certificate, or its absence.
func isAboutCertificate(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate")
}

// explainAlert explains an error of TLS, which may be about the certificate of this client.
func explainAlert(err error) error {
	if !isAboutCertificate(err) {
		return explained(err, "TLS: %s", Shown(err.Error()))
	}
	return explained(errors.Join(ErrClientCertificate, err), "TLS: %s: the server refuses the certificate of this "+
		"client, or wants one: check TLS.CertFile and TLS.KeyFile (--tls-cert, --tls-key)", Shown(err.Error()))
}

// explainAnonymous explains why a broker ended a connection on which it asked for a certificate
// and got none. TLS 1.3 refuses a client without one after the handshake, and a reset often
// overtakes the reason.
func explainAnonymous(server *url.URL, err error) error {
	if !hungUp(err) && !isAboutCertificate(err) {
		return err
	}
	return explained(errors.Join(ErrClientCertificate, err), "TLS: %s closed the connection: it asked for a client "+
		"certificate, and this client has none: set TLS.CertFile and TLS.KeyFile (--tls-cert, --tls-key)", server.Host)
}

// explainWebSocket explains why the handshake of a WebSocket with server failed.
func explainWebSocket(server *url.URL, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return NoAnswer(server, err)
	}
	if hungUp(err) {
		return explained(err, "websocket handshake: %s closed the connection: does it take WebSocket there?", server.Host)
	}
	return explained(err, "websocket handshake: %s", Shown(err.Error()))
}

// explainFirstRead explains why the broker's first packet did not come. head is what came instead.
func explainFirstRead(server *url.URL, head []byte, err error) error {
	const handshake, alert = "\x16\x03", "\x15\x03" // of a TLS record [RFC 8446, 5.1]
	begins := func(prefix string) bool { return bytes.HasPrefix(head, []byte(prefix)) }
	switch {
	case begins("\x20\x02"): // a CONNACK without properties
		return explained(err, "%s answers with MQTT 3: this client needs a broker that speaks MQTT 5", server.Host)
	case (begins(alert) || begins(handshake)) && !IsEncrypted(server):
		return explained(err, "%s answers with TLS: write %s", server.Host, withTLS(server, true))
	case begins("HTTP/"):
		return webServer(server, err)
	case len(head) > 0 && Type(head) != packets.CONNACK && Type(head) != packets.AUTH:
		return explained(err, "%s does not speak MQTT: its answer begins with %q", server.Host, head)
	case hungUp(err):
		return NoAnswer(server, err)
	case isAboutCertificate(err):
		return explainAlert(err)
	}
	return err // such as the end of the attempt
}

// Shown returns the beginning of a text that a peer may have chosen, in one line, for errors and logs: it may be
// as long as a packet, and an error may be logged for each of the requests that are repeated. Of a longer text it
// shows the length.
func Shown(text string) string {
	const most = 512 // bytes
	if len(text) > most {
		text = fmt.Sprintf("%s… (%d bytes)", text[:most], len(text))
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
