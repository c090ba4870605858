package integration_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// writePair writes a certificate and its key to a folder, and returns options with their paths.
func writePair(t *testing.T, folder string, pair tls.Certificate) (options transport.TLSOptions) {
	t.Helper()
	options.CertFile, options.KeyFile = filepath.Join(folder, "cert.pem"), filepath.Join(folder, "key.pem")
	certificates.Write(t, pair, options.CertFile, options.KeyFile)
	return options
}

// certified returns the configuration of a server, and the file with its authority's certificate.
func certified(t *testing.T) (config *tls.Config, caFile string) {
	t.Helper()
	ca := certificates.New(t, "authority")
	config = &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	return config, writePair(t, t.TempDir(), ca.Own).CertFile
}

// whyNot returns the error of the first attempt of Dial, which must fail.
func whyNot(t *testing.T, addresses string, options transport.Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	options.Trace = &transport.Trace{ConnectFailed: func(transport.ConnectionStatus) { cancel() }}
	client, err := transport.Dial(ctx, addresses, options)
	if err == nil {
		_ = client.Close()
		t.Fatalf("%s: connected", addresses)
	}
	return err
}

// mustWork fails unless requests travel both ways, large ones too.
func mustWork(t *testing.T, client *transport.Client) {
	t.Helper()
	value := bytes.Repeat([]byte("large"), 50_000)
	if _, err := client.Set(t.Context(), "k", value, transport.SetOptions{}); err != nil {
		t.Fatalf("Set: %v", err)
	}
	if entry, err := client.Get(t.Context(), "k"); err != nil || !bytes.Equal(entry.Value, value) {
		t.Fatalf("Get: %d bytes, %v", len(entry.Value), err)
	}
}

// startWebSocket runs the WebSocket listener of mochi in front of a server until the test ends.
func startWebSocket(t *testing.T, target string, config *tls.Config) (address string) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	_ = free.Close() // the listener wants an address, and has no way to be given a socket
	front := listeners.NewWebsocket(listeners.Config{ID: "websocket", Address: address, TLSConfig: config})
	if err := front.Init(testsupport.Discard); err != nil {
		t.Fatal(err)
	}
	p := testsupport.NewProxy(t, target)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		front.Serve(func(_ string, conn net.Conn) error {
			if ended := p.Link(conn); ended != nil {
				await.Receive(ended)
			}
			return nil
		})
	})
	testsupport.Eventually(t, "the WebSocket front listens", func() bool { // Serve begins to listen, not Init
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	t.Cleanup(func() {
		p.Cut()
		front.Close(func(string) {})
		await.Done(tasks.Wait)
	})
	return address
}

// gate is an Authorizer that blocks requests for one key until it is opened.
type gate struct{ entered, opened chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}), make(chan struct{})} }

func (g *gate) Authorize(_ access.Identity, _ statestore.Verb, key string) bool {
	if key == "gate" {
		close(g.entered)
		await.Receive(g.opened)
	}
	return true
}
