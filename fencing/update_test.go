package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestClaimKeepsTheValueAndShutsOutAWriteThatIsOnItsWay(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		mustSet(t, stale.guard, key, "41")
		// A write of the former leader leaves now and arrives in a minute.
		former.conn.SetFault(func(transporttest.Request) transporttest.Fault {
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
		if after, err := present.Get(t.Context(), key); err != nil || after.Version != entry.Version || string(after.Value) != "41" {
			t.Errorf("what was claimed changed: %+v, then %+v (%v)", entry, after, err)
		}
	})
}

func TestClaimRepeatsItselfWhileOthersChangeTheKey(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		// Each of the first claims finds the value changed between its GET and
		// its SET by the former leader.
		var left atomic.Int64
		left.Store(3)
		present.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			if carriesToken(request) && left.Add(-1) >= 0 {
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
	for _, fault := range []transporttest.Fault{{LoseRequest: true}, {LoseReply: true}} {
		for _, lost := range []int64{1, 2} { // the GET, the SET
			inBubble(t, func(t *testing.T, _, present node, stale staleTenure, guard *fencing.Guard) {
				mustSet(t, stale.guard, key, "41")
				var number atomic.Int64
				present.conn.SetFault(func(transporttest.Request) transporttest.Fault {
					if number.Add(1) == lost {
						return fault
					}
					return transporttest.Fault{}
				})
				began := time.Now()
				entry, err := guard.Claim(t.Context(), key)
				if took := time.Since(began); err != nil || string(entry.Value) != "41" || took > ttl/2 {
					t.Errorf("%+v of request %d: claimed %q, %v, after %v", fault, lost, entry.Value, err, took)
				}
			})
		}
	}
}

func manyKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("many/%03d", i)
	}
	return keys
}

// isOfMany reports whether a request concerns one of manyKeys.
func isOfMany(request transporttest.Request) bool {
	return bytes.Contains(request.Payload, []byte("many/"))
}

func TestClaimAllReturnsWhatEachKeyHoldsAndHasNoMoreThanItsBoundUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		keys := manyKeys(5 * fencing.ClaimsAtOnce)
		for _, key := range keys[:len(keys)/2] { // the others are missing until they are claimed
			mustSet(t, stale.guard, key, "value of "+key)
		}
		var underWay, most, claims atomic.Int64
		present.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			if isOfMany(request) {
				for now := underWay.Add(1); ; {
					if old := most.Load(); old >= now || most.CompareAndSwap(old, now) {
						break
					}
				}
				if carriesToken(request) {
					claims.Add(1)
				}
				time.Sleep(10 * time.Millisecond)
				underWay.Add(-1)
			}
			return transporttest.Fault{}
		})
		entries, err := guard.ClaimAll(t.Context(), append(keys, keys...)...)
		if err != nil || len(entries) != len(keys) || claims.Load() != int64(len(keys)) {
			t.Fatalf("%d entries after %d claims, %v; want %d: each key is named twice, and claimed once", len(entries), claims.Load(), err, len(keys))
		}
		if got := most.Load(); got != fencing.ClaimsAtOnce {
			t.Errorf("%d claims were under way at once, want %d", got, fencing.ClaimsAtOnce)
		}
		for i, key := range keys {
			want := ""
			if i < len(keys)/2 {
				want = "value of " + key
			}
			if entry := entries[key]; !entry.Exists || string(entry.Value) != want || entry.Version.IsZero() {
				t.Errorf("%s: %+v, want %q", key, entry, want)
			}
			if _, err := former.Set(t.Context(), key, nil, transport.SetOptions{FencingToken: stale.token}); !errors.Is(err, transport.ErrFencingTokenLower) {
				t.Errorf("%s: %v, want ErrFencingTokenLower", key, err)
			}
		}
	})
}

