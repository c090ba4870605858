package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
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
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
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

// count returns a counter of the requests from now on that are as they should be.
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

// countAll returns a counter of the requests from now on, but for those about watches:
// a tenure watches its own key.
func (n node) countAll() *atomic.Int64 {
	return n.count(func(request transport.Request) bool { return !bytes.Contains(request.Payload, []byte("KEYNOTIFY")) })
}

// countTokens returns a counter of the requests from now on that carry a token.
func (n node) countTokens() *atomic.Int64 {
	return n.count(func(request transport.Request) bool { return request.FencingToken != "" })
}

// usurped is a holding that still believes in itself although another has
// followed: the state of a process that was stopped between the check and the
// write. It ends when it is told.
type usurped struct {
	token hlc.Token
	end   atomic.Pointer[error]
}

// Context never ends: nobody told those who wait.
func (u *usurped) TokenContext() context.Context { return context.Background() }

func (u *usurped) Token() (hlc.Token, error) { return u.token, u.ended() }
func (u *usurped) Name() string              { return "lease" }
func (u *usurped) Remaining() time.Duration  { return time.Minute }
func (u *usurped) Bind(context.Context, *transport.Client) (transport.Binding, error) {
	return transport.Binding{}, nil
}
func (u *usurped) FencedOut(evidence error) { u.end.CompareAndSwap(nil, &evidence) }

// ended returns what ended it, or nil.
func (u *usurped) ended() error {
	if cause := u.end.Load(); cause != nil {
		return *cause
	}
	return nil
}

// inBubble runs a test in virtual time with two nodes, of which the second leads
// and the first did so before.
func inBubble(t *testing.T, test func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard)) {
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
		test(t, former, present, &usurped{token: token}, guard)
	})
}

type guardMethod struct {
	name   string
	writes bool // carries the token
	call   func(ctx context.Context, g *fencing.Guard) error
}

// methods are all that a guard can do.
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

func TestTheTableOfMethodsIsComplete(t *testing.T) {
	var listed, exist []string
	for _, method := range methods {
		listed = append(listed, method.name)
	}
	guard := reflect.TypeFor[*fencing.Guard]()
	for i := range guard.NumMethod() {
		if name := guard.Method(i).Name; name != "Kept" { // which is of the tests
			exist = append(exist, name)
		}
	}
	slices.Sort(listed)
	slices.Sort(exist)
	if !slices.Equal(listed, exist) {
		t.Errorf("listed %v, a guard has %v", listed, exist)
	}
}

func TestInvariants13And17AFormerLeadersWriteIsRefusedAndEndsItsTenure(t *testing.T) {
	for _, method := range methods {
		if !method.writes {
			continue
		}
		t.Run(method.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
				if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
					t.Fatal(err)
				}
				before, err := present.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				requests := former.countTokens()
				if err := method.call(t.Context(), fencing.NewGuard(former.Client, stale)); !errors.Is(err, fencing.ErrStaleToken) {
					t.Errorf("error %v, want ErrStaleToken", err)
				}
				if !errors.Is(stale.ended(), transport.ErrFencingTokenLower) {
					t.Errorf("the tenure was told %v, want the refusal", stale.ended())
				}
				if got := requests.Load(); got != 1 {
					t.Errorf("%d requests with a token, want 1: nothing is retried with another", got)
				}
				after, err := present.Get(t.Context(), key)
				if err != nil || string(after.Value) != "new" || after.Version != before.Version {
					t.Errorf("the refused write changed the key from %+v to %+v, %v", before, after, err)
				}
			})
		})
	}
}

// The token of a tenure that another store granted, or this one before it lost what
// it knew.
func TestInvariant17ATokenThatTheStoreCannotHaveIssuedEndsTheTenure(t *testing.T) {
	for _, refusal := range []struct {
		name  string
		ahead time.Duration
		want  error
	}{
		{"never issued", 30 * time.Second, transport.ErrFencingTokenNeverIssued},
		{"too far ahead", 2 * time.Minute, transport.ErrFencingTokenTooFarAhead},
	} {
		for _, method := range methods {
			if !method.writes {
				continue
			}
			t.Run(refusal.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, err := transporttest.NewStore(statestore.Options{Strict: true})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(store.Close)
					a := newNode(t, store, "node-a")
					foreign := &usurped{token: hlc.Token{Wall: time.Now().Add(refusal.ahead).UnixMilli(), Node: "elsewhere"}}
					requests := a.countTokens()
					if err := method.call(t.Context(), fencing.NewGuard(a.Client, foreign)); !errors.Is(err, refusal.want) {
						t.Errorf("error %v, want %v", err, refusal.want)
					}
					if !errors.Is(foreign.ended(), refusal.want) {
						t.Errorf("the tenure was told %v, want the refusal", foreign.ended())
					}
					if got := requests.Load(); got != 1 {
						t.Errorf("%d requests with a token, want 1: nothing is retried with another", got)
					}
				})
			})
		}
	}
}

