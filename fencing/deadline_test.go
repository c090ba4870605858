package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

func TestAGuardWhoseTenureIsOverSendsNothing(t *testing.T) {
	for _, end := range []struct {
		name string
		end  func(*testing.T, *lease.Tenure)
		want error
	}{
		{"released", func(t *testing.T, tenure *lease.Tenure) { _ = tenure.Release(t.Context()) }, lease.ErrReleased},
		{"ran out", func(_ *testing.T, tenure *lease.Tenure) { tenure.StopRenewing(); time.Sleep(ttl) }, lease.ErrDeadlinePassed},
		{"fenced out", func(_ *testing.T, tenure *lease.Tenure) { tenure.FencedOut(errors.New("evidence")) }, lease.ErrFencedOut},
	} {
		for _, method := range methods {
			t.Run(end.name+", "+method.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newNode(t, transporttest.Start(t), "node-a")
					guard, tenure := a.lead(t)
					if _, err := guard.Claim(t.Context(), key); err != nil { // an update then skips its claim
						t.Fatal(err)
					}
					end.end(t, tenure)
					synctest.Wait() // the requests of the tenure itself are over
					sent := a.countAll()
					if err := method.call(t.Context(), guard); !errors.Is(err, end.want) {
						t.Errorf("%v, want %v", err, end.want)
					}
					if got := sent.Load(); got != 0 {
						t.Errorf("%d requests were sent", got)
					}
				})
			})
		}
	}
}

func TestATenureWithoutATokenSendsNothing(t *testing.T) {
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent atomic.Int64
				client := altered{
					Conn:    transporttest.Start(t).Connect("node-a"),
					request: func(context.Context, *transport.Request) { sent.Add(1) },
					reply:   func(reply *transport.Reply) { reply.Timestamp = "" },
				}.client(t)
				tenure := stop(t, client, time.Minute)
				sent.Store(0)
				if err := method.call(t.Context(), fencing.NewGuard(client, tenure.Tenure)); !errors.Is(err, fencing.ErrMissingToken) {
					t.Errorf("%v, want ErrMissingToken", err)
				}
				if got := sent.Load(); got != 0 {
					t.Errorf("%d requests were sent", got)
				}
			})
		})
	}
}

func TestInvariant21ARequestDoesNotOutlastItsTenure(t *testing.T) {
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, present node, _ staleTenure, guard *fencing.Guard) {
				present.conn.Cut()
				sent := present.countTokens()
				began := time.Now()
				err := method.call(t.Context(), guard)
				if !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrDeadlinePassed) {
					t.Errorf("error %v, want ErrNotSent or ErrDeadlinePassed", err)
				}
				if errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("error %v, but nothing was sent", err)
				}
				if waited := time.Since(began); waited > ttl {
					t.Errorf("it waited %v for a connection", waited)
				}
				present.conn.Restore()
				time.Sleep(ttl)
				if entry, err := former.Get(t.Context(), key); err != nil || entry.Exists || sent.Load() != 0 {
					t.Errorf("it was sent later: %+v, %v", entry, err)
				}
			})
		})
	}
}

// A broker may keep a request for longer than the lease of its sender lasts. A process may stand still
// after it has asked how long that is: then the request lasts for what is left.
func TestInvariant21ARequestUnderATokenExpiresWithTheTenure(t *testing.T) {
	for _, pause := range []time.Duration{0, 100 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) { expiresWithTheTenure(t, pause) })
	}
}

func expiresWithTheTenure(t *testing.T, pause time.Duration) {
	var longest time.Duration
	requests := 0
	client := altered{Conn: transporttest.Start(t).Connect("node-a"), request: func(ctx context.Context, request *transport.Request) {
		if request.FencingToken != "" { // over MQTT the deadline becomes the message expiry
			deadline, _ := ctx.Deadline()
			requests++
			longest = max(longest, time.Until(deadline))
		}
	}}.client(t)
	tenure := stop(t, client, ttl)
	left := tenure.Remaining() - pause
	tenure.clock.pause.Store(int64(pause))
	for _, method := range methods {
		_ = method.call(t.Context(), fencing.NewGuard(client, tenure.Tenure)) // some find nothing to delete
	}
	tenure.clock.pause.Store(0)
	if requests == 0 || longest > left {
		t.Errorf("%d requests lasted for up to %v, and the tenure for %v", requests, longest, left)
	}
}

// The client of the guard has no connection, while the tenure is renewed over another.
func TestARequestWaitsNoLongerThanItsTenureIsSureToLast(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		for _, method := range methods[:slices.IndexFunc(methods, func(m guardMethod) bool { return m.name == "Claim" })] { // which tries again
			t.Run(fmt.Sprintf("%s, identity hidden %v", method.name, hidden), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					store.HideIdentity(hidden)
					n, other := newNode(t, store, "node-a"), newNode(t, store, "other")
					_, tenure := n.lead(t)
					other.conn.Cut()
					began, left := time.Now(), tenure.Remaining()
					err := method.call(t.Context(), fencing.NewGuard(other.Client, tenure))
					if waited := time.Since(began); !errors.Is(err, transport.ErrNotSent) || waited > left {
						t.Errorf("%v after %v, want ErrNotSent within %v", err, waited, left)
					}
					if err := context.Cause(tenure.Context()); err != nil {
						t.Errorf("the tenure: %v", err)
					}
				})
			})
		}
	}
}

