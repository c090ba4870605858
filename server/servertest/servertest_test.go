package servertest_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// both runs a test with sockets, and in memory in virtual time.
func both(t *testing.T, test func(t *testing.T, s *servertest.Server, journal *transporttest.Journal)) {
	start := func(t *testing.T, inMemory bool) {
		journal := new(transporttest.Journal)
		test(t, servertest.NewWithOptions(t, servertest.Options{InMemory: inMemory, Journal: journal}), journal)
	}
	t.Run("TCP", func(t *testing.T) { start(t, false) })
	t.Run("in memory", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { start(t, true) }) })
}

func mustSet(t *testing.T, client *transport.Client, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		_, err := client.Set(ctx, key, []byte("v"), transport.SetOptions{})
		if err == nil {
			return
		}
		if !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent) {
			t.Fatalf("Set: %v", err)
		}
	}
	t.Fatal("Set: no connection")
}

func exists(t *testing.T, client *transport.Client, key string) bool {
	t.Helper()
	entry, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return entry.Exists
}

func TestOptionsReachTheServer(t *testing.T) {
	certified := httptest.NewTLSServer(nil)
	defer certified.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	s := servertest.NewWithOptions(t, servertest.Options{Server: server.Options{
		Addr:  "nowhere",
		TLS:   &tls.Config{Certificates: certified.TLS.Certificates},
		Store: statestore.Options{MaxKeys: 1},
	}})
	client := s.Dial(t, transport.Options{TLS: transport.TLSOptions{Config: &tls.Config{RootCAs: roots}}})
	mustSet(t, client, "k")
	if _, err := client.Set(t.Context(), "another", nil, transport.SetOptions{}); !errors.Is(err, transport.ErrQuotaExceeded) {
		t.Errorf("a second key: %v", err)
	}
}

func TestCutClosesConnectionsAndDownRefusesThemUntilUp(t *testing.T) {
	both(t, func(t *testing.T, s *servertest.Server, journal *transporttest.Journal) {
		client := s.Client(t, "a")
		mustSet(t, client, "before")
		s.Cut()
		mustSet(t, client, "before")
		if got := client.Connection().Connections; got != 2 {
			t.Errorf("the client had %d connections, want 2", got)
		}
		s.Down()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		for ctx.Err() == nil {
			if _, err := client.Set(ctx, "during", nil, transport.SetOptions{}); err == nil {
				t.Fatal("Set succeeds while the server is down")
			}
		}
		if _, err := transport.Dial(ctx, s.URL, transport.Options{Dialer: s.DialContext}); err == nil {
			t.Fatal("Dial succeeds while the server is down")
		}
		s.Up()
		mustSet(t, client, "after")
		if !exists(t, client, "before") {
			t.Error("the server forgot a key")
		}
	})
}

// connectRaw returns an MQTT connection that sends nothing by itself, not even DISCONNECT.
func connectRaw(t *testing.T, s *servertest.Server) net.Conn {
	t.Helper()
	conn, err := s.DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("\x10\x0e\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01b")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 256)); n == 0 {
		t.Fatalf("no CONNACK: %v", err)
	}
	return conn
}

func TestWhatIsSentWhileTheNetworkIsFrozenArrivesAfterThaw(t *testing.T) {
	both(t, func(t *testing.T, s *servertest.Server, journal *transporttest.Journal) {
		client, leaving := s.Client(t, "a"), connectRaw(t, s)
		mustSet(t, client, "before")
		requests := s.Server().Stats().Requests
		s.Freeze()
		_ = leaving.Close()
		result := make(chan error, 1)
		go func() {
			_, err := client.Set(t.Context(), "k", nil, transport.SetOptions{})
			result <- err
		}()
		select {
		case err := <-result:
			t.Fatalf("Set returns %v while the network is frozen", err)
		case <-time.After(300 * time.Millisecond):
		}
		if got := s.Server().Stats(); got.Requests != requests || got.Connected != 2 {
			t.Errorf("the server has %d clients and received %d requests", got.Connected, got.Requests-requests)
		}
		if got := client.Connection().Connected; !got {
			t.Errorf("the client is %v", got)
		}
		s.Thaw()
		if err := await.Receive(result); err != nil {
			t.Errorf("after Thaw: %v", err)
		}
		if got := client.Connection().Connections; got != 1 {
			t.Errorf("the client had %d connections, want 1", got)
		}
		for end := time.Now().Add(20 * time.Second); s.Server().Stats().Connected != 1; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the server does not notice the end of a connection")
			}
		}
	})
}

func TestAConnectionThatStaysFrozenIsLostForBothSides(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true})
		client := s.Client(t, "a")
		mustSet(t, client, "k")
		s.Freeze()
		time.Sleep(time.Minute)
		if got := client.Connection(); got.Connected {
			t.Errorf("the client: %v", got)
		}
		if got := s.Server().Stats().Connected; got != 0 {
			t.Errorf("the server has %d clients", got)
		}
		s.Thaw()
		mustSet(t, client, "k")
	})
}

func TestALeaseOfADurableServerOutlivesACrashAndEndsWithTheData(t *testing.T) {
	both(t, func(t *testing.T, s *servertest.Server, journal *transporttest.Journal) {
		client := s.Client(t, "a")
		l, err := lease.New(client, "press-7/active", lease.Options{})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		identity, _ := client.Store()
		url, former := s.URL, s.Server()
		for _, end := range []func(){s.Restart, func() { s.Crash(); s.Restart() }} {
			mustSet(t, client, "k")
			end()
			mustSet(t, client, "anything")
			if !exists(t, client, "k") {
				t.Error("a value is lost that was acknowledged")
			}
			if now, _ := client.Store(); now != identity || s.URL != url || s.Server() == former {
				t.Errorf("the identity is %q at %s, was %q", now, s.URL, identity)
			}
			if err := tenure.Context().Err(); err != nil {
				t.Errorf("the tenure ended: %v", context.Cause(tenure.Context()))
			}
		}
		s.Crash()
		journal.Erase()
		s.Restart()
		mustSet(t, client, "anything")
		if exists(t, client, "k") {
			t.Error("the server still has a key")
		}
		await.Receive(tenure.Context().Done())
		if now, _ := client.Store(); now == identity {
			t.Error("the server has the identity of the data that is lost")
		}
	})
}

func TestACrashLosesWhatIsNotCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := new(transporttest.Journal)
		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true, Journal: journal})
		client := s.Client(t, "a")
		mustSet(t, client, "committed")
		journal.SetLatency(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err == nil {
			t.Error("a request is answered before its commit")
		}
		s.Crash()
		journal.SetLatency(0)
		s.Restart()
		mustSet(t, client, "anything")
		if !exists(t, client, "committed") || exists(t, client, "k") {
			t.Error("the server has not what was committed")
		}
	})
}
