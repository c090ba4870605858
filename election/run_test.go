package election_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestRunEndsWithItsContextOrItsClient(t *testing.T) {
	ends := []struct {
		name string
		end  func(*transporttest.Store, *candidate)
		want error
	}{
		{"the client is closed", func(_ *transporttest.Store, c *candidate) { _ = c.client.Close() }, transport.ErrClosed},
		{"the client is taken over", func(s *transporttest.Store, c *candidate) { s.Connect(c.client.ClientID()) }, transport.ErrSessionTakenOver},
		{"the context is cancelled", func(_ *transporttest.Store, c *candidate) { c.cancel() }, context.Canceled},
	}
	for _, state := range []string{"it leads", "it waits", "it is unhealthy", "it is held off"} {
		for _, test := range ends {
			t.Run(state+", "+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := transporttest.Start(t)
					var health fitness
					ending := newCandidate(t, store, "node-a", election.Options{Health: health.check, HoldOff: time.Hour})
					other := newCandidate(t, store, "node-b", election.Options{})
					if state == "it waits" {
						runBoth(t, other, ending)
					} else {
						runBoth(t, ending, other)
					}
					if state == "it is held off" {
						ending.Resign()
					} else if state == "it is unhealthy" {
						health.set(errJammed)
					}
					time.Sleep(ttl)
					test.end(store, ending)
					time.Sleep(3 * ttl) // less than the hold-off
					select {
					case err := <-ending.result:
						if !errors.Is(err, test.want) {
							t.Errorf("Run returned %v, want %v", err, test.want)
						}
					default:
						t.Error("Run has not returned")
					}
					if errors.Is(test.want, transport.ErrClosed) {
						if err := ending.Run(t.Context(), serve); !errors.Is(err, transport.ErrClosed) {
							t.Errorf("Run with a closed client: %v, want ErrClosed", err)
						}
					}
					_, _ = other.stop(), ending.stop()
				})
			})
		}
	}
}

// slowToEnd is a Conn with requests that fail permanently before it reports its end.
type slowToEnd struct {
	*transporttest.Conn
	report <-chan struct{}
}

func (c slowToEnd) Start(events transport.Events) {
	ended := events.Ended
	events.Ended = func(cause error) {
		await.Receive(c.report)
		ended(cause)
	}
	c.Conn.Start(events)
}

// A request may fail before the client reports its end.
func TestRunEndsWhenARequestFailsPermanently(t *testing.T) {
	for _, state := range []string{"it leads", "it waits"} {
		t.Run(state, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				ending, report := &candidate{conn: store.Connect("node-a")}, make(chan struct{})
				client, err := transport.NewClient(slowToEnd{ending.conn, report}, transport.ClientOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				defer close(report)
				ending.client = client
				ending.elect(t, election.Options{HoldOff: time.Hour})
				other := newCandidate(t, store, "node-b", election.Options{})
				if state == "it waits" {
					runBoth(t, other, ending)
				} else {
					runBoth(t, ending, other)
				}
				go store.Connect("node-a") // takes over
				time.Sleep(3 * ttl)
				select {
				case err := <-ending.result:
					if !errors.Is(err, transport.ErrSessionTakenOver) {
						t.Errorf("Run returned %v, want ErrSessionTakenOver", err)
					}
				default:
					t.Error("Run goes on with a client that cannot send")
				}
				_, _ = other.stop(), ending.stop()
			})
		})
	}
}

func TestRunRunsOnceAtATime(t *testing.T) {
	inBubble(t, election.Options{}, func(t *testing.T, first, _ *candidate) {
		first.run(t, serve)
		synctest.Wait()
		if err := first.Run(t.Context(), serve); err == nil || !strings.Contains(err.Error(), "running already") {
			t.Errorf("a second Run: %v, want an error that says so", err)
		}
		_ = first.stop()
		first.run(t, serve)
		synctest.Wait()
		first.mustLead(t)
		_ = first.stop()
	})
}

