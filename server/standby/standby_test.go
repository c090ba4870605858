package standby_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/standby"
	"github.com/tenurelock/tenure/transport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// serve answers clients at socket until the test ends or stop is called.
func serve(t *testing.T, socket net.Listener, options standby.Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- standby.Serve(ctx, socket, options) }()
	var once atomic.Bool
	stop = func() {
		if once.Swap(true) {
			return
		}
		cancel()
		if err := await.Receive(ended); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// start answers clients on a free port of this machine.
func start(t *testing.T, options standby.Options) (address string) {
	t.Helper()
	socket := testsupport.Listen(t)
	serve(t, socket, options)
	return socket.Addr().String()
}

func at(address string) func() string { return func() string { return address } }

func TestOurClientGoesFromAStandbyToTheActiveServer(t *testing.T) {
	active := testsupport.Start(t, server.Options{})
	far := start(t, standby.Options{})
	near := start(t, standby.Options{Active: at(active)})
	client := testsupport.Dial(t, strings.Join([]string{near, "mqtt://" + far, "mqtt://" + active}, ","), transport.Options{})
	if got := client.Connection(); got.Broker != "mqtt://"+active {
		t.Errorf("%+v", got)
	}
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAPlainClientIsSentToTheActiveServer(t *testing.T) {
	for _, test := range []struct{ name, active, want string }{
		{"known", "b.example:8883", "b.example:8883"},
		{"unknown", "", ""},
		{"no text", "b\xff", ""},
		{"a control character", "b\n", ""},
		{"too long", strings.Repeat("b", 301), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := start(t, standby.Options{Active: at(test.active)})
			p, err := testsupport.TryConnect(t, address, "a", nil)
			if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackUseAnotherServer || p.Connack.Properties.ServerReference != test.want {
				t.Fatalf("%v, %+v", err, p.Connack)
			}
			if !strings.Contains(p.Connack.Properties.ReasonString, "stands by") {
				t.Errorf("reason %q", p.Connack.Properties.ReasonString)
			}
		})
	}
	if _, connack := (testsupport.ConnectPacket{ID: "a", Old: true}).TryConnect(t, start(t, standby.Options{Active: at("b:1")})); !bytes.Equal(connack, []byte{0x20, 2, 0, 3}) {
		t.Errorf("MQTT 3.1.1: CONNACK %x", connack)
	}
}

func TestMosquittosClientIsSentAway(t *testing.T) {
	program := prerequisite.Program(t, "mosquitto_pub", "mosquitto-clients")
	host, port, _ := net.SplitHostPort(start(t, standby.Options{Active: at("b.example:8883")}))
	for version, want := range map[string]string{"5": "Use another server", "311": "roker unavailable"} {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		said, err := exec.CommandContext(ctx, program, "-V", version, "-h", host, "-p", port, "-t", "t", "-m", "m").CombinedOutput()
		cancel()
		if err == nil || !strings.Contains(string(said), want) {
			t.Errorf("version %s: %v, %s", version, err, said)
		}
	}
}

func TestAStandbyHasTheTLSOfItsServer(t *testing.T) {
	t.Parallel()
	authority := certificates.New(t, "authority")
	certificate := authority.Issue(pkix.Name{CommonName: "standby"})
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	address := start(t, standby.Options{TLS: config, Active: at("b.example:8883")})
	dir := t.TempDir()
	ca, cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "client.pem"), filepath.Join(dir, "client.key")
	certificates.Write(t, authority.Own, ca, "")
	certificates.Write(t, authority.Issue(pkix.Name{CommonName: "client"}), cert, key)
	for _, test := range []struct {
		name string
		tls  transport.TLSOptions
		sent bool // to the active server
	}{
		{"with a certificate", transport.TLSOptions{CAFile: ca, CertFile: cert, KeyFile: key}, true},
		{"without one", transport.TLSOptions{CAFile: ca}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := transport.Dial(ctx, "mqtts://"+address, transport.Options{TLS: test.tls})
			if err == nil || errors.Is(err, transport.ErrUseAnotherServer) != test.sent || strings.Contains(err.Error(), "b.example") != test.sent {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestInvariant55AStandbyAnswersGarbageWithAReasonOrNotAtAll(t *testing.T) {
	for _, test := range []struct {
		name, sent string
		want       string // how the answer begins
	}{
		{"a reserved flag", "\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c", "\x20\x27\x00\x81"},
		{"another packet first", "\xc0\x00", ""},
		{"a CONNECT that is too large", "\x10\xff\xff\xff\x7f\x00\x04MQTT\x05\x02\x00\x00", "\x20"},
		{"a length that is too long", "\x10\xff\xff\xff\xff\x7f", ""},
		{"another protocol", "GET / HTTP/1.1\r\n\r\n", ""},
		{"TLS", "\x16\x03\x01\x00\xf8\x01\x00\x00\xf4", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				defer serve(t, p, standby.Options{})()
				conn := p.dial()
				go func() { _, _ = conn.Write([]byte(test.sent)) }()
				var answer bytes.Buffer
				_, err := answer.ReadFrom(conn)
				if err != nil || !strings.HasPrefix(answer.String(), test.want) || test.want == "" && answer.Len() > 0 {
					t.Errorf("answer %x, %v; want %x", answer.Bytes(), err, test.want)
				}
			})
		})
	}
	// What comes after the CONNECT does not cost the client the answer.
	c := testsupport.ConnectPacket{ID: "a"}.Start(t, testsupport.DialTCP(t, start(t, standby.Options{})))
	c.Write(bytes.Repeat([]byte{0xc0, 0}, 10_000))
	if connack, err := c.TryRead(); err != nil || connack[3] != packets.ConnackUseAnotherServer {
		t.Errorf("a client that does not wait: %x, %v", connack, err)
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- distant{far}
	return near
}

// distant is a connection from another machine.
type distant struct{ net.Conn }

func (distant) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func TestInvariant56AClientThatSaysNothingHasAsLongAsAtTheServer(t *testing.T) {
	for _, sent := range []string{"", "\x10", "\x10\x0e\x00\x04MQTT"} {
		synctest.Test(t, func(t *testing.T) {
			p := newPipes()
			stop := serve(t, p, standby.Options{})
			defer stop()
			conn, began := p.dial(), time.Now()
			testsupport.Send(t, conn, sent)
			testsupport.MustBeClosed(t, conn)
			if took := time.Since(began); took != unauthenticated.DefaultTimeout {
				t.Errorf("after %q it is closed after %v", sent, took)
			}
		})
	}
}

func TestInvariant56AClientThatDoesNotReadTheAnswerIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		stop := serve(t, p, standby.Options{})
		conn := p.dial()
		testsupport.Send(t, conn, string(testsupport.ConnectPacket{ID: "a"}.Packet()))
		time.Sleep(2 * time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("Serve goes on for %v", took)
		}
	})
}

