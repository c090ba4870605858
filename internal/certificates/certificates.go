// Package certificates issues the certificates of tests.
package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// Authority is a certificate authority of one test. Its methods are for the goroutine of the test.
type Authority struct {
	// Own is its own certificate. It is for 127.0.0.1 too, so a server can show it, where a test
	// needs no more than one certificate.
	Own tls.Certificate
	// Pool has its own certificate, and no other.
	Pool *x509.CertPool

	t testing.TB
}

// New returns an authority with a new key, and with this common name.
func New(t testing.TB, name string) *Authority {
	t.Helper()
	a := (&Authority{t: t, Pool: x509.NewCertPool()}).Subordinate(name)
	a.Pool.AddCert(a.Own.Leaf)
	return a
}

// Subordinate returns an authority whose own certificate a has issued. It has a's Pool.
func (a *Authority) Subordinate(name string) *Authority {
	a.t.Helper()
	own := a.Issue(pkix.Name{CommonName: name}, func(c *x509.Certificate) {
		c.IsCA = true
		c.KeyUsage |= x509.KeyUsageCertSign
	})
	return &Authority{Own: own, Pool: a.Pool, t: a.t}
}

// Issue returns a certificate with a new key, for both ends of connections. It is for 127.0.0.1, and for
// an hour from now; the changes are made before it is signed.
func (a *Authority) Issue(subject pkix.Name, changes ...func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	certificate := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               subject,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	for _, change := range changes {
		change(certificate)
	}
	parent, signer := a.Own.Leaf, a.Own.PrivateKey
	if parent == nil { // the first one is the authority's own
		parent, signer = certificate, key
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// Write writes a certificate and its key to files of these names, in PEM. Without a name for the key
// it writes the certificate alone.
func Write(t testing.TB, pair tls.Certificate, certificate, key string) {
	t.Helper()
	write := func(file, kind string, der []byte) {
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(certificate, "CERTIFICATE", pair.Certificate[0])
	if key == "" {
		return
	}
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write(key, "PRIVATE KEY", der)
}
