package fencing_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestTheTableOfMethodsIsComplete(t *testing.T) {
	var listed, exist []string
	for _, method := range methods {
		listed = append(listed, method.name)
	}
	guard := reflect.TypeFor[*fencing.Guard]()
	for i := range guard.NumMethod() {
		if name := guard.Method(i).Name; name != "Kept" { // declared by the tests
			exist = append(exist, name)
		}
	}
	slices.Sort(listed)
	slices.Sort(exist)
	if !slices.Equal(listed, exist) {
		t.Errorf("listed %v, a guard has %v", listed, exist)
	}
}

func TestInvariant14AProtectedKeyRefusesWritesWithoutAToken(t *testing.T) {
	inBubble(t, func(t *testing.T, former, _ node, _ staleTenure, guard *fencing.Guard) {
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

func TestGetReturnsWhatTheKeyHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ staleTenure, guard *fencing.Guard) {
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

func TestInvariant12WritersOfOneTenureDoNotFenceEachOtherOut(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ staleTenure, guard *fencing.Guard) {
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

func TestClearKeepsTheFenceAndDelDropsIt(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
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
		// Invariant 15: this is the documented hole of the default mode.
		if err := late(); err != nil {
			t.Errorf("after Del: %v; the documentation says that the fence is gone", err)
		}
		if _, err := guard.VDel(t.Context(), key, []byte("something else")); !errors.Is(err, transport.ErrConditionFailed) {
			t.Errorf("VDel of another value: %v, want ErrConditionFailed", err)
		}
	})
}

// The errors of transport name the key too.
func TestAnErrorOfAGuardNamesTheKeyOnce(t *testing.T) {
	for _, failure := range []struct {
		name string
		fail func(store *transporttest.Store, conn *transporttest.Conn, tenure *lease.Tenure)
		want error
	}{
		{"not sent", func(_ *transporttest.Store, conn *transporttest.Conn, _ *lease.Tenure) { conn.Cut() }, transport.ErrNotSent},
		{"no reply", func(_ *transporttest.Store, conn *transporttest.Conn, _ *lease.Tenure) {
			conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{LoseReply: true} })
		}, context.DeadlineExceeded},
		{"no reply, and the tenure ends", func(_ *transporttest.Store, conn *transporttest.Conn, tenure *lease.Tenure) {
			conn.SetFault(func(transport.Request) transporttest.Fault {
				tenure.FencedOut(lease.ErrLost)
				return transporttest.Fault{LoseReply: true}
			})
		}, lease.ErrFencedOut},
		{"refused", func(store *transporttest.Store, _ *transporttest.Conn, _ *lease.Tenure) {
			store.Authorize(func(string, statestore.Verb, string) bool { return false })
		}, transport.ErrNotAuthorized},
	} {
		for _, method := range methods {
			t.Run(failure.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					client, conn := store.Client(t, "node-a", transport.ClientOptions{})
					tenure := stop(t, client, time.Minute)
					failure.fail(store, conn, tenure.Tenure)
					ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
					defer cancel()
					err := method.call(ctx, fencing.NewGuard(client, tenure.Tenure))
					if !errors.Is(err, failure.want) || !strings.HasPrefix(err.Error(), "fencing: ") || strings.Count(err.Error(), key) != 1 {
						t.Errorf("%v: want %v, and the key once", err, failure.want)
					}
				})
			})
		}
	}
}
