package statestore

import (
	"strings"
	"testing"
	"time"
)

// Invariant 31: a key never expires early, and does not exist from its deadline on.
func TestInvariant31LifetimeToTheNanosecond(t *testing.T) {
	for _, test := range []struct {
		steps []string      // one each 400 ms
		after time.Duration // from the last step to the end; 0: the key does not expire
	}{
		{[]string{"SET k v PX 1000"}, time.Second},
		{[]string{"SET k v PX 1000", "GET k"}, 600 * time.Millisecond},
		{[]string{"SET k v NEX PX 1000", "SET k v NEX PX 1000"}, time.Second},
		{[]string{"SET k v PX 1000", "SET k v PX 5000", "SET k w PX 10"}, 10 * time.Millisecond},
		{[]string{"SET k v NEX PX 1000", "SET k v NEX"}, 0},
		{[]string{"SET k v PX 1000", "SET k v", "SET k v PX 300"}, 300 * time.Millisecond},
		{[]string{"SET k v PX 1000", "DEL k", "SET k v"}, 0},
		{[]string{"SET k v PX 1000", "SET k v NX PX 5000"}, 600 * time.Millisecond},
		{[]string{"SET k v PX 1000", "SET k w NEX"}, 600 * time.Millisecond},
		{[]string{"SET k v PX 9223372036854775807"}, 0},
	} {
		t.Run(strings.Join(test.steps, ", "), func(t *testing.T) {
			for _, found := range []func(*world){ // by a request, and by Expire
				func(w *world) { w.want(ask("GET k"), "$-1\r\n") },
				func(w *world) { w.store.Expire(w.now, 10) },
			} {
				w := newWorld(t, Options{})
				for i, step := range test.steps {
					w.pass(400 * time.Millisecond * time.Duration(min(i, 1)))
					w.send(ask(step))
				}
				if test.after == 0 {
					w.pass(100 * 365 * 24 * time.Hour)
				} else {
					w.pass(test.after - time.Nanosecond)
				}
				if w.store.Expire(w.now, 10); w.store.Usage().Keys != 1 {
					t.Fatal("it expires early")
				}
				if test.after > 0 {
					w.now.Elapsed++
					if found(w); w.store.Usage().Keys != 0 {
						t.Error("it is still there")
					}
				}
			}
		})
	}
}

// Invariant 4: a step of the wall clock does not move a deadline.
func TestInvariant4WallClockStepsDoNotMoveExpiry(t *testing.T) {
	for name, step := range map[string]int64{"back": -3600_000, "ahead": 3600_000, "to 1970": -noon} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			version := w.set(ask("SET k v PX 1000"))
			w.now.WallMillis += step
			w.want(ask("GET k"), "$1\r\nv\r\n@"+version)
			w.pass(time.Second - time.Nanosecond)
			w.want(ask("GET k"), "$1\r\nv\r\n@"+version)
			if next, ok := w.store.NextExpiry(); !ok || next != time.Hour+time.Second {
				t.Errorf("NextExpiry = %v, %t", next, ok)
			}
			w.now.Elapsed++
			w.want(ask("GET k"), "$-1\r\n")
		})
	}
}

// A store that is restored counts whole lifetimes from when the store before could have answered last.
func TestInvariant32LifetimesBeginAgainAtTheEndOfTheStoreBefore(t *testing.T) {
	for _, idle := range []time.Duration{0, 300 * time.Millisecond, 999 * time.Millisecond} {
		t.Run(idle.String(), func(t *testing.T) {
			w := filledDisk(t).worldAfter(t, Options{Strict: true}, Former{Idle: idle})
			w.pass(time.Second - idle - 1)
			if answer, _ := w.send(ask("GET lock")); !strings.HasPrefix(answer, "$1") {
				t.Errorf("before the end of the lifetime: %q", answer)
			}
			w.pass(1)
			w.want(ask("GET lock"), "$-1\r\n")
		})
	}
	t.Run("longer than the lifetime", func(t *testing.T) {
		w := filledDisk(t).worldAfter(t, Options{Strict: true}, Former{Idle: time.Hour})
		w.want(ask("GET lock"), "$-1\r\n")
		w.want(ask("GET k"), "$1\r\nv\r\n@1696374425000:0:StateStore")
	})
}

// Its connection ended with the store before, so nothing believes in such a key any more. Its removal is an
// expiry like any other.
func TestInvariant62AKeyThatEndsWithItsConnectionExpiresWhenItsStoreIsRestored(t *testing.T) {
	lease, value := []string{"lock", "a", "NEX", "PX", "1000"}, []string{"lock", "a"}
	for name, test := range map[string]struct {
		willed []bool // of each SET
		words  []string
		gone   bool
	}{
		"a renewed lease":                              {[]bool{true, true}, lease, true},
		"a key without a lifetime":                     {[]bool{true}, value, true},
		"a lease over a connection without a Will":     {[]bool{false}, lease, false},
		"a later SET over a connection without a Will": {[]bool{true, false}, lease, false},
		"a later SET over a connection with a Will":    {[]bool{false, true}, lease, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := make(disk)
			w := d.world(t, Options{})
			for _, willed := range test.willed {
				d.setWilled(w, willed, test.words...)
			}
			if w.pass(900 * time.Millisecond); w.store.Usage().Keys != 1 {
				t.Fatal("it expires while its connection lasts")
			}
			w = d.world(t, Options{}) // restarted
			answer, _ := w.send(ask("SET lock b NX PX 1000"))
			if granted := strings.HasPrefix(answer, "+OK"); granted != test.gone {
				t.Errorf("another holder gets %q", answer)
			}
			w = d.world(t, Options{}) // the same without a command
			effects, _ := w.store.Expire(w.now, 10)
			d.write(effects.Groups)
			if keys := d.world(t, Options{}).store.Usage().Keys; keys == 1 == test.gone || len(effects.Groups) != len(effects.Keys) {
				t.Errorf("%q are removed, with %d groups, and %d keys are left", effects.Keys, len(effects.Groups), keys)
			}
		})
	}
}

// A machine that is gone says nothing to the clients of its store. They have half of the lifetime to notice.
func TestInvariant62AKeyThatEndsWithItsConnectionOutlivesASilentStoreForHalfItsLifetime(t *testing.T) {
	d := make(disk)
	d.setWilled(d.world(t, Options{}), true, "lock", "a", "NEX", "PX", "1000")
	for _, idle := range []time.Duration{0, 100 * time.Millisecond, 500 * time.Millisecond, time.Hour} {
		w := d.worldAfter(t, Options{}, Former{Idle: idle, Silent: true})
		left := max(500*time.Millisecond-idle, 0)
		if left > 0 {
			w.pass(left - 1)
			if answer, _ := w.send(ask("SET lock b NX PX 1000")); !strings.HasPrefix(answer, ":-1") {
				t.Errorf("idle for %v: another holder gets %q too early", idle, answer)
			}
			w.pass(1)
		}
		if answer, _ := w.send(ask("SET lock b NX PX 1000")); !strings.HasPrefix(answer, "+OK") {
			t.Errorf("idle for %v: after %v another holder gets %q", idle, left, answer)
		}
	}
}
