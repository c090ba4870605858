package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// piped returns a connection, and its far end.
func piped() (conn *Conn, far net.Conn) {
	near, far := net.Pipe()
	return newConn(near, near, 0, time.Minute), far
}

func TestABrokerThatHangsUpAtOnceSuggestsAnotherPort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			far, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = far.Read(make([]byte, 4096))
			_ = far.Close()
		}
	}()
	for scheme, want := range map[string]string{"mqtt": "then write mqtts://", "mqtts": "Then write mqtt://"} {
		address, err := ParseAddress(scheme + "://" + listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Dial(t.Context(), address, &tls.Config{ServerName: "broker"}, DialOptions{WriteTimeout: time.Minute})
		if err == nil {
			_ = conn.conn.SetReadDeadline(time.Now().Add(time.Minute))
			conn.Send([]byte("connect"))
			_, err = conn.Next()
			_ = conn.Close()
		}
		if err == nil || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to contain %q", scheme, err, want)
		}
	}
}

// With TLS 1.3 a broker refuses a client without a certificate after the handshake. Its reason is lost
// if the connection is reset before it is read, and the reset may meet the CONNECT first.
func TestABrokerThatAskedForACertificateAndHangsUpSuggestsOne(t *testing.T) {
	known := httptest.NewTLSServer(nil) // for its certificate
	defer known.Close()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: known.TLS.Certificates, ClientAuth: tls.RequestClientCert})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	reset := make(chan struct{})
	go func() {
		for {
			far, err := listener.Accept()
			if err != nil {
				return
			}
			_ = far.(*tls.Conn).Handshake()
			_ = far.(*tls.Conn).NetConn().(*net.TCPConn).SetLinger(0) // Close resets
			_ = far.(*tls.Conn).NetConn().Close()
			reset <- struct{}{}
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(known.Certificate())
	for _, test := range []struct {
		config *tls.Config
		writes bool
	}{
		{&tls.Config{}, false},
		{&tls.Config{}, true},
		{&tls.Config{Certificates: known.TLS.Certificates}, false},
		{&tls.Config{Certificates: known.TLS.Certificates}, true},
	} {
		config := test.config
		config.RootCAs, config.ServerName = roots, "example.com"
		address, err := ParseAddress("mqtts://" + listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Dial(t.Context(), address, config, DialOptions{WriteTimeout: time.Minute})
		await.Receive(reset)
		if err == nil {
			if test.writes {
				conn.Send([]byte("CONNECT"))
			}
			_ = conn.conn.SetReadDeadline(time.Now().Add(time.Minute))
			_, err = conn.Next()
			_ = conn.Close()
		}
		said, want := err != nil && strings.Contains(err.Error(), "asked for a client certificate"), len(config.Certificates) == 0
		if err == nil || said != want {
			t.Errorf("with %d certificates, writes: %t: %v", len(config.Certificates), test.writes, err)
		}
		if errors.Is(err, net.ErrClosed) {
			t.Errorf("it speaks of what this end did: %v", err)
		}
	}
}

func TestAWriteThatMakesNoProgressEndsTheConnection(t *testing.T) {
	for name, send := range map[string]func(*Conn){
		"a packet":      func(conn *Conn) { conn.Send([]byte("ab")) },
		"a large batch": func(conn *Conn) { conn.Send(make([]byte, 32<<10)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, far := piped()
				began := time.Now()
				send(conn) // and the other end does not read
				if took := time.Since(began); took != time.Minute {
					t.Errorf("it took %v", took)
				}
				if n, err := far.Write([]byte("x")); err == nil {
					t.Errorf("the connection goes on: %d bytes written", n)
				}
			})
		})
	}
}
