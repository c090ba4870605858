package integration_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"testing"

	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// onlyCBC limits a configuration to TLS 1.2 without authenticated encryption, like an old peer.
func onlyCBC(config *tls.Config) *tls.Config {
	config.MaxVersion = tls.VersionTLS12
	config.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA}
	return config
}

func TestTheServerRefusesCipherSuitesWithoutAuthenticatedEncryption(t *testing.T) {
	ca := certificates.New(t, "authority")
	ofServer := func() *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	}
	options := server.Options{TLS: ofServer()}
	address := testsupport.Start(t, options)
	chosen := testsupport.Start(t, server.Options{TLS: onlyCBC(ofServer())})
	for _, test := range []struct {
		name, address string
		client        *tls.Config
		admitted      bool
	}{
		{"TLS 1.2 with CBC", address, onlyCBC(&tls.Config{}), false},
		{"TLS 1.2 with RSA key exchange", address, &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256}}, false},
		{"TLS 1.1", address, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, false},
		{"TLS 1.2", address, &tls.Config{MaxVersion: tls.VersionTLS12}, true},
		{"TLS 1.3", address, &tls.Config{MinVersion: tls.VersionTLS13}, true},
		{"suites that the program chose", chosen, onlyCBC(&tls.Config{}), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.client.RootCAs = ca.Pool
			conn, err := tls.DialWithDialer(&net.Dialer{Timeout: testsupport.Patience}, "tcp", test.address, test.client)
			if (err == nil) != test.admitted {
				t.Errorf("the handshake ends with %v", err)
			}
			if err == nil {
				_ = conn.Close()
			}
		})
	}
	if options.TLS.CipherSuites != nil || options.TLS.MinVersion != 0 {
		t.Error("the configuration of the program was changed")
	}
}
