package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

var record = flag.String("record", "", "the file to which TestALeaseGoesOnAfterEachOfTenFaults writes its history")

// recordedTTL is the TTL of the recorded lease. The replay knows it, too.
const recordedTTL = 2 * time.Second

// moment is one line of a history: what a holder did, sent, got or heard, and when, on its own clock.
type moment struct {
	Holder string
	At     int64 // in microseconds
	What   string
	Call   int    `json:",omitempty"` // of a request, and of its answer
	Value  string `json:",omitempty"` // of the attempt; got, read and heard: what the key holds
	Store  string `json:",omitempty"` // that the request is bound to; got, read and heard: that answered
	Result string `json:",omitempty"` // got: +OK, the refusal, unknown or not sent; ended: the cause
	// Version is the version in the answer or in the notification.
	Version string `json:",omitempty"`
}

// recorder collects a history.
type recorder struct {
	began time.Time

	mu      sync.Mutex
	moments []moment
	short   map[string]string // for values and identities, which are long
}

func (r *recorder) now() time.Duration { return time.Since(r.began) }

func (r *recorder) note(m moment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.At == 0 {
		m.At = r.now().Microseconds()
	}
	for _, text := range []*string{&m.Value, &m.Store} {
		if long := *text; len(long) > 8 {
			if r.short[long] == "" {
				holder, _, _ := strings.Cut(long, ":")
				r.short[long] = fmt.Sprintf("%.1s%d", holder, len(r.short))
			}
			*text = r.short[long]
		}
	}
	r.moments = append(r.moments, m)
}

// recorded is a Conn that notes the urgent requests, which are those of leases, with their answers, and what a watch hears.
type recorded struct {
	*Conn
	recorder *recorder
	name     string
	mu       sync.Mutex
	calls    int
}

func (c *recorded) Start(events transport.Events) {
	notify := events.Notify
	events.Notify = func(n transport.Notification) {
		words, _ := resp3.DecodeArray(nil, n.Payload)
		m := moment{Holder: c.name, What: "heard", Store: n.Store}
		if len(words) == 4 {
			m.Value, m.Version = string(words[3]), n.Timestamp
		}
		c.recorder.note(m) // before the client hears of it
		notify(n)
	}
	c.Conn.Start(events)
}

func (c *recorded) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	words, err := resp3.DecodeArray(nil, request.Payload)
	if err != nil {
		return transport.Reply{}, err
	}
	if !request.Binding.Urgent { // of a watch
		reply, err := c.Conn.RoundTrip(ctx, request)
		if value, read := bulk(reply.Payload); err == nil && read {
			c.recorder.note(moment{Holder: c.name, What: "read", Store: reply.Store, Value: value, Version: reply.Timestamp})
		} else if err == nil {
			c.recorder.note(moment{Holder: c.name, What: "watches", Store: reply.Store})
		}
		return reply, err
	}
	c.mu.Lock()
	c.calls++
	m := moment{Holder: c.name, What: string(words[0]), Call: c.calls, Store: request.Binding.Store}
	c.mu.Unlock()
	if len(words) > 2 {
		m.Value = string(words[2])
	}
	c.recorder.note(m)
	reply, err := c.Conn.RoundTrip(ctx, request)
	got := moment{Holder: c.name, What: "got", Call: m.Call, Store: reply.Store, Version: reply.Timestamp, Result: strings.TrimSpace(string(reply.Payload))}
	switch value, read := bulk(reply.Payload); {
	case errors.Is(err, transport.ErrOutcomeUnknown):
		got.Result = "unknown"
	case err != nil:
		got.Result = "not sent"
	case read:
		got.Result, got.Value = "value", value
	}
	c.recorder.note(got)
	return reply, err
}

// bulk returns the text of an answer to a GET; read says that it is one.
func bulk(payload []byte) (text string, read bool) {
	text = string(payload)
	_, value, _ := strings.Cut(text, "\r\n")
	return strings.TrimSuffix(value, "\r\n"), strings.HasPrefix(text, "$")
}

// gateway is a process that acquires the lease, and holds it until it is told to release it.
type gateway struct {
	release, runOut chan struct{}
	stop            func()
}