// One request meets a newer token: the tenure is over, and with it what its other
// guards have under way or would begin.
func TestInvariant17ARefusedTokenEndsTheTenureEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		a, b := newNode(t, store, "node-a"), newNode(t, store, "node-b")
		guard, tenure := a.lead(t)
		next := fencing.NewGuard(b.Client, &usurped{token: hlc.Token{Wall: time.Now().UnixMilli() + 1000, Node: "z"}})
		if _, err := next.Claim(t.Context(), "press-7/claimed"); err != nil {
			t.Fatal(err)
		}
		var sent atomic.Int64
		a.conn.SetFault(func(request transport.Request) transporttest.Fault {
			sent.Add(1)
			return transporttest.Fault{LoseReply: !bytes.Contains(request.Payload, []byte("claimed"))}
		})
		other := fencing.NewGuard(a.Client, tenure)
		underWay := make(chan error)
		go func() { _, err := other.Set(t.Context(), key, nil); underWay <- err }()
		synctest.Wait()
		began := time.Now()
		_, err := guard.Set(t.Context(), "press-7/claimed", nil)
		if !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(tenure.Err(), lease.ErrFencedOut) || !errors.Is(tenure.Err(), fencing.ErrStaleToken) {
			t.Errorf("%v ended the tenure with %v", err, tenure.Err())
		}
		if err := await.Receive(underWay); !errors.Is(err, lease.ErrFencedOut) || !errors.Is(err, transport.ErrOutcomeUnknown) || time.Since(began) != 0 {
			t.Errorf("what was under way ended with %v after %v, want ErrFencedOut and ErrOutcomeUnknown at once", err, time.Since(began))
		}
		synctest.Wait() // the tenure has taken back the watch of its key
		sent.Store(0)
		for _, method := range methods {
			for _, guard := range []*fencing.Guard{guard, other} {
				if err := method.call(t.Context(), guard); !errors.Is(err, lease.ErrFencedOut) {
					t.Errorf("%s afterwards: %v, want ErrFencedOut", method.name, err)
				}
			}
		}
		time.Sleep(ttl)
		if got := sent.Load(); got != 0 {
			t.Errorf("%d requests were sent afterwards", got)
		}
	})
}

// forgetful is a connection on which tokens get lost.
type forgetful struct{ transport.Conn }

func (f forgetful) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	request.FencingToken = ""
	return f.Conn.RoundTrip(ctx, request)
}

func TestARefusalOfTheRequestAloneEndsNoTenure(t *testing.T) {
	for _, refusal := range []struct {
		name string
		want error
		make func(t *testing.T, store *transporttest.Store) *transport.Client
	}{
		{"the token got lost", transport.ErrFencingTokenRequired, func(t *testing.T, store *transporttest.Store) *transport.Client {
			client, err := transport.NewClient(forgetful{store.Connect("node-c")}, transport.ClientOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			return client
		}},
		{"not authorized", transport.ErrNotAuthorized, func(t *testing.T, store *transporttest.Store) *transport.Client {
			store.Authorize(func(client string, _ statestore.Verb, _ string) bool { return client != "node-c" })
			client, _ := store.Client(t, "node-c", transport.ClientOptions{})
			return client
		}},
	} {
		for _, method := range methods {
			if !method.writes {
				continue
			}
			t.Run(refusal.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					guard, tenure := newNode(t, store, "node-a").lead(t)
					if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
						t.Fatal(err)
					}
					token, err := tenure.Token()
					if err != nil {
						t.Fatal(err)
					}
					holding := &usurped{token: token}
					if err := method.call(t.Context(), fencing.NewGuard(refusal.make(t, store), holding)); !errors.Is(err, refusal.want) {
						t.Errorf("error %v, want %v", err, refusal.want)
					}
					if err := holding.ended(); err != nil {
						t.Errorf("it ended the tenure: %v", err)
					}
				})
			})
		}
	}
}

func TestInvariant14AProtectedKeyRefusesWritesWithoutAToken(t *testing.T) {
	inBubble(t, func(t *testing.T, former, _ node, _ *usurped, guard *fencing.Guard) {
		if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
			t.Fatal(err)
		}
		_, set := former.Set(t.Context(), key, []byte("x"), transport.SetOptions{})
		_, del := former.Del(t.Context(), key, transport.DelOptions{})
		_, vdel := former.VDel(t.Context(), key, []byte("new"), transport.DelOptions{})
		for name, err := range map[string]error{"SET": set, "DEL": del, "VDEL": vdel} {
			if !errors.Is(err, transport.ErrFencingTokenRequired) {
				t.Errorf("%s: %v, want ErrFencingTokenRequired", name, err)
			}
		}
	})
}

