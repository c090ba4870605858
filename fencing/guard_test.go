package fencing_test

import (
	"context"
	"errors"
	"fmt"
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

func TestInvariant14AProtectedKeyRefusesWritesWithoutAToken(t *testing.T) {
	inBubble(t, func(t *testing.T, former, _ node, _ staleTenure, guard *fencing.Guard) {
		version := mustSet(t, guard, key, "new")
		_, set := former.Set(t.Context(), key, []byte("x"), transport.SetOptions{})
		_, del := former.Del(t.Context(), key, transport.DelOptions{})
		_, vdel := former.VDel(t.Context(), key, []byte("new"), transport.DelOptions{})
		for name, err := range map[string]error{"SET": set, "DEL": del, "VDEL": vdel} {
			if !errors.Is(err, transport.ErrFencingTokenRequired) {
				t.Errorf("%s: %v, want ErrFencingTokenRequired", name, err)
			}
		}
		if entry, err := guard.Get(t.Context(), key); err != nil || string(entry.Value) != "new" || entry.Version != version {
			t.Errorf("got %+v, %v; want new, version %v", entry, err, version)
		}
	})
}

func TestInvariant15AnEmptyValueKeepsTheFenceAndDelDropsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		late := func() error {
			_, err := former.Set(t.Context(), key, []byte("old"), transport.SetOptions{FencingToken: stale.token})
			return err
		}
		mustSet(t, guard, key, "new")
		mustSet(t, guard, key, "")
		present.mustHold(t, key, "")
		if err := late(); !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("after it was cleared: %v, want ErrFencingTokenLower", err)
		}
		for _, there := range []bool{true, false} {
			if deleted, err := guard.Del(t.Context(), key); err != nil || deleted != there {
				t.Errorf("Del: %v, %v, want %v", deleted, err, there)
			}
		}
		// Invariant 15: this is the documented hole of the default mode.
		if err := late(); err != nil {
			t.Errorf("after Del: %v; the documentation says that the fence is gone", err)
		}
		if _, err := guard.VDel(t.Context(), key, []byte("something else")); !errors.Is(err, transport.ErrConditionFailed) {
			t.Errorf("VDel of another value: %v, want ErrConditionFailed", err)
		}
	})
}

func TestAGuardWhoseTenureIsOverSendsNothing(t *testing.T) {
	for want, end := range map[error]func(*testing.T, *lease.Tenure){
		lease.ErrReleased:       func(t *testing.T, tenure *lease.Tenure) { _ = tenure.Release(t.Context()) },
		lease.ErrDeadlinePassed: func(_ *testing.T, tenure *lease.Tenure) { tenure.StopRenewing(); time.Sleep(ttl) },
		lease.ErrFencedOut:      func(_ *testing.T, tenure *lease.Tenure) { tenure.FencedOut(errors.New("evidence")) },
	} {
		eachMethod(t, func(t *testing.T, method guardMethod) {
			withStore(t, func(t *testing.T, _ *transporttest.Store, n node) {
				guard, tenure := n.lead(t)
				must(t, 0, methodOf("Claim").call(t.Context(), guard)) // an update then skips its claim
				end(t, tenure)
				synctest.Wait() // the requests of the tenure itself are over
				sent := n.count(anyRequest)
				if err := method.call(t.Context(), guard); !errors.Is(err, want) || sent.Load() != 0 {
					t.Errorf("%v after %d requests, want %v", err, sent.Load(), want)
				}
			})
		})
	}
}

func TestATenureWithoutATokenSendsNothing(t *testing.T) {
	eachMethod(t, func(t *testing.T, method guardMethod) {
		synctest.Test(t, func(t *testing.T) {
			var sent atomic.Int64
			client := altered{
				Conn:    transporttest.Start(t).Connect("node-a"),
				request: func(context.Context, *transporttest.Request) { sent.Add(1) },
				reply:   func(reply *transporttest.Reply) { reply.Timestamp = "" },
			}.client(t)
			stale := stop(t, client, time.Minute)
			sent.Store(0)
			if err := method.call(t.Context(), stale.guard); !errors.Is(err, fencing.ErrMissingToken) || sent.Load() != 0 {
				t.Errorf("%v after %d requests, want ErrMissingToken", err, sent.Load())
			}
		})
	})
}

func TestInvariant21ARequestDoesNotOutlastItsTenure(t *testing.T) {
	eachMethod(t, func(t *testing.T, method guardMethod) {
		inBubble(t, func(t *testing.T, former, present node, _ staleTenure, guard *fencing.Guard) {
			present.conn.Cut()
			sent := present.count(carriesToken)
			began := time.Now()
			err := method.call(t.Context(), guard)
			if !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrDeadlinePassed) || errors.Is(err, transport.ErrOutcomeUnknown) {
				t.Errorf("error %v, want ErrNotSent or ErrDeadlinePassed", err)
			}
			if waited := time.Since(began); waited > ttl {
				t.Errorf("it waited %v for a connection", waited)
			}
			present.conn.Restore()
			time.Sleep(ttl)
			former.mustLack(t, key)
			if sent.Load() != 0 {
				t.Error("it was sent later")
			}
		})
	})
}

