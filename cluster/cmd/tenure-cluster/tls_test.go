//go:build unix

package main_test

import (
	"context"
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
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// authority issues certificates into a directory of its own.
type authority struct {
	dir         string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.certificate, a.key = a.issue(t, "ca", net.IPv4(127, 0, 0, 1))
	return a
}

// issue writes name.pem and name.key, for a host with this address. The first certificate is that
// of the authority itself.
func (a *authority) issue(t *testing.T, name string, host net.IP) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{host},
		IsCA: a.certificate == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		template.KeyUsage |= x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{a.file(name + ".pem"): {Type: "CERTIFICATE", Bytes: der}, a.file(name + ".key"): {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// flags returns those with which a member shows the certificate name.
func (a *authority) flags(name string) []string {
	return []string{"--peer-ca", a.file("ca.pem"), "--peer-cert", a.file(name + ".pem"), "--peer-key", a.file(name + ".key")}
}

// Three members prove to each other with certificates that they belong together, and nothing else
// gets in.
func TestMembersWithCertificatesRefuseOthers(t *testing.T) {
	ours, strangers := newAuthority(t), newAuthority(t)
	local := net.IPv4(127, 0, 0, 1)
	ours.issue(t, "member", local)
	strangers.issue(t, "member", local)
	tr := startTrioWith(t, "https", ours.flags("member")...)
	client := tr.dial(t, "client")
	mustSet(t, client, "k", "v")

	// A program without a certificate.
	pool := x509.NewCertPool()
	pool.AddCert(ours.certificate)
	conn, err := tls.Dial("tcp", tr.peers[0], &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(await.Patience))
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 the refusal comes after the handshake
		_ = conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a program without a certificate: %v", err)
	}

	// A member with a certificate of another authority, in the place of the witness.
	tr.witness.kill()
	if err := os.RemoveAll(tr.dirs[2]); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"witness", "--member", "c", "--cluster", tr.cluster, "--data", tr.dirs[2]}
	stranger := launch(t, append(arguments, strangers.flags("member")...)...)
	stranger.mustSay("started member c")
	stranger.mustLog("certificate signed by unknown authority")
	mustSet(t, client, "k", "after the stranger")
	select {
	case line := <-stranger.lines:
		t.Errorf("the stranger said %q", line)
	default:
	}
}

// Other members would refuse these. etcd would only say again and again that it cannot connect.
func TestUnfitCertificatesAreRefused(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ours, strangers := newAuthority(t), newAuthority(t)
	ours.issue(t, "member", net.IPv4(127, 0, 0, 1))
	ours.issue(t, "elsewhere", net.IPv4(192, 0, 2, 1))
	const https, http = "a=https://127.0.0.1:1,b=https://127.0.0.1:2,c=https://127.0.0.1:3", "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3"
	mixed := ours.flags("member")
	mixed[1] = strangers.file("ca.pem")
	mismatch := ours.flags("member")
	mismatch[5] = ours.file("ca.key")
	dir := t.TempDir() // a short name
	missing := ours.flags("member")
	missing[1] = ours.file("missing.pem")
	for _, test := range []struct {
		why, cluster string
		flags        []string
		want         string
	}{
		{"none", https, nil, "give --peer-ca, --peer-cert and --peer-key"},
		{"no key", https, ours.flags("member")[:4], "--peer-key is missing"},
		{"no CA", https, ours.flags("member")[2:], "--peer-ca is missing"},
		{"a file that is missing", https, missing, "--peer-ca: open "},
		{"the key of another one", https, mismatch, "--peer-cert and --peer-key: tls: private key does not match"},
		{"of another authority", https, mixed, "it must be issued by --peer-ca"},
		{"of another host", https, ours.flags("elsewhere"), "it needs 127.0.0.1 as a subject alternative name"},
		{"URLs without TLS", http, ours.flags("member"), "write https, or leave out --peer-ca"},
	} {
		t.Run(test.why, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
			defer cancel()
			arguments := append([]string{"witness", "--member", "a", "--cluster", test.cluster, "--data", dir}, test.flags...)
			said, err := exec.CommandContext(ctx, path, arguments...).CombinedOutput()
			if err == nil || !strings.Contains(string(said), test.want) || strings.Contains(string(said), "Options.") {
				t.Errorf("%v, said %q; want %q", err, said, test.want)
			}
		})
	}
}
