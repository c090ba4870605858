package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// certificateFiles are the flags about TLS.
type certificateFiles struct{ certificate, key, clientCA string }

// keyPair is a certificate that can be read again while it is used.
type keyPair struct {
	files   certificateFiles
	current atomic.Pointer[tls.Certificate]
	clients *x509.CertPool // nil: clients need none
}

func (f certificateFiles) open() (*keyPair, error) {
	if f.certificate == "" || f.key == "" {
		return nil, errors.New("TLS needs both --tls-cert and --tls-key")
	}
	pair := &keyPair{files: f}
	if err := pair.reload(); err != nil {
		return nil, err
	}
	if f.clientCA == "" {
		return pair, nil
	}
	pem, err := os.ReadFile(f.clientCA)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	pair.clients = x509.NewCertPool()
	if !pair.clients.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--client-ca: there is no certificate in %s; it must be in PEM", f.clientCA)
	}
	return pair, nil
}

func (p *keyPair) reload() error {
	certificate, err := tls.LoadX509KeyPair(p.files.certificate, p.files.key)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	p.current.Store(&certificate)
	return nil
}

// config returns how to serve with the certificate. Clients that may only come with
// one of their own must; where they may also come with a password, they may.
func (p *keyPair) config(certificateOnly bool) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current.Load(), nil },
		ClientCAs:      p.clients,
	}
	switch {
	case p.clients == nil:
	case certificateOnly:
		config.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config
}
