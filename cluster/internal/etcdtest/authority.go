package etcdtest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"testing"

	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/certificates"
)

// Authority issues certificates into a directory of its own. Its own is in ca.pem and ca.key.
type Authority struct {
	// Certificate is the certificate of the authority.
	Certificate *x509.Certificate

	dir    string
	signer *certificates.Authority
}

// NewAuthority returns an authority with a new key.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	signer := certificates.New(t, "ca")
	a := &Authority{Certificate: signer.Own.Leaf, dir: t.TempDir(), signer: signer}
	certificates.Write(t, signer.Own, a.File("ca.pem"), a.File("ca.key"))
	return a
}

// Issue writes NAME.pem and NAME.key, for both ends of connections. The common name is name, and
// the hosts are those with these addresses, or 127.0.0.1 if there are none.
func (a *Authority) Issue(t testing.TB, name string, hosts ...net.IP) {
	t.Helper()
	issued := a.signer.Issue(pkix.Name{CommonName: name}, func(c *x509.Certificate) {
		if len(hosts) > 0 {
			c.IPAddresses = hosts
		}
	})
	certificates.Write(t, issued, a.File(name+".pem"), a.File(name+".key"))
}

// File returns the path of a file of the authority.
func (a *Authority) File(name string) string { return filepath.Join(a.dir, name) }

// TLS returns the files with which a process shows the certificate name and trusts the authority.
func (a *Authority) TLS(name string) member.TLS {
	return member.TLS{CA: a.File("ca.pem"), Certificate: a.File(name + ".pem"), Key: a.File(name + ".key")}
}
