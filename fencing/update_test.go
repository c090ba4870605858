package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// increment adds one to the number in a key.
func increment(old transport.Entry) ([]byte, error) {
	n, _ := strconv.Atoi(string(old.Value)) // an empty value is zero
	return strconv.AppendInt(nil, int64(n+1), 10), nil
}

// trace lists the requests for key from now on, as "GET", "SET NEX" (of a claim) and so on.
func (n node) trace() (list func() []string) {
	var mu sync.Mutex
	var requests []string
	n.conn.SetFault(func(request transport.Request) transporttest.Fault {
		if !bytes.Contains(request.Payload, []byte(key)) {
			return transporttest.Fault{}
		}
		words := strings.Split(string(request.Payload), "\r\n") // $3 GET $16 press-7/setpoint …
		name := words[2]
		if slices.Contains(words, "NEX") {
			name += " NEX"
		}
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, name)
		return transporttest.Fault{}
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		taken := requests
		requests = nil
		return taken
	}
}

func TestUpdatesOfOneKeyThroughOneGuardAreNeverLost(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		var number atomic.Int64
		present.conn.SetFault(func(transport.Request) transporttest.Fault { // replies that overtake each other
			return transporttest.Fault{HoldReply: time.Duration(number.Add(7)%5) * time.Millisecond}
		})
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for range 20 {
					if _, err := guard.Update(t.Context(), key, increment); err != nil {
						t.Error(err)
					}
				}
			})
		}
		await.Done(all.Wait)
		present.conn.SetFault(nil)
		present.mustHold(t, key, "400")
	})
}

func TestUpdatesOfDifferentKeysDoNotWaitForEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ staleTenure, guard *fencing.Guard) {
		began := time.Now()
		var all sync.WaitGroup
		for _, key := range manyKeys(100) {
			all.Go(func() {
				if _, err := guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) {
					time.Sleep(time.Second)
					return nil, nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		await.Done(all.Wait)
		if took := time.Since(began); took != time.Second {
			t.Errorf("100 updates of a second each took %v", took)
		}
	})
}

// An update waits for its turn as long as the tenure lasts, not only for the time that remained
// when it began to wait.
func TestUpdatesMayWaitForLongerThanTheTTLWhileTheTenureIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if _, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
					time.Sleep(ttl / 4)
					return increment(old)
				}); err != nil {
					t.Error(err)
				}
			})
		}
		await.Done(all.Wait)
		present.mustHold(t, key, "30")
	})
}

func TestUpdateClaimsAKeyOnceAndAgainWhenItsFenceIsGone(t *testing.T) {
	first, later := []string{"GET", "SET NEX", "SET"}, []string{"GET", "SET"}
	inBubble(t, func(t *testing.T, former, present node, _ staleTenure, guard *fencing.Guard) {
		requests := present.trace()
		for _, step := range []struct {
			name string
			do   func() error
			want []string
		}{
			{"the first", nil, first},
			{"the second", nil, later},
			{"after Set", func() error { _, err := guard.Set(t.Context(), key, []byte("7")); return err }, later},
			{"after Clear", func() error { return guard.Clear(t.Context(), key) }, later},
			{"after Del", func() error { _, err := guard.Del(t.Context(), key); return err }, first},
			{"after a VDel", func() error { _, err := guard.VDel(t.Context(), key, []byte("1")); return err }, first},
			{"after Del and Claim", func() error {
				if _, err := guard.Del(t.Context(), key); err != nil {
					return err
				}
				_, err := guard.Claim(t.Context(), key)
				return err
			}, later},
			{"after it was deleted past the guard", func() error {
				_, err := leadLater(t, former.Client).Del(t.Context(), key)
				return err
			}, append([]string{"GET"}, first...)},
		} {
			if step.do != nil {
				if err := step.do(); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				requests()
			}
			if _, err := guard.Update(t.Context(), key, increment); err != nil {
				t.Errorf("%s: %v", step.name, err)
			}
			if got := requests(); !slices.Equal(got, step.want) {
				t.Errorf("%s: it sent %q, want %q", step.name, got, step.want)
			}
		}
	})
}

