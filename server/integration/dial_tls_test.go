package integration_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// folder writes files for a client to read, until the test ends.
type folder struct {
	t    *testing.T
	path string
}

func newFolder(t *testing.T) folder { return folder{t: t, path: t.TempDir()} }

// write replaces a file as a whole, and returns its path.
func (f folder) write(name string, content []byte) (path string) {
	f.t.Helper()
	path = filepath.Join(f.path, name)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// writePair writes a certificate and its key; with a password, the key is encrypted.
func (f folder) writePair(pair tls.Certificate, password string) (certificate, key string) {
	f.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		f.t.Fatal(err)
	}
	kind := "PRIVATE KEY"
	if password != "" {
		kind, der = "ENCRYPTED PRIVATE KEY", encrypt(f.t, der, password)
	}
	return f.write("cert.pem", testsupport.PEM(pair)), f.write("key.pem", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// encrypt makes what "openssl pkcs8 -topk8 -v2 aes-256-cbc" makes of a key [RFC 8018].
func encrypt(t *testing.T, der []byte, password string) []byte {
	t.Helper()
	const iterations = 2048
	random := make([]byte, 2*aes.BlockSize)
	_, _ = rand.Read(random) // never fails, says its documentation
	salt, vector := random[:aes.BlockSize], random[aes.BlockSize:]
	key, err := pbkdf2.Key(sha256.New, password, salt, iterations, 32)
	if err != nil {
		t.Fatal(err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	padding := aes.BlockSize - len(der)%aes.BlockSize
	data := append(bytes.Clone(der), bytes.Repeat([]byte{byte(padding)}, padding)...)
	cipher.NewCBCEncrypter(block, vector).CryptBlocks(data, data)
	type algorithm struct {
		Name       asn1.ObjectIdentifier
		Parameters any
	}
	type derivation struct {
		Salt       []byte
		Iterations int
		Hash       pkix.AlgorithmIdentifier
	}
	type scheme struct{ Derivation, Cipher algorithm }
	type encrypted struct {
		Algorithm algorithm
		Data      []byte
	}
	text, err := asn1.Marshal(encrypted{
		Algorithm: algorithm{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}, scheme{
			Derivation: algorithm{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}, derivation{
				salt, iterations, pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 9}, Parameters: asn1.NullRawValue},
			}},
			Cipher: algorithm{asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 42}, vector},
		}},
		Data: data,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// tryDial is transport.Dial, within patience.
func tryDial(t *testing.T, addresses string, options transport.Options) (*transport.Client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, addresses, options)
	if err == nil {
		t.Cleanup(func() {
			if err := client.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	return client, err
}

func mustDial(t *testing.T, addresses string, options transport.Options) *transport.Client {
	t.Helper()
	client, err := tryDial(t, addresses, options)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// whyNot returns what Dial says of its first attempt, which must fail.
func whyNot(t *testing.T, addresses string, options transport.Options) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	options.OnConnectionChange = func(transport.ConnectionStatus) { cancel() }
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

// awaitStatus waits until the status of a client is as wanted.
func awaitStatus(t *testing.T, client *transport.Client, what string, wanted func(transport.ConnectionStatus) bool) transport.ConnectionStatus {
	t.Helper()
	deadline := time.Now().Add(testsupport.Patience)
	for {
		status := client.Connection()
		if wanted(status) {
			return status
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so: %+v", what, status)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// mustReconnect waits for one more connection than there were.
func mustReconnect(t *testing.T, client *transport.Client, before int) transport.ConnectionStatus {
	t.Helper()
	return awaitStatus(t, client, "connected anew", func(status transport.ConnectionStatus) bool {
		return status.State == transport.Connected && status.Connections > before
	})
}

func TestTheClientSpeaksTLS(t *testing.T) {
	ca, other := testsupport.NewAuthority(t), testsupport.NewAuthority(t)
	files := newFolder(t)
	caFile, otherCA := files.write("ca.pem", ca.PEM()), files.write("other.pem", other.PEM())
	address := testsupport.Start(t, server.Options{TLS: &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}})
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, address string
		options       transport.TLSOptions
		want          string // "": it connects
	}{
		{"with the authority in a file", "mqtts://" + address, transport.TLSOptions{CAFile: caFile}, ""},
		{"under the other name of the scheme", "tls://" + address, transport.TLSOptions{CAFile: caFile}, ""},
		{"with the authority in a Config", "mqtts://" + address, transport.TLSOptions{Config: &tls.Config{RootCAs: ca.Pool}}, ""},
		{"with the name that the certificate has", "mqtts://localhost:" + port, transport.TLSOptions{CAFile: caFile, ServerName: "127.0.0.1"}, ""},
		{"with a name that the certificate does not have", "mqtts://localhost:" + port, transport.TLSOptions{CAFile: caFile}, "localhost"},
		{"with a wrong ServerName", "mqtts://" + address, transport.TLSOptions{CAFile: caFile, ServerName: "broker.example"}, "broker.example"},
		{"with another authority", "mqtts://" + address, transport.TLSOptions{CAFile: otherCA}, "unknown authority"},
		{"with the authorities of this machine", "mqtts://" + address, transport.TLSOptions{}, "unknown authority"},
		{"to a server without TLS", "mqtts://" + testsupport.Start(t, server.Options{}), transport.TLSOptions{CAFile: caFile}, "TLS: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.want == "" {
				mustWork(t, mustDial(t, test.address, transport.Options{TLS: test.options}))
				return
			}
			err := whyNot(t, test.address, transport.Options{TLS: test.options})
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "TLS: ") {
				t.Errorf("%v, want an error of TLS that says %q", err, test.want)
			}
		})
	}
}

func TestTheClientShowsACertificateWhoseKeyMayBeEncrypted(t *testing.T) {
	ca := testsupport.NewAuthority(t)
	for _, password := range []string{"", "a secret"} {
		t.Run("password "+password, func(t *testing.T) {
			authenticator := testsupport.Credentials{Came: make(chan access.Credentials, 1)}
			address := testsupport.Start(t, server.Options{
				TLS: &tls.Config{
					Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})},
					ClientCAs:    ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
				},
				Authenticator: authenticator,
			})
			files := newFolder(t)
			options := transport.TLSOptions{CAFile: files.write("ca.pem", ca.PEM())}
			options.CertFile, options.KeyFile = files.writePair(ca.Issue(pkix.Name{CommonName: "press-7"}), password)
			if password != "" {
				options.KeyPasswordFile = files.write("password", []byte(password+"\n"))
			}
			mustWork(t, mustDial(t, "mqtts://"+address, transport.Options{TLS: options}))
			if who := await.Receive(authenticator.Came); who.User != "CN=press-7" || !who.Certified {
				t.Errorf("the server sees %+v", who)
			}
			if password == "" {
				return
			}
			files.write("password", []byte("another"))
			if _, err := tryDial(t, "mqtts://"+address, transport.Options{TLS: options}); err == nil || !strings.Contains(err.Error(), "password of the private key is wrong") {
				t.Errorf("with a wrong password: %v", err)
			}
			options.KeyPasswordFile = ""
			if _, err := tryDial(t, "mqtts://"+address, transport.Options{TLS: options}); err == nil || !strings.Contains(err.Error(), "KeyPasswordFile") {
				t.Errorf("without the password: %v", err)
			}
		})
	}
}

