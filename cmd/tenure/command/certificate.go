package command

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// certificateFlags are the flags for a certificate to show: of serve to its clients, and of attach and of
// the commands that are clients to their broker.
type certificateFlags struct{ certificate, key string }

func (f *certificateFlags) register(flags *pflag.FlagSet, certificate string) {
	flags.StringVar(&f.certificate, "tls-cert", "", certificate)
	flags.StringVar(&f.key, "tls-key", "", "file with the key of the certificate, in PEM and not encrypted")
}

// given reports whether any of the flags is.
func (f *certificateFlags) given() bool { return *f != certificateFlags{} }

// check refuses one without the other.
func (f *certificateFlags) check() error {
	if f.certificate == "" || f.key == "" {
		return errors.New("a certificate needs both --tls-cert and --tls-key")
	}
	return nil
}

// read reads the files. The error names the flag.
func (f *certificateFlags) read() (*tls.Certificate, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	pair, err := mqtt.ReadCertificate(f.certificate, f.key)
	return &pair, nameFlag(err, nil)
}

// ClientTLS returns the configuration for connections to a server. ca is the file with the
// authorities to trust, and caFlag the flag that gives it, which begins the error; an empty ca means
// the authorities of the system. read reads the certificate to show; nil means none. It is called now, so
// that its errors come at the start, and for each connection, because certificates are replaced
// before they expire. ClientTLS returns nil if there is neither ca nor read.
func ClientTLS(caFlag, ca string, read func() (*tls.Certificate, error)) (*tls.Config, error) {
	if ca == "" && read == nil {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		var err error
		if config.RootCAs, err = mqtt.ReadCertPool(ca); err != nil {
			return nil, fmt.Errorf("%s: %w", caFlag, err)
		}
	}
	if read != nil {
		if _, err := read(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return config, nil
}

// serverCertificate is a certificate that can be read again while connections use it.
type serverCertificate struct {
	flags   *certificateFlags
	current atomic.Pointer[tls.Certificate]
}

func (c *serverCertificate) reload() error {
	certificate, err := c.flags.read()
	if err == nil {
		c.current.Store(certificate)
	}
	return err
}

// config returns the TLS configuration of a server. clients are the authorities of client
// certificates; nil asks for none. A client needs a certificate if required is true, and
// may log in with a password instead if it is false.
func (c *serverCertificate) config(clients *x509.CertPool, required bool) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
		ClientCAs:      clients,
	}
	switch {
	case clients == nil:
	case required:
		config.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config
}
