package transport

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// TLSOptions configures the encryption for addresses that begin with mqtts or wss. The zero
// value trusts the authorities of the operating system and presents no certificate.
//
// The files are in PEM. The client reads them again for each connection, so a replaced file
// is in use from the next connection on. Replace a certificate and its key at the same
// moment, for example with a directory behind a symbolic link: while they do not match,
// attempts to connect fail, and the client repeats them.
type TLSOptions struct {
	// CAFile holds the certificates of the authorities to trust, instead of the
	// certificates of the operating system.
	CAFile string
	// CertFile holds the certificate that the client presents, followed by the intermediate
	// ones, and KeyFile its private key. Set both or neither.
	CertFile, KeyFile string
	// KeyPasswordFile holds the password of an encrypted KeyFile. A newline at its end is
	// not part of the password. The key must be in PKCS #8, as "openssl pkcs8 -topk8"
	// writes it.
	KeyPasswordFile string
	// Config is the base, for settings that have no field here; the fields above replace
	// the corresponding ones. Its ServerName is the name that the broker's certificate must
	// contain; empty means the host of the address. It must not be changed afterwards. If its CipherSuites is
	// nil, TLS 1.2 is limited to suites with ECDHE and AEAD. Default: the zero value.
	Config *tls.Config
}

// tlsConfig reads the files of the TLS options, for a connection to server.
func (o *Options) tlsConfig(server *url.URL) (*tls.Config, error) {
	config, err := mqtt.TLS(o.TLS).ClientConfig(server)
	if err != nil {
		return nil, fmt.Errorf("TLS.%w", err)
	}
	return config, nil
}

// secrets returns the password and the token for the next CONNECT packet, from the files if the
// options name files.
func (o *Options) secrets() (password, token []byte, err error) {
	password = o.Password
	if o.PasswordFile != "" {
		if password, err = mqtt.ReadSecret(o.PasswordFile); err != nil {
			return nil, nil, &mqtt.FileError{Option: "PasswordFile", Err: err}
		}
	}
	if o.TokenFile != "" {
		if token, err = mqtt.ReadSecret(o.TokenFile); err != nil {
			return nil, nil, &mqtt.FileError{Option: "TokenFile", Err: err}
		}
	}
	return password, token, nil
}

// checkCredentials rejects options that exclude each other, and reads each file once, so
// that Dial reports a wrong name at once.
func (o *Options) checkCredentials(servers []*url.URL) error {
	switch {
	case len(o.Password) > 0 && o.PasswordFile != "":
		return errors.New("transport: Options.Password and PasswordFile exclude each other: set one")
	case o.TokenFile != "" && (o.Username != "" || len(o.Password) > 0 || o.PasswordFile != ""):
		return errors.New("transport: Options.TokenFile and Username or a password exclude each other: a client authenticates in one way")
	case (o.TLS.CertFile == "") != (o.TLS.KeyFile == ""):
		return errors.New("transport: Options.TLS needs CertFile and KeyFile together: set both or neither")
	case o.TLS.KeyPasswordFile != "" && o.TLS.KeyFile == "":
		return errors.New("transport: Options.TLS.KeyPasswordFile is set without KeyFile: set both or neither")
	case len(o.Password) > mqtt.MaxSecret:
		return fmt.Errorf("transport: Options.Password has %d bytes, and MQTT carries at most %d", len(o.Password), mqtt.MaxSecret)
	}
	if _, _, err := o.secrets(); err != nil {
		return fmt.Errorf("transport: Options.%w", err)
	}
	for _, server := range servers {
		switch {
		case mqtt.IsEncrypted(server):
			if _, err := o.tlsConfig(server); err != nil {
				return fmt.Errorf("transport: Options.%w", err)
			}
		case o.TLS != TLSOptions{}:
			return fmt.Errorf("transport: Options.TLS is set, and %s does not encrypt: write mqtts or wss", server.Redacted())
		}
	}
	return nil
}

// warnOfPlainText warns if a password or a token would be readable on the network. That may
// be intended, in a network of its own.
func (o *Options) warnOfPlainText(servers []*url.URL) {
	if len(o.Password) == 0 && o.PasswordFile == "" && o.TokenFile == "" {
		return
	}
	for _, server := range servers {
		if !mqtt.IsEncrypted(server) {
			o.program.logger(o.Logger).Warn("the connection is not encrypted, so the network can read the password or the token: write mqtts or wss", "broker", server.Host)
		}
	}
}

// methodServiceAccount is the Authentication Method of brokers in Kubernetes for the token of
// a service account.
const methodServiceAccount = "K8S-SAT"

// tokenCheck is how often the client reads the token file. Kubernetes replaces a token when a
// fifth of its lifetime is left, which is two minutes or more.
const tokenCheck = 10 * time.Second

// authentication is the token of one connection, or none.
type authentication struct {
	mu    sync.Mutex
	token []byte
}

// Authenticate answers a broker that asks for more with the same token again: the method has
// one step.
func (a *authentication) Authenticate() *packets.Auth {
	return a.packet(packets.AuthContinueAuthentication)
}

func (a *authentication) packet(reason byte) *packets.Auth {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &packets.Auth{ReasonCode: reason, Properties: &packets.Properties{AuthMethod: methodServiceAccount, AuthData: a.token}}
}

// replace stores a token and reports whether it differs from the one before.
func (a *authentication) replace(token []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if bytes.Equal(a.token, token) {
		return false
	}
	a.token = token
	return true
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
	if !l.authentication.replace(token) {
		return
	}
	l.conn.logger.Debug("the token has changed: authenticating again")
	l.net.Send(mqtt.Encode(l.authentication.packet(packets.AuthReauthenticate)))
}
