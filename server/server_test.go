package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
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
		{"no space for packets", server.Options{Addr: "127.0.0.1:0", MaxPacketSize: 1023}, "Options.MaxPacketSize 1023 is below 1024"},
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

// failingListener is a listener that fails with what Failure returns, unless that is nil.
type failingListener struct {
	net.Listener
	Calls   atomic.Int64 // of Accept, so far
	Failure func(call int64) error
}

// Accept implements net.Listener.
func (l *failingListener) Accept() (net.Conn, error) {
	if err := l.Failure(l.Calls.Add(1)); err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// acceptError returns the error of a TCP listener for a system call that failed with err.
func acceptError(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: err}
}

// serveTroubled runs a server on a failing listener. served receives the result of Serve.
func serveTroubled(t *testing.T, trouble func(call int64) error) (l *failingListener, s *server.Server, stop func(), served <-chan error) {
	t.Helper()
	l = &failingListener{Listener: testsupport.Listen(t), Failure: trouble}
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
					return acceptError(failure)
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
	fatal := acceptError(net.ErrClosed)
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
	log := new(logbuffer.Buffer)
	address := testsupport.Start(t, server.Options{Logger: log.Logger()})
	c := testsupport.DialRaw(t, address, "c")
	c.Write(rawmqtt.Message{Topic: "t", QoS: 1, ID: 7, Retain: true}.Packet())
	if _, err := io.ReadAll(c.Input); err != nil {
		t.Fatal(err)
	}
	want := `level=WARN msg="ended a connection for what its client sent" client=c remote=` + c.Conn.LocalAddr().String() +
		` reason="this server retains no messages: publish without the retain flag (MQTT reason code 0x9A)"`
	testsupport.Eventually(t, "the log has: "+want, func() bool { return strings.Contains(log.String(), want) })
}

// SUBACK has only a code for each filter, so the log has the reason.
func TestTheLogSaysWhyASubscriptionIsRefused(t *testing.T) {
	log := new(logbuffer.Buffer)
	address := testsupport.Start(t, server.Options{Logger: log.Logger()})
	c := testsupport.DialRaw(t, address, "c")
	for _, filters := range slices.Collect(slices.Chunk(testsupport.Numbered(998), 100)) { // and one to its response topic
		c.Subscribe(filters...)
	}
	for _, test := range []struct{ filter, reason string }{
		{"clients/other/response", "the client may not read these topics; none has messages that begins with $"},
		{"$SYS/#", "the client may not read these topics; none has messages that begins with $"},
		{"$share/g/#", "this server has no shared subscriptions"},
		{"a", ""},
		{"1000", "the client, or all together, have as many subscriptions as they may"},
	} {
		c.Write(rawmqtt.SubscribeTo(7, 0, test.filter))
		c.Read()
		want := `level=WARN msg="refused a subscription" client=c remote=` + c.Conn.LocalAddr().String() + ` filter=` + test.filter + ` reason="` + test.reason + `"`
		if logged := strings.Contains(log.String(), want); logged != (test.reason != "") {
			t.Errorf("%s: the log is %s\nwant %s", test.filter, log.String(), want)
		}
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

// fragile returns rules that panic while on is true: for the key "boom", the topic "boom", and reads of
// the topic "aching" by the client "victim".
func fragile(on *atomic.Bool) testsupport.Rules {
	return testsupport.Rules{
		Key: func(_ access.Identity, _ statestore.Verb, key string) bool {
			if key == "boom" && on.Load() {
				panic("the rules are broken")
			}
			return true
		},
		Topic: func(identity access.Identity, topic string, write bool) bool {
			if on.Load() && (topic == "boom" && write || topic == "aching" && !write && identity.Client == "victim") {
				panic("the rules are broken")
			}
			return true
		},
	}
}

func broken() *atomic.Bool {
	on := new(atomic.Bool)
	on.Store(true)
	return on
}

// Each panic ends one connection, and nothing shared stays locked or taken: there are more panics than
// turns and places.
// Invariant 55: no sequence of bytes from one connection affects anything beyond it.
func TestAPanicEndsTheConnectionThatCausedItAndNothingElse(t *testing.T) {
	const often = 15 // more than are logged at once
	for name, cause := range map[string]func(*testsupport.RawClient){
		"a request": func(c *testsupport.RawClient) {
			c.WriteString(string(testsupport.RequestWill(c.ID).Request("SET", "boom", "v")))
		},
		"a publication": func(c *testsupport.RawClient) {
			c.WriteString(string(rawmqtt.Message{Topic: "boom", QoS: 1, ID: 5}.Packet()))
		},
		"a subscription": func(c *testsupport.RawClient) { c.WriteString(string(rawmqtt.SubscribeTo(5, 0, "aching"))) },
	} {
		t.Run(name, func(t *testing.T) {
			var log logbuffer.Buffer
			authorizer := fragile(broken())
			address, s := testsupport.StartServer(t, server.Options{
				Authenticator: authorizer, Authorizer: authorizer, Logger: log.Logger(), Store: statestore.Options{Identity: "s"},
			})
			other := testsupport.WatchKey(t, address, "left")
			for n := range often {
				will := testsupport.RequestWill("victim", "SET", "left", fmt.Sprint(n))
				will.Ts = testsupport.InAMinute()
				will.User = "u"
				c := will.Connect(t, address, "victim")
				c.MustDo(t, 1, "+OK\r\n", "KEYNOTIFY", "watched")
				cause(c)
				for {
					if _, err := c.Receive(); err != nil {
						break
					}
				}
				other.MustBeNotified("SET", "VALUE", fmt.Sprint(n))
				testsupport.Eventually(t, "the connection is forgotten", func() bool { return s.Stats().Connected == 1 })
				if got := s.Usage().Store.Watches; got != 1 {
					t.Errorf("%d watches are left", got)
				}
			}
			if got := s.Stats(); got.Panics != often || got.AppliedWills != often {
				t.Errorf("%+v", got)
			}
			if got := strings.Count(log.String(), "recovered from a panic"); got == 0 || got >= often || !strings.Contains(log.String(), "server_test.go:") {
				t.Errorf("%d panics are logged: %.1000s", got, log.String())
			}
			again := testsupport.Connect(t, address, "victim", testsupport.As("u"))
			if got := again.Do("SET", "left", "well"); got != "+OK\r\n" {
				t.Error(got)
			}
			other.MustBeNotified("SET", "VALUE", "well")
		})
	}
}

// runtime.Goexit runs what is deferred, and returns to nothing. t.FailNow in the rules of a test calls it.
func TestARuleThatEndsItsGoroutineEndsTheConnectionOnly(t *testing.T) {
	rules := testsupport.Rules{Key: func(_ access.Identity, _ statestore.Verb, key string) bool {
		if key == "exit" {
			runtime.Goexit()
		}
		return true
	}}
	options := server.Options{Authenticator: rules, Authorizer: rules, Store: statestore.Options{Identity: "s"}}
	address, s := testsupport.StartServer(t, options)
	other := testsupport.WatchKey(t, address, "left")
	for n := range 5 {
		will := testsupport.RequestWill("victim", "SET", "left", fmt.Sprint(n))
		will.Ts = testsupport.InAMinute()
		will.User = "u"
		c := will.Connect(t, address, "victim")
		c.WriteString(string(will.Request("DEL", "exit")))
		other.MustBeNotified("SET", "VALUE", fmt.Sprint(n))
		testsupport.Eventually(t, "the connection is forgotten", func() bool { return s.Stats().Connected == 1 })
		if got := s.Stats().Panics; got != uint64(n)+1 {
			t.Errorf("after %d connections, %d panics", n+1, got)
		}
	}
	other.MustGet("k", "")
}

// fragileListener returns connections that panic when the server writes the text to them.
type fragileListener struct {
	net.Listener
	text string
}

func (l fragileListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return fragileConn{conn, l.text}, err
}

type fragileConn struct {
	net.Conn
	text string
}

func (c fragileConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.text)) {
		panic("the connection is broken")
	}
	return c.Conn.Write(p)
}