// A broker may keep a request for longer than the lease of its sender lasts. A process may stand still
// after it has asked how long that is: then the request lasts for what is left.
func TestInvariant21ARequestUnderATokenExpiresWithTheTenure(t *testing.T) {
	for _, pause := range []time.Duration{0, 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			var longest time.Duration
			client := altered{Conn: transporttest.Start(t).Connect("node-a"), request: func(ctx context.Context, request *transporttest.Request) {
				if carriesToken(*request) { // over MQTT the deadline becomes the message expiry
					deadline, _ := ctx.Deadline()
					longest = max(longest, time.Until(deadline))
				}
			}}.client(t)
			stale := stop(t, client, ttl)
			left := stale.Remaining() - 2*pause // as the guard asks, and as the tenure binds the request
			stale.clock.pause.Store(int64(pause))
			for _, method := range methods {
				_ = method.call(t.Context(), stale.guard) // some find nothing to delete
			}
			stale.clock.pause.Store(0)
			if longest == 0 || longest > left {
				t.Errorf("requests lasted for up to %v, and the tenure for %v", longest, left)
			}
		})
	}
}

// Otherwise a request that waits for a connection would leave with the next connection, after
// the release timed out.
func TestInvariant18NothingIsSentOnceTheTenureWasEnded(t *testing.T) {
	for _, end := range []struct {
		hidden bool // the store has no identity: the guard asks it first
		at     time.Duration
	}{{false, ttl / 4}, {true, ttl / 4}, {false, ttl - 3*ttl/20}} { // early; after the notice
		eachMethod(t, func(t *testing.T, method guardMethod) {
			withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
				store.HideIdentity(end.hidden)
				guard, tenure := n.lead(t)
				synctest.Wait() // the tenure has read its own key
				n.conn.Cut()
				sent := n.count(anyRequest)
				began := time.Now()
				time.AfterFunc(end.at, func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					defer cancel()
					if err := tenure.Release(ctx); err == nil {
						t.Error("released without a connection")
					}
					n.conn.Restore()
				})
				err := method.call(t.Context(), guard)
				if !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrReleased) || errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("%v, want ErrNotSent or ErrReleased", err)
				}
				if waited := time.Since(began); waited != end.at {
					t.Errorf("it waited %v, want until the release after %v", waited, end.at)
				}
				time.Sleep(ttl)
				if got := sent.Load(); got != 0 {
					t.Errorf("%d requests were sent", got)
				}
			})
		})
	}
}

// A tenure may announce its end before the deadline. In the time until then the guard still
// writes.
func TestAGuardWritesUntilTheDeadline(t *testing.T) {
	eachMethod(t, func(t *testing.T, method guardMethod) {
		withStore(t, func(t *testing.T, _ *transporttest.Store, n node) {
			guard, tenure := n.lead(t)
			tenure.StopRenewing()
			n.conn.SetFault(func(transporttest.Request) transporttest.Fault {
				return transporttest.Fault{HoldReply: 10 * time.Millisecond}
			})
			for range 2 {
				if err := method.call(t.Context(), guard); err != nil && !errors.Is(err, transport.ErrConditionFailed) {
					t.Errorf("%v, with %v left: %v", context.Cause(tenure.Context()), tenure.Remaining(), err)
				}
				await.Receive(tenure.Context().Done())
			}
		})
	})
}

// A guard returns a result only before the deadline, even if the reply took long and the timers
// of this process are late.
func TestInvariant1WhatIsReadIsNotReturnedAfterTheTenure(t *testing.T) {
	for _, test := range []struct {
		method string
		end    time.Duration // each reply takes a second
		tokens int64         // how many requests may have carried one
	}{
		{"Get", time.Second / 2, 0}, {"Claim", time.Second / 2, 0}, {"Update", time.Second / 2, 0},
		{"Claim", 3 * time.Second / 2, 1}, {"ClaimAll", 3 * time.Second / 2, 1}, {"Update", 3 * time.Second / 2, 1},
	} {
		inBubble(t, func(t *testing.T, former, _ node, stale staleTenure, _ *fencing.Guard) {
			var tokens atomic.Int64
			former.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
				if carriesToken(request) {
					tokens.Add(1)
				}
				return transporttest.Fault{HoldReply: time.Second}
			})
			// As after a suspend: the deadline has passed, but the timers are late.
			time.AfterFunc(test.end, func() { stale.clock.now.Add(int64(time.Minute)) })
			err := methodOf(test.method).call(t.Context(), stale.guard)
			if !errors.Is(err, lease.ErrDeadlinePassed) || tokens.Load() != test.tokens {
				t.Errorf("%s: %v after %d requests with the token; want ErrDeadlinePassed after %d", test.method, err, tokens.Load(), test.tokens)
			}
		})
	}
}

