package fencing_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A store that was restarted without its data has no fences, so it would accept any request of
// a tenure that the store before it granted. The guard's request is the first after the
// restart: the node cannot learn of the restart earlier.
func TestInvariant47NoGuardedRequestReachesAStoreThatDidNotGrantTheTenure(t *testing.T) {
	for _, identity := range []struct {
		name   string
		hidden bool
		want   error
	}{
		{"a store with an identity", false, lease.ErrStoreReplaced},
		{"a store without", true, lease.ErrDeleted},
	} {
		for _, method := range methods {
			t.Run(identity.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					store.HideIdentity(identity.hidden)
					n := newNode(t, store, "node-a")
					guard, tenure := n.lead(t)
					if _, err := guard.Claim(t.Context(), key); err != nil {
						t.Fatal(err)
					}
					if err := store.Restart(statestore.Options{}); err != nil {
						t.Fatal(err)
					}
					n.conn.Restore()
					if err := method.call(t.Context(), guard); err == nil || errors.Is(err, transport.ErrOutcomeUnknown) {
						t.Errorf("after the restart: %v", err)
					}
					if err := context.Cause(tenure.Context()); !errors.Is(err, identity.want) {
						t.Errorf("the tenure: %v, want %v", err, identity.want)
					}
					other := newNode(t, store, "other")
					if entry, err := other.Get(t.Context(), key); err != nil || entry.Exists {
						t.Errorf("the restarted store holds %+v, %v", entry, err)
					}
				})
			})
		}
	}
}

// A claim reads and then sets, and the store may be restarted in between.
func TestInvariant47AClaimSetsNothingInAStoreThatItDidNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		n := newNode(t, store, "node-a")
		guard, _ := n.lead(t)
		n.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if request.FencingToken == "" {
				return transporttest.Fault{}
			}
			time.AfterFunc(time.Millisecond, func() {
				_ = store.Restart(statestore.Options{})
				n.conn.Restore()
			})
			return transporttest.Fault{HoldRequest: 2 * time.Millisecond}
		})
		if _, err := guard.Claim(t.Context(), key); err == nil {
			t.Error("the claim succeeded")
		}
		other := newNode(t, store, "other")
		if entry, err := other.Get(t.Context(), key); err != nil || entry.Exists {
			t.Errorf("the restarted store holds %+v, %v", entry, err)
		}
	})
}

// The connection is lost between the read and the write of a claim, and the next one is up at
// once.
func TestAClaimIsRepeatedOverTheNextConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		store.HideIdentity(true)
		client, conn := store.Client(t, "node-a", transport.ClientOptions{})
		var armed atomic.Bool
		steady := lease.SystemClock
		l, err := lease.New(client, "press-7/active", lease.Options{TTL: ttl, Clock: func() time.Duration {
			if armed.Load() && isClaiming() && armed.Swap(false) {
				conn.Cut()
				conn.Restore()
			}
			return steady()
		}})
		if err != nil {
			t.Fatal(err)
		}
		guard, _ := node{Client: client, conn: conn, lease: l}.lead(t)
		armed.Store(true)
		if _, err := guard.Claim(t.Context(), key); err != nil {
			t.Errorf("Claim: %v", err)
		}
		if armed.Load() {
			t.Error("the connection was not cut")
		}
	})
}

// isClaiming reports whether a claim that has read its key is the caller.
func isClaiming() bool {
	var callers [8]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, ".claimOnce") {
			return true
		}
		if !more {
			return false
		}
	}
}

// The guard may have another client than the lease.
func TestInvariant47AGuardOfAnotherClientMeetsTheRestartToo(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			store.HideIdentity(hidden)
			n, other := newNode(t, store, "node-a"), newNode(t, store, "other")
			_, tenure := n.lead(t)
			guard := fencing.NewGuard(other.Client, tenure)
			if _, err := guard.Set(t.Context(), key, []byte("1")); err != nil {
				t.Fatal(err)
			}
			if err := store.Restart(statestore.Options{}); err != nil {
				t.Fatal(err)
			}
			other.conn.Restore() // the tenure's own connection is still cut
			if _, err := guard.Set(t.Context(), key, []byte("2")); err == nil {
				t.Errorf("identity hidden %v: the restarted store took a guarded write", hidden)
			}
			if context.Cause(tenure.Context()) == nil {
				t.Errorf("identity hidden %v: the tenure goes on", hidden)
			}
		})
	}
}

// The tenure's connection says nothing about another client's connection: the store may
// have been restarted before the tenure's own connection is known to be lost.
func TestInvariant47AGuardOfAnotherClientAsksThoughTheTenureEndsWithItsConnection(t *testing.T) {
	for name, options := range map[string]lease.Options{
		"EndOnDisconnect": {EndOnDisconnect: true},
		"InstantFailover": {InstantFailover: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				store.HideIdentity(true)
				n, other := newNode(t, store, "node-a"), newNode(t, store, "other")
				options.TTL = ttl
				l, err := lease.New(n.Client, "press-7/active", options)
				if err != nil {
					t.Fatal(err)
				}
				tenure, err := l.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				guard := fencing.NewGuard(other.Client, tenure)
				if _, err := guard.Claim(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				n.conn.Freeze()
				if err := store.Replace(statestore.Options{}); err != nil {
					t.Fatal(err)
				}
				other.conn.Cut()
				other.conn.Restore()
				if _, err := guard.Set(t.Context(), key, []byte("stale")); !errors.Is(err, lease.ErrDeleted) {
					t.Errorf("the first write after the restart: %v, want ErrDeleted", err)
				}
			})
		})
	}
}

