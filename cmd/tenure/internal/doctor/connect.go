package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/transport"
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

// connect returns a client if the broker accepts it; else nil. It tries once.
func (d *doctor) connect(ctx context.Context, server *url.URL) *transport.Client {
	step, cancel := d.step(ctx)
	defer cancel()
	dialing, giveUp := context.WithCancelCause(step)
	defer giveUp(nil)
	options := d.options.Client
	options.Trace = &transport.Trace{ConnectFailed: func(status transport.ConnectionStatus) { giveUp(status.Err) }}
	client, err := transport.Dial(dialing, server.String(), options)
	if err != nil {
		if dialing.Err() != nil && step.Err() == nil {
			err = context.Cause(dialing)
		}
		d.explainRefusal(server, err)
		return nil
	}
	found := "the broker accepts this client without credentials"
	switch {
	case options.Username != "":
		found = fmt.Sprintf("the broker accepts the user %q", options.Username)
	case options.TokenFile != "":
		found = "the broker accepts the token of the service account"
	case options.TLS.CertFile != "":
		found = "the broker accepts this client with its certificate"
	}
	d.at(server, ok("MQTT 5", "the broker speaks MQTT 5"))
	d.at(server, ok("credentials", fmt.Sprintf("%s; client id %q", found, options.ClientID)))
	return client
}

const (
	certificateCure = "the broker wants another certificate of this client: give --tls-cert and --tls-key of an authority that it trusts"
	fileCure        = "correct the file that the text names"
)

// explainRefusal adds the step at which a connection failed.
func (d *doctor) explainRefusal(server *url.URL, err error) {
	var option *optionerror.Error
	var refused *transport.ConnectionError
	switch {
	case errors.As(err, &option):
		d.at(server, failed(Usage, "credentials", d.options.Named(err).Error(), fileCure))
	case errors.As(err, &refused):
		d.at(server, ok("MQTT 5", "the broker answers"))
		d.at(server, d.refusal(refused))
	case isRejected(err):
		d.at(server, failed(Refused, "store", fmt.Sprintf("the broker does not let this client subscribe to its replies: %v", err),
			"allow each client to read its own topics clients/{client id}/#: "+aclCure))
	case errors.Is(err, mqtt.ErrClientCertificate):
		d.at(server, failed(Refused, "TLS", err.Error(), certificateCure))
	default:
		d.at(server, failed(Unreachable, "MQTT 5", err.Error(), "is this the port of a broker, with its path for WebSocket, and does the broker allow MQTT 5?"))
	}
}

// refusal explains a CONNACK that refuses the client.
func (d *doctor) refusal(refused *transport.ConnectionError) Step {
	const name = "credentials"
	switch found := refused.Error(); refused.Code {
	case packets.ConnackUnsupportedProtocolVersion:
		return failed(Unreachable, "MQTT 5", found, "use a newer version of the broker, or allow protocol version 5 in its configuration")
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized, packets.ConnackBanned, packets.ConnackBadAuthenticationMethod:
		cure := "check --username and --password-file, and the broker's rules for this client id"
		if !d.hasSecret() && d.options.Client.Username == "" {
			cure = "the broker does not accept anonymous clients: give --username and --password-file, or --tls-cert and --tls-key"
		}
		return failed(Refused, name, found, cure)
	case packets.ConnackInvalidClientID:
		return failed(Refused, name, found, "choose another --client-id: perhaps it must be the user name")
	case packets.ConnackUseAnotherServer, packets.ConnackServerMoved:
		return warning(name, found, "this server stands by: have the active server in --broker too, with a comma between the addresses")
	default:
		return failed(Unreachable, name, found, "look at the broker's log: it may be at its limits, then try again")
	}
}
