package fencing_test

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	key = "press-7/setpoint"
	ttl = 2 * time.Second
)

// node is one process: its client, its connection, and the lease it campaigns for.
type node struct {
	*transport.Client
	conn  *transporttest.Conn
	lease *lease.Lease
}

func newNode(t *testing.T, store *transporttest.Store, id string) node {
	t.Helper()
	client, conn := store.Client(t, id, transport.ClientOptions{})
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return node{Client: client, conn: conn, lease: l}
}

// lead acquires the lease and returns a guard on it.
func (n node) lead(t *testing.T) (*fencing.Guard, *lease.Tenure) {
	t.Helper()
	tenure, err := n.lease.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fencing.NewGuard(n.Client, tenure), tenure
}

func (n node) mustHold(t *testing.T, key, want string) {
	t.Helper()
	entry, err := n.Get(t.Context(), key)
	if err != nil || !entry.Exists || string(entry.Value) != want {
		t.Errorf("%q holds %q (exists %v), %v; want %q", key, entry.Value, entry.Exists, err, want)
	}
}

// count returns a counter of the requests from now on for which these returns true.
func (n node) count(these func(transport.Request) bool) *atomic.Int64 {
	counter := new(atomic.Int64)
	n.conn.SetFault(func(request transport.Request) transporttest.Fault {
		if these(request) {
			counter.Add(1)
		}
		return transporttest.Fault{}
	})
	return counter
}

// countAll returns a counter of the requests from now on, except those about watches: a tenure
// watches its own key.
func (n node) countAll() *atomic.Int64 {
	return n.count(func(request transport.Request) bool { return !bytes.Contains(request.Payload, []byte("KEYNOTIFY")) })
}

// countTokens returns a counter of the requests from now on that carry a token.
func (n node) countTokens() *atomic.Int64 {
	return n.count(func(request transport.Request) bool { return request.FencingToken != "" })
}

// fakeTenure is a tenure that goes on although a later one may have followed: the state of a
// process that was stopped between the check and the write. It ends with FencedOut.
type fakeTenure struct {
	token hlc.Token
	left  time.Duration // what Remaining returns; zero: a minute
	pause time.Duration // how long the process stands still after Remaining has looked
	end   atomic.Pointer[error]
}

var (
	_ fencing.Tenure = (*fakeTenure)(nil)
	_ fencing.Tenure = (*lease.Tenure)(nil)
)

// TokenContext never ends: goroutines that wait do not learn that the tenure is over.
func (f *fakeTenure) TokenContext() context.Context { return context.Background() }

func (f *fakeTenure) Token() (hlc.Token, error) { return f.token, f.ended() }
func (f *fakeTenure) Name() string              { return "lease" }
func (f *fakeTenure) FencedOut(evidence error)  { f.end.CompareAndSwap(nil, &evidence) }
func (f *fakeTenure) Remaining() time.Duration {
	time.Sleep(f.pause)
	return cmp.Or(f.left, time.Minute)
}

func (f *fakeTenure) Bind(context.Context, *transport.Client) (transport.Binding, error) {
	return transport.Binding{}, nil
}

// ended returns what ended the tenure, or nil.
func (f *fakeTenure) ended() error {
	if cause := f.end.Load(); cause != nil {
		return *cause
	}
	return nil
}

// inBubble runs a test in virtual time with two nodes: the second leads, and the first led
// before.
func inBubble(t *testing.T, test func(t *testing.T, former, present node, stale *fakeTenure, guard *fencing.Guard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		former, present := newNode(t, store, "node-a"), newNode(t, store, "node-b")
		_, tenure := former.lead(t)
		token, err := tenure.Token()
		if err != nil {
			t.Fatal(err)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		guard, _ := present.lead(t)
		test(t, former, present, &fakeTenure{token: token}, guard)
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
	{"Clear", true, func(ctx context.Context, g *fencing.Guard) error { return g.Clear(ctx, key) }},
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

// writingMethods are the methods that send the token.
func writingMethods() []guardMethod {
	return slices.DeleteFunc(slices.Clone(methods), func(m guardMethod) bool { return !m.writes })
}
