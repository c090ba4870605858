package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/transport"
)

const (
	// methodServiceAccount is the method of enhanced authentication with a token of Kubernetes.
	methodServiceAccount = "K8S-SAT"
	maxPacket            = 2 << 20
	keepAlive            = 30 // seconds
)

// hasSecret reports whether the client sends a password or a token.
func (d *doctor) hasSecret() bool {
	o := d.options.Client
	return len(o.Password) > 0 || o.PasswordFile != "" || o.TokenFile != ""
}

// isLoopback reports whether a broker is on this machine, by its name.
func isLoopback(server *url.URL) bool {
	address, err := netip.ParseAddr(server.Hostname())
	return err == nil && address.IsLoopback() || server.Hostname() == "localhost"
}

// open makes a connection as a client does: TCP, TLS and WebSocket.
func (d *doctor) open(ctx context.Context, server *url.URL) (*mqtt.Conn, error) {
	var config *tls.Config
	if mqtt.IsEncrypted(server) {
		var err error
		if config, err = mqtt.TLS(d.options.Client.TLS).ClientConfig(server); err != nil {
			return nil, err
		}
		if config.Time == nil {
			config.Time = d.options.Now
		}
	}
	return mqtt.Dial(ctx, server, config, mqtt.DialOptions{
		MaxPacket: maxPacket, WriteTimeout: d.options.Timeout,
		Dialer: d.options.Client.Dialer, WebSocket: d.options.Client.WebSocket,
	})
}

// connect sends CONNECT. It returns a session if the broker accepts the client; else nil.
func (d *doctor) connect(ctx context.Context, server *url.URL) *session {
	const name = "MQTT 5"
	packet, err := d.connectPacket()
	if err != nil {
		d.at(server, failed(Usage, "credentials", err.Error(), "correct the file that the text names"))
		return nil
	}
	step, cancel := d.step(ctx)
	defer cancel()
	conn, err := d.open(step, server)
	if err != nil {
		if errors.Is(err, mqtt.ErrClientCertificate) {
			d.at(server, failed(Refused, "TLS", err.Error(), certificateCure))
			return nil
		}
		cure := "check the address: is this a broker?"
		if strings.Contains(server.Scheme, "ws") {
			cure = "is this a port for WebSocket, and is the path right? Brokers often use /mqtt"
		}
		d.at(server, failed(Unreachable, name, fmt.Sprintf("no connection: %v", err), cure))
		return nil
	}
	s, connack, err := d.newSession(step, server, conn, packet)
	if err != nil {
		if connack == nil {
			d.at(server, d.noConnack(ctx, name, server, cmp.Or(conn.CloseCause(), err)))
			return nil
		}
		d.at(server, ok(name, "the broker answers"))
		d.at(server, d.refusal(connack))
		return nil
	}
	d.at(server, ok(name, limits(connack.Properties)))
	found := "the broker accepts this client without credentials"
	switch {
	case len(packet.Password) > 0 || packet.Username != "":
		found = fmt.Sprintf("the broker accepts the user %q", packet.Username)
	case packet.Properties.AuthMethod != "":
		found = "the broker accepts the token of the service account"
	case d.options.Client.TLS.CertFile != "":
		found = "the broker accepts this client with its certificate"
	}
	d.at(server, ok("credentials", fmt.Sprintf("%s; client id %q", found, d.options.Client.ClientID)))
	return s
}

// connectPacket returns CONNECT. The error names a file that cannot be read.
func (d *doctor) connectPacket() (*paho.Connect, error) {
	o := d.options.Client
	packet := &paho.Connect{
		ClientID: o.ClientID, CleanStart: true, KeepAlive: keepAlive,
		Username: o.Username, UsernameFlag: o.Username != "",
		Properties: &paho.ConnectProperties{RequestProblemInfo: true, ReceiveMaximum: &d.options.Window},
	}
	password := o.Password
	if o.PasswordFile != "" {
		secret, err := mqtt.ReadSecret(o.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("--password-file: %w", err)
		}
		password = secret
	}
	if packet.Password = password; len(password) > 0 {
		packet.PasswordFlag = true
	}
	if o.TokenFile != "" {
		token, err := mqtt.ReadSecret(o.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("the token of the service account: %w", err)
		}
		packet.Properties.AuthMethod, packet.Properties.AuthData = methodServiceAccount, token
	}
	return packet, nil
}

// limits says what a broker announces.
func limits(properties *paho.ConnackProperties) string {
	found := "the broker speaks MQTT 5"
	if properties.MaximumPacketSize != nil {
		found += fmt.Sprintf("; packets up to %d bytes", *properties.MaximumPacketSize)
	}
	if properties.ReceiveMaximum != nil {
		found += fmt.Sprintf("; %d requests of a client in flight", *properties.ReceiveMaximum)
	}
	return found
}