func TestInvariant56TheNumberOfConnectionsAtAStandbyIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		var log logbuffer.Buffer
		stop := serve(t, p, standby.Options{MaxUnauthenticated: 10, MaxUnauthenticatedPerAddress: 2, Logger: log.Logger()})
		var conns []net.Conn
		for range 3 {
			conns = append(conns, p.dial())
			synctest.Wait()
		}
		testsupport.MustBeClosed(t, conns[0])
		testsupport.MustBeOpen(t, conns[1])
		testsupport.MustBeOpen(t, conns[2])
		stop()
		testsupport.MustBeClosed(t, conns[2])
		if !strings.Contains(log.String(), "--max-unauthenticated") {
			t.Errorf("the log: %s", &log)
		}
	})
}

func TestInvariant55AnActiveThatPanicsEndsOneConnectionOnly(t *testing.T) {
	var calls atomic.Int32
	address := start(t, standby.Options{Active: func() string {
		if calls.Add(1) == 1 {
			panic("at first")
		}
		return "b:1"
	}})
	if _, connack := (testsupport.ConnectPacket{ID: "a"}).TryConnect(t, address); connack != nil {
		t.Errorf("CONNACK %x", connack)
	}
	if _, connack := (testsupport.ConnectPacket{ID: "a"}).TryConnect(t, address); len(connack) < 4 || connack[3] != packets.ConnackUseAnotherServer {
		t.Errorf("the next one: %x", connack)
	}
}
