package fencing_test

import (
	"bytes"
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

func TestInvariants13And17AFormerLeadersWriteIsRefusedAndEndsItsTenure(t *testing.T) {
	for _, method := range writingMethods() {
		t.Run(method.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
				if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
					t.Fatal(err)
				}
				before, err := present.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				requests := former.countTokens()
				if err := method.call(t.Context(), fencing.NewGuard(former.Client, stale.Tenure)); !errors.Is(err, fencing.ErrStaleToken) {
					t.Errorf("error %v, want ErrStaleToken", err)
				}
				if !errors.Is(context.Cause(stale.Context()), transport.ErrFencingTokenLower) {
					t.Errorf("the tenure ended with %v, want the refusal", context.Cause(stale.Context()))
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

// The tenure was granted by another store, or by this store before it lost its data.
func TestInvariant17ATokenThatTheStoreCannotHaveIssuedEndsTheTenure(t *testing.T) {
	for _, refusal := range []struct {
		name  string
		ahead time.Duration
		want  error
	}{
		{"never issued", 30 * time.Second, transport.ErrFencingTokenNeverIssued},
		{"too far ahead", 2 * time.Minute, transport.ErrFencingTokenTooFarAhead},
	} {
		for _, method := range writingMethods() {
			t.Run(refusal.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, err := transporttest.NewStore(statestore.Options{Strict: true})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(store.Close)
					requests := 0
					token := hlc.Token{Wall: time.Now().Add(refusal.ahead).UnixMilli(), Node: "elsewhere"}
					client := altered{Conn: store.Connect("node-a"), request: func(_ context.Context, request *transport.Request) {
						if request.FencingToken != "" {
							request.FencingToken = token.String()
							requests++
						}
					}}.client(t)
					foreign := stop(t, client, time.Minute)
					if err := method.call(t.Context(), fencing.NewGuard(client, foreign.Tenure)); !errors.Is(err, refusal.want) {
						t.Errorf("error %v, want %v", err, refusal.want)
					}
					if !errors.Is(context.Cause(foreign.Context()), refusal.want) {
						t.Errorf("the tenure ended with %v, want the refusal", context.Cause(foreign.Context()))
					}
					if requests != 1 {
						t.Errorf("%d requests with a token, want 1: nothing is retried with another", requests)
					}
				})
			})
		}
	}
}

// One request meets a newer token: that ends the tenure, and cancels the requests of its other
// guards.
func TestInvariant17ARefusedTokenEndsTheTenureEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		a, b := newNode(t, store, "node-a"), newNode(t, store, "node-b")
		guard, tenure := a.lead(t)
		if _, err := leadLater(t, b.Client).Claim(t.Context(), "press-7/claimed"); err != nil {
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
		if !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(context.Cause(tenure.Context()), lease.ErrFencedOut) || !errors.Is(context.Cause(tenure.Context()), fencing.ErrStaleToken) {
			t.Errorf("%v ended the tenure with %v", err, context.Cause(tenure.Context()))
		}
		if err := await.Receive(underWay); !errors.Is(err, lease.ErrFencedOut) || !errors.Is(err, transport.ErrOutcomeUnknown) || time.Since(began) != 0 {
			t.Errorf("what was under way ended with %v after %v, want ErrFencedOut and ErrOutcomeUnknown at once", err, time.Since(began))
		}
		synctest.Wait() // the tenure has ended the watch of its key
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

func TestARefusalOfTheRequestAloneEndsNoTenure(t *testing.T) {
	for _, refusal := range []struct {
		name string
		want error
		make func(t *testing.T, store *transporttest.Store) *transport.Client
	}{
		{"the token got lost", transport.ErrFencingTokenRequired, func(t *testing.T, store *transporttest.Store) *transport.Client {
			return altered{Conn: store.Connect("node-c"), request: func(_ context.Context, request *transport.Request) { request.FencingToken = "" }}.client(t)
		}},
		{"not authorized", transport.ErrNotAuthorized, func(t *testing.T, store *transporttest.Store) *transport.Client {
			store.Authorize(func(client string, _ statestore.Verb, _ string) bool { return client != "node-c" })
			client, _ := store.Client(t, "node-c", transport.ClientOptions{})
			return client
		}},
	} {
		for _, method := range writingMethods() {
			t.Run(refusal.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					guard, tenure := newNode(t, store, "node-a").lead(t)
					if _, err := guard.Set(t.Context(), key, []byte("new")); err != nil {
						t.Fatal(err)
					}
					if err := method.call(t.Context(), fencing.NewGuard(refusal.make(t, store), tenure)); !errors.Is(err, refusal.want) {
						t.Errorf("error %v, want %v", err, refusal.want)
					}
					if err := context.Cause(tenure.Context()); err != nil {
						t.Errorf("it ended the tenure: %v", err)
					}
				})
			})
		}
	}
}

func TestRefusalsAreTracedByTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		var got []string
		trace := &lease.Trace{Refused: func(ctx context.Context, info lease.TraceInfo) {
			got = append(got, fmt.Sprint(ctx.Value(caller{}), " ", info.Lease, " ", info.Operation, " ", info.Key, " ", info.Local, " ",
				errors.Is(info.Err, fencing.ErrStaleToken), errors.Is(info.Err, lease.ErrFencedOut)))
		}}
		store := transporttest.Start(t)
		client, _ := store.Client(t, "a", transport.ClientOptions{})
		acquire := func(name string) *lease.Tenure {
			l, err := lease.New(client, name, lease.Options{Trace: trace})
			if err != nil {
				t.Fatal(err)
			}
			tenure, err := l.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return tenure
		}
		ctx := context.WithValue(t.Context(), caller{}, "caller")
		stale := fencing.NewGuard(client, acquire("one"))
		present := fencing.NewGuard(client, acquire("two"))
		if _, err := present.Set(ctx, "k", nil); err != nil {
			t.Fatal(err)
		}
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