// Otherwise a request that waits for a connection would leave with the next connection, after
// the release timed out.
func TestInvariant18NothingIsSentOnceTheTenureWasEnded(t *testing.T) {
	for _, method := range methods {
		for _, end := range []struct {
			name   string
			hidden bool // the store has no identity: the guard asks it first
			at     time.Duration
		}{{"early", false, ttl / 4}, {"early, without an identity", true, ttl / 4}, {"after the notice", false, ttl - 3*ttl/20}} {
			t.Run(method.name+", "+end.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					store.HideIdentity(end.hidden)
					a := newNode(t, store, "node-a")
					guard, tenure := a.lead(t)
					synctest.Wait() // the tenure has read its own key
					a.conn.Cut()
					sent := a.countAll()
					began := time.Now()
					time.AfterFunc(end.at, func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						defer cancel()
						if err := tenure.Release(ctx); err == nil {
							t.Error("released without a connection")
						}
						a.conn.Restore()
					})
					err := method.call(t.Context(), guard)
					if !errors.Is(err, transport.ErrNotSent) && !errors.Is(err, lease.ErrReleased) || errors.Is(err, transport.ErrOutcomeUnknown) {
						t.Errorf("%v, want ErrNotSent or ErrReleased", err)
					}
					if waited := time.Since(began); waited != end.at {
						t.Errorf("it waited %v, want until the release", waited)
					}
					time.Sleep(ttl)
					if got := sent.Load(); got != 0 {
						t.Errorf("%d requests were sent", got)
					}
				})
			})
		}
	}
}

// A tenure may announce its end before the deadline. In the time until then the guard still
// writes.
func TestAGuardWritesUntilTheDeadline(t *testing.T) {
	for _, method := range methods {
		t.Run(method.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, _, present node, _ staleTenure, _ *fencing.Guard) {
				l, err := lease.New(present.Client, "another", lease.Options{TTL: ttl})
				if err != nil {
					t.Fatal(err)
				}
				tenure, err := l.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				tenure.StopRenewing()
				present.conn.SetFault(func(transport.Request) transporttest.Fault {
					return transporttest.Fault{HoldReply: 10 * time.Millisecond}
				})
				guard := fencing.NewGuard(present.Client, tenure)
				for range 2 {
					if err := method.call(t.Context(), guard); err != nil && !errors.Is(err, transport.ErrConditionFailed) {
						t.Errorf("%v, with %v left: %v", context.Cause(tenure.Context()), tenure.Remaining(), err)
					}
					await.Receive(tenure.Context().Done())
				}
			})
		})
	}
}

// A guard returns a result only before the deadline, even if the reply took long and the timers
// of this process are late.
func TestInvariant1WhatIsReadIsNotReturnedAfterTheTenure(t *testing.T) {
	for _, test := range []struct {
		method string
		end    time.Duration // each reply takes a second
		tokens int64         // how many requests may have carried one
	}{
		{"Get", 500 * time.Millisecond, 0},
		{"Claim", 500 * time.Millisecond, 0},
		{"Claim", 1500 * time.Millisecond, 1},
		{"ClaimAll", 1500 * time.Millisecond, 1},
		{"Update", 500 * time.Millisecond, 0},
		{"Update", 1500 * time.Millisecond, 1},
	} {
		t.Run(fmt.Sprintf("%s, %v", test.method, test.end), func(t *testing.T) {
			inBubble(t, func(t *testing.T, former, _ node, stale staleTenure, _ *fencing.Guard) {
				var tokens atomic.Int64
				former.conn.SetFault(func(request transport.Request) transporttest.Fault {
					if request.FencingToken != "" {
						tokens.Add(1)
					}
					return transporttest.Fault{HoldReply: time.Second}
				})
				// As after a suspend: the deadline has passed, but the timers are late.
				time.AfterFunc(test.end, func() { stale.clock.now.Add(int64(time.Minute)) })
				i := slices.IndexFunc(methods, func(m guardMethod) bool { return m.name == test.method })
				if err := methods[i].call(t.Context(), fencing.NewGuard(former.Client, stale.Tenure)); !errors.Is(err, lease.ErrDeadlinePassed) {
					t.Errorf("%v, want ErrDeadlinePassed", err)
				}
				if got := tokens.Load(); got != test.tokens {
					t.Errorf("%d requests carried the token, want %d", got, test.tokens)
				}
			})
		})
	}
}