func TestTheFirstErrorOfClaimAllStartsNoFurtherClaim(t *testing.T) {
	withStore(t, func(t *testing.T, store *transporttest.Store, n node) {
		guard, tenure := n.lead(t)
		keys := manyKeys(500)
		forbidden := keys[fencing.ClaimsAtOnce+3]
		store.Authorize(func(_ string, _ statestore.Verb, key string) bool { return key != forbidden })
		var asked atomic.Int64
		n.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			if isOfMany(request) && !carriesToken(request) { // the GET of a claim
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
		mustLast(t, tenure)
	})
}

// increment adds one to the number in a key.
func increment(old transport.Entry) ([]byte, error) {
	n, _ := strconv.Atoi(string(old.Value)) // an empty value is zero
	return strconv.AppendInt(nil, int64(n+1), 10), nil
}

// A key that has the version of the guard's own Set has its token: Update need not claim it again.
func TestAnUpdateClaimsAKeyThatHasAnotherVersionThanTheGuardsOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, stale staleTenure, guard *fencing.Guard) {
		requests := present.count(anyRequest)
		for _, step := range []struct {
			name   string
			before func() error
			want   int64
		}{
			{"first", func() error { return nil }, 3},
			{"second", func() error { return nil }, 2},
			{"after Clear", func() error { return guard.Clear(t.Context(), key) }, 2},
			{"after Del and a write of the former leader", func() error {
				_, err := guard.Del(t.Context(), key)
				mustSet(t, stale.guard, key, "41")
				return err
			}, 3},
		} {
			if err := step.before(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
			requests.Store(0)
			_, err := guard.Update(t.Context(), key, increment)
			if got := requests.Load(); err != nil || got != step.want {
				t.Errorf("%s: %v after %d requests, want %d", step.name, err, got, step.want)
			}
		}
	})
}

// An update waits for its turn as long as the tenure lasts, not only for the time that remained
// when it began to wait.
func TestUpdatesMayWaitForLongerThanTheTTLWhileTheTenureIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		began := time.Now()
		var all sync.WaitGroup
		update := func(key string) {
			if _, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
				time.Sleep(ttl / 4)
				return increment(old)
			}); err != nil {
				t.Error(err)
			}
		}
		for _, key := range manyKeys(100) { // updates of different keys do not wait for each other
			all.Go(func() { update(key) })
		}
		await.Done(all.Wait)
		if took := time.Since(began); took != ttl/4 {
			t.Errorf("100 updates of different keys took %v", took)
		}
		for range 30 {
			all.Go(func() { update(key) })
		}
		await.Done(all.Wait)
		present.mustHold(t, key, "30")
	})
}

func TestInvariant24AnUpdateOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	for holds, fault := range map[string]transporttest.Fault{"1": {LoseRequest: true}, "2": {LoseReply: true}} {
		inBubble(t, func(t *testing.T, former, present node, _ staleTenure, guard *fencing.Guard) {
			mustSet(t, guard, key, "1")
			var calls, writes int
			present.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
				if !carriesToken(request) || bytes.Contains(request.Payload, []byte("NEX")) {
					return transporttest.Fault{}
				}
				writes++
				return fault
			})
			_, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
				calls++
				return increment(old)
			})
			if !errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent) || calls != 1 || writes != 1 {
				t.Errorf("error %v after %d calls and %d writes, want ErrOutcomeUnknown after one each", err, calls, writes)
			}
			former.mustHold(t, key, holds)
		})
	}
}

func TestAnUpdateSurvivesALostReadAndSetsNothingIfAllAreLost(t *testing.T) {
	for _, lost := range []int64{1, 2, 1000} {
		inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
			var number atomic.Int64
			present.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
				reads := !bytes.Contains(request.Payload, []byte("SET")) || bytes.Contains(request.Payload, []byte("NEX"))
				n := int64(0)
				if bytes.Contains(request.Payload, []byte(key)) && reads {
					n = number.Add(1)
				}
				return transporttest.Fault{LoseReply: n > 0 && (n == lost || lost == 1000)}
			})
			cause := errors.New("no more time")
			ctx, cancel := context.WithTimeoutCause(t.Context(), ttl*3/4, cause)
			defer cancel()
			calls := 0
			_, err := guard.Update(ctx, key, func(old transport.Entry) ([]byte, error) {
				calls++
				return increment(old)
			})
			present.conn.SetFault(nil)
			if lost < 1000 {
				if err != nil || calls != 1 {
					t.Errorf("message %d lost: %v, %d calls", lost, err, calls)
				}
				present.mustHold(t, key, "1")
				return
			}
			if !errors.Is(err, transport.ErrNotSent) || errors.Is(err, transport.ErrOutcomeUnknown) || !errors.Is(err, cause) || calls > 0 {
				t.Errorf("error %v after %d calls, want ErrNotSent with the cause, and not ErrOutcomeUnknown", err, calls)
			}
			if entry, err := present.Get(t.Context(), key); err != nil || len(entry.Value) > 0 {
				t.Errorf("the key holds %q, %v", entry.Value, err)
			}
		})
	}
}