func (r *recorder) start(t *testing.T, s *servertest.Server, name string) *gateway {
	conn := &recorded{Conn: NewConn(name), recorder: r, name: name}
	r.note(moment{Holder: name, What: "starts"})
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own := &connection{address: strings.TrimPrefix(s.URL, "mqtt://"), clientID: name, conn: conn.Conn, logger: slog.New(slog.DiscardHandler)}
	note := func(what, result string) { r.note(moment{Holder: name, What: what, Result: result}) }
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: recordedTTL, Clock: r.now, Trace: &lease.Trace{
		Acquired: func(context.Context, lease.TraceInfo) { note("acquired", "") },
		Ended:    func(info lease.TraceInfo) { note("ended", lease.CauseText(info.Err)) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &gateway{release: make(chan struct{}), runOut: make(chan struct{})}
	var tasks sync.WaitGroup
	tasks.Go(func() { own.run(ctx) })
	tasks.Go(func() {
		for ctx.Err() == nil {
			note("acquires", "")
			if tenure, err := l.Acquire(ctx); err == nil {
				r.hold(ctx, g, name, tenure, note)
			}
		}
	})
	g.stop = sync.OnceFunc(func() { // like a crash: nothing is freed
		note("crashes", "")
		_ = client.Close()
		cancel()
		await.Done(tasks.Wait)
	})
	t.Cleanup(g.stop)
	return g
}

func (r *recorder) hold(ctx context.Context, g *gateway, name string, tenure *lease.Tenure, note func(what, result string)) {
	for looks := time.NewTicker(recordedTTL / 8); ; {
		select {
		case <-looks.C:
			asked := r.now().Microseconds()
			if _, err := tenure.Token(); err == nil {
				r.note(moment{Holder: name, At: asked, What: "has the token"})
			} else {
				note("has no token", "")
			}
			continue
		case <-g.runOut:
			note("stops renewing", "")
			tenure.StopRenewing()
			continue
		case <-g.release:
		case <-tenure.Context().Done():
			note("has to stop", "")
			await.Receive(tenure.TokenContext().Done())
		case <-ctx.Done():
			return
		}
		looks.Stop()
		note("releases", "")
		_ = tenure.Release(ctx)
		return
	}
}

// Its history is testdata of package lease, which replays it: see lease/replay_test.go.
//
//	LONG_TESTS=1 go test ./examples/ownconnection -run TestALeaseGoesOn -record "$PWD/lease/testdata/history.json"
func TestALeaseGoesOnAfterEachOfTenFaults(t *testing.T) {
	prerequisite.Long(t, "it takes half a minute")
	s := servertest.NewWithOptions(t, servertest.Options{Journal: new(transporttest.Journal)})
	r := &recorder{began: time.Now(), short: make(map[string]string)}
	gateways := map[string]*gateway{}
	for _, name := range []string{"a", "b", "c"} {
		gateways[name] = r.start(t, s, name)
	}
	holder := func() *gateway { // waits until there is one
		name := ""
		await.Until(func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, m := range r.moments {
				switch m.What {
				case "acquired":
					name = m.Holder
				case "ended":
					if name == m.Holder {
						name = ""
					}
				}
			}
			return name != ""
		})
		return gateways[name]
	}
	pass := time.Sleep
	for _, fault := range []func(){
		func() { holder().release <- struct{}{} },
		s.Cut,
		func() { s.Freeze(); pass(recordedTTL / 4); s.Thaw() },
		func() { s.Crash(); pass(recordedTTL / 8); s.Restart() },
		func() {
			h := holder()
			for name, g := range gateways {
				if g == h {
					g.stop()
					gateways[name] = r.start(t, s, name)
				}
			}
		},
		func() { holder().runOut <- struct{}{} },
		func() { s.Freeze(); pass(recordedTTL * 5 / 4); s.Thaw() },
		func() {
			_, err := s.Client(t, "operator").Del(t.Context(), "press-7/active", transport.DelOptions{})
			must(t, err)
		},
		s.RestartWithoutData,
		func() { pass(recordedTTL) },
	} {
		holder()
		pass(recordedTTL * 3 / 4)
		fault()
	}
	holder()
	for _, g := range gateways {
		g.stop()
	}
	if *record == "" {
		return
	}
	lines := make([]string, len(r.moments))
	for i, m := range r.moments {
		line, err := json.Marshal(m)
		must(t, err)
		lines[i] = string(line)
	}
	must(t, os.WriteFile(*record, fmt.Appendf(nil, "[%s]\n", strings.Join(lines, ",\n")), 0o644))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
