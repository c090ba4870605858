package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant1DeadlineCountsFromTheSendingOfTheRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Margin: 200 * time.Millisecond})
		const slow = 300 * time.Millisecond // within RequestTimeout
		n.scripted("SET", always(transporttest.Fault{HoldReply: slow}))
		tenure := n.mustAcquire(t)
		if got, want := tenure.Remaining(), ttl-200*time.Millisecond-slow; got != want {
			t.Errorf("after a reply that took %v: remaining %v, want %v", slow, got, want)
		}
		// The same for renewals: several follow in the next seconds.
		limit := tenure.Remaining()
		for range 5000 {
			time.Sleep(time.Millisecond)
			if got := tenure.Remaining(); got > limit {
				t.Fatalf("after a renewal whose reply took %v: remaining %v, at most %v can be known", slow, got, limit)
			}
		}
	})
}

func TestInvariants2And3TheDeadlineIsCheckedInsideTheCallAndCountsSuspendedTime(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var suspend skewed
		n := newNode(t, store, "node-a", lease.Options{Clock: suspend.clock()})
		tenure := n.mustAcquire(t)
		synctest.Wait()
		mustToken(t, tenure)
		suspend.jump(time.Hour)
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token after the suspend: %v, want ErrDeadlinePassed", err)
		}
		if got := tenure.Remaining(); got != 0 {
			t.Errorf("Remaining after the suspend: %v, want 0", got)
		}
		if tenure.Context().Err() == nil {
			t.Error("the context is alive after Token said that the tenure is over")
		}
	})
}

func TestInvariant8TheContextEndsBeforeTheDeadlineAndThatBeforeTheStoresExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Margin: 200 * time.Millisecond, GracePeriod: 300 * time.Millisecond})
		tenure := n.mustAcquire(t)
		token := mustToken(t, tenure)
		n.conn.Cut()
		acquired := time.Now()
		await.Receive(tenure.Context().Done())
		if got, want := time.Since(acquired), ttl-500*time.Millisecond; got != want {
			t.Errorf("the context ended after %v, want %v", got, want)
		}
		if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("cause %v, want ErrDeadlinePassed", err)
		}
		if got := mustToken(t, tenure); got != token {
			t.Errorf("token %v while the work winds up, want %v", got, token)
		}
		time.Sleep(300*time.Millisecond - time.Nanosecond)
		mustToken(t, tenure)
		time.Sleep(time.Nanosecond)
		if _, err := tenure.Token(); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("Token at the deadline: %v, want ErrDeadlinePassed", err)
		}
		other, _ := store.Client(t, "other", transport.ClientOptions{})
		if entry, err := other.Get(t.Context(), name); err != nil || !entry.Exists {
			t.Errorf("the store gave the lease away at the tenure's deadline: %+v, %v", entry, err)
		}
	})
}

