package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/member"
)

// Authority issues certificates into a directory of its own. Its own is in ca.pem and ca.key.
type Authority struct {
	// Certificate is the certificate of the authority.
	Certificate *x509.Certificate

	dir string
	key *ecdsa.PrivateKey
}

// NewAuthority returns an authority with a new key.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir()}
	a.Certificate, a.key = a.issue(t, "ca", nil)
	return a
}

// Issue writes NAME.pem and NAME.key, for both ends of connections. The common name is name, and
// the hosts are those with these addresses, or 127.0.0.1 if there are none.
func (a *Authority) Issue(t testing.TB, name string, hosts ...net.IP) {
	t.Helper()
	a.issue(t, name, hosts)
}

// issue signs with the authority, or with the new key if there is none yet.
func (a *Authority) issue(t testing.TB, name string, hosts []net.IP) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: hosts,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	parent, signer := a.Certificate, a.key
	if parent == nil {
		template.IsCA = true
		template.KeyUsage |= x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(a.File(file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// File returns the path of a file of the authority.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// TLS returns the files with which a process shows the certificate name and trusts the authority.
func (a *Authority) TLS(name string) member.TLS {
	return member.TLS{CA: a.File("ca.pem"), Certificate: a.File(name + ".pem"), Key: a.File(name + ".key")}
}
