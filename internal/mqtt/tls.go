package mqtt

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"

	"github.com/tenurelock/tenure/internal/optionerror"
)

// TLS configures the encryption of a connection to a broker. Package transport documents
// the fields, under the same names, in its TLSOptions.
type TLS struct {
	CAFile            string
	CertFile, KeyFile string
	Config            *tls.Config
}

// ClientConfig reads the files and returns the configuration for one connection to server.
// The error for a file is an [*optionerror.Error].
func (o TLS) ClientConfig(server *url.URL) (*tls.Config, error) {
	config := cmp.Or(o.Config.Clone(), &tls.Config{})
	RestrictTLS(config)
	config.ServerName = cmp.Or(config.ServerName, server.Hostname())
	if o.CAFile != "" {
		pool, err := ReadCertPool(o.CAFile)
		if err != nil {
			return nil, fileError("CAFile", err)
		}
		config.RootCAs = pool
	}
	if o.CertFile != "" {
		certificate, err := ReadCertificate(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, err
		}
		config.Certificates, config.GetClientCertificate = []tls.Certificate{certificate}, nil
	}
	return config, nil
}

// RestrictTLS allows TLS 1.2 and later on either end of a connection, and in 1.2 only the cipher suites
// with forward secrecy (ECDHE) and authenticated encryption (AEAD), where config leaves MinVersion and
// CipherSuites unset. TLS 1.2 also has suites in CBC mode, which Go offers by default for old peers; attacks
// on their padding have decrypted connections several times; TLS 1.3 has none. It changes config: pass a
// clone of one that you share.
func RestrictTLS(config *tls.Config) {
	if config.MinVersion == 0 {
		config.MinVersion = tls.VersionTLS12
	}
	if config.CipherSuites == nil {
		config.CipherSuites = []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
			tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		}
	}
}

// ReadCertPool reads the certificates of authorities from a file in PEM.
func ReadCertPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return pool, nil
}

// ReadCertificate reads a certificate and its private key from files in PEM. The error is an
// [*optionerror.Error] about TLS.CertFile or TLS.KeyFile.
func ReadCertificate(certFile, keyFile string) (tls.Certificate, error) {
	certificate, err := os.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, fileError("CertFile", err)
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return tls.Certificate{}, fileError("KeyFile", err)
	}
	// The standard library decrypts no key, and a password in a file beside the key would protect nothing.
	block, _ := pem.Decode(key)
	if block != nil && (block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "") {
		return tls.Certificate{}, fileError("KeyFile", fmt.Errorf("%s is encrypted, and only a plain key can be read: "+
			"write one with \"openssl pkey -in %s -out PLAIN\" and give it mode 0600, "+
			"or let a program of yours decrypt the key and set TLSOptions.Config", keyFile, keyFile))
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return tls.Certificate{}, fileError("CertFile", fmt.Errorf("%s with the key %s: %w", certFile, keyFile, err))
	}
	return pair, nil
}

func fileError(field string, err error) error {
	return &optionerror.Error{Package: "transport", Field: "TLS." + field, Err: err}
}

// ReadSecret reads a file with one line, such as a password, and returns the line without
// the newline that editors and echo put at its end.
func ReadSecret(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	secret := bytes.TrimRight(content, "\r\n")
	if len(secret) == 0 {
		return nil, fmt.Errorf("%s is empty", file)
	}
	if len(secret) > MaxString {
		return nil, fmt.Errorf("%s holds %d bytes, and MQTT carries at most %d", file, len(secret), MaxString)
	}
	return secret, nil
}