func TestAnUpdateShutsOutAWriteThatIsOnItsWayBeforeItReads(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		if _, err := fencing.NewGuard(former.Client, stale.Tenure).Set(t.Context(), key, []byte("41")); err != nil {
			t.Fatal(err)
		}
		// It arrives while the new value is being made.
		former.conn.SetFault(func(transport.Request) transporttest.Fault {
			return transporttest.Fault{HoldRequest: 50 * time.Millisecond}
		})
		var late sync.WaitGroup
		late.Go(func() {
			_, err := former.Set(t.Context(), key, []byte("13"), transport.SetOptions{FencingToken: stale.token})
			if !errors.Is(err, transport.ErrFencingTokenLower) {
				t.Errorf("the write on its way: %v, want ErrFencingTokenLower", err)
			}
		})
		if _, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
			time.Sleep(100 * time.Millisecond)
			return increment(old)
		}); err != nil {
			t.Error(err)
		}
		await.Done(late.Wait)
		present.mustHold(t, key, "42")
	})
}

func TestUpdateSeesAMissingKeyAsEmpty(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ staleTenure, guard *fencing.Guard) {
		if _, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
			if !old.Exists || len(old.Value) != 0 || old.Version.IsZero() {
				t.Errorf("the update saw %+v", old)
			}
			return nil, nil
		}); err != nil {
			t.Error(err)
		}
	})
}

func TestTheOldValueBelongsToTheFunction(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		if _, err := guard.Set(t.Context(), key, []byte("41")); err != nil {
			t.Fatal(err)
		}
		no := errors.New("no")
		for range 3 { // by a claim, and without
			var kept []byte
			if _, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
				if string(old.Value) != "41" {
					t.Errorf("it saw %q", old.Value)
				}
				kept = old.Value
				copy(old.Value, "xx")
				return nil, no
			}); !errors.Is(err, no) {
				t.Error(err)
			}
			if _, err := guard.Get(t.Context(), key); err != nil || string(kept) != "xx" {
				t.Errorf("the value that was kept became %q, %v", kept, err)
			}
		}
		present.mustHold(t, key, "41")
	})
}

func TestInvariant24AnUpdateOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault transporttest.Fault
		holds string
	}{
		{"the request is lost", transporttest.Fault{LoseRequest: true}, "1"},
		{"the reply is lost", transporttest.Fault{LoseReply: true}, "2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, _ staleTenure, guard *fencing.Guard) {
				if _, err := guard.Update(t.Context(), key, increment); err != nil {
					t.Fatal(err)
				}
				var calls, writes int
				present.conn.SetFault(func(request transport.Request) transporttest.Fault {
					if request.FencingToken == "" {
						return transporttest.Fault{}
					}
					writes++
					return test.fault
				})
				_, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
					calls++
					return increment(old)
				})
				if !errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent) {
					t.Errorf("error %v, want ErrOutcomeUnknown", err)
				}
				if calls != 1 || writes != 1 {
					t.Errorf("the function was called %d times, %d writes were sent; want one each", calls, writes)
				}
				former.mustHold(t, key, test.holds)
			})
		})
	}
}

func TestAnUpdateSurvivesALostRead(t *testing.T) {
	for claimed := range 2 {
		for lost := int64(1); lost <= 2; lost++ {
			t.Run(fmt.Sprintf("claimed before %d, message %d lost", claimed, lost), func(t *testing.T) {
				inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
					for range claimed {
						if _, err := guard.Claim(t.Context(), key); err != nil {
							t.Fatal(err)
						}
					}
					var calls int
					var number atomic.Int64
					present.conn.SetFault(func(request transport.Request) transporttest.Fault {
						reads := !bytes.Contains(request.Payload, []byte("SET")) || bytes.Contains(request.Payload, []byte("NEX"))
						if bytes.Contains(request.Payload, []byte(key)) && reads && number.Add(1) == lost {
							return transporttest.Fault{LoseReply: true}
						}
						return transporttest.Fault{}
					})
					if _, err := guard.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
						calls++
						return increment(old)
					}); err != nil || calls != 1 {
						t.Errorf("%v, %d calls", err, calls)
					}
					present.conn.SetFault(nil)
					present.mustHold(t, key, "1")
				})
			})
		}
	}
}

func TestAnUpdateThatCannotReadSetsNothingAndSaysSo(t *testing.T) {
	for claimed := range 2 {
		t.Run(fmt.Sprintf("claimed before %d", claimed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, _ staleTenure, guard *fencing.Guard) {
				for range claimed {
					if _, err := guard.Claim(t.Context(), key); err != nil {
						t.Fatal(err)
					}
				}
				present.conn.SetFault(func(request transport.Request) transporttest.Fault {
					return transporttest.Fault{LoseReply: bytes.Contains(request.Payload, []byte(key))}
				})
				cause := errors.New("no more time")
				ctx, cancel := context.WithTimeoutCause(t.Context(), ttl/8, cause)
				defer cancel()
				_, err := guard.Update(ctx, key, func(transport.Entry) ([]byte, error) {
					t.Error("it was called")
					return nil, nil
				})
				if !errors.Is(err, transport.ErrNotSent) || errors.Is(err, transport.ErrOutcomeUnknown) || !errors.Is(err, cause) {
					t.Errorf("error %v, want ErrNotSent with the cause, and not ErrOutcomeUnknown", err)
				}
				if entry, err := former.Get(t.Context(), key); err != nil || len(entry.Value) != 0 {
					t.Errorf("the key holds %q, %v", entry.Value, err)
				}
			})
		})
	}
}