func TestInvariant9ATenureEndsOnceWithItsFirstCause(t *testing.T) {
	evidence := errors.New("the resource has seen a newer token")
	for _, test := range []struct {
		name string
		end  func(*lease.Tenure, node)
		want error
	}{
		{"released", func(tenure *lease.Tenure, _ node) { _ = tenure.Release(context.Background()) }, lease.ErrReleased},
		{"fenced out", func(tenure *lease.Tenure, _ node) { tenure.FencedOut(evidence) }, lease.ErrFencedOut},
		{"the client closes", func(_ *lease.Tenure, n node) { _ = n.client.Close() }, transport.ErrClosed},
		{"the deadline passes", func(_ *lease.Tenure, n node) { n.conn.Cut(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
		{"the renewals stop", func(tenure *lease.Tenure, _ node) { tenure.StopRenewing(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				tenure := n.mustAcquire(t)
				test.end(tenure, n)
				synctest.Wait()
				for _, again := range []func(){
					func() {},
					func() { _ = tenure.Release(t.Context()) },
					func() { tenure.FencedOut(evidence) },
				} {
					again()
					if err := context.Cause(tenure.Context()); !errors.Is(err, test.want) {
						t.Fatalf("cause %v, want %v", err, test.want)
					}
					if _, err := tenure.Token(); !errors.Is(err, test.want) {
						t.Fatalf("Token: %v, want %v", err, test.want)
					}
				}
			})
		})
	}
}

func TestInvariants11And12TokensRiseFromTenureToTenureAndStayWithinOne(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		nodes := []node{newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})}
		var last hlc.Token
		for i := range 10 {
			tenure := nodes[i%2].mustAcquire(t)
			token := mustToken(t, tenure)
			if token.Compare(last) <= 0 {
				t.Fatalf("tenure %d has token %v after %v", i, token, last)
			}
			last = token
			time.Sleep(3 * ttl) // many renewals
			if got := mustToken(t, tenure); got != token {
				t.Fatalf("renewals changed the token from %v to %v", token, got)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Whatever the wall clocks of the store and the holder do, the tenure goes on and its token
// is accepted for fenced keys. After its release another node acquires the lease at once, with
// a greater token.
func TestInvariant48ATenureOutlivesStepsOfAnHourOnEitherSide(t *testing.T) {
	const hour, year = time.Hour, 8760 * time.Hour
	for _, test := range []struct {
		name          string
		store, holder []time.Duration // how far the clock is off in each phase
	}{
		{"the store's clock steps forward and back", []time.Duration{0, hour, 0}, []time.Duration{0, 0, 0}},
		{"the store's clock steps back and forward", []time.Duration{0, -hour, 0}, []time.Duration{0, 0, 0}},
		{"the store's clock is set back when it is right", []time.Duration{hour, 0}, []time.Duration{0, 0}},
		{"the store's clock is set right from years behind", []time.Duration{0, 20 * year}, []time.Duration{20 * year, 20 * year}},
		{"the holder's clock steps forward and back", []time.Duration{0, 0, 0}, []time.Duration{0, hour, 0}},
		{"the holder's clock steps back and forward", []time.Duration{0, 0, 0}, []time.Duration{0, -hour, 0}},
		{"the holder's clock stays ahead", []time.Duration{0, 0, 0}, []time.Duration{hour, hour, 2 * hour}},
		{"both step, apart", []time.Duration{0, hour, -hour, 0}, []time.Duration{0, -hour, hour, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				var machine, own wallClock
				machine.set(test.store[0])
				own.set(test.holder[0])
				store.SetWall(machine.now)
				time.Sleep(10 * time.Minute) // the store has the time of day of its machine

				client, _ := store.Client(t, "node-a", transport.ClientOptions{Now: own.now})
				l, err := lease.New(client, name, lease.Options{TTL: ttl})
				if err != nil {
					t.Fatal(err)
				}
				a, b := node{Lease: l, client: client}, newNode(t, store, "node-b", lease.Options{})
				tenure := a.mustAcquire(t)
				token := mustToken(t, tenure)
				for phase := range test.store {
					machine.set(test.store[phase])
					own.set(test.holder[phase])
					for range 180 {
						time.Sleep(time.Second)
						if got := mustToken(t, tenure); got != token {
							t.Fatalf("in phase %d the token is %v; it was %v", phase, got, token)
						}
						if left := tenure.Remaining(); left < ttl/3 {
							t.Fatalf("in phase %d %v are left", phase, left)
						}
						if _, err := client.Set(t.Context(), "recipe", nil, transport.SetOptions{FencingToken: token}); err != nil {
							t.Fatalf("in phase %d: %v", phase, err)
						}
					}
				}
				if err := tenure.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				next := mustToken(t, b.mustAcquire(t))
				if took := time.Since(began); took > 0 || next.Compare(token) <= 0 {
					t.Errorf("the next tenure began after %v with token %v; the last was %v", took, next, token)
				}
				if _, err := b.client.Set(t.Context(), "recipe", nil, transport.SetOptions{FencingToken: next}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestATenureEndsAtOnceWhenItsKeyIsDeleted(t *testing.T) {
	for _, test := range []struct {
		name string
		meet func(*testing.T, *transport.Client) // another client changes the key
		want error
	}{
		{"deleted", func(t *testing.T, other *transport.Client) {
			if _, err := other.Del(t.Context(), name, transport.DelOptions{}); err != nil {
				t.Fatal(err)
			}
		}, lease.ErrDeleted},
		{"overwritten", func(t *testing.T, other *transport.Client) {
			if _, err := other.Set(t.Context(), name, []byte("other:1"), transport.SetOptions{}); err != nil {
				t.Fatal(err)
			}
		}, lease.ErrLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				other, _ := store.Client(t, "other", transport.ClientOptions{})
				tenure := n.mustAcquire(t)
				time.Sleep(ttl / 10) // before the first renewal
				test.meet(t, other)
				synctest.Wait()
				if _, err := tenure.Token(); !errors.Is(err, test.want) {
					t.Errorf("Token: %v, want %v", err, test.want)
				}
				if err := context.Cause(tenure.Context()); !errors.Is(err, test.want) {
					t.Errorf("cause %v, want %v", err, test.want)
				}
			})
		})
	}
}

func TestInvariant26AForgedDeletionEndsNothingAndAFloodOfThemAsksTheStoreSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		synctest.Wait()
		questions := n.scripted("GET", harmless)
		const length = ttl / 2
		for began := time.Now(); time.Since(began) < length; time.Sleep(time.Millisecond) {
			n.conn.Forge(transport.Notification{
				Key:       name,
				Payload:   []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"),
				Timestamp: "1:0:StateStore",
			})
		}
		mustToken(t, tenure)
		if got, limit := questions(), int64(length/(ttl/50))+1; got == 0 || got > limit {
			t.Errorf("the store was asked %d times, want at least once and at most %d times", got, limit)
		}
	})
}

// A program whose tests forget about the clock would find that a tenure never ends, or ended long ago.
func TestSystemClockFollowsTheTimeOfABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := lease.SystemClock()
		time.Sleep(time.Hour)
		if passed := lease.SystemClock() - began; passed != time.Hour {
			t.Errorf("%v passed, want an hour", passed)
		}
	})
}