func TestAnErrorOfTheFunctionIsReturnedAndNothingIsSet(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		_, err := guard.Update(t.Context(), "", increment)
		var refused *transport.RefusedError
		if !errors.As(err, &refused) || !errors.Is(err, transport.ErrKeyLengthZero) {
			t.Errorf("error %v, want a RefusedError, ErrKeyLengthZero", err)
		}
		mustSet(t, guard, key, "41")
		no := errors.New("no")
		if _, err := guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) { return []byte("13"), no }); !errors.Is(err, no) {
			t.Errorf("error %v, want the function's", err)
		}
		func() {
			defer func() {
				if value := recover(); value != "boom" {
					t.Errorf("recovered %v", value)
				}
			}()
			_, _ = guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) { panic("boom") })
		}()
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		if _, err := guard.Update(ctx, key, increment); err != nil {
			t.Errorf("the next update: %v", err)
		}
		present.mustHold(t, key, "42")
	})
}

func TestInvariant43TheGuardIsFreeWhileTheFunctionRuns(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		if _, err := guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) {
			for _, method := range methods {
				if method.name == "Update" { // of the same key; another one below
					continue
				}
				if err := method.call(t.Context(), guard); err != nil && !errors.Is(err, transport.ErrConditionFailed) {
					t.Errorf("%s: %v", method.name, err)
				}
			}
			_, err := guard.Update(t.Context(), "press-7/other", increment)
			return []byte("42"), err
		}); err != nil {
			t.Error(err)
		}
		present.mustHold(t, key, "42")
	})
}

func TestAnUpdateWaitsForItsTurnNoLongerThanItMay(t *testing.T) {
	withStore(t, func(t *testing.T, _ *transporttest.Store, n node) {
		guard, tenure := n.lead(t)
		busy, free := make(chan struct{}), make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			_, err := guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) {
				close(busy)
				await.Receive(free)
				return []byte("late"), nil
			})
			// The tenure ended while the function ran.
			if !errors.Is(err, lease.ErrReleased) || errors.Is(err, transport.ErrOutcomeUnknown) {
				t.Errorf("the one that had its turn: %v, want ErrReleased", err)
			}
		})
		await.Receive(busy)
		never := func(transport.Entry) ([]byte, error) {
			t.Error("it was called")
			return nil, nil
		}
		cause := errors.New("no more time")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 3*ttl, cause)
		defer cancel()
		began := time.Now()
		_, err := guard.Update(ctx, key, never)
		if !errors.Is(err, cause) || !errors.Is(err, transport.ErrNotSent) || time.Since(began) != 3*ttl {
			t.Errorf("%v after %v, want the end of the context", err, time.Since(began))
		}
		if _, err := guard.Update(ctx, "press-7/other", never); !errors.Is(err, cause) {
			t.Errorf("after the end of the context: %v", err)
		}
		time.AfterFunc(ttl/2, func() { _ = tenure.Release(t.Context()) })
		began = time.Now()
		_, err = guard.Update(t.Context(), key, never)
		if !errors.Is(err, lease.ErrReleased) || time.Since(began) != ttl/2 {
			t.Errorf("%v after %v, want ErrReleased after %v", err, time.Since(began), ttl/2)
		}
		during := guard.Turns()
		close(free)
		await.Done(all.Wait)
		n.mustHold(t, key, "")
		if after := guard.Turns(); during != 1 || after != 0 {
			t.Errorf("the guard keeps %d turns while one is taken, and then %d", during, after)
		}
	})
}

func TestInvariant17AnUpdateThatMeetsANewerTokenEndsTheTenure(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, stale staleTenure, guard *fencing.Guard) {
		mustSet(t, stale.guard, key, "41")
		_, err := stale.guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
			if _, err := guard.Claim(t.Context(), key); err != nil { // the next leader comes
				t.Error(err)
			}
			return increment(old)
		})
		if cause := context.Cause(stale.Context()); !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(cause, fencing.ErrStaleToken) {
			t.Errorf("error %v, the tenure ended with %v; want ErrStaleToken", err, cause)
		}
		present.mustHold(t, key, "41")
	})
}
