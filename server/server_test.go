package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

func TestNewNamesWhatIsWrong(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		name    string
		options server.Options
		want    string
	}{
		{"the port is taken", server.Options{Addr: taken.Addr().String()}, "address already in use"},
		{"no address", server.Options{Addr: "nowhere"}, "missing port"},
		{"a negative limit", server.Options{Addr: "127.0.0.1:0", Store: statestore.Options{MaxKeys: -1}}, "cannot be negative"},
		{"no room for packets", server.Options{Addr: "127.0.0.1:0", MaxPacketSize: 1023}, "Options.MaxPacketSize 1023 is below 1024"},
		{"a node id with a colon", server.Options{Addr: "127.0.0.1:0", Store: statestore.Options{Node: "a:b"}}, "not a node id"},
	} {
		if _, err := server.New(test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestAServerIsServedOnce(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Serve(ctx); err != nil {
		t.Errorf("Serve: %v", err)
	}
	if err := s.Serve(t.Context()); err == nil {
		t.Error("a second Serve succeeded")
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close after Serve: %v", err)
	}
}

func TestCloseFreesTheAddressOfAServerThatWasNotServed(t *testing.T) {
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	address := s.Addr().String()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := server.New(server.Options{Addr: address})
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

func TestInvariant42ShutdownIsCleanUnderEveryKindOfClient(t *testing.T) {
	before := runtime.NumGoroutine()
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	address := s.Addr().String()

	idle, watcher := testsupport.Connect(t, address, "idle", nil), testsupport.Connect(t, address, "watcher", nil)
	watcher.Do("KEYNOTIFY", "k")
	silent, err := net.Dial("tcp", address) // never sends CONNECT
	if err != nil {
		t.Fatal(err)
	}
	garbage, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(garbage, strings.Repeat("\xff\x00GET / HTTP/1.1\r\n", 100))
	busy := testsupport.Connect(t, address, "busy", nil)
	go func() {
		for {
			if _, err := busy.Publish(busy.Request("SET", "k", "v", "PX", "1")); err != nil {
				return
			}
		}
	}()
	idle.MustGet("nothing", "") // in spite of the garbage

	stop()
	select {
	case err := <-served:
		if err != nil {
			t.Errorf("Serve: %v", err)
		}
	case <-time.After(testsupport.Patience):
		t.Fatal("Serve does not return")
	}
	idle.MustBeDisconnected(testsupport.ReasonShuttingDown)
	watcher.MustBeDisconnected(testsupport.ReasonShuttingDown)
	busy.MustBeGone()
	_ = silent.SetReadDeadline(time.Now().Add(testsupport.Patience))
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("the connection without CONNECT is still open")
	}
	_, _ = silent.Close(), garbage.Close()
	testsupport.MustEndGoroutines(t, before)
}

func TestGarbageHarmsNoOtherClient(t *testing.T) {
	address := testsupport.Start(t, server.Options{MaxPacketSize: 64 << 10})
	p := testsupport.Connect(t, address, "p", nil)
	for i, nonsense := range []string{
		"", "\x00", "\x10", "\x10\xff\xff\xff\xff", "\x10\x7f", strings.Repeat("\x30", 1000),
		"\x10\xff\xff\xff\x7f" + strings.Repeat("x", 1000), // a CONNECT of 256 MB, announced
		"\x10\x0c\x00\x04MQTT\x09\x02\x00\x3c\x00\x00",     // a version that does not exist
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, nonsense)
		p.MustGet(fmt.Sprint(i), "")
		_ = conn.Close()
	}
	for i, payload := range []string{"", "*", "*1", "*1000000000\r\n", "*1\r\n$-1\r\n", "*1\r\n*1\r\n$3\r\nGET\r\n", "$3\r\nGET\r\n", "PING\r\n"} {
		request := p.Request()
		request.Payload = []byte(payload)
		if _, err := p.Publish(request); err != nil {
			t.Fatal(err)
		}
		if got := string(p.Next().Payload); got != "-ERR syntax error\r\n" {
			t.Errorf("payload %d, %q: %q", i, payload, got)
		}
	}
}

// serveTroubled runs a server on a failing listener. served receives the result of Serve.
func serveTroubled(t *testing.T, trouble func(call int64) error) (l *testsupport.FailingListener, s *server.Server, stop func(), served <-chan error) {
	t.Helper()
	l = &testsupport.FailingListener{Listener: testsupport.Listen(t), Failure: trouble}
	s, err := server.New(server.Options{Listener: l})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	end := make(chan error, 1)
	go func() { end <- s.Serve(ctx) }()
	return l, s, cancel, end
}

func TestAFailureToAcceptDoesNotEndTheServer(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ECONNABORTED, syscall.EINTR, errors.New("unheard of")} {
		t.Run(failure.Error(), func(t *testing.T) {
			_, s, stop, served := serveTroubled(t, func(call int64) error {
				if call%2 == 1 { // before the first connection, and between any two
					return testsupport.AcceptError(failure)
				}
				return nil
			})
			for range 3 {
				p := testsupport.Connect(t, s.Addr().String(), "p", nil)
				p.MustGet("k", "")
			}
			stop()
			testsupport.MustReturn(t, served, nil)
		})
	}
}

