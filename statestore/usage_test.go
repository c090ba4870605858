package statestore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A client chooses the node of a token, up to 983 bytes, and memory and journal have it with each key. So
// MaxBytes bounds it, whichever request brings it.
func TestMaxBytesBoundsTheTokensOfKeysAndFences(t *testing.T) {
	const limit, tries = 50_000, 1000
	long := strings.Repeat("n", 983)
	for _, raise := range [][]string{ // with a longer token, but those that begin with "short"
		{}, {"SET %d v"}, {"SET %d w"}, {"SET %d v PX 60000"}, {"DEL %d"}, {"VDEL %d v"}, {"short DEL %d", "DEL %d"}, {"short DEL %d", "SET %d v"},
	} {
		t.Run(strings.Join(raise, ", "), func(t *testing.T) {
			w := newWorld(t, Options{Strict: true, MaxBytes: limit})
			w.set(ask("SET first v")) // a strict store accepts tokens up to its version
			for i := range tries {
				token := "1:0:n"
				if len(raise) == 0 {
					token = "1:0:" + long
				}
				w.send(ask(fmt.Sprint("SET ", i, " v PX 60000")).fencedBy(token))
			}
			for i := range tries {
				for _, line := range raise {
					line, short := strings.CutPrefix(line, "short ")
					token := "2:0:" + long
					if short {
						token = "1:0:n"
					}
					w.send(ask(fmt.Sprintf(line, i)).fencedBy(token))
				}
			}
			held := 0
			for _, e := range w.store.entries {
				held += len(e.key) + len(e.value) + len(e.token().Node)
			}
			for key, token := range w.store.fences {
				held += len(key) + len(token.Node)
			}
			if usage := w.store.Usage(); held > limit || usage.Bytes > limit || usage.Bytes < limit-1100 {
				t.Errorf("the store has %d bytes of keys, values and tokens, and counts %d; the limit is %d", held, usage.Bytes, limit)
			}
			for i := range tries { // with the token that it has, each key can be deleted
				if e := w.store.entries[strconv.Itoa(i)]; e != nil {
					if got, _ := w.send(ask("DEL " + e.key).fencedBy(e.token().String())); !strings.HasPrefix(got, ":1\r\n") {
						t.Fatalf("DEL in a full store: %q", got)
					}
				}
			}
		})
	}
}

// Invariant 38: a renewal never fails for quota, and neither does any other request that does not
// make the store larger.
func TestInvariant38RenewalNeverFailsForQuota(t *testing.T) {
	w := newWorld(t, Options{})
	lock := w.set(ask("SET lock holder NEX PX 1000"))
	w.set(ask("SET k value").fencedBy(lock))
	for i := range 10 {
		w.set(ask("SET filler" + strconv.Itoa(i) + " v"))
	}
	for name, options := range map[string]Options{
		"exactly full":     {MaxKeys: 12, MaxBytes: 100},
		"over the limit":   {MaxKeys: 1, MaxBytes: 1}, // as after a restart with less
		"keys alone":       {MaxKeys: 1},
		"bytes alone":      {MaxBytes: 1},
		"no limit":         {},
		"the last of them": {MaxKeys: 12, MaxBytes: 96},
	} {
		t.Run(name, func(t *testing.T) {
			w.tb, w.store.options.MaxKeys, w.store.options.MaxBytes = t, options.MaxKeys, options.MaxBytes
			for range 3 {
				w.set(ask("SET lock holder NEX PX 1000"))
				w.set(ask("SET k value").fencedBy(lock))
				w.set(ask("SET k VALUE").fencedBy(lock))
				w.set(ask("SET k value PX 100000").fencedBy(lock))
				w.pass(999 * time.Millisecond)
			}
		})
	}
	w.tb = t
	w.store.options.MaxBytes = 1
	w.set(ask("SET k val").fencedBy(lock))
	w.want(ask("SET k valu").fencedBy(lock), refusal(textQuota))
}

// All other requests wait while a SET looks for expired keys. What it leaves, Expire removes.
func TestInvariant57ASetAtAFullStoreTakesFewSteps(t *testing.T) {
	const keys = 4 * expirySteps
	fill := func(w *world, lifetime string) {
		for i := range keys {
			w.set(ask(fmt.Sprintf("SET %05d  PX %s", i, lifetime)))
		}
	}
	awaitSpace := func(w *world, request request) {
		w.tb.Helper()
		for more := true; more; _, more = w.store.Expire(w.now, 64) {
		}
		w.set(request)
	}
	t.Run("that remove keys", func(t *testing.T) {
		w := newWorld(t, Options{MaxBytes: 5 * keys})
		fill(w, "1000")
		w.pass(time.Second)
		large := ask("SET large " + strings.Repeat("v", 3*5*expirySteps))
		w.want(large, refusal(textQuota))
		if left := w.store.Usage().Keys; left < keys/2 || left == keys {
			t.Errorf("%d of %d keys are left", left, keys)
		}
		awaitSpace(w, large)
	})
	t.Run("that file renewed keys anew", func(t *testing.T) {
		w := newWorld(t, Options{MaxKeys: keys + 1})
		fill(w, "1000")
		w.pass(2 * time.Millisecond)
		w.set(ask("SET last v PX 999"))
		fill(w, "10000")
		w.pass(999 * time.Millisecond)
		w.want(ask("SET new v"), refusal(textQuota))
		if _, more := w.store.Expire(w.now, keys/2); !more {
			t.Error("the refused SET has filed most keys anew")
		}
		awaitSpace(w, ask("SET new v"))
	})
}