func TestAGuardWhoseTenureIsOverSendsNothing(t *testing.T) {
	for _, end := range []struct {
		name string
		end  func(*testing.T, *lease.Tenure)
		want error
	}{
		{"released", func(t *testing.T, tenure *lease.Tenure) { _ = tenure.Release(t.Context()) }, lease.ErrReleased},
		{"ran out", func(_ *testing.T, tenure *lease.Tenure) { tenure.StopRenewing(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
		{"fenced out", func(_ *testing.T, tenure *lease.Tenure) { tenure.FencedOut(errors.New("evidence")) }, lease.ErrFencedOut},
	} {
		for _, method := range methods {
			t.Run(end.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newNode(t, transporttest.Start(t), "node-a")
					guard, tenure := a.lead(t)
					if _, err := guard.Claim(t.Context(), key); err != nil { // an update then skips its claim
						t.Fatal(err)
					}
					end.end(t, tenure)
					synctest.Wait() // what the tenure itself had under way is over
					sent := a.countAll()
					if err := method.call(t.Context(), guard); !errors.Is(err, end.want) {
						t.Errorf("%v, want %v", err, end.want)
					}
					if got := sent.Load(); got != 0 {
						t.Errorf("%d requests were sent", got)
					}
				})
			})
		}
	}
}

func TestAHoldingWithoutATokenSendsNothing(t *testing.T) {
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newNode(t, transporttest.Start(t), "node-a")
				sent := a.countAll()
				if err := method.call(t.Context(), fencing.NewGuard(a.Client, &usurped{})); !errors.Is(err, fencing.ErrMissingToken) {
					t.Errorf("%v, want ErrMissingToken", err)
				}
				if got := sent.Load(); got != 0 {
					t.Errorf("%d requests were sent", got)
				}
			})
		})
	}
}

func TestInvariant21ARequestDoesNotOutlastItsTenure(t *testing.T) {
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, _ *usurped, guard *fencing.Guard) {
				present.conn.Cut()
				sent := present.countTokens()
				began := time.Now()
				err := method.call(t.Context(), guard)
				if !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrDeadlinePassed) {
					t.Errorf("error %v, want ErrNotSent or ErrDeadlinePassed", err)
				}
				if errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("error %v, but nothing was sent", err)
				}
				if waited := time.Since(began); waited > ttl {
					t.Errorf("it waited %v for a connection", waited)
				}
				present.conn.Restore()
				time.Sleep(ttl)
				if entry, err := former.Get(t.Context(), key); err != nil || entry.Exists || sent.Load() != 0 {
					t.Errorf("it was sent later: %+v, %v", entry, err)
				}
			})
		})
	}
}

// A request that waits for a connection would otherwise leave when that is back, after
// the release was given up.
func TestInvariant18NothingIsSentOnceTheTenureWasEnded(t *testing.T) {
	for _, method := range methods {
		for _, end := range []struct {
			name string
			at   time.Duration
		}{{"early", ttl / 4}, {"after the notice", ttl - 3*ttl/20}} {
			t.Run(method.name+", "+end.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newNode(t, transporttest.Start(t), "node-a")
					guard, tenure := a.lead(t)
					synctest.Wait() // the tenure has read its own key
					a.conn.Cut()
					sent := a.countAll()
					began := time.Now()
					time.AfterFunc(end.at, func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						defer cancel()
						if err := tenure.Release(ctx); err == nil {
							t.Error("released without a connection")
						}
						a.conn.Restore()
					})
					err := method.call(t.Context(), guard)
					if !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrReleased) || errors.Is(err, transport.ErrOutcomeUnknown) {
						t.Errorf("%v, want ErrNotSent or ErrReleased", err)
					}
					if waited := time.Since(began); waited != end.at {
						t.Errorf("it waited %v, want until the release", waited)
					}
					time.Sleep(ttl)
					if got := sent.Load(); got != 0 {
						t.Errorf("%d requests were sent", got)
					}
				})
			})
		}
	}
}