// refusal explains a CONNACK that refuses the client.
func (d *doctor) refusal(connack *paho.Connack) Step {
	refused := &transport.ConnectionError{
		Code: connack.ReasonCode, Reason: connack.Properties.ReasonString, ServerReference: connack.Properties.ServerReference,
	}
	const name = "credentials"
	found := refused.Error()
	switch connack.ReasonCode {
	case packets.ConnackUnsupportedProtocolVersion:
		return failed(Unreachable, "MQTT 5", found, versionCure)
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized, packets.ConnackBanned:
		cure := "check --username and --password-file, and the broker's rules for this client id"
		if !d.hasSecret() && d.options.Client.Username == "" {
			cure = "the broker does not accept anonymous clients: give --username and --password-file, or --tls-cert and --tls-key"
		}
		return failed(Refused, name, found, cure)
	case packets.ConnackBadAuthenticationMethod:
		return failed(Refused, name, found, "leave out the token: the broker does not know this way to authenticate")
	case packets.ConnackInvalidClientID:
		return failed(Refused, name, found, "choose another --client-id: perhaps it must be the user name")
	case packets.ConnackUseAnotherServer, packets.ConnackServerMoved:
		return warning(name, found, "this server stands by: have the active server in --broker too, with a comma between the addresses")
	case packets.ConnackServerUnavailable, packets.ConnackServerBusy, packets.ConnackConnectionRateExceeded, packets.ConnackQuotaExceeded:
		return failed(Unreachable, name, found, "the broker is at its limits: try again, and look at its log")
	}
	return failed(Unreachable, name, found, "look at the broker's log")
}

const versionCure = "the broker must speak MQTT 5: use a newer version of it, or allow protocol version 5 in its configuration"

// noConnack explains why there was no CONNACK, after a look at what else the port speaks.
func (d *doctor) noConnack(ctx context.Context, name string, server *url.URL, err error) Step {
	if !mqtt.IsEncrypted(server) && !strings.HasPrefix(server.Scheme, "ws") && d.speaksTLS(ctx, server) {
		encrypted := strings.Replace(server.String(), server.Scheme+"://", "mqtts://", 1)
		return failed(Unreachable, name, fmt.Sprintf("no answer to CONNECT: %v; the port speaks TLS", err), "write "+encrypted)
	}
	if errors.Is(err, mqtt.ErrClientCertificate) || isAlert(err) {
		return failed(Refused, "TLS", fmt.Sprintf("the broker ended TLS: %v", err), certificateCure)
	}
	if d.speaksOlderMQTT(ctx, server) {
		return failed(Unreachable, name, "the broker speaks MQTT 3.1.1 only", versionCure)
	}
	return failed(Unreachable, name, fmt.Sprintf("no answer to CONNECT: %v", err), "the port accepts connections and does not speak MQTT: is it the port of a broker, and is the broker well?")
}

// speaksTLS reports whether a port answers a TLS handshake.
func (d *doctor) speaksTLS(ctx context.Context, server *url.URL) bool {
	ctx, cancel := d.step(ctx)
	defer cancel()
	conn, err := d.dialer()(ctx, "tcp", server.Host)
	if err != nil {
		return false
	}
	defer conn.Close()
	encrypted := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: server.Hostname()}) // nothing is sent over it
	err = encrypted.HandshakeContext(ctx)
	return err == nil || isAlert(err)
}

// speaksOlderMQTT reports whether a broker answers CONNECT of MQTT 3.1.1, with any code.
func (d *doctor) speaksOlderMQTT(ctx context.Context, server *url.URL) bool {
	if strings.HasPrefix(server.Scheme, "ws") {
		return false
	}
	ctx, cancel := d.step(ctx)
	defer cancel()
	conn, err := d.dialer()(ctx, "tcp", server.Host)
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var stream net.Conn = conn
	if mqtt.IsEncrypted(server) {
		config, err := mqtt.TLS(d.options.Client.TLS).ClientConfig(server)
		if err != nil {
			return false
		}
		stream = tls.Client(conn, config)
	}
	_ = stream.SetDeadline(time.Now().Add(d.options.Timeout)) // on a closed connection, the write fails
	id := "tenure-doctor"
	body := append([]byte{0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, keepAlive, 0, byte(len(id))}, id...)
	if _, err := stream.Write(append([]byte{0x10, byte(len(body))}, body...)); err != nil {
		return false
	}
	var connack [4]byte
	_, err = io.ReadFull(stream, connack[:])
	return err == nil && connack[0] == 0x20 && connack[1] == 2
}
