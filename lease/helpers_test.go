package lease_test

import (
	"bytes"
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
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	name         = "press-7/active"
	ttl          = 2 * time.Second
	acquireDelay = ttl / 4
)

// node is one process with a lease of its own.
type node struct {
	*lease.Lease
	client *transport.Client
	conn   *transporttest.Conn // nil: a connection of the test
}

// newNode returns a node with tenures that run on virtual time. Call it in a bubble.
func newNode(t *testing.T, store *transporttest.Store, id string, options lease.Options) node {
	t.Helper()
	return nodeOn(t, store.Connect(id), transport.ClientOptions{}, options)
}

func nodeOn(t *testing.T, conn storeconn.Conn, clientOptions transport.ClientOptions, options lease.Options) node {
	t.Helper()
	client, err := transport.NewClient(conn, clientOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	n := node{client: client}
	n.Lease = n.another(t, name, options)
	n.conn, _ = conn.(*transporttest.Conn)
	return n
}

// another returns a lease with another name on the client of n.
func (n node) another(t *testing.T, name string, options lease.Options) *lease.Lease {
	t.Helper()
	if options.TTL == 0 {
		options.TTL = ttl
	}
	l, err := lease.New(n.client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// twoNodes returns two nodes with the same options.
func twoNodes(t *testing.T, store *transporttest.Store, options lease.Options) (a, b node) {
	t.Helper()
	return newNode(t, store, "node-a", options), newNode(t, store, "node-b", options)
}

func (n node) mustAcquire(t *testing.T) *lease.Tenure {
	t.Helper()
	tenure, err := n.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// knowsStore makes the client know its store: its first request is bound to none, and is sent again.
func (n node) knowsStore(t *testing.T) {
	t.Helper()
	if _, err := n.client.Get(t.Context(), "any"); err != nil {
		t.Fatal(err)
	}
}

func mustTryAcquire(t *testing.T, l *lease.Lease) *lease.Tenure {
	t.Helper()
	tenure, err := l.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

func mustRelease(t *testing.T, tenure *lease.Tenure) {
	t.Helper()
	if err := tenure.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func mustBeFree(t *testing.T, n node) {
	t.Helper()
	if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
		t.Errorf("the holder is %+v, %v; want none", holder, err)
	}
}

func mustToken(t *testing.T, tenure *lease.Tenure) hlc.Token {
	t.Helper()
	token, err := tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// mustBeOver checks that a tenure gives no token, and has ended with this cause.
func mustBeOver(t *testing.T, tenure *lease.Tenure, want error) {
	t.Helper()
	_, err := tenure.Token()
	if cause := context.Cause(tenure.Context()); !errors.Is(cause, want) || !errors.Is(err, want) {
		t.Errorf("the tenure ended with %v, and Token returned %v; want %v", cause, err, want)
	}
}

// inBubble runs a test in virtual time, with a store.
func inBubble(t *testing.T, test func(t *testing.T, store *transporttest.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, transporttest.Start(t)) })
}

func hasVerb(request transporttest.Request, verb string) bool {
	return bytes.Contains(request.Payload, []byte("\r\n"+verb+"\r\n"))
}

// scripted makes decide choose the fault of each request with the verb from now on, by its
// number, from 1. The function that it returns counts them.
func (n node) scripted(verb string, decide func(number int64) transporttest.Fault) (count func() int64) {
	var number atomic.Int64
	n.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
		if !hasVerb(request, verb) {
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

// counted counts requests from now on, by their verb.
func (n node) counted() (count func(verb string) int64) {
	var numbers sync.Map
	number := func(verb string) *atomic.Int64 {
		counter, _ := numbers.LoadOrStore(verb, new(atomic.Int64))
		return counter.(*atomic.Int64)
	}
	n.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
		number(strings.Split(string(request.Payload), "\r\n")[2]).Add(1)
		return transporttest.Fault{}
	})
	return func(verb string) int64 { return number(verb).Load() }
}

// forgeDeletion delivers a notification that the lease was deleted.
func (n node) forgeDeletion() {
	n.conn.Forge(transporttest.Notification{Key: name, Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"), Timestamp: "1:0:StateStore"})
}

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
		if err != nil && ctx.Err() == nil {
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

// failingConn is a connection with requests that can fail with any error.
type failingConn struct {
	*transporttest.Conn

	mu    sync.Mutex
	err   error // nil: requests reach the store
	asked int   // requests since err was set, watches apart
}

func (c *failingConn) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	c.mu.Lock()
	err := c.err
	if err != nil && !hasVerb(request, "KEYNOTIFY") {
		c.asked++
	}
	c.mu.Unlock()
	if err != nil {
		return transporttest.Reply{}, err
	}
	return c.Conn.RoundTrip(ctx, request)
}

func (c *failingConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.asked = err, 0
}

func (c *failingConn) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

func refusal(sentinel error) error { return &transport.RefusedError{Text: sentinel.Error()} }

func newFailing(t *testing.T, store *transporttest.Store, id string, options lease.Options) (node, *failingConn) {
	t.Helper()
	conn := &failingConn{Conn: store.Connect(id)}
	n := nodeOn(t, conn, transport.ClientOptions{}, options)
	n.conn = conn.Conn
	return n, conn
}

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