func TestTheErrorWithoutACertificateQuotesTheServer(t *testing.T) {
	ca := testsupport.NewAuthority(t)
	address := testsupport.Start(t, server.Options{TLS: &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})},
		ClientCAs:    ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}})
	err := whyNot(t, "mqtts://"+address, transport.Options{TLS: transport.TLSOptions{CAFile: newFolder(t).write("ca.pem", ca.PEM())}})
	if !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("%v, want an error that says what is required", err)
	}
}

func TestCertificatesThatAreReplacedCountFromTheNextConnection(t *testing.T) {
	first, second := testsupport.NewAuthority(t), testsupport.NewAuthority(t)
	var present atomic.Pointer[testsupport.Authority]
	present.Store(first)
	authenticator := testsupport.Credentials{Came: make(chan access.Credentials, 10)}
	address := testsupport.Start(t, server.Options{
		Authenticator: authenticator,
		TLS: &tls.Config{
			// So that the listener takes it for one that has certificates.
			Certificates: []tls.Certificate{first.Issue(pkix.Name{CommonName: "server"})},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    first.Pool,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				a := present.Load()
				return &tls.Config{
					Certificates: []tls.Certificate{a.Issue(pkix.Name{CommonName: "server"})},
					ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: a.Pool,
				}, nil
			},
		},
	})
	through := newStreamProxy(t, address)
	files := newFolder(t)
	options := transport.TLSOptions{CAFile: files.write("ca.pem", first.PEM())}
	options.CertFile, options.KeyFile = files.writePair(first.Issue(pkix.Name{CommonName: "first"}), "")
	client := mustDial(t, "mqtts://"+through.address(), transport.Options{TLS: options})
	if who := await.Receive(authenticator.Came); who.User != "CN=first" {
		t.Errorf("the server sees %+v", who)
	}

	present.Store(second)
	through.cut()
	status := awaitStatus(t, client, "kept out by the new certificate", func(status transport.ConnectionStatus) bool {
		return status.State == transport.Connecting && status.Err != nil && strings.Contains(status.Err.Error(), "unknown authority")
	})
	files.write("ca.pem", second.PEM())
	files.writePair(second.Issue(pkix.Name{CommonName: "second"}), "")
	mustReconnect(t, client, status.Connections)
	if who := await.Receive(authenticator.Came); who.User != "CN=second" {
		t.Errorf("the server sees %+v", who)
	}
	mustWork(t, client)
}