func TestInvariants13And17AFormerLeadersWriteIsRefusedAndEndsItsTenure(t *testing.T) {
	eachWritingMethod(t, func(t *testing.T, method guardMethod) {
		inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
			version := mustSet(t, guard, key, "new")
			requests := former.count(carriesToken)
			err := method.call(t.Context(), stale.guard)
			if cause := context.Cause(stale.Context()); !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(cause, transport.ErrFencingTokenLower) {
				t.Errorf("error %v, and the tenure ended with %v; want ErrStaleToken", err, cause)
			}
			if got := requests.Load(); got != 1 {
				t.Errorf("%d requests with a token, want 1: nothing is retried with another", got)
			}
			if after, err := present.Get(t.Context(), key); err != nil || string(after.Value) != "new" || after.Version != version {
				t.Errorf("the refused write changed the key to %+v, %v", after, err)
			}
		})
	})
}

// The tenure was granted by another store, or by this store before it lost its data.
func TestInvariant17ATokenThatTheStoreCannotHaveIssuedEndsTheTenure(t *testing.T) {
	for want, ahead := range map[error]time.Duration{
		transport.ErrFencingTokenNeverIssued: 30 * time.Second, transport.ErrFencingTokenTooFarAhead: 2 * time.Minute,
	} {
		eachWritingMethod(t, func(t *testing.T, method guardMethod) {
			synctest.Test(t, func(t *testing.T) {
				store, err := transporttest.NewStore(statestore.Options{Strict: true})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(store.Close)
				requests := 0
				token := hlc.Token{Wall: time.Now().Add(ahead).UnixMilli(), Node: "elsewhere"}
				client := altered{Conn: store.Connect("node-a"), request: func(_ context.Context, request *transporttest.Request) {
					if carriesToken(*request) {
						request.FencingToken = token.String()
						requests++
					}
				}}.client(t)
				foreign := stop(t, client, time.Minute)
				err = method.call(t.Context(), foreign.guard)
				if cause := context.Cause(foreign.Context()); !errors.Is(err, want) || !errors.Is(cause, want) || requests != 1 {
					t.Errorf("error %v, the tenure ended with %v, after %d requests; want %v after one", err, cause, requests, want)
				}
			})
		})
	}
}

func TestARefusalOfTheRequestAloneEndsNoTenure(t *testing.T) {
	for want, connect := range map[error]func(t *testing.T, store *transporttest.Store) *transport.Client{
		transport.ErrFencingTokenRequired: func(t *testing.T, store *transporttest.Store) *transport.Client { // the token got lost
			return altered{Conn: store.Connect("node-c"), request: func(_ context.Context, request *transporttest.Request) { request.FencingToken = "" }}.client(t)
		},
		transport.ErrNotAuthorized: func(t *testing.T, store *transporttest.Store) *transport.Client {
			store.Authorize(func(client string, _ statestore.Verb, _ string) bool { return client != "node-c" })
			return newNode(t, store, "node-c").Client
		},
	} {
		eachWritingMethod(t, func(t *testing.T, method guardMethod) {
			withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
				guard, tenure := n.lead(t)
				mustSet(t, guard, key, "new")
				if err := method.call(t.Context(), fencing.NewGuard(connect(t, store), tenure)); !errors.Is(err, want) {
					t.Errorf("error %v, want %v", err, want)
				}
				mustLast(t, tenure)
			})
		})
	}
}

func TestRefusalsAreTracedByTheLease(t *testing.T) {
	withStore(t, func(t *testing.T, _ *transporttest.Store, n node) {
		type caller struct{}
		var got []string
		trace := lease.Options{Trace: &lease.Trace{Refused: func(ctx context.Context, info lease.TraceInfo) {
			got = append(got, fmt.Sprint(ctx.Value(caller{}), " ", info.Lease, " ", info.Operation, " ", info.Key, " ", info.Local, " ",
				errors.Is(info.Err, fencing.ErrStaleToken), errors.Is(info.Err, lease.ErrFencedOut)))
		}}}
		ctx := context.WithValue(t.Context(), caller{}, "caller")
		stale, _ := leadWith(t, n.Client, "one", trace)
		present, _ := leadWith(t, n.Client, "two", trace)
		mustSet(t, present, "k", "")
		if _, err := present.Set(ctx, "two", nil); !errors.Is(err, fencing.ErrLeaseKey) { // wrong, and not stale
			t.Fatal(err)
		}
		_, _ = stale.Set(ctx, "k", nil)
		_, _ = stale.Get(ctx, "k")
		_, _ = stale.Claim(ctx, "j")
		_, _ = stale.Update(ctx, "k", func(transport.Entry) ([]byte, error) { return nil, nil })
		synctest.Wait()
		want := []string{"caller one set k false true false", "caller one get k true true true",
			"caller one claim j true true true", "caller one update k true true true"}
		if !slices.Equal(got, want) {
			t.Errorf("traced\n%q, want\n%q", got, want)
		}
	})
}

