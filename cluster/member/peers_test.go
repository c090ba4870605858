package member_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
)

// One address opens many connections that never show a certificate. Most of them are closed, and
// members still reach this one: each with a certificate for the address from which it connects.
func TestConnectionsWithoutACertificateLeaveSpaceForMembers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all addresses of 127.0.0.0/8")
	}
	ours, strangers := etcdtest.NewAuthority(t), etcdtest.NewAuthority(t)
	ours.Issue(t, "m0")
	strangers.Issue(t, "m0")
	ours.Issue(t, "both", net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 3))
	address := etcdtest.Addresses(t, 1)[0]
	m := start(t, member.Options{Name: "m0", Cluster: "m0=https://" + address, Dir: etcdtest.Dir(t, t.Cleanup), PeerTLS: ours.TLS("m0")})
	await.Receive(m.Ready())
	from := func(last byte) *net.Dialer {
		return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}
	}
	var silent []net.Conn
	for range 300 {
		conn, err := from(2).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.Certificate)
	for _, test := range []struct {
		authority   *etcdtest.Authority
		certificate string
		from        byte
		accepted    bool
	}{{ours, "m0", 1, true}, {ours, "m0", 3, false}, {ours, "both", 3, true}, {strangers, "m0", 1, false}} {
		files := test.authority.TLS(test.certificate)
		pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}
		transport := &http.Transport{DialContext: from(test.from).DialContext, TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport, Timeout: await.Patience}).Get("https://" + address + "/members")
		if err == nil {
			_ = answer.Body.Close()
		}
		if (err == nil && answer.StatusCode == http.StatusOK) != test.accepted {
			t.Errorf("%+v: %v", test, err)
		}
	}
	open := 0
	for _, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > 16 {
		t.Errorf("%d connections of one address are open without a certificate", open)
	}
}
