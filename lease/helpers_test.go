package lease_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	name = "press-7/active"
	ttl  = 2 * time.Second
)

// node is one process with a lease of its own.
type node struct {
	*lease.Lease
	client *transport.Client
	conn   *transporttest.Conn
}

// newNode returns a node with tenures that run on virtual time. Call it in a bubble.
func newNode(t *testing.T, store *transporttest.Store, id string, options lease.Options) node {
	t.Helper()
	client, conn := store.Client(t, id, transport.ClientOptions{})
	if options.TTL == 0 {
		options.TTL = ttl
	}
	l, err := lease.New(client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	return node{Lease: l, client: client, conn: conn}
}

func (n node) mustAcquire(t *testing.T) *lease.Tenure {
	t.Helper()
	tenure, err := n.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// inBubble runs a test in virtual time, with a store.
func inBubble(t *testing.T, test func(t *testing.T, store *transporttest.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, transporttest.Start(t)) })
}

// scripted makes decide choose the fault of each request with the verb from now on, by its
// number, from 1. The function that it returns counts them.
func (n node) scripted(verb string, decide func(number int64) transporttest.Fault) (count func() int64) {
	var number atomic.Int64
	n.conn.SetFault(func(request transport.Request) transporttest.Fault {
		if !strings.Contains(string(request.Payload), "\r\n"+verb+"\r\n") {
			return transporttest.Fault{}
		}
		return decide(number.Add(1))
	})
	return number.Load
}

// always and harmless are arguments of scripted.

func always(fault transporttest.Fault) func(int64) transporttest.Fault {
	return func(int64) transporttest.Fault { return fault }
}

var harmless = always(transporttest.Fault{})

// skewed is a clock on virtual time that can jump, as after a suspend: no timer has fired
// and no goroutine has run.
type skewed struct{ by atomic.Int64 }

func (s *skewed) jump(by time.Duration) { s.by.Add(int64(by)) }

func (s *skewed) clock() func() time.Duration {
	steady := lease.SystemClock
	return func() time.Duration { return steady() + time.Duration(s.by.Load()) }
}

// acquireInBackground starts an Acquire and returns the channel that gets its tenure.
func acquireInBackground(ctx context.Context, t *testing.T, n node) <-chan *lease.Tenure {
	t.Helper()
	acquired := make(chan *lease.Tenure, 1)
	go func() {
		tenure, err := n.Acquire(ctx)
		if err != nil {
			t.Errorf("%s: %v", n.client.ClientID(), err)
		}
		acquired <- tenure
	}()
	return acquired
}

// allButWatches allows all commands but KEYNOTIFY.
func allButWatches(_ string, verb statestore.Verb, _ string) bool {
	return verb != statestore.VerbKeyNotify
}

func mustToken(t *testing.T, tenure *lease.Tenure) hlc.Token {
	t.Helper()
	token, err := tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// failingConn is a connection with requests that can fail with any error.
type failingConn struct {
	*transporttest.Conn

	mu    sync.Mutex
	fail  func(transport.Request) error // nil: requests reach the store
	asked int                           // requests since fail was set, watches apart
}

func (c *failingConn) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	c.mu.Lock()
	fail := c.fail
	if fail != nil && !strings.Contains(string(request.Payload), "KEYNOTIFY") {
		c.asked++
	}
	c.mu.Unlock()
	if fail != nil {
		if err := fail(request); err != nil {
			return transport.Reply{}, err
		}
	}
	return c.Conn.RoundTrip(ctx, request)
}

func (c *failingConn) set(fail func(transport.Request) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail, c.asked = fail, 0
}

func (c *failingConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func failing(err error) func(transport.Request) error {
	return func(transport.Request) error { return err }
}

func refusal(sentinel error) error { return &transport.RefusedError{Text: sentinel.Error()} }

// waitingCauses collects what Options.OnWaiting gets.
type waitingCauses struct {
	mu     sync.Mutex
	causes []error
}

func (w *waitingCauses) hear(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.causes = append(w.causes, cause)
}

func (w *waitingCauses) all() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.causes
}

func newFailing(t *testing.T, store *transporttest.Store, id string, options lease.Options) (*lease.Lease, *transport.Client, *failingConn) {
	t.Helper()
	conn := &failingConn{Conn: store.Connect(id)}
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	options.TTL = ttl
	l, err := lease.New(client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	return l, client, conn
}

// awaitEnd waits until the context of a tenure has ended.
func awaitEnd(t *testing.T, tenure *lease.Tenure) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
	defer cancel()
	select {
	case <-tenure.Context().Done():
	case <-ctx.Done():
		t.Fatal("the tenure goes on")
	}
}

// stalling is a connection on which nothing arrives for a while, and then everything does, as
// TCP does after lost packets. Its Probe does what the Probe of the MQTT connection does.
type stalling struct {
	*transporttest.Conn
	until atomic.Int64
}

func (s *stalling) stalls() time.Duration { return time.Until(time.Unix(0, s.until.Load())) }

func (s *stalling) Probe(within time.Duration) {
	within = max(within, 100*time.Millisecond)
	time.AfterFunc(within, func() {
		if s.stalls() > 0 {
			s.Cut()
			time.AfterFunc(50*time.Millisecond, s.Restore)
		}
	})
}

// forger is a connection that also delivers forged notifications.
type forger struct {
	*transporttest.Conn
	events transport.Events
}

func (f *forger) Start(events transport.Events) {
	f.events = events
	f.Conn.Start(events)
}

// forge delivers a notification about the lease.
func (f *forger) forge(words ...string) {
	f.events.Notify(transport.Notification{
		Key:       name,
		Payload:   resp3.AppendCommand(nil, append([]string{"NOTIFY"}, words...)...),
		Timestamp: hlc.Timestamp{Wall: time.Now().UnixMilli(), Node: "forger"}.String(),
	})
}

// counted counts the requests with either verb from now on.
func (n node) counted(a, b string) (countA, countB func() int64) {
	var numberA, numberB atomic.Int64
	n.conn.SetFault(func(request transport.Request) transporttest.Fault {
		for verb, number := range map[string]*atomic.Int64{a: &numberA, b: &numberB} {
			if strings.Contains(string(request.Payload), "\r\n"+verb+"\r\n") {
				number.Add(1)
			}
		}
		return transporttest.Fault{}
	})
	return numberA.Load, numberB.Load
}

// hangRenewal returns when the tenure has sent a renewal. The renewal reaches the store when
// send is closed.
func hangRenewal(n node) (send chan<- struct{}) {
	sending, hold := make(chan struct{}), make(chan struct{})
	n.scripted("SET", func(number int64) transporttest.Fault {
		if number == 1 {
			close(sending)
			await.Receive(hold)
		}
		return transporttest.Fault{}
	})
	await.Receive(sending)
	return hold
}

// silenceConn is a Conn to a broker that declares a connection dead after some silence.
type silenceConn struct {
	*transporttest.Conn
	silence time.Duration
	err     error
}

func (c silenceConn) SetWill(ctx context.Context, will transport.Request) (<-chan struct{}, time.Duration, error) {
	lost, _, err := c.Conn.SetWill(ctx, will)
	return lost, c.silence, errors.Join(err, c.err)
}

// wallClock is the wall clock of a machine, which can be stepped.
type wallClock struct{ off atomic.Int64 }

func (w *wallClock) set(off time.Duration) { w.off.Store(int64(off)) }

func (w *wallClock) now() time.Time { return time.Now().Add(time.Duration(w.off.Load())) }
