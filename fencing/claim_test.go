package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

func TestClaimKeepsTheValueAndShutsOutAWriteThatIsOnItsWay(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		if _, err := fencing.NewGuard(former.Client, stale.Tenure).Set(t.Context(), key, []byte("41")); err != nil {
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
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		entry, err := guard.Claim(t.Context(), key)
		if err != nil || !entry.Exists || len(entry.Value) != 0 || entry.Version.IsZero() {
			t.Fatalf("claimed %+v, %v", entry, err)
		}
		if _, err := fencing.NewGuard(former.Client, stale.Tenure).Set(t.Context(), key, []byte("old")); !errors.Is(err, transport.ErrFencingTokenLower) {
			t.Errorf("a former leader's write: %v, want ErrFencingTokenLower", err)
		}
		present.mustHold(t, key, "")
	})
}

func TestClaimRepeatsItselfWhileOthersChangeTheKey(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
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
				inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
					if _, err := fencing.NewGuard(former.Client, stale.Tenure).Set(t.Context(), key, []byte("41")); err != nil {
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
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		present.conn.Cut()
		if _, err := guard.Claim(t.Context(), key); !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("without a connection: %v", err)
		}
		if _, err := guard.Claim(t.Context(), key); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("after the tenure: %v, want ErrDeadlinePassed", err)
		}
	})
}

func TestClaimAllReturnsWhatEachKeyHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		old := fencing.NewGuard(former.Client, stale.Tenure)
		want := make(map[string]string)
		var keys []string
		for i := range 50 {
			key := fmt.Sprintf("press-7/%d", i)
			if keys = append(keys, key, key); i%2 == 0 {
				want[key] = fmt.Sprintf("value %d", i)
				if _, err := old.Set(t.Context(), key, []byte(want[key])); err != nil {
					t.Fatal(err)
				}
			} else {
				want[key] = "" // is missing until it is claimed
			}
		}
		claims := present.countTokens()
		entries, err := guard.ClaimAll(t.Context(), keys...)
		if err != nil || len(entries) != len(want) {
			t.Fatalf("%d entries, %v; want %d", len(entries), err, len(want))
		}
		if got := claims.Load(); got != int64(len(want)) {
			t.Errorf("%d claims, want %d: each key is named twice, and claimed once", got, len(want))
		}
		for key, value := range want {
			if entry := entries[key]; !entry.Exists || string(entry.Value) != value || entry.Version.IsZero() {
				t.Errorf("%s: %+v, want %q", key, entry, value)
			}
			if _, err := former.Set(t.Context(), key, nil, transport.SetOptions{FencingToken: stale.token}); !errors.Is(err, transport.ErrFencingTokenLower) {
				t.Errorf("%s: %v, want ErrFencingTokenLower", key, err)
			}
		}
		if entries, err := guard.ClaimAll(t.Context()); err != nil || len(entries) != 0 {
			t.Errorf("no keys: %v, %v", entries, err)
		}
	})
}

func manyKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("many/%03d", i)
	}
	return keys
}

// isOfMany reports whether a request concerns one of manyKeys.
func isOfMany(request transport.Request) bool {
	return bytes.Contains(request.Payload, []byte("many/"))
}

func TestClaimAllHasNoMoreThanItsBoundUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		var underWay, most atomic.Int64
		present.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if isOfMany(request) {
				for now := underWay.Add(1); ; {
					if old := most.Load(); old >= now || most.CompareAndSwap(old, now) {
						break
					}
				}
				time.Sleep(10 * time.Millisecond)
				underWay.Add(-1)
			}
			return transporttest.Fault{}
		})
		keys := manyKeys(5 * fencing.ClaimsAtOnce)
		began := time.Now()
		entries, err := guard.ClaimAll(t.Context(), keys...)
		if err != nil || len(entries) != len(keys) {
			t.Errorf("%d entries, %v", len(entries), err)
		}
		if got := most.Load(); got != fencing.ClaimsAtOnce {
			t.Errorf("%d claims were under way at once, want %d", got, fencing.ClaimsAtOnce)
		}
		// Five rounds of two requests each.
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("it took %v, want 100ms", took)
		}
	})
}

func TestTheFirstErrorOfClaimAllStartsNoFurtherClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		a := newNode(t, store, "node-a")
		guard, tenure := a.lead(t)
		keys := manyKeys(500)
		forbidden := keys[fencing.ClaimsAtOnce+3]
		store.Authorize(func(_ string, _ statestore.Verb, key string) bool { return key != forbidden })
		var asked atomic.Int64
		a.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if isOfMany(request) && request.FencingToken == "" { // the GET of a claim
				asked.Add(1)
			}
			return transporttest.Fault{HoldReply: 10 * time.Millisecond}
		})
		entries, err := guard.ClaimAll(t.Context(), keys...)
		if !errors.Is(err, transport.ErrNotAuthorized) || !strings.Contains(err.Error(), forbidden) || entries != nil {
			t.Errorf("%d entries, %v; want none, and the refusal of %s", len(entries), err, forbidden)
		}
		if got := asked.Load(); got > 2*fencing.ClaimsAtOnce {
			t.Errorf("%d claims were begun, want no more than %d", got, 2*fencing.ClaimsAtOnce)
		}
		if err := context.Cause(tenure.Context()); err != nil {
			t.Errorf("it ended the tenure: %v", err)
		}
	})
}

func TestClaimAllEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		cause := errors.New("no more time")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(45*time.Millisecond, func() { cancel(cause) })
		var asked atomic.Int64
		present.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if isOfMany(request) {
				asked.Add(1)
			}
			return transporttest.Fault{HoldReply: 10 * time.Millisecond}
		})
		began := time.Now()
		entries, err := guard.ClaimAll(ctx, manyKeys(500)...)
		if !errors.Is(err, cause) || entries != nil || time.Since(began) != 45*time.Millisecond {
			t.Errorf("%d entries, %v after %v; want the cause, after 45ms", len(entries), err, time.Since(began))
		}
		before := asked.Load()
		time.Sleep(ttl)
		if after := asked.Load(); after != before {
			t.Errorf("%d requests were sent after it returned", after-before)
		}
	})
}