func TestInvariant42RunEndsAtAnyMomentAndLeavesNothing(t *testing.T) {
	const roundTrip = ttl / 50
	for when := time.Duration(0); when < 4*ttl; when += ttl/17 + time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			store := transporttest.Start(t)
			options := election.Options{
				Claim:         []string{key},
				FailBackAfter: ttl,
				HealthEvery:   every,
				Health: func(ctx context.Context) error {
					time.Sleep(every)
					return ctx.Err()
				},
				Standby: func(ctx context.Context) error {
					await.Receive(ctx.Done())
					time.Sleep(every)
					return nil
				},
			}
			var working atomic.Int64 // calls of the functions that have not returned
			health, standby := options.Health, options.Standby
			options.Health = func(ctx context.Context) error {
				working.Add(1)
				defer working.Add(-1)
				return health(ctx)
			}
			options.Standby = func(ctx context.Context) error {
				working.Add(1)
				defer working.Add(-1)
				return standby(ctx)
			}
			candidates := ranked(t, store, 2, options)
			for i := range candidates {
				c := candidates[len(candidates)-1-i]
				c.conn.SetFault(func(transport.Request) transporttest.Fault {
					return transporttest.Fault{HoldRequest: roundTrip / 2, HoldReply: roundTrip / 2}
				})
				c.run(t, serve)
				time.Sleep(roundTrip)
			}
			time.Sleep(when)
			for _, c := range candidates {
				c.cancel()
			}
			for _, c := range candidates {
				if err := await.Receive(c.result); !errors.Is(err, context.Canceled) {
					t.Errorf("after %v: Run returned %v, want Canceled", when, err)
				}
			}
			if got := working.Load(); got != 0 {
				t.Errorf("after %v: %d functions run", when, got)
			}
			time.Sleep(ttl / 4) // an acquisition cut short is resolved in the background
			holder, err := candidates[0].leader(t)
			if request := candidates[0].failBackRequest(t); err != nil || holder.Held || request != "" {
				t.Errorf("after %v: %+v leads, fail-back request %q, %v; want nothing left", when, holder, request, err)
			}
		})
	}
}

// Run ends while the request of its campaign is under way, and the program closes its client.
func TestACampaignThatWasGivenUpIsFreedBeforeRunReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		c, other := newCandidate(t, store, "node-a", election.Options{}), newCandidate(t, store, "other", election.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var lost atomic.Bool
		c.conn.SetFault(func(r transport.Request) transporttest.Fault {
			if strings.Contains(string(r.Payload), "\r\nSET\r\n") {
				time.AfterFunc(ttl/100, cancel) // under way
			}
			// The first request to free the lease is lost.
			lose := strings.Contains(string(r.Payload), "\r\nVDEL\r\n") && lost.CompareAndSwap(false, true)
			return transporttest.Fault{HoldRequest: ttl / 20, LoseRequest: lose}
		})
		if err := c.Run(ctx, func(context.Context, *election.Term) error { return nil }); !errors.Is(err, context.Canceled) {
			t.Fatalf("Run: %v", err)
		}
		_ = c.client.Close()
		time.Sleep(ttl / 10) // what was under way has arrived
		if h, err := other.leader(t); err != nil || h.Held {
			t.Errorf("the store holds %+v, %v", h, err)
		}
	})
}

func TestNonsensicalOptionsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		for _, test := range []struct {
			name    string
			options election.Options
			want    string
		}{
			{"the same TTL twice", election.Options{TTL: ttl, Lease: lease.Options{TTL: ttl}}, "set Options.TTL"},
			{"a negative hold-off", election.Options{HoldOff: -1}, "HoldOff"},
			{"an acquire delay beside the rank", election.Options{Lease: lease.Options{AcquireDelay: ttl}}, "Options.Rank"},
			{"a function beside the observer", election.Options{Lease: lease.Options{OnWaiting: func(error) {}}}, "Options.Observer"},
			{"a negative pause between checks", election.Options{HealthEvery: -1}, "HealthEvery"},
			{"a negative timeout of checks", election.Options{HealthTimeout: -1}, "HealthTimeout"},
			{"a negative rank", election.Options{Rank: -1}, "the best rank is 0"},
			{"a rank that would wait forever", election.Options{Rank: 1 << 30}, "the worst is 100"},
			{"a negative hold-down", election.Options{FailBackAfter: -1}, "FailBackAfter"},
			{"a negative TTL", election.Options{TTL: -ttl, Rank: 1}, "TTL -2s"},
			{"a lease that could not be held", election.Options{TTL: ttl, Lease: lease.Options{RenewEvery: ttl}}, "RenewEvery"},
		} {
			if _, err := election.New(client, name, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want an error that says %q", test.name, err, test.want)
			}
		}
	})
}
