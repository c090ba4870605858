package unauthenticated

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// maxChain is how many certificates a client may show: its own, three authorities and their root, which
// it need not send.
const maxChain = 5

// RestrictTLS does what mqtt.RestrictTLS does for a server, and bounds what a client can make it compute
// before the client has proved anything. It reports whether the certificate of a client that has
// one is verified when the handshake is over, even though the state of the connection has no
// VerifiedChains then.
//
// Key exchange is limited to X25519, also with ML-KEM, and P-256, where config leaves CurvePreferences
// unset. A ClientHello costs its sender nothing, because it can be replayed. With P-521 the
// server's answer costs 30 times as much as with X25519, and with P-384 six times. They are no safer
// in practice, and each client of the last ten years knows one of the others.
//
// A client's certificate is verified by RestrictTLS's function in place of package tls: that tries
// up to a hundred signatures of authorities that the client has made up, before the client has
// proved that it has the key of any certificate. Here the client shows at most maxChain certificates,
// and no two authorities of the same name, so each certificate has one possible issuer among them. Sessions are not
// resumed, so that each connection shows and proves its certificate. A config with GetConfigForClient,
// VerifyPeerCertificate or VerifyConnection keeps the verification of package tls.
func RestrictTLS(config *tls.Config) (verified bool) {
	mqtt.RestrictTLS(config)
	if config.CurvePreferences == nil {
		config.CurvePreferences = []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256}
	}
	if config.GetConfigForClient != nil || config.VerifyPeerCertificate != nil || config.VerifyConnection != nil {
		return false
	}
	switch config.ClientAuth {
	case tls.RequireAndVerifyClientCert:
		config.ClientAuth = tls.RequireAnyClientCert
	case tls.VerifyClientCertIfGiven:
		config.ClientAuth = tls.RequestClientCert
	default:
		return false
	}
	config.SessionTicketsDisabled = true
	authorities, now := config.ClientCAs, config.Time
	if now == nil {
		now = time.Now
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		shown := state.PeerCertificates
		if len(shown) == 0 {
			return nil
		}
		if err := verifyClient(shown, authorities, now()); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: shown, Err: err}
		}
		return nil
	}
	return true
}

// verifyClient does what package tls does for VerifyClientCertIfGiven, with fewer signatures.
func verifyClient(shown []*x509.Certificate, authorities *x509.CertPool, now time.Time) error {
	if len(shown) > maxChain {
		return fmt.Errorf("the client shows %d certificates, and may show %d: it should send its own and those of the "+
			"authorities between that and --client-ca", len(shown), maxChain)
	}
	options := x509.VerifyOptions{
		Roots:         authorities,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for i, authority := range shown[1:] {
		if slices.ContainsFunc(shown[1:1+i],
			func(other *x509.Certificate) bool { return bytes.Equal(other.RawSubject, authority.RawSubject) }) {
			return errors.New("the client shows two authorities of the same name: it should send one of them")
		}
		options.Intermediates.AddCert(authority)
	}
	_, err := shown[0].Verify(options)
	return err
}
