package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/transport"
)

// start runs a connection of a program's own, and a client on it, until the test ends.
func start(t *testing.T, s *servertest.Server, id string) (*transport.Client, *Conn, *logbuffer.Buffer) {
	t.Helper()
	conn, logs := NewConn(id), new(logbuffer.Buffer)
	client, err := transport.NewClient(conn, transport.ClientOptions{RequestTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	own := &connection{address: strings.TrimPrefix(s.URL, "mqtt://"), clientID: id, conn: conn, logger: slog.New(slog.NewTextHandler(logs, nil))}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		own.run(ctx)
	}()
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		await.Receive(ended)
	})
	return client, conn, logs
}

func TestATenureOutlivesTheProgramsOwnConnection(t *testing.T) {
	s := servertest.New(t)
	client, _, logs := start(t, s, "gateway-a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := client.Watch("press-7/setpoint")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	other := s.Client(t, "gateway-b")
	for _, value := range []string{"41", "42"} {
		if _, err := other.Set(ctx, "press-7/setpoint", []byte(value), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		for string(await.Receive(watch.Changes()).Value) != value {
		}
		lost := client.Lost()
		s.Cut()
		await.Receive(lost)
		if _, err := client.Get(ctx, "press-7/setpoint"); err != nil { // waits for the next connection
			t.Fatal(err)
		}
	}
	if err := context.Cause(tenure.Context()); err != nil {
		t.Errorf("the tenure ended: %v", err)
	}
	if err := tenure.Release(ctx); err != nil {
		t.Error(err)
	}
	if entry, err := other.Get(ctx, "press-7/active"); err != nil || entry.Exists {
		t.Errorf("after the release: %v, %v", entry, err)
	}
	if !strings.Contains(logs.String(), "a message of the program's own arrived") {
		t.Errorf("the program got none of its own messages:\n%s", logs)
	}
}

func TestEachErrorSaysWhetherTheRequestWasSent(t *testing.T) {
	request := transport.Request{Payload: []byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n")}
	events := transport.Events{Up: func() {}, Down: func(error) {}, Notify: func(transport.Notification) {}}
	soon := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	broken := errors.New("broken pipe")
	silent := func(context.Context, Message) error { return nil }
	for _, test := range []struct {
		name    string
		send    func(context.Context, Message) error // nil: no connection
		during  func(*Conn)                          // while the request waits
		want    error
		unknown bool
	}{
		{"no connection", nil, nil, transport.ErrNotSent, false},
		{"closed without a connection", nil, func(c *Conn) { _ = c.Close() }, transport.ErrClosed, false},
		{"no answer", silent, nil, context.DeadlineExceeded, true},
		{"a lost connection", silent, (*Conn).Disconnected, transport.ErrOutcomeUnknown, true},
		{"closed", silent, func(c *Conn) { _ = c.Close() }, transport.ErrClosed, true},
		{"a write that failed", func(context.Context, Message) error { return broken }, nil, broken, true},
		{"no store", func(context.Context, Message) error { return transport.ErrNoStore }, nil, transport.ErrNoStore, false},
		{"a refusal of the broker", func(context.Context, Message) error { return &transport.RejectedError{Code: 0x87} }, nil, transport.ErrNotAuthorized, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := NewConn("a")
			conn.Start(events)
			sent := make(chan struct{})
			if test.send != nil {
				conn.Connected(func(ctx context.Context, m Message) error {
					defer close(sent)
					return test.send(ctx, m)
				})
			} else {
				close(sent)
			}
			ctx := soon(t)
			if test.during != nil {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				go func() {
					await.Receive(sent)
					test.during(conn)
				}()
			}
			_, err := conn.RoundTrip(ctx, request)
			if !errors.Is(err, test.want) || errors.Is(err, transport.ErrOutcomeUnknown) != test.unknown {
				t.Errorf("%v; want %v, unknown %v", err, test.want, test.unknown)
			}
		})
	}
}

func TestARequestCarriesWhatTheStoreNeeds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := NewConn("a").message(ctx, transport.Request{
		Payload: []byte("payload"), Timestamp: "1:0:a", FencingToken: "2:0:b", Binding: transport.Binding{Store: "store"}, Persist: true,
	}, []byte("0123456789abcdef"))
	want := map[string]string{
		"__ts": "1:0:a", "__ft": "2:0:b", "tenure-store": "store", "aio-persistence": "true",
		"__srcId": "a", "__protVer": "1.0", "$partition": "a",
	}
	if !maps.Equal(m.Properties, want) || m.Expiry != 60 || string(m.Payload) != "payload" || m.Topic != invokeTopic {
		t.Errorf("%+v", m)
	}
	if m := NewConn("a").message(t.Context(), transport.Request{}, nil); len(m.Properties) != 3 || m.Expiry != 0 {
		t.Errorf("a request without properties: %+v", m)
	}
}

// A request that belongs to a connection does not leave over the next one.
func TestABoundRequestIsNotSentOverTheNextConnection(t *testing.T) {
	conn := NewConn("a")
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn.Connected(func(context.Context, Message) error { return nil })
	first := client.Lost()
	conn.Disconnected()
	conn.Connected(func(context.Context, Message) error {
		t.Error("it was sent")
		return nil
	})
	if _, err := conn.RoundTrip(t.Context(), transport.Request{Binding: transport.Binding{Connection: first}}); !errors.Is(err, transport.ErrNotSent) {
		t.Errorf("%v, want ErrNotSent", err)
	}
}