// Before the deadline a tenure may give notice. What the owner has to write then is
// still written.
func TestAGuardWritesUntilTheDeadline(t *testing.T) {
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _, present node, _ *usurped, _ *fencing.Guard) {
				l, err := lease.New(present.Client, "another", lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
				if err != nil {
					t.Fatal(err)
				}
				tenure, err := l.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tenure.StopRenewing()
				present.conn.SetFault(func(transport.Request) transporttest.Fault {
					return transporttest.Fault{HoldReply: 10 * time.Millisecond}
				})
				guard := fencing.NewGuard(present.Client, tenure)
				for range 2 {
					if err := method.call(t.Context(), guard); err != nil && !errors.Is(err, transport.ErrConditionFailed) {
						t.Errorf("%v, with %v left: %v", tenure.Err(), tenure.Remaining(), err)
					}
					await.Receive(tenure.Context().Done())
				}
			})
		})
	}
}

func TestGetReturnsWhatTheKeyHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ *usurped, guard *fencing.Guard) {
		if entry, err := guard.Get(t.Context(), key); err != nil || entry.Exists {
			t.Errorf("a missing key: %+v, %v", entry, err)
		}
		version, err := guard.Set(t.Context(), key, []byte("new"))
		if err != nil {
			t.Fatal(err)
		}
		if entry, err := guard.Get(t.Context(), key); err != nil || string(entry.Value) != "new" || entry.Version != version {
			t.Errorf("got %+v, %v; want new, version %v", entry, err, version)
		}
	})
}

// A guard says "held" only before the deadline, however long its answer took, and
// whatever the timers of this process believe.
func TestInvariant1WhatIsReadIsNotReturnedAfterTheTenure(t *testing.T) {
	for _, test := range []struct {
		method string
		end    time.Duration // each reply takes a second
		tokens int64         // how many requests may have carried one
	}{
		{"Get", 500 * time.Millisecond, 0},
		{"Claim", 500 * time.Millisecond, 0},
		{"Claim", 1500 * time.Millisecond, 1},
		{"ClaimAll", 1500 * time.Millisecond, 1},
		{"Update", 500 * time.Millisecond, 0},
		{"Update", 1500 * time.Millisecond, 1},
	} {
		t.Run(fmt.Sprintf("%s, %v", test.method, test.end), func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, _ node, stale *usurped, _ *fencing.Guard) {
				var tokens atomic.Int64
				former.conn.SetFault(func(request transport.Request) transporttest.Fault {
					if request.FencingToken != "" {
						tokens.Add(1)
					}
					return transporttest.Fault{HoldReply: time.Second}
				})
				// As after a suspend: the timers have a minute left, the clock has none.
				time.AfterFunc(test.end, func() { stale.FencedOut(lease.ErrDeadlinePassed) })
				i := slices.IndexFunc(methods, func(m guardMethod) bool { return m.name == test.method })
				if err := methods[i].call(t.Context(), fencing.NewGuard(former.Client, stale)); !errors.Is(err, lease.ErrDeadlinePassed) {
					t.Errorf("%v, want ErrDeadlinePassed", err)
				}
				if got := tokens.Load(); got != test.tokens {
					t.Errorf("%d requests carried the token, want %d", got, test.tokens)
				}
			})
		})
	}
}

func TestInvariant12WritersOfOneTenureDoNotFenceEachOtherOut(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ *usurped, guard *fencing.Guard) {
		failed := make(chan error, 20)
		for i := range 20 {
			go func() {
				var err error
				for range 20 {
					if _, e := guard.Set(t.Context(), key, []byte{byte(i)}); e != nil {
						err = e
					}
					time.Sleep(ttl / 7) // renewals come in between
				}
				failed <- err
			}()
		}
		for range 20 {
			if err := await.Receive(failed); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestClearKeepsTheFenceAndDelForgetsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
		late := func() error {
			_, err := former.Set(t.Context(), key, []byte("old"), transport.SetOptions{FencingToken: stale.token})
			return err
		}
		if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
			t.Fatal(err)
		}
		if err := guard.Clear(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		present.mustHold(t, key, "")
		if err := late(); !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("after Clear: %v, want ErrFencingTokenLower", err)
		}
		if deleted, err := guard.Del(t.Context(), key); err != nil || !deleted {
			t.Errorf("Del: %v, %v", deleted, err)
		}
		if deleted, err := guard.Del(t.Context(), key); err != nil || deleted {
			t.Errorf("Del of a missing key: %v, %v", deleted, err)
		}
		// Invariant 15: this is the hole of the default mode, as documented.
		if err := late(); err != nil {
			t.Errorf("after Del: %v; the documentation says that the fence is gone", err)
		}
		if _, err := guard.VDel(t.Context(), key, []byte("something else")); !errors.Is(err, transport.ErrConditionFailed) {
			t.Errorf("VDel of another value: %v, want ErrConditionFailed", err)
		}
	})
}
