package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

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
	for _, failure := range []error{syscall.EMFILE, errors.New("unheard of")} {
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

// SUBACK has only a code for each filter, so the log has the reason.
func TestTheLogSaysWhyASubscriptionIsRefused(t *testing.T) {
	log := new(logbuffer.Buffer)
	address := testsupport.Start(t, server.Options{Limits: server.Limits{Subscriptions: 2}, Logger: log.Logger()})
	c := testsupport.DialRaw(t, address, "c") // and one to its response topic
	for _, test := range []struct{ filter, reason string }{
		{"clients/other/response", "the client may not read these topics; none has messages that begins with $"},
		{"$SYS/#", "the client may not read these topics; none has messages that begins with $"},
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
			strings.Contains(log.String(), " MaxKeys:16384 MaxBytes:16777216 ")
	})
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
