package fencing_test

import (
	"errors"
	"fmt"
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

// usurped is a holding that still believes in itself although another has
// followed: the state of a process that was stopped between the check and the
// write.
type usurped struct {
	token hlc.Timestamp
	ended atomic.Bool
}

func (u *usurped) Token() (hlc.Timestamp, error) { return u.token, nil }
func (u *usurped) Remaining() time.Duration      { return time.Minute }
func (u *usurped) FencedOut(error)               { u.ended.Store(true) }

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

func TestInvariants13And17AFormerLeadersWriteIsRefusedAndEndsItsTenure(t *testing.T) {
	for _, test := range []struct {
		name  string
		write func(t *testing.T, guard *fencing.Guard) error
	}{
		{"set", func(t *testing.T, g *fencing.Guard) error {
			_, err := g.Set(t.Context(), key, []byte("old"))
			return err
		}},
		{"clear", func(t *testing.T, g *fencing.Guard) error { return g.Clear(t.Context(), key) }},
		{"delete", func(t *testing.T, g *fencing.Guard) error { _, err := g.Del(t.Context(), key); return err }},
		{"delete by value", func(t *testing.T, g *fencing.Guard) error {
			_, err := g.VDel(t.Context(), key, []byte("new"))
			return err
		}},
		{"claim", func(t *testing.T, g *fencing.Guard) error { _, err := g.Claim(t.Context(), key); return err }},
		{"claim of many", func(t *testing.T, g *fencing.Guard) error { _, err := g.ClaimAll(t.Context(), key); return err }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
				if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
					t.Fatal(err)
				}
				before, err := present.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				var requests atomic.Int64
				former.conn.SetFault(func(request transport.Request) transporttest.Fault {
					if request.FencingToken != "" {
						requests.Add(1)
					}
					return transporttest.Fault{}
				})
				if err := test.write(t, fencing.NewGuard(former.Client, stale)); !errors.Is(err, transport.ErrFencingTokenLower) {
					t.Errorf("error %v, want ErrFencingTokenLower", err)
				}
				if !stale.ended.Load() {
					t.Error("the tenure did not learn that it is over")
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
	inBubble(t, func(t *testing.T, _, present node, _ *usurped, _ *fencing.Guard) {
		for _, test := range []struct {
			name string
			end  func(*lease.Tenure)
			want error
		}{
			{"released", func(tenure *lease.Tenure) { _ = tenure.Release(t.Context()) }, lease.ErrReleased},
			{"ran out", func(tenure *lease.Tenure) { tenure.StopRenewing(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
			{"fenced out", func(tenure *lease.Tenure) { tenure.FencedOut(errors.New("evidence")) }, lease.ErrFencedOut},
		} {
			other, err := lease.New(present.Client, "another/"+test.name, lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := other.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			guard := fencing.NewGuard(present.Client, tenure)
			test.end(tenure)
			var sent atomic.Int64
			present.conn.SetFault(func(request transport.Request) transporttest.Fault {
				if request.FencingToken != "" {
					sent.Add(1)
				}
				return transporttest.Fault{}
			})
			if _, err := guard.Set(t.Context(), key, nil); !errors.Is(err, test.want) {
				t.Errorf("%s: %v, want %v", test.name, err, test.want)
			}
			if got := sent.Load(); got != 0 {
				t.Errorf("%s: %d requests were sent", test.name, got)
			}
		}
	})
}

func TestAWriteDoesNotOutlastItsTenure(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, _ *usurped, guard *fencing.Guard) {
		present.conn.Cut()
		began := time.Now()
		_, err := guard.Set(t.Context(), key, []byte("late"))
		if !errors.Is(err, transport.ErrNotSent) {
			t.Errorf("error %v, want ErrNotSent", err)
		}
		if waited := time.Since(began); waited > ttl {
			t.Errorf("the write waited %v for a connection", waited)
		}
		present.conn.Restore()
		time.Sleep(ttl)
		if entry, err := former.Get(t.Context(), key); err != nil || entry.Exists {
			t.Errorf("the write was sent later: %+v, %v", entry, err)
		}
	})
}

func TestClaimKeepsTheValueAndShutsOutAWriteThatIsOnItsWay(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
		if _, err := fencing.NewGuard(former.Client, stale).Set(t.Context(), key, []byte("41")); err != nil {
			t.Fatal(err)
		}
		// A write of the former leader leaves now and arrives in a minute.
		former.conn.SetFault(func(transport.Request) transporttest.Fault {
			return transporttest.Fault{HoldRequest: time.Minute}
		})
		if _, err := former.Set(t.Context(), key, []byte("13"), transport.SetOptions{FencingToken: stale.token}); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Fatalf("the write on its way: %v, want ErrOutcomeUnknown", err)
		}
		entry, err := guard.Claim(t.Context(), key)
		if err != nil || string(entry.Value) != "41" || !entry.Exists {
			t.Fatalf("claimed %+v, %v; want the value 41", entry, err)
		}
		time.Sleep(2 * time.Minute)
		present.mustHold(t, key, "41")
		if after, err := present.Get(t.Context(), key); err != nil || after.Version != entry.Version {
			t.Errorf("what was claimed changed: %v, then %v (%v)", entry.Version, after.Version, err)
		}
	})
}

func TestClaimOfAMissingKeyCreatesItEmptyAndProtected(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
		entry, err := guard.Claim(t.Context(), key)
		if err != nil || !entry.Exists || len(entry.Value) != 0 || entry.Version.IsZero() {
			t.Fatalf("claimed %+v, %v", entry, err)
		}
		if _, err := fencing.NewGuard(former.Client, stale).Set(t.Context(), key, []byte("old")); !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("a former leader's write: %v, want ErrFencingTokenLower", err)
		}
		present.mustHold(t, key, "")
	})
}