// A store that was restarted without its data has no fences, so it would accept any request of
// a tenure that the store before it granted. The guard's request is the first after the
// restart: the node cannot learn of the restart earlier. The guard may have another client than the lease.
func TestInvariant47NoGuardedRequestReachesAStoreThatDidNotGrantTheTenure(t *testing.T) {
	for _, test := range []struct {
		hidden, another bool
		want            error
	}{{false, false, lease.ErrStoreReplaced}, {true, false, lease.ErrDeleted}, {false, true, lease.ErrStoreReplaced}, {true, true, lease.ErrDeleted}} {
		eachMethod(t, func(t *testing.T, method guardMethod) {
			withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
				store.HideIdentity(test.hidden)
				_, tenure := n.lead(t)
				through := n
				if test.another {
					through = newNode(t, store, "through")
				}
				guard := fencing.NewGuard(through.Client, tenure)
				must(t, 0, methodOf("Claim").call(t.Context(), guard))
				mustRestart(t, store, through)
				if err := method.call(t.Context(), guard); err == nil || errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("after the restart: %v", err)
				}
				if err := context.Cause(tenure.Context()); !errors.Is(err, test.want) {
					t.Errorf("the tenure: %v, want %v", err, test.want)
				}
				newNode(t, store, "other").mustLack(t, key)
			})
		})
	}
}

// The tenure's connection says nothing about another client's connection: the store may
// have been restarted before the tenure's own connection is known to be lost.
func TestInvariant47AGuardOfAnotherClientAsksThoughTheTenureEndsWithItsConnection(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
		store.HideIdentity(true)
		other := newNode(t, store, "other")
		_, tenure := leadWith(t, n.Client, leaseName, lease.Options{EndOnDisconnect: true})
		guard := fencing.NewGuard(other.Client, tenure)
		must(t, 0, methodOf("Claim").call(t.Context(), guard))
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
}

// An attached store may be restarted while the connections to its broker last. If the store has
// no identity, only a request that met no store shows that.
func TestInvariant47ATenureIsConfirmedAfterARequestMetNoStore(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
		store.HideIdentity(true)
		guard, tenure := leadWith(t, n.Client, leaseName, lease.Options{NoWatch: true})
		must(t, 0, methodOf("Claim").call(t.Context(), guard))
		n.conn.SetFault(func(transporttest.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} })
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
}

// Neither a lost connection nor a moment without a store is a reason to refuse a write.
func TestAGuardGoesOnOverTheNextConnectionOnceTheTenureIsConfirmed(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		for method, cut := range map[string]bool{"Claim": false, "Set": true} {
			withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
				store.HideIdentity(hidden)
				guard, tenure := n.lead(t)
				if cut {
					n.conn.Cut()
					time.AfterFunc(ttl/10, n.conn.Restore)
				} else {
					n.conn.SetFault(func(transporttest.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} })
					time.AfterFunc(ttl/2, func() { n.conn.SetFault(nil) })
				}
				if err := methodOf(method).call(t.Context(), guard); err != nil {
					t.Errorf("identity hidden %v: %s: %v", hidden, method, err)
				}
				time.Sleep(3 * ttl)
				mustLast(t, tenure)
			})
		}
	}
}

func TestInvariant54TheKeyOfTheLeaseCannotBeGuarded(t *testing.T) {
	withStore(t, func(t *testing.T, _ *transporttest.Store, n node) {
		guard, tenure := n.lead(t)
		for _, reserved := range []string{leaseName, leaseName + "/bid"} {
			_, set := guard.Set(t.Context(), reserved, nil)
			_, del := guard.Del(t.Context(), reserved)
			_, vdel := guard.VDel(t.Context(), reserved, nil)
			_, claim := guard.Claim(t.Context(), reserved)
			_, claimAll := guard.ClaimAll(t.Context(), key, reserved)
			_, update := guard.Update(t.Context(), reserved, increment)
			for _, err := range []error{set, del, vdel, claim, claimAll, update} {
				if !errors.Is(err, fencing.ErrLeaseKey) {
					t.Errorf("%v, want ErrLeaseKey", err)
				}
			}
			if _, err := guard.Get(t.Context(), reserved); err != nil {
				t.Errorf("Get of %q: %v", reserved, err)
			}
		}
		time.Sleep(3 * ttl)
		mustLast(t, tenure)
	})
}