// A server that cannot accept connections any more must not look as if it were serving.
func TestAFatalFailureToAcceptEndsServeWithIt(t *testing.T) {
	before := runtime.NumGoroutine()
	fatal := testsupport.AcceptError(net.ErrClosed)
	var failed atomic.Bool
	l, s, _, served := serveTroubled(t, func(int64) error {
		if failed.Load() {
			return fatal
		}
		return nil
	})
	p := testsupport.Connect(t, s.Addr().String(), "p", nil)
	p.MustGet("k", "")
	failed.Store(true)
	testsupport.DialTCP(t, s.Addr().String()) // ends the Accept that is under way
	select {
	case err := <-served:
		if err != fatal && !errors.Is(err, fatal) {
			t.Errorf("Serve: %v, want %v", err, fatal)
		}
	case <-time.After(testsupport.Patience):
		t.Fatalf("Serve does not return, after %d calls of Accept", l.Calls.Load())
	}
	p.MustBeDisconnected(testsupport.ReasonShuttingDown)
	p.MustBeGone()
	testsupport.MustEndGoroutines(t, before)
}

// If every Accept fails at once, the server must not use up a processor.
func TestAcceptIsNotRepeatedInABusyLoop(t *testing.T) {
	began := time.Now()
	l, _, stop, served := serveTroubled(t, func(int64) error { return testsupport.AcceptError(syscall.EMFILE) })
	testsupport.Eventually(t, "Accept is called again", func() bool { return l.Calls.Load() >= 5 })
	stop()
	testsupport.MustReturn(t, served, nil)
	// Only an upper bound: on any machine there is a pause between two calls.
	calls, elapsed := l.Calls.Load(), time.Since(began)
	if limit := int64(elapsed/(10*time.Millisecond)) + 2; calls > limit {
		t.Errorf("%d calls of Accept in %v", calls, elapsed)
	}
}

// patiently is a listener with connections that never time out.
type patiently struct{ net.Listener }

func (l patiently) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return undated{conn}, nil
}

type undated struct{ net.Conn }

func (undated) SetDeadline(time.Time) error { return nil }

func (undated) SetReadDeadline(time.Time) error { return nil }

func (undated) SetWriteDeadline(time.Time) error { return nil }