func TestClaimRepeatsItselfWhileOthersChangeTheKey(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
		// Each of the first claims finds the value changed between its GET and
		// its SET by the former leader.
		var left atomic.Int64
		left.Store(3)
		present.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if request.FencingToken != "" && left.Add(-1) >= 0 {
				value := fmt.Appendf(nil, "change %d", left.Load())
				if _, err := former.Set(t.Context(), key, value, transport.SetOptions{FencingToken: stale.token}); err != nil {
					t.Error(err)
				}
			}
			return transporttest.Fault{}
		})
		entry, err := guard.Claim(t.Context(), key)
		if err != nil || string(entry.Value) != "change 0" {
			t.Errorf("claimed %q, %v; want the last change", entry.Value, err)
		}
	})
}

func TestClaimIsRepeatedWhenARequestGetsNoAnswer(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault transporttest.Fault
	}{
		{"the request is lost", transporttest.Fault{LoseRequest: true}},
		{"the reply is lost", transporttest.Fault{LoseReply: true}},
	} {
		for _, lost := range []int64{1, 2} { // the GET, the SET
			t.Run(fmt.Sprintf("%s, number %d", test.name, lost), func(t *testing.T) {
				inBubble(t, func(t *testing.T, former, present node, stale *usurped, guard *fencing.Guard) {
					if _, err := fencing.NewGuard(former.Client, stale).Set(t.Context(), key, []byte("41")); err != nil {
						t.Fatal(err)
					}
					var number atomic.Int64
					present.conn.SetFault(func(transport.Request) transporttest.Fault {
						if number.Add(1) == lost {
							return test.fault
						}
						return transporttest.Fault{}
					})
					began := time.Now()
					if entry, err := guard.Claim(t.Context(), key); err != nil || string(entry.Value) != "41" {
						t.Errorf("claimed %q, %v", entry.Value, err)
					}
					if took := time.Since(began); took > ttl/2 {
						t.Errorf("it took %v of a TTL of %v", took, ttl)
					}
				})
			})
		}
	}
}

func TestClaimEndsWithItsTenure(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ *usurped, guard *fencing.Guard) {
		present.conn.Cut()
		if _, err := guard.Claim(t.Context(), key); !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("without a connection: %v", err)
		}
		if _, err := guard.Claim(t.Context(), key); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("after the tenure: %v, want ErrDeadlinePassed", err)
		}
	})
}

func TestClaimAllProtectsEveryKey(t *testing.T) {
	inBubble(t, func(t *testing.T, former, _ node, stale *usurped, guard *fencing.Guard) {
		var keys []string
		for i := range 50 {
			keys = append(keys, fmt.Sprintf("press-7/%d", i))
		}
		if _, err := guard.ClaimAll(t.Context(), keys...); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if _, err := former.Set(t.Context(), key, nil, transport.SetOptions{FencingToken: stale.token}); !errors.Is(err, transport.ErrFencingTokenLower) {
				t.Errorf("%s: %v, want ErrFencingTokenLower", key, err)
			}
		}
	})
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
			if err := <-failed; err != nil {
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
