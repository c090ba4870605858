package member_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
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

// One address opens many connections that never show a certificate. Most of them are closed, and another
// address still reaches the member.
func TestConnectionsWithoutACertificateLeaveRoomForMembers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all addresses of 127.0.0.0/8")
	}
	ours := etcdtest.NewAuthority(t)
	ours.Issue(t, "m0")
	address := etcdtest.Addresses(t, 1)[0]
	m := start(t, member.Options{Name: "m0", Cluster: "m0=https://" + address, Dir: etcdtest.Dir(t, t.Cleanup), PeerTLS: ours.TLS("m0")})
	await.Receive(m.Ready())

	elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var silent []net.Conn
	for range 300 {
		conn, err := elsewhere.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	files := ours.TLS("m0")
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.Certificate)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport, Timeout: await.Patience}).Get("https://" + address + "/members")
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("a member gets the answer %s", answer.Status)
	}
	open := 0
	for _, conn := range silent {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		} else if err == nil {
			t.Error("a connection that said nothing got an answer")
		} else if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			t.Logf("closed with %v", err)
		}
	}
	if open > 16 {
		t.Errorf("%d connections of one address are open without a certificate", open)
	}
}

// A certificate is of no use at an address that it does not name.
func TestAMemberRefusesACertificateOfAnotherAddress(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has all addresses of 127.0.0.0/8")
	}
	ours := etcdtest.NewAuthority(t)
	ours.Issue(t, "m0")
	ours.Issue(t, "both", net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2))
	address := etcdtest.Addresses(t, 1)[0]
	m := start(t, member.Options{Name: "m0", Cluster: "m0=https://" + address, Dir: etcdtest.Dir(t, t.Cleanup), PeerTLS: ours.TLS("m0")})
	await.Receive(m.Ready())
	pool := x509.NewCertPool()
	pool.AddCert(ours.Certificate)
	for name, accepted := range map[string]bool{"m0": false, "both": true} {
		pair, err := tls.LoadX509KeyPair(ours.TLS(name).Certificate, ours.TLS(name).Key)
		if err != nil {
			t.Fatal(err)
		}
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport, Timeout: await.Patience}).Get("https://" + address + "/members")
		if err == nil {
			_ = answer.Body.Close()
		}
		if (err == nil) != accepted {
			t.Errorf("%s: %v", name, err)
		}
	}
}