func TestTheTypedErrorOfARefusedReadIsReached(t *testing.T) {
	inBubble(t, func(t *testing.T, _, _ node, _ staleTenure, guard *fencing.Guard) {
		_, err := guard.Update(t.Context(), "", increment)
		var refused *transport.RefusedError
		if !errors.As(err, &refused) || !errors.Is(err, transport.ErrKeyLengthZero) {
			t.Errorf("error %v, want a RefusedError, ErrKeyLengthZero", err)
		}
	})
}

func TestAnErrorOfTheFunctionIsReturnedAndNothingIsSet(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		if _, err := guard.Set(t.Context(), key, []byte("41")); err != nil {
			t.Fatal(err)
		}
		no := errors.New("no")
		if _, err := guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) { return []byte("13"), no }); !errors.Is(err, no) {
			t.Errorf("error %v, want the function's", err)
		}
		present.mustHold(t, key, "41")
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		if _, err := guard.Update(ctx, key, increment); err != nil {
			t.Errorf("the next update: %v", err)
		}
		present.mustHold(t, key, "42")
	})
}

func TestAPanicOfTheFunctionLeavesTheKeyFree(t *testing.T) {
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, guard *fencing.Guard) {
		func() {
			defer func() {
				if value := recover(); value != "boom" {
					t.Errorf("recovered %v", value)
				}
			}()
			_, _ = guard.Update(t.Context(), key, func(transport.Entry) ([]byte, error) { panic("boom") })
		}()
		present.mustHold(t, key, "")
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		if _, err := guard.Update(ctx, key, increment); err != nil {
			t.Errorf("the next update: %v", err)
		}
		present.mustHold(t, key, "1")
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
	inBubble(t, func(t *testing.T, _, present node, _ staleTenure, _ *fencing.Guard) {
		other, err := lease.New(present.Client, "another", lease.Options{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := other.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		guard := fencing.NewGuard(present.Client, tenure)
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
		_, err = guard.Update(ctx, key, never)
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

		if turns, _ := guard.Kept(); turns != 1 {
			t.Errorf("the guard keeps %d turns while one is taken", turns)
		}
		close(free)
		await.Done(all.Wait)
		present.mustHold(t, key, "")
		if turns, _ := guard.Kept(); turns != 0 {
			t.Errorf("the guard keeps %d unused turns", turns)
		}
	})
}

func TestInvariant17AnUpdateThatMeetsANewerTokenEndsTheTenure(t *testing.T) {
	inBubble(t, func(t *testing.T, former, present node, stale staleTenure, guard *fencing.Guard) {
		old := fencing.NewGuard(former.Client, stale.Tenure)
		if _, err := old.Set(t.Context(), key, []byte("41")); err != nil {
			t.Fatal(err)
		}
		_, err := old.Update(t.Context(), key, func(old transport.Entry) ([]byte, error) {
			if _, err := guard.Claim(t.Context(), key); err != nil { // the next leader comes
				t.Error(err)
			}
			return increment(old)
		})
		if !errors.Is(err, fencing.ErrStaleToken) || !errors.Is(context.Cause(stale.Context()), fencing.ErrStaleToken) {
			t.Errorf("error %v, the tenure ended with %v; want ErrStaleToken", err, context.Cause(stale.Context()))
		}
		present.mustHold(t, key, "41")
	})
}

// A tenure may write any number of keys.
func TestTheStateOfAGuardIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard, _ := newNode(t, transporttest.Start(t), "node-a").lead(t)
		for i := range fencing.MaxClaims + 100 {
			if _, err := guard.Update(t.Context(), fmt.Sprint(i), increment); err != nil {
				t.Fatal(err)
			}
		}
		turns, claims := guard.Kept()
		if turns != 0 || claims != fencing.MaxClaims {
			t.Errorf("it keeps %d turns and %d claims, want 0 and %d", turns, claims, fencing.MaxClaims)
		}
	})
}