func TestShutdownReturnsUnderHalfOpenAndLeavingConnections(t *testing.T) {
	const each = 100
	for range 3 {
		before := runtime.NumGoroutine()
		s, err := server.New(server.Options{Listener: patiently{testsupport.Listen(t)}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		address := s.Addr().String()
		var conns []net.Conn
		for i := range each {
			conns = append(conns, testsupport.DialTCP(t, address)) // says nothing
			half := testsupport.DialTCP(t, address)
			packet := testsupport.EncodeConnect("half", nil)
			testsupport.Send(t, half, string(packet[:1+i%(len(packet)-1)]))
			conns = append(conns, half)
		}
		leaving := make([]*testsupport.PacketClient, each)
		for i := range leaving {
			leaving[i] = testsupport.DialPacketClient(t, address, fmt.Sprint("leaving-", i), nil)
			conns = append(conns, leaving[i].Conn)
		}
		testsupport.Eventually(t, "all are accepted", func() bool { return s.Sockets() == 3*each })
		var group sync.WaitGroup
		begin := make(chan struct{})
		for i, c := range leaving {
			group.Go(func() {
				await.Receive(begin)
				if i%2 == 0 {
					_, _ = c.Conn.Write([]byte{packets.DISCONNECT << 4, 0})
				} else {
					_ = c.Conn.Close()
				}
			})
		}
		group.Go(func() { await.Receive(begin); stop() })
		close(begin)
		testsupport.MustReturn(t, served, nil)
		await.Done(group.Wait)
		for _, conn := range conns {
			_ = conn.Close()
		}
		if left := s.Sockets(); left > 0 {
			t.Errorf("%d connections are left", left)
		}
		testsupport.MustEndGoroutines(t, before)
	}
}

// Few clients show the reason in a DISCONNECT, so the log of the server has it too.
func TestTheLogSaysWhyAClientWasDisconnected(t *testing.T) {
	for name, test := range map[string]struct {
		packet []byte
		reason string
	}{
		"a retained message": {
			rawmqtt.Message{Topic: "t", QoS: 1, ID: 7, Retain: true}.Packet(),
			"this server retains no messages: publish without the retain flag (MQTT reason code 0x9A)",
		},
		"QoS 2": {
			rawmqtt.Message{Topic: "t", QoS: 2, ID: 7}.Packet(),
			"this server has no QoS 2: publish with QoS 1 (MQTT reason code 0x9B)",
		},
		"a filter with too many levels": {
			rawmqtt.SubscribeTo(7, 0, strings.Repeat("a/", 70)),
			"SUBSCRIBE: a topic filter has more than 64 levels (MQTT reason code 0x8F)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(logbuffer.Buffer)
			address := testsupport.Start(t, server.Options{Logger: log.Logger()})
			c := testsupport.DialRaw(t, address, "c")
			c.Write(test.packet)
			if _, err := io.ReadAll(c.Input); err != nil {
				t.Fatal(err)
			}
			want := `level=WARN msg="ended a connection for what its client sent" client=c remote=` + c.Conn.LocalAddr().String() + ` reason="` + test.reason + `"`
			testsupport.Eventually(t, "the log has: "+want, func() bool { return strings.Contains(log.String(), want) })
		})
	}
}

func TestTheLogSaysThatAClientSpeaksTLSWhereThereIsNone(t *testing.T) {
	log := new(logbuffer.Buffer)
	address := testsupport.Start(t, server.Options{Logger: log.Logger()})
	if conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}); err == nil {
		_ = conn.Close()
		t.Fatal("there is TLS")
	}
	testsupport.Eventually(t, "the log says it", func() bool {
		return strings.Contains(log.String(), `reason="CONNECT: its flags are reserved: the client speaks TLS to an address that has none (MQTT reason code 0x81)"`)
	})
}

func TestTheLogSaysThatAClientSpeaksHTTP(t *testing.T) {
	log := new(logbuffer.Buffer)
	address := testsupport.Start(t, server.Options{Logger: log.Logger()})
	client := http.Client{Timeout: await.Patience}
	defer client.CloseIdleConnections()
	if answer, err := client.Get("http://" + address + "/metrics"); err == nil {
		_ = answer.Body.Close()
		t.Fatal("there is HTTP")
	}
	testsupport.Eventually(t, "the log says it", func() bool {
		return strings.Contains(log.String(), "the first packet must be CONNECT: the client speaks HTTP")
	})
}

