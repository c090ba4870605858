package fencing_test

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	key       = "press-7/setpoint"
	leaseName = "press-7/active"
	ttl       = 2 * time.Second
)

func must[T any](t *testing.T, value T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// node is one process: its client and its connection.
type node struct {
	*transport.Client
	conn *transporttest.Conn
}

func newNode(t *testing.T, store *transporttest.Store, id string) node {
	t.Helper()
	client, conn := store.Client(t, id, transport.ClientOptions{})
	return node{client, conn}
}

// leadWith acquires a lease and returns a guard on it.
func leadWith(t *testing.T, client *transport.Client, name string, options lease.Options) (*fencing.Guard, *lease.Tenure) {
	t.Helper()
	if options.TTL == 0 {
		options.TTL = ttl
	}
	l, err := lease.New(client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	tenure, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fencing.NewGuard(client, tenure), tenure
}

func (n node) lead(t *testing.T) (*fencing.Guard, *lease.Tenure) {
	t.Helper()
	return leadWith(t, n.Client, leaseName, lease.Options{})
}

func mustSet(t *testing.T, g *fencing.Guard, key, value string) hlc.Timestamp {
	t.Helper()
	version, err := g.Set(t.Context(), key, []byte(value))
	return must(t, version, err)
}

func (n node) mustHold(t *testing.T, key, want string) {
	t.Helper()
	entry, err := n.Get(t.Context(), key)
	if err != nil || !entry.Exists || string(entry.Value) != want {
		t.Errorf("%q holds %q (exists %v), %v; want %q", key, entry.Value, entry.Exists, err, want)
	}
}

func (n node) mustLack(t *testing.T, key string) {
	t.Helper()
	if entry, err := n.Get(t.Context(), key); err != nil || entry.Exists {
		t.Errorf("the store holds %+v, %v", entry, err)
	}
}

// mustLast checks that a tenure has not ended.
func mustLast(t *testing.T, tenure *lease.Tenure) {
	t.Helper()
	if err := context.Cause(tenure.Context()); err != nil {
		t.Errorf("the tenure has ended: %v", err)
	}
}

func mustRestart(t *testing.T, store *transporttest.Store, back node) {
	t.Helper()
	if err := store.Restart(statestore.Options{}); err != nil {
		t.Fatal(err)
	}
	back.conn.Restore()
}

// count returns a counter of the requests from now on for which these returns true, watches apart: a tenure
// watches its own key.
func (n node) count(these func(transporttest.Request) bool) *atomic.Int64 {
	counter := new(atomic.Int64)
	n.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
		if these(request) && !bytes.Contains(request.Payload, []byte("KEYNOTIFY")) {
			counter.Add(1)
		}
		return transporttest.Fault{}
	})
	return counter
}

func anyRequest(transporttest.Request) bool { return true }

// carriesToken reports whether a request carries a token.
func carriesToken(request transporttest.Request) bool { return request.FencingToken != "" }

// stoppedClock is the clock of a process that stands still.
type stoppedClock struct {
	now   atomic.Int64
	pause atomic.Int64 // how long the process stands still after it has read the clock
}

func (c *stoppedClock) read() time.Duration {
	now := time.Duration(c.now.Load())
	time.Sleep(time.Duration(c.pause.Load()))
	return now
}

// staleTenure is a tenure that goes on although a later one may have followed: its process was stopped
// between the check and the write. Its goroutines do not learn that its time is over.
type staleTenure struct {
	*lease.Tenure
	guard *fencing.Guard
	clock *stoppedClock
	token hlc.Token
}

// stop acquires the lease for so long, for a process that is then stopped, and frees the key for the next holder.
func stop(t *testing.T, client *transport.Client, lasts time.Duration) staleTenure {
	t.Helper()
	clock := new(stoppedClock)
	guard, tenure := leadWith(t, client, leaseName, lease.Options{TTL: lasts, Clock: clock.read, NoWatch: true})
	tenure.StopRenewing()
	token, err := tenure.Token()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Del(t.Context(), leaseName, transport.DelOptions{}); err != nil {
		t.Fatal(err)
	}
	return staleTenure{tenure, guard, clock, token}
}

// altered is a connection that changes requests and replies.
type altered struct {
	storeconn.Conn
	request func(ctx context.Context, request *transporttest.Request)
	reply   func(reply *transporttest.Reply)
}

func (a altered) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	if a.request != nil {
		a.request(ctx, &request)
	}
	reply, err := a.Conn.RoundTrip(ctx, request)
	if a.reply != nil {
		a.reply(&reply)
	}
	return reply, err
}

func (a altered) client(t *testing.T) *transport.Client {
	t.Helper()
	client, err := transport.NewClient(a, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// withStore runs a test in virtual time, with a store and a node.
func withStore(t *testing.T, test func(t *testing.T, store *transporttest.Store, n node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		test(t, store, newNode(t, store, "node-a"))
	})
}

// inBubble runs a test in virtual time with two nodes: the second leads, and the first led
// before.
func inBubble(t *testing.T, test func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard)) {
	t.Helper()
	withStore(t, func(t *testing.T, store *transporttest.Store, former node) {
		present := newNode(t, store, "node-b")
		stale := stop(t, former.Client, time.Minute)
		guard, _ := present.lead(t)
		test(t, former, present, stale, guard)
	})
}

type guardMethod struct {
	name   string
	writes bool // carries the token
	call   func(ctx context.Context, g *fencing.Guard) error
}

// methods are all methods of a guard.
var methods = []guardMethod{
	{"Get", false, func(ctx context.Context, g *fencing.Guard) error { _, err := g.Get(ctx, key); return err }},
	{"Set", true, func(ctx context.Context, g *fencing.Guard) error {
		_, err := g.Set(ctx, key, []byte("old"))
		return err
	}},
	{"Del", true, func(ctx context.Context, g *fencing.Guard) error { _, err := g.Del(ctx, key); return err }},
	{"VDel", true, func(ctx context.Context, g *fencing.Guard) error {
		_, err := g.VDel(ctx, key, []byte("new"))
		return err
	}},
	{"Claim", true, func(ctx context.Context, g *fencing.Guard) error { _, err := g.Claim(ctx, key); return err }},
	{"ClaimAll", true, func(ctx context.Context, g *fencing.Guard) error { _, err := g.ClaimAll(ctx, key); return err }},
	{"Update", true, func(ctx context.Context, g *fencing.Guard) error {
		_, err := g.Update(ctx, key, func(transport.Entry) ([]byte, error) { return []byte("old"), nil })
		return err
	}},
}

// methodOf returns the method of a name.
func methodOf(name string) guardMethod {
	return methods[slices.IndexFunc(methods, func(m guardMethod) bool { return m.name == name })]
}

func eachMethod(t *testing.T, test func(t *testing.T, method guardMethod)) {
	t.Helper()
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) { test(t, method) })
	}
}

// eachWritingMethod is eachMethod for the methods that send the token.
func eachWritingMethod(t *testing.T, test func(t *testing.T, method guardMethod)) {
	t.Helper()
	eachMethod(t, func(t *testing.T, method guardMethod) {
		if method.writes {
			test(t, method)
		}
	})
}
