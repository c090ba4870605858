package transport

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
)

// secrets returns the password and the token for the next CONNECT packet, from the files if the
// options name files.
func (o *Options) secrets() (password, token []byte, err error) {
	password = o.Password
	if o.PasswordFile != "" {
		if password, err = mqtt.ReadSecret(o.PasswordFile); err != nil {
			return nil, nil, &optionerror.Error{Package: "transport", Field: "PasswordFile", Err: err}
		}
	}
	if o.TokenFile != "" {
		if token, err = mqtt.ReadSecret(o.TokenFile); err != nil {
			return nil, nil, &optionerror.Error{Package: "transport", Field: "TokenFile", Err: err}
		}
	}
	return password, token, nil
}

// checkCredentials rejects options that exclude each other, and reads each file once, so
// that Dial reports a wrong name at once. It warns if a password or a token would be readable on the network:
// that may be intended, in a network of its own.
func (o *Options) checkCredentials(servers []*url.URL) error {
	switch {
	case len(o.Password) > 0 && o.PasswordFile != "":
		return errors.New("transport: Options.Password and PasswordFile exclude each other: set one")
	case o.TokenFile != "" && (o.Username != "" || len(o.Password) > 0 || o.PasswordFile != ""):
		return errors.New("transport: Options.TokenFile and Username or a password exclude each other: " +
			"a client authenticates in one way")
	case (o.TLS.CertFile == "") != (o.TLS.KeyFile == ""):
		return optionError("TLS.CertFile", nil, "and its key belong together: set both or neither")
	case len(o.Password) > mqtt.MaxString:
		return optionError("Password", nil, fmt.Sprintf("has %d bytes, and MQTT carries at most %d", len(o.Password),
			mqtt.MaxString))
	}
	if _, _, err := o.secrets(); err != nil {
		return fmt.Errorf("transport: %w", err)
	}
	secret := len(o.Password) > 0 || o.PasswordFile != "" || o.TokenFile != ""
	for _, server := range servers {
		if err := mqtt.CheckWebSocket(server, o.WebSocket != nil); err != nil {
			return fmt.Errorf("transport: %w", err)
		}
		switch {
		case mqtt.IsEncrypted(server):
			if _, err := mqtt.TLS(o.TLS).ClientConfig(server); err != nil {
				return fmt.Errorf("transport: %w", err)
			}
		case o.TLS != TLSOptions{}:
			return optionError("TLS", nil, fmt.Sprintf("is set, and %s does not encrypt: write mqtts or wss", server.Redacted()))
		case secret:
			o.program.logger(o.Logger).Warn("the connection is not encrypted, so the network can read the password "+
				"or the token: write mqtts or wss", "broker", server.Host)
		}
	}
	return nil
}

// methodServiceAccount is the Authentication Method of brokers in Kubernetes for the token of
// a service account.
const methodServiceAccount = "K8S-SAT"

// tokenCheck is how often the client reads the token file. Kubernetes replaces a token when a
// fifth of its lifetime is left, which is two minutes or more.
const tokenCheck = 10 * time.Second

// authenticate returns an AUTH with the token. A broker that asks for more gets the same token again: the
// method has one step.
func (l *link) authenticate(reason byte) *packets.Auth {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	properties := packets.Properties{AuthMethod: methodServiceAccount, AuthData: l.token}
	return &packets.Auth{ReasonCode: reason, Properties: &properties}
}

// showToken authenticates the connection again if the token in the file has changed
// [MQTT-4.12.1]. It does not wait for the answer: requests go on, and a broker that refuses
// the token ends the connection. If the file cannot be read, the old token stays in use
// until the next look; it is still good for some time.
func (l *link) showToken(file string) {
	token, err := mqtt.ReadSecret(file)
	if err != nil {
		l.conn.logger.Warn("cannot read the token file", "error", err)
		return
	}
	l.conn.mu.Lock()
	changed := !bytes.Equal(l.token, token)
	l.token = token
	l.conn.mu.Unlock()
	if changed {
		l.conn.logger.Debug("the token has changed: authenticating again")
		l.client.Write(mqtt.Encode(l.authenticate(packets.AuthReauthenticate)))
	}
}
