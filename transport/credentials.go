package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/tenurelock/tenure/internal/secure"
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

// config reads the files, for a connection to server.
func (o TLSOptions) config(server *url.URL) (*tls.Config, error) {
	config := o.Config.Clone()
	if config == nil {
		config = &tls.Config{}
	}
	secure.Restrict(config)
	if o.ServerName != "" {
		config.ServerName = o.ServerName
	}
	if config.ServerName == "" {
		config.ServerName = server.Hostname()
	}
	if o.CAFile != "" {
		authorities, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, &optionError{"TLS.CAFile", err}
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(authorities) {
			return nil, &optionError{"TLS.CAFile", fmt.Errorf("%s holds no certificate in PEM", o.CAFile)}
		}
	}
	if o.CertFile != "" {
		certificate, err := o.certificate()
		if err != nil {
			return nil, err
		}
		config.Certificates, config.GetClientCertificate = []tls.Certificate{certificate}, nil
	}
	return config, nil
}

func (o TLSOptions) certificate() (tls.Certificate, error) {
	certificate, err := os.ReadFile(o.CertFile)
	if err != nil {
		return tls.Certificate{}, &optionError{"TLS.CertFile", err}
	}
	key, err := os.ReadFile(o.KeyFile)
	if err != nil {
		return tls.Certificate{}, &optionError{"TLS.KeyFile", err}
	}
	if o.KeyPasswordFile != "" {
		password, err := readSecret(o.KeyPasswordFile)
		if err != nil {
			return tls.Certificate{}, &optionError{"TLS.KeyPasswordFile", err}
		}
		if key, err = decryptKey(key, password); err != nil {
			return tls.Certificate{}, &optionError{"TLS.KeyFile", fmt.Errorf("%s: %w", o.KeyFile, err)}
		}
	} else if isEncryptedKey(key) {
		return tls.Certificate{}, &optionError{"TLS.KeyFile", fmt.Errorf("%s is encrypted: say in TLS.KeyPasswordFile where its password is", o.KeyFile)}
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return tls.Certificate{}, &optionError{"TLS.CertFile", fmt.Errorf("%s with TLS.KeyFile %s: %w", o.CertFile, o.KeyFile, err)}
	}
	return pair, nil
}

// optionError is what is wrong with one option, under its name in Options.
type optionError struct {
	option string
	err    error
}

func (e *optionError) Error() string { return e.option + ": " + e.err.Error() }
func (e *optionError) Unwrap() error { return e.err }

// secrets is what the next CONNECT packet says of who we are.
type secrets struct {
	password []byte
	token    []byte
}

// secrets reads the files that hold them.
func (o *Options) secrets() (s secrets, err error) {
	s.password = o.Password
	if o.PasswordFile != "" {
		if s.password, err = readSecret(o.PasswordFile); err != nil {
			return secrets{}, &optionError{"PasswordFile", err}
		}
	}
	if o.TokenFile != "" {
		if s.token, err = readSecret(o.TokenFile); err != nil {
			return secrets{}, &optionError{"TokenFile", err}
		}
	}
	return s, nil
}

// readSecret reads a file with one line; editors and echo end it with a newline.
func readSecret(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	secret := bytes.TrimRight(content, "\r\n")
	if len(secret) == 0 {
		return nil, fmt.Errorf("%s is empty", file)
	}
	if len(secret) > maxSecret {
		return nil, fmt.Errorf("%s holds %d bytes, and MQTT carries at most %d", file, len(secret), maxSecret)
	}
	return secret, nil
}

// maxSecret is how long binary data in an MQTT packet can be [MQTT-1.5.6].
const maxSecret = 1<<16 - 1

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
	case len(o.Password) > maxSecret:
		return fmt.Errorf("transport: Options.Password has %d bytes, and MQTT carries at most %d", len(o.Password), maxSecret)
	}
	if _, err := o.secrets(); err != nil {
		return fmt.Errorf("transport: Options.%w", err)
	}
	for _, server := range servers {
		switch {
		case schemeOf(server).encrypted:
			if _, err := o.TLS.config(server); err != nil {
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
		if !schemeOf(server).encrypted {
			o.Logger.Warn("the connection is not encrypted, and shows the password or the token to whoever listens: write mqtts or wss", "broker", server.Host)
		}
	}
}
