package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

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

// TestInvariant42 shuts a server down under every kind of client.
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

func TestGarbageHarmsNobodyElse(t *testing.T) {
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
