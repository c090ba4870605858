package server_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// corked keeps what is written until the test lets it go.
type corked struct {
	net.Conn
	corked bool
	buffer bytes.Buffer
}

func (c *corked) Write(p []byte) (int, error) {
	if c.corked {
		return c.buffer.Write(p)
	}
	return c.Conn.Write(p)
}

// The end of a stream of TLS 1.2 is read together with the last packet.
func TestARequestThatComesWithTheEndOfATLSStreamIsAnsweredAndItsTurnEnds(t *testing.T) {
	ca := testsupport.NewAuthority(t)
	address, _ := testsupport.StartServer(t, server.Options{Logger: testsupport.Discard, TLS: &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}})
	open := func(id string) (*tls.Conn, *corked, *bufio.Reader) {
		socket := &corked{Conn: testsupport.DialTCP(t, address)}
		conn := tls.Client(socket, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1", MaxVersion: tls.VersionTLS12})
		in := bufio.NewReader(conn)
		testsupport.Send(t, conn, string(testsupport.EncodeConnect(t, id, nil)))
		if _, err := packets.ReadPacket(in); err != nil {
			t.Fatal(err)
		}
		return conn, socket, in
	}
	ping := func(conn *tls.Conn, in *bufio.Reader) time.Duration {
		begun := time.Now()
		testsupport.Send(t, conn, "\x82\x07\x00\x01\x00\x00\x01a\x00")
		if _, err := packets.ReadPacket(in); err != nil {
			t.Fatal(err)
		}
		return time.Since(begun)
	}
	healthy, _, healthyIn := open("healthy")
	ping(healthy, healthyIn)
	var took []time.Duration
	answered := 0
	for range 10 {
		conn, socket, in := open("leaver")
		socket.corked = true
		testsupport.Send(t, conn, "\x82\x07\x00\x01\x00\x00\x01a\x00") // SUBSCRIBE
		_ = conn.CloseWrite()
		socket.corked = false
		_ = socket.SetWriteDeadline(time.Now().Add(testsupport.Patience)) // which CloseWrite has let pass
		if _, err := socket.Conn.Write(socket.buffer.Bytes()); err != nil {
			t.Fatal(err)
		}
		if _, err := packets.ReadPacket(in); err == nil {
			answered++
		}
		took = append(took, ping(healthy, healthyIn))
		_ = conn.Close()
	}
	t.Logf("answered %d of 10; a healthy client then waits %v (min) to %v (max)", answered, slices.Min(took), slices.Max(took))
	if answered != 10 {
		t.Errorf("%d of 10 are answered", answered)
	}
}
