package transport

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"

	"github.com/tenurelock/tenure/internal/mqttnet"
)

// TLSOptions configures the encryption of addresses that begin with mqtts or wss. The
// zero value trusts the authorities of the operating system, and shows no certificate.
//
// Files are PEM, and read again for each connection: a file that was replaced counts
// from the next connection on. Replace the certificate and its key so that no reader
// finds one without the other, as with a directory behind a symbolic link; until they
// fit again, attempts to connect fail and are repeated.
type TLSOptions struct {
	// CAFile holds the certificates of the authorities to trust, instead of those of
	// the operating system.
	CAFile string
	// CertFile and KeyFile are what this client shows: a certificate, followed by
	// those between it and the authority, and its private key. Both or neither.
	CertFile, KeyFile string
	// KeyPasswordFile holds the password of an encrypted KeyFile; a newline at its end
	// is not part of it. The key must be in PKCS #8, as "openssl pkcs8 -topk8" writes it.
	KeyPasswordFile string
	// ServerName is the name that the broker's certificate must be for. Default: the
	// host of the address.
	ServerName string
	// Config is what to begin with, where the fields above do not suffice; they
	// replace what they correspond to. It must not be changed afterwards. Default: the
	// zero value. Where its CipherSuites is nil, TLS 1.2 is limited to suites with ECDHE
	// and AEAD.
	Config *tls.Config
}

func (o TLSOptions) isZero() bool { return o == TLSOptions{} }

// tlsConfig reads the files of the TLS options, for a connection to server.
func (o *Options) tlsConfig(server *url.URL) (*tls.Config, error) {
	config, err := mqttnet.TLS(o.TLS).ClientConfig(server)
	if err != nil {
		return nil, fmt.Errorf("TLS.%w", err)
	}
	return config, nil
}

// secrets is what the next CONNECT packet says of who we are.
type secrets struct {
	password []byte
	token    []byte
}

// secrets reads the files that hold them.
func (o *Options) secrets() (s secrets, err error) {
	s.password = o.Password
	if o.PasswordFile != "" {
		if s.password, err = mqttnet.ReadSecret(o.PasswordFile); err != nil {
			return secrets{}, &mqttnet.FileError{Option: "PasswordFile", Err: err}
		}
	}
	if o.TokenFile != "" {
		if s.token, err = mqttnet.ReadSecret(o.TokenFile); err != nil {
			return secrets{}, &mqttnet.FileError{Option: "TokenFile", Err: err}
		}
	}
	return s, nil
}

// check rejects what excludes each other, and reads each file once, so that a wrong
// name is told at the start.
func (o *Options) checkCredentials(servers []*url.URL) error {
	switch {
	case len(o.Password) > 0 && o.PasswordFile != "":
		return errors.New("transport: Options.Password and PasswordFile exclude each other: set one")
	case o.TokenFile != "" && (o.Username != "" || len(o.Password) > 0 || o.PasswordFile != ""):
		return errors.New("transport: Options.TokenFile and Username or a password exclude each other: a client has one way to say who it is")
	case (o.TLS.CertFile == "") != (o.TLS.KeyFile == ""):
		return errors.New("transport: Options.TLS needs CertFile and KeyFile together: set both or neither")
	case o.TLS.KeyPasswordFile != "" && o.TLS.KeyFile == "":
		return errors.New("transport: Options.TLS.KeyPasswordFile is for a KeyFile, and there is none")
	case len(o.Password) > mqttnet.MaxSecret:
		return fmt.Errorf("transport: Options.Password has %d bytes, and MQTT carries at most %d", len(o.Password), mqttnet.MaxSecret)
	}
	if _, err := o.secrets(); err != nil {
		return fmt.Errorf("transport: Options.%w", err)
	}
	for _, server := range servers {
		switch {
		case mqttnet.IsEncrypted(server):
			if _, err := o.tlsConfig(server); err != nil {
				return fmt.Errorf("transport: Options.%w", err)
			}
		case !o.TLS.isZero():
			return fmt.Errorf("transport: Options.TLS is set, and %s does not encrypt: write mqtts or wss", server.Redacted())
		}
	}
	return nil
}

// warnOfPlainText says where a secret can be read by whoever sees the packets. That may be
// meant so, in a network of its own.
func (o *Options) warnOfPlainText(servers []*url.URL) {
	if len(o.Password) == 0 && o.PasswordFile == "" && o.TokenFile == "" {
		return
	}
	for _, server := range servers {
		if !mqttnet.IsEncrypted(server) {
			o.Logger.Warn("the connection is not encrypted, and shows the password or the token to whoever listens: write mqtts or wss", "broker", server.Host)
		}
	}
}
