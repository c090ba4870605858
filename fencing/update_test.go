package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
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

func TestClaimAllReturnsWhatEachKeyHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		keys := manyKeys(5 * fencing.ClaimsAtOnce)
		for _, key := range keys[:len(keys)/2] { // the others are missing until they are claimed
			mustSet(t, stale.guard, key, "value of "+key)
		}
		claims := present.count(carriesToken)
		entries, err := guard.ClaimAll(t.Context(), append(keys, keys...)...)
		if err != nil || len(entries) != len(keys) || claims.Load() != int64(len(keys)) {
			t.Fatalf("%d entries after %d claims, %v; want %d: each key is named twice, and claimed once", len(entries), claims.Load(), err, len(keys))
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
			{"after Set", func() error { mustSet(t, guard, key, ""); return nil }, 2},
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

func TestAnUpdateWithoutAnAnswerToItsReadSetsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		present.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			reads := !bytes.Contains(request.Payload, []byte("SET")) || bytes.Contains(request.Payload, []byte("NEX"))
			return transporttest.Fault{LoseReply: bytes.Contains(request.Payload, []byte(key)) && reads}
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
		if !errors.Is(err, transport.ErrNotSent) || errors.Is(err, transport.ErrOutcomeUnknown) || !errors.Is(err, cause) || calls > 0 {
			t.Errorf("error %v after %d calls, want ErrNotSent with the cause, and not ErrOutcomeUnknown", err, calls)
		}
		if entry, err := present.Get(t.Context(), key); err != nil || len(entry.Value) > 0 {
			t.Errorf("the key holds %q, %v", entry.Value, err)
		}
	})
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
