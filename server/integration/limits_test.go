package integration_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestAValueThatIsLargerThanItsReaderTakesIsAnErrorAtOnce(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	writer := testsupport.Dial(t, address, transport.Options{})
	reader := testsupport.Dial(t, address, transport.Options{MaxPacketSize: 4096, ClientOptions: transport.ClientOptions{RequestTimeout: testsupport.Patience}})
	for key, size := range map[string]int{"small": 3000, "large": 10_000} {
		if _, err := writer.Set(t.Context(), key, make([]byte, size), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if entry, err := reader.Get(t.Context(), "small"); err != nil || len(entry.Value) != 3000 {
		t.Errorf("a value that fits: %d bytes, %v", len(entry.Value), err)
	}
	var refused *transport.RefusedError
	const want = "the reply is larger than the client takes"
	began := time.Now()
	if _, err := reader.Get(t.Context(), "large"); !errors.As(err, &refused) || refused.Text != want {
		t.Errorf("a value that does not: %v", err)
	}
	if took := time.Since(began); took > testsupport.Patience/2 {
		t.Errorf("it took %v", took)
	}
	watch, err := reader.Watch("large")
	if err != nil {
		t.Fatal(err)
	}
	select {
	case _, open := <-watch.Changes():
		if open || !errors.As(watch.Err(), &refused) {
			t.Errorf("its watch: open: %t, %v", open, watch.Err())
		}
	case <-time.After(testsupport.Patience):
		t.Error("its watch is silent")
	}
	if status := reader.Connection(); status.Connections != 1 {
		t.Errorf("the connection was lost: %+v", status)
	}
}

// By itself the kernel takes megabytes for a client that does not read.
func TestTheKernelHoldsLittleForAClientThatDoesNotRead(t *testing.T) {
	const large, limit = 64 << 10, 4 << 20
	const kernel = 1 << 20 // for both sockets
	ca := certificates.New(t, "authority")
	serving := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	for name, config := range map[string]*tls.Config{"TCP": nil, "TLS": serving} {
		t.Run(name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{TLS: config, MaxMemory: 32 << 20})
			dial := func(id string) *testsupport.RawClient {
				conn := testsupport.DialTCP(t, address)
				_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) // more is needed if it fails
				if config != nil {
					conn = tls.Client(conn, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1"})
				}
				return testsupport.ConnectRaw(t, conn, id, 60, "")
			}
			deaf, publisher := dial("deaf"), dial("publisher")
			deaf.Subscribe("t")
			message := rawmqtt.Message{Topic: "t", Payload: make([]byte, large)}
			for sent := 0; len(s.Stats().DroppedMessages) == 0; sent += large {
				publisher.Send(message)
				publisher.Write([]byte{0xc0, 0})
				publisher.Read()
				if sent > limit+kernel {
					t.Fatalf("%d bytes were not read, and none is dropped", sent)
				}
			}
		})
	}
}
