package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/cmd/tenure/internal/localhttp"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/transport"
)

const (
	// expiresSoon is when a certificate counts as about to expire.
	expiresSoon = 14 * 24 * time.Hour
	networkCure = "check the address, the way to it, and that a broker runs there (tenure serve, mosquitto); " +
		"usual ports are 1883 for mqtt and 8883 for mqtts"
	certificateCure = "the broker's certificate needs a name of the address, a time that has not passed on this " +
		"machine's clock, and an authority that --tls-ca or this system has"
	ownCure = "the broker wants another certificate of this client: give --tls-cert and --tls-key of an authority that " +
		"it trusts"
)

// hasSecret reports whether the client sends a password or a token.
func (d *doctor) hasSecret() bool {
	o := d.options.Client
	return len(o.Password) > 0 || o.PasswordFile != "" || o.TokenFile != ""
}

// connect returns a client if the broker accepts it; else nil. It tries once.
func (d *doctor) connect(ctx context.Context, server *url.URL) *transport.Client {
	step, cancel := d.step(ctx)
	defer cancel()
	dialing, giveUp := context.WithCancelCause(step)
	defer giveUp(nil)
	options := d.options.Client
	options.Trace = &transport.Trace{ConnectFailed: func(status transport.ConnectionStatus) { giveUp(status.Err) }}
	dial := options.Dialer
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	var reached string
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		began := time.Now()
		conn, err := dial(ctx, network, address)
		if err == nil {
			d.network = time.Since(began)
			reached = conn.RemoteAddr().String()
		}
		return conn, err
	}
	var encryption tls.ConnectionState
	if mqtt.IsEncrypted(server) {
		config := cmp.Or(options.TLS.Config.Clone(), new(tls.Config))
		config.VerifyConnection = func(state tls.ConnectionState) error {
			encryption = state
			return nil
		}
		options.TLS.Config = config
	}
	client, err := transport.Dial(dialing, server.String(), options)
	if err != nil {
		if dialing.Err() != nil && step.Err() == nil {
			err = context.Cause(dialing)
		}
		d.add(d.explain(err))
		return nil
	}
	d.add(d.encrypted(server, reached, encryption))
	who := "this client without credentials"
	if options.Username != "" {
		who = fmt.Sprintf("the user %q", options.Username)
	}
	d.add(ok("MQTT 5", fmt.Sprintf("the broker speaks MQTT 5, and accepts %s; client id %q", who, options.ClientID)))
	return client
}

// encrypted says how a connection is encrypted.
func (d *doctor) encrypted(server *url.URL, reached string, state tls.ConnectionState) Step {
	const name = "connection"
	found := fmt.Sprintf("%s answers in %v", reached, rounded(d.network))
	if len(state.PeerCertificates) == 0 {
		if d.hasSecret() && !localhttp.IsLoopback(server.Hostname()) {
			return warning(name, found+"; the network can read the password", "write mqtts or wss in --broker")
		}
		return ok(name, found+", without encryption")
	}
	expires := state.PeerCertificates[0].NotAfter
	for _, certificate := range state.PeerCertificates {
		if certificate.NotAfter.Before(expires) {
			expires = certificate.NotAfter
		}
	}
	found = fmt.Sprintf("%s; %s, a certificate for %s that expires %s", found, tls.VersionName(state.Version),
		mqtt.CertificateNames(state.PeerCertificates[0]), expires.UTC().Format(time.RFC3339))
	if expires.Sub(d.options.Now()) < expiresSoon {
		return warning(name, found, "renew the broker's certificate soon")
	}
	return ok(name, found)
}

// explain returns the step at which a connection failed. The errors of the library say what to do, in part.
func (d *doctor) explain(err error) Step {
	const name = "connection"
	var option *optionerror.Error
	var refused *transport.ConnectionError
	var certificate *tls.CertificateVerificationError
	found := err.Error()
	switch {
	case errors.As(err, &option):
		return failed(Usage, name, d.options.Named(err).Error(), "correct the flag, or the file that it names")
	case errors.As(err, &refused):
		return d.refusal(refused)
	case isRejected(err):
		return failed(Refused, "store", "the broker does not let this client subscribe to its replies: "+found,
			"allow each client to read its own topics clients/{client id}/#: "+aclCure)
	case errors.Is(err, mqtt.ErrClientCertificate):
		return failed(Refused, name, found, ownCure)
	case errors.As(err, &certificate):
		return failed(Unreachable, name, found, certificateCure)
	}
	return failed(Unreachable, name, found, networkCure)
}

// refusal explains a CONNACK that refuses the client.
func (d *doctor) refusal(refused *transport.ConnectionError) Step {
	const name = "credentials"
	switch found := refused.Error(); refused.Code {
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized, packets.ConnackBanned,
		packets.ConnackBadAuthenticationMethod, packets.ConnackInvalidClientID:
		cure := "check --username and --password-file, and the broker's rules for this client id, which may have to be the " +
			"user name"
		if !d.hasSecret() && d.options.Client.Username == "" {
			cure = "the broker does not accept anonymous clients: give --username and --password-file, or --tls-cert and " +
				"--tls-key"
		}
		return failed(Refused, name, found, cure)
	case packets.ConnackUseAnotherServer, packets.ConnackServerMoved:
		return warning(name, found, "this server stands by: have the active server in --broker too, with a comma between "+
			"the addresses")
	default:
		return failed(Unreachable, name, found,
			"look at the broker's log: it may be at its limits, then try again; it must allow MQTT 5")
	}
}