// SUBACK has only a code for each filter, so the log has the reason.
func TestTheLogSaysWhyASubscriptionIsRefused(t *testing.T) {
	log := new(logbuffer.Buffer)
	address := testsupport.Start(t, server.Options{Limits: server.Limits{Subscriptions: 2}, Logger: log.Logger()})
	c := testsupport.DialRaw(t, address, "c") // and one to its response topic
	for _, test := range []struct{ filter, reason string }{
		{"$SYS/#", "nothing is published on topics that begin with $"},
		{"clients/other/response", "the client may not read these topics"},
		{"$share/g/#", "this server has no shared subscriptions"},
		{"a", ""},
		{"b", "the client has as many subscriptions as it may have: Options.Limits.Subscriptions, --max-subscriptions"},
	} {
		c.Write(rawmqtt.SubscribeTo(7, 0, test.filter))
		c.Read()
		want := `level=WARN msg="refused a subscription" client=c remote=` + c.Conn.LocalAddr().String() + ` filter=` + test.filter + ` reason="` + test.reason + `"`
		if logged := strings.Contains(log.String(), want); logged != (test.reason != "") {
			t.Errorf("%s: the log is %s\nwant %s", test.filter, log.String(), want)
		}
	}
}

func TestTheLogSaysWhichLimitsFollowFromMaxMemory(t *testing.T) {
	log := new(logbuffer.Buffer)
	testsupport.Start(t, server.Options{MaxMemory: 64 << 20, Logger: log.Logger()})
	testsupport.Eventually(t, "the log has the limits", func() bool {
		return strings.Contains(log.String(), "msg=limits memory=67108864 clients=102 ") &&
			strings.Contains(log.String(), " keys=16384 key-bytes=16777216 ")
	})
}

// A program that embeds a server inherits these modules. The command line, metrics and
// whatever else only the command tenure needs belong to the module cmd/tenure.
func TestTheModuleRequiresOnlyWhatAServerNeeds(t *testing.T) {
	allowed := []string{
		"github.com/anishathalye/porcupine",             // tests: the checker of histories
		"github.com/cenkalti/backoff/v4",                // the attached store's retries
		"github.com/eclipse/paho.golang",                // the attached store's connection
		"github.com/gofrs/flock",                        // the lock on the directory of a journal
		"github.com/mochi-mqtt/server/v2",               // tests: a broker of others
		"github.com/tenurelock/tenure",                  // the rules of the store
		"github.com/tenurelock/tenure/contrib/tenurews", // tests: clients over WebSocket
		"go.yaml.in/yaml/v3",                            // the file of users and rules
		"golang.org/x/crypto",                           // bcrypt, for their passwords
		"golang.org/x/sync",                             // the room of requests that wait in an attached store
	}
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(filepath.ToSlash(name), "internal/testsupport/") {
			return err
		}
		code, err := os.ReadFile(name)
		if strings.Contains(string(code), `"github.com/mochi-mqtt/`) {
			t.Errorf("%s imports mochi, which is for tests", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var required []string
	for _, match := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v\S+$`).FindAllStringSubmatch(string(text), -1) {
		required = append(required, match[1]) // lines that end with "// indirect" do not match
	}
	slices.Sort(required)
	if !slices.Equal(required, allowed) {
		t.Errorf("go.mod requires\n%q, want\n%q", required, allowed)
	}
}

// countedWrites counts the writes on the connections of a listener.
type countedWrites struct {
	net.Listener
	writes atomic.Int64
}

func (l *countedWrites) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countedConn{conn, l}, err
}

type countedConn struct {
	net.Conn
	of *countedWrites
}

func (c countedConn) Write(p []byte) (int, error) {
	c.of.writes.Add(1)
	return c.Conn.Write(p)
}

// A holder watches its lease. So each renewal would cost a second write, and wake a goroutine.
func TestANotificationLeavesWithTheReplyThatCausesIt(t *testing.T) {
	counted := &countedWrites{Listener: testsupport.Listen(t)}
	client := testsupport.DialRaw(t, testsupport.Start(t, server.Options{Listener: counted}), "holder")
	client.Do("KEYNOTIFY", "lease")
	const renewals = 100
	before := counted.writes.Load()
	for range renewals {
		client.Write(testsupport.PacketOf(t, client.Request("SET", "lease", "holder:1", "NEX", "PX", "60000")))
		for range 3 { // reply, PUBACK and notification
			client.Read()
		}
	}
	if writes := counted.writes.Load() - before; writes != renewals {
		t.Errorf("%d writes for %d renewals", writes, renewals)
	}
}
