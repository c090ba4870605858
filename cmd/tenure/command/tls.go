package command

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// credentials are the flags of a client of a broker: how the two know each other.
type credentials struct {
	username, passwordFile, ca string
	certificate                certificateFlags
}

func (c *credentials) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.username, "username", "", "user name at the broker")
	flags.StringVar(&c.passwordFile, "password-file", "",
		"file with the password for the broker; a newline at its end is not part of it")
	flags.StringVar(&c.ca, "tls-ca", "",
		"file with the authorities to trust for the broker's certificate, in PEM; default: the system's")
	c.certificate.register(flags, "file with the certificate to show the broker, in PEM")
}

// certificateFlags are the flags for a certificate to show: of serve to its clients, and of attach and of
// the commands that are clients to their broker.
type certificateFlags struct{ certificate, key string }

func (f *certificateFlags) register(flags *pflag.FlagSet, certificate string) {
	flags.StringVar(&f.certificate, "tls-cert", "", certificate)
	flags.StringVar(&f.key, "tls-key", "", "file with the key of the certificate, in PEM and not encrypted")
}

// given reports whether any of the flags is.
func (f *certificateFlags) given() bool { return *f != certificateFlags{} }

// read reads the files. The error names the flag.
func (f *certificateFlags) read() (*tls.Certificate, error) {
	if f.certificate == "" || f.key == "" {
		return nil, errors.New("a certificate needs both --tls-cert and --tls-key")
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
