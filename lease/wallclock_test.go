package lease_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A wallClock is a machine's wall clock that can be stepped.
type wallClock struct{ off atomic.Int64 }

func (w *wallClock) set(off time.Duration) { w.off.Store(int64(off)) }

func (w *wallClock) now() time.Time { return time.Now().Add(time.Duration(w.off.Load())) }

// Whatever the wall clocks of the store and of the holder do, the tenure goes on, its token
// is good for fenced keys, and when it is released another node acquires the lease at once,
// with a greater token.
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
		{"the holder's clock is ahead for good", []time.Duration{0, 0, 0}, []time.Duration{hour, hour, 2 * hour}},
		{"both step, apart", []time.Duration{0, hour, -hour, 0}, []time.Duration{0, -hour, hour, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				var machine, own wallClock
				machine.set(test.store[0])
				own.set(test.holder[0])
				store.SetWall(machine.now)
				time.Sleep(10 * time.Minute) // the store's time of day is that of its machine

				client, _ := store.Client(t, "node-a", transport.ClientOptions{Now: own.now})
				l, err := lease.New(client, name, lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
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