// An attached store may be restarted while the connections to its broker last. If the store has
// no identity, only a request that met no store shows that.
func TestInvariant47ATenureIsConfirmedAfterARequestMetNoStore(t *testing.T) {
	for name, noWatch := range map[string]bool{"as usual": false, "without a watch": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				store.HideIdentity(true)
				n := newNode(t, store, "node-a")
				l, err := lease.New(n.Client, "press-7/active", lease.Options{TTL: ttl, NoWatch: noWatch})
				if err != nil {
					t.Fatal(err)
				}
				tenure, err := l.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := fencing.NewGuard(n.Client, tenure).Claim(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				n.conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} })
				time.Sleep(ttl / 2) // in which a renewal is due
				if err := store.Replace(statestore.Options{}); err != nil {
					t.Fatal(err)
				}
				n.conn.SetFault(nil)
				time.Sleep(ttl / 2)
				if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrDeleted) {
					t.Errorf("the tenure: %v, want ErrDeleted", err)
				}
			})
		})
	}
}

// The guard's client is connected to another store than the lease's.
func TestInvariant19ReleaseFreesTheLeaseThoughAGuardMetAnotherStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, other := newNode(t, transporttest.Start(t), "node-a"), newNode(t, transporttest.Start(t), "other")
		_, tenure := n.lead(t)
		if _, err := fencing.NewGuard(other.Client, tenure).Set(t.Context(), key, nil); !errors.Is(err, transport.ErrOtherStore) {
			t.Errorf("Set: %v, want ErrOtherStore", err)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		if entry, err := n.Get(t.Context(), tenure.Name()); err != nil || entry.Exists {
			t.Errorf("after Release the store holds %q, %v", entry.Value, err)
		}
	})
}

func TestATenureAndAClaimOutlastAMomentWithoutAStore(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			store.HideIdentity(hidden)
			n := newNode(t, store, "node-a")
			guard, tenure := n.lead(t)
			n.conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} })
			time.AfterFunc(ttl/2, func() { n.conn.SetFault(nil) })
			if _, err := guard.Claim(t.Context(), key); err != nil {
				t.Errorf("identity hidden %v: %v", hidden, err)
			}
			time.Sleep(3 * ttl)
			if err := context.Cause(tenure.Context()); err != nil {
				t.Errorf("identity hidden %v: the tenure ended: %v", hidden, err)
			}
		})
	}
}

// A lost connection is no reason to refuse a write.
func TestAGuardWritesOverTheNextConnectionOnceTheTenureIsConfirmed(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			store.HideIdentity(hidden)
			n := newNode(t, store, "node-a")
			guard, tenure := n.lead(t)
			n.conn.Cut()
			time.AfterFunc(ttl/10, n.conn.Restore)
			if _, err := guard.Set(t.Context(), key, []byte("1")); err != nil {
				t.Errorf("identity hidden %v: %v", hidden, err)
			}
			if err := context.Cause(tenure.Context()); err != nil {
				t.Errorf("identity hidden %v: the tenure ended: %v", hidden, err)
			}
		})
	}
}

func TestInvariant54TheKeyOfTheLeaseCannotBeGuarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, transporttest.Start(t), "node-a")
		guard, tenure := n.lead(t)
		for _, reserved := range []string{tenure.Name(), tenure.Name() + "/bid"} {
			_, set := guard.Set(t.Context(), reserved, nil)
			_, del := guard.Del(t.Context(), reserved)
			_, vdel := guard.VDel(t.Context(), reserved, nil)
			_, claim := guard.Claim(t.Context(), reserved)
			_, claimAll := guard.ClaimAll(t.Context(), key, reserved)
			_, update := guard.Update(t.Context(), reserved, func(transport.Entry) ([]byte, error) { return nil, nil })
			for name, err := range map[string]error{
				"Set": set, "Clear": guard.Clear(t.Context(), reserved), "Del": del, "VDel": vdel,
				"Claim": claim, "ClaimAll": claimAll, "Update": update,
			} {
				if !errors.Is(err, fencing.ErrLeaseKey) {
					t.Errorf("%s of %q: %v, want ErrLeaseKey", name, reserved, err)
				}
			}
			if _, err := guard.Get(t.Context(), reserved); err != nil {
				t.Errorf("Get of %q: %v", reserved, err)
			}
		}
		time.Sleep(3 * ttl)
		if err := context.Cause(tenure.Context()); err != nil {
			t.Errorf("the tenure ended: %v", err)
		}
	})
}

// The fence of a key is as durable as its value: a late write of the former leader is refused
// after a crash of the store as before, by each method that writes.
func TestInvariant13AFenceSurvivesACrashOfADurableStore(t *testing.T) {
	for _, method := range writingMethods() {
		t.Run(method.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var journal transporttest.Journal
				store := transporttest.StartDurable(t, &journal)
				former, present := newNode(t, store, "node-a"), newNode(t, store, "node-b")
				stale := stop(t, former.Client, time.Minute)
				guard, _ := present.lead(t)
				if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
					t.Fatal(err)
				}
				store.Crash(0)
				if err := store.Recover(); err != nil {
					t.Fatal(err)
				}
				former.conn.Restore()
				present.conn.Restore()
				if err := method.call(t.Context(), fencing.NewGuard(former.Client, stale.Tenure)); !errors.Is(err, fencing.ErrStaleToken) {
					t.Errorf("a late write: %v; want ErrStaleToken", err)
				}
				present.mustHold(t, key, "new")
				if _, err := guard.Set(t.Context(), key, []byte("newer")); err != nil {
					t.Errorf("the present leader: %v", err)
				}
			})
		})
	}
}
