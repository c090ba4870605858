//go:build unix

package main_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/internal/await"
)

// peerFlags returns those with which a member shows the certificate name.
func peerFlags(a *etcdtest.Authority, name string) []string {
	files := a.TLS(name)
	return []string{"--peer-ca", files.CA, "--peer-cert", files.Certificate, "--peer-key", files.Key}
}

// Three members prove to each other with certificates that they belong together, and nothing else
// gets in.
func TestMembersWithCertificatesRefuseOthers(t *testing.T) {
	ours, strangers := etcdtest.NewAuthority(t), etcdtest.NewAuthority(t)
	ours.Issue(t, "member")
	strangers.Issue(t, "member")
	tr := startTrioWith(t, "https", peerFlags(ours, "member")...)
	client := tr.dial(t, "client")
	mustSet(t, client, "k", "v")

	// A program without a certificate.
	pool := x509.NewCertPool()
	pool.AddCert(ours.Certificate)
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
	stranger := launch(t, append(arguments, peerFlags(strangers, "member")...)...)
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
	path := built.Path(t)
	ours, strangers := etcdtest.NewAuthority(t), etcdtest.NewAuthority(t)
	ours.Issue(t, "member")
	ours.Issue(t, "elsewhere", net.IPv4(192, 0, 2, 1))
	const https, http = "a=https://127.0.0.1:1,b=https://127.0.0.1:2,c=https://127.0.0.1:3", "a=http://127.0.0.1:1,b=http://127.0.0.1:2,c=http://127.0.0.1:3"
	mixed := peerFlags(ours, "member")
	mixed[1] = strangers.File("ca.pem")
	mismatch := peerFlags(ours, "member")
	mismatch[5] = ours.File("ca.key")
	dir := t.TempDir() // a short name
	missing := peerFlags(ours, "member")
	missing[1] = ours.File("missing.pem")
	for _, test := range []struct {
		why, cluster string
		flags        []string
		want         string
	}{
		{"none", https, nil, "--peer-ca, --peer-cert and --peer-key: https://127.0.0.1:1 needs certificates"},
		{"no key", https, peerFlags(ours, "member")[:4], "--peer-key is missing"},
		{"no CA", https, peerFlags(ours, "member")[2:], "--peer-ca is missing"},
		{"a file that is missing", https, missing, "--peer-ca: open "},
		{"the key of another one", https, mismatch, "--peer-cert: tls: private key does not match"},
		{"of another authority", https, mixed, "the authority of the members must issue it"},
		{"of another host", https, peerFlags(ours, "elsewhere"), "it needs 127.0.0.1 as a subject alternative name"},
		{"URLs without TLS", http, peerFlags(ours, "member"), "certificates are given, and http://127.0.0.1:1 does not encrypt"},
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
