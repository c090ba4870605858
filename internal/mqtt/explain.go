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
	"syscall"
	"time"
	"unicode"

	"github.com/eclipse/paho.golang/packets"
)

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

// noAnswer says that server accepted a connection, and sent no answer to a CONNECT before cause ended the
// connection.
func noAnswer(server *url.URL, cause error) error {
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
		return explained(err, "no answer from %s: is the address right, and is a firewall in between?", server.Host)
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
		return explained(err, "TLS: no answer from %s: is this a port without TLS? Then write %s",
			server.Host, withTLS(server, false))
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

// explain returns why no packet of the broker came before the CONNACK.
func (c *Client) explain(err error) error {
	if unsent := c.unsent.Load(); unsent != nil && errors.Is(err, net.ErrClosed) {
		err = *unsent // the other end may have hung up, which the write met first
	}
	c.refuse(err)
	if err = cmp.Or(c.CloseCause(), err); c.answered {
		return err
	}
	return c.explainAnonymous(explainFirstRead(c.server, c.head, err))
}

// explainAnonymous explains why a broker ended a connection on which it asked for a certificate
// and got none. TLS 1.3 refuses a client without one after the handshake, and a reset often
// overtakes the reason.
func (c *Client) explainAnonymous(err error) error {
	if !c.anonymous || !hungUp(err) && !isAboutCertificate(err) {
		return err
	}
	return explained(errors.Join(ErrClientCertificate, err), "TLS: %s closed the connection: it asked for a client "+
		"certificate, and this client has none: set TLS.CertFile and TLS.KeyFile (--tls-cert, --tls-key)", c.server.Host)
}

// explainWebSocket explains why the handshake of a WebSocket with server failed.
func explainWebSocket(server *url.URL, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return noAnswer(server, err)
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
		return noAnswer(server, err)
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