// A goroutine of the receiver's connection writes notifications.
func TestAPanicInTheGoroutineThatWritesEndsItsConnectionOnly(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Listener: fragileListener{testsupport.Listen(t), "the text"}})
	other := testsupport.Connect(t, address, "other", nil)
	for n := range 5 {
		victim := testsupport.WatchKey(t, address, "k")
		if got := other.Do("SET", "k", fmt.Sprint("the text ", n)); got != "+OK\r\n" {
			t.Fatal(got)
		}
		victim.MustBeGone()
		testsupport.Eventually(t, "the connection is forgotten", func() bool { return s.Stats().Connected == 1 })
		if got := s.Stats().Panics; got != uint64(n)+1 {
			t.Errorf("after %d connections, %d panics", n+1, got)
		}
	}
	if got := s.Usage().Store.Watches; got != 0 {
		t.Errorf("%d watches are left", got)
	}
}

// careless is an Authenticator that panics for one client.
type careless struct{ testsupport.Rules }

func (careless) Authenticate(c access.Credentials) error {
	if c.Client == "victim" {
		panic("the passwords are gone")
	}
	return nil
}

func TestAnAuthenticatorThatPanicsTakesNoPlaceOfOthers(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Authenticator: careless{}})
	for range 5 {
		if _, connack := (testsupport.ConnectPacket{ID: "victim", User: "u"}).TryConnect(t, address); connack != nil {
			t.Errorf("CONNACK %x", connack)
		}
	}
	testsupport.ConnectPacket{ID: "other", User: "u"}.Connect(t, address)
	testsupport.Eventually(t, "the panics are counted", func() bool { return s.Stats().Panics == 5 })
}

// A store that panicked during a change must not go on. The test runs it in a child process.
func TestAPanicInTheStoreEndsTheProcess(t *testing.T) {
	const variable = "TENURE_TEST_PANIC_IN_STORE"
	if os.Getenv(variable) != "" {
		breakStore(t)
		return
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAPanicInTheStoreEndsTheProcess$")
	child.Env = append(os.Environ(), variable+"=1")
	var output []byte
	err := await.Result(func() (err error) { output, err = child.CombinedOutput(); return err })
	if err == nil || !strings.Contains(string(output), "the state of the store is in doubt after a panic: half a change") {
		t.Errorf("the process ended with %v:\n%.2000s", err, output)
	}
}

// breakStore makes the store panic.
func breakStore(t *testing.T) {
	var s *server.Server
	authorizer := testsupport.Rules{Key: func(access.Identity, statestore.Verb, string) bool { s.PanicInStore("half a change"); return true }}
	var address string
	address, s = testsupport.StartServer(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	c := testsupport.ConnectPacket{ID: "p", User: "u"}.Connect(t, address)
	c.Write(testsupport.PacketOf(t, c.Request("DEL", "k")))
	c.MustBeClosed()
	t.Log("the server lives on")
}