// streamProxy passes bytes on, whatever they mean.
type streamProxy struct {
	listener net.Listener
	target   string
	tasks    sync.WaitGroup
	gate     sync.RWMutex // while a test holds it, nothing more is read from clients

	mu    sync.Mutex
	conns []net.Conn
}

func newStreamProxy(t *testing.T, target string) *streamProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &streamProxy{listener: listener, target: target}
	p.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.tasks.Go(func() { _ = p.join(conn) })
		}
	})
	t.Cleanup(func() { p.stop(); await.Done(p.tasks.Wait) })
	return p
}

func (p *streamProxy) address() string { return p.listener.Addr().String() }

// join connects a connection with the target, until one of them ends.
func (p *streamProxy) join(conn net.Conn) error {
	defer conn.Close()
	target, err := net.Dial("tcp", p.target)
	if err != nil {
		return err
	}
	defer target.Close()
	p.mu.Lock()
	p.conns = append(p.conns, conn, target)
	p.mu.Unlock()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = io.Copy(conn, target)
		_ = conn.Close()
	}()
	_, err = io.Copy(target, gated{Conn: conn, gate: &p.gate})
	_ = target.Close()
	await.Receive(answered)
	return err
}

type gated struct {
	net.Conn
	gate *sync.RWMutex
}

func (g gated) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.gate.RLock() // waits as long as a test holds it
	defer g.gate.RUnlock()
	return n, err
}

// cut ends all connections.
func (p *streamProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close()
	}
	p.conns = nil
}

// stop refuses new connections.
func (p *streamProxy) stop() {
	_ = p.listener.Close()
	p.cut()
}

// startWebSocket puts the WebSocket listener of another project, which brokers use, in
// front of a server, until the test ends.
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
	p := &streamProxy{target: target}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		front.Serve(func(_ string, conn net.Conn) error {
			p.tasks.Add(1)
			defer p.tasks.Done()
			_ = p.join(conn)
			return nil
		})
	})
	t.Cleanup(func() {
		p.cut()
		front.Close(func(string) {})
		await.Done(tasks.Wait)
		await.Done(p.tasks.Wait)
	})
	return address
}

func TestTheClientSpeaksWebSocket(t *testing.T) {
	target := testsupport.Start(t, server.Options{})
	ca := testsupport.NewAuthority(t)
	encrypted := startWebSocket(t, target, &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}})
	caFile := newFolder(t).write("ca.pem", ca.PEM())
	for _, test := range []struct {
		name, address string
		options       transport.TLSOptions
	}{
		{"over TCP", "ws://" + startWebSocket(t, target, nil) + "/mqtt", transport.TLSOptions{}},
		{"over TLS", "wss://" + encrypted + "/mqtt", transport.TLSOptions{CAFile: caFile}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := mustDial(t, test.address, transport.Options{TLS: test.options})
			mustWork(t, client)
			var group sync.WaitGroup
			for range 20 {
				group.Go(func() {
					if _, err := client.Get(t.Context(), "k"); err != nil {
						t.Error(err)
					}
				})
			}
			await.Done(group.Wait)
			if status := client.Connection(); status.Broker != test.address || status.Connections != 1 {
				t.Errorf("%+v", status)
			}
		})
	}
}

func TestTheErrorQuotesAServerWithoutWebSocket(t *testing.T) {
	// A broker's plain port, asked for a WebSocket, hangs up; a web server says why not.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			_ = conn.Close()
		}
	}()
	for address, want := range map[string]string{
		"ws://" + listener.Addr().String() + "/nowhere":  "check the path",
		"ws://" + testsupport.Start(t, server.Options{}): "websocket handshake",
	} {
		err := whyNot(t, address, transport.Options{})
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", address, err, want)
		}
	}
}
