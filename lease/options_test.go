package lease_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// promised are the options with which the promises of docs/embed.md are tested. As many renewals in a row may go
// unanswered as there is room for before the tenure's context ends.
var promised = []struct {
	name string
	lease.Options
	unanswered int
}{
	{"the defaults", lease.Options{TTL: ttl}, 2},
	{"short requests", lease.Options{TTL: ttl, RequestTimeout: ttl / 20}, 5},
	{"frequent renewals", lease.Options{TTL: ttl, RenewEvery: ttl / 10}, 2},
	{"acquire delay", lease.Options{TTL: ttl, AcquireDelay: ttl / 5}, 2},
	{"a short TTL", lease.Options{TTL: 100 * time.Millisecond}, 2},
}

// promises are the formulas of docs/embed.md.
type promises struct{ crash, unheld, handOver, outage time.Duration }

func promisesOf(o lease.Options) promises {
	renewEvery, requestTimeout := cmp.Or(o.RenewEvery, o.TTL/6), cmp.Or(o.RequestTimeout, o.TTL/6)
	margin, grace, jitter := cmp.Or(o.Margin, o.TTL/10), cmp.Or(o.GracePeriod, o.TTL/10), cmp.Or(o.Jitter, o.TTL/10)
	return promises{
		crash:    o.TTL + jitter + o.AcquireDelay,
		unheld:   max(renewEvery, requestTimeout) + requestTimeout + grace + margin + jitter + o.AcquireDelay,
		handOver: min(jitter, 10*time.Millisecond) + o.AcquireDelay,
		outage:   o.TTL - margin - grace - renewEvery,
	}
}

func TestAsManyRenewalsAsPromisedMayGoUnanswered(t *testing.T) {
	for _, options := range promised {
		for _, test := range []struct {
			lost  int
			lives bool
		}{{options.unanswered, true}, {100, false}} {
			t.Run(fmt.Sprintf("%s and %d lost replies", options.name, test.lost), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					n := newNode(t, store, "node-a", options.Options)
					tenure := n.mustAcquire(t)
					n.scripted("SET", func(number int64) transporttest.Fault {
						return transporttest.Fault{LoseReply: number <= int64(test.lost)}
					})
					time.Sleep(options.TTL)
					if err := context.Cause(tenure.Context()); errors.Is(err, lease.ErrDeadlinePassed) == test.lives {
						t.Errorf("the cause of its end is %v; is it to live: %t", err, test.lives)
					}
				})
			})
		}
	}
}

func TestAPromiseHoldsForAHolderThatIsCutOffAndNotificationsThatAreLost(t *testing.T) {
	for _, options := range promised {
		limits := promisesOf(options.Options)
		// The worst moment is just after a renewal; try many.
		for part := range time.Duration(20) {
			t.Run(fmt.Sprintf("%s, cut off after 3 TTL and %d %%", options.name, 5*part), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					a, b := newNode(t, store, "node-a", options.Options), newNode(t, store, "node-b", options.Options)
					b.conn.Silence(true)
					tenure := a.mustAcquire(t)
					acquired := acquireInBackground(t.Context(), t, b)
					time.Sleep(3*options.TTL + part*options.TTL/20 + time.Microsecond) // between two renewals
					cut := time.Now()
					a.conn.Cut()
					await.Receive(tenure.Context().Done())
					stopped := time.Now()
					await.Receive(acquired)
					if got := time.Since(cut); got > limits.crash {
						t.Errorf("the next one holds after %v, promised are %v", got, limits.crash)
					}
					if got := time.Since(stopped); got > limits.unheld {
						t.Errorf("no holder works for %v, promised are %v", got, limits.unheld)
					}
				})
			})
		}
	}
}

// A cut may lose the reply to a renewal. The store counts from this one, and the tenure from the one before.
func TestAPromiseHoldsForACutThatLosesTheReplyToARenewal(t *testing.T) {
	for _, options := range promised {
		limits := promisesOf(options.Options)
		late := cmp.Or(options.RequestTimeout, options.TTL/6) - time.Microsecond
		for _, test := range []struct {
			name   string
			before transporttest.Fault // of the earlier renewals
			cut    transporttest.Fault // of the renewal
			goesOn bool                // the later renewals have the same fault
			limit  time.Duration
		}{
			{name: "the renewal arrives at once", cut: transporttest.Fault{CutAfter: true}, limit: limits.unheld},
			{name: "the renewal arrives late", cut: transporttest.Fault{CutAfter: true, HoldRequest: late}, limit: limits.unheld},
			{name: "the replies before it are late", before: transporttest.Fault{HoldReply: late},
				cut: transporttest.Fault{CutAfter: true, HoldRequest: late}, limit: limits.unheld},
			{name: "requests still arrive", cut: transporttest.Fault{LoseReply: true}, goesOn: true, limit: limits.crash},
		} {
			t.Run(options.name+", "+test.name, func(t *testing.T) {
				for renewal := range int64(10) {
					inBubble(t, func(t *testing.T, store *transporttest.Store) {
						a, b := newNode(t, store, "node-a", options.Options), newNode(t, store, "node-b", options.Options)
						b.conn.Silence(true)
						tenure := a.mustAcquire(t)
						acquired := acquireInBackground(t.Context(), t, b)
						a.scripted("SET", func(number int64) transporttest.Fault {
							if number == renewal+1 || test.goesOn && number > renewal {
								return test.cut
							}
							return test.before
						})
						await.Receive(tenure.Context().Done())
						stopped := time.Now()
						await.Receive(acquired)
						if got := time.Since(stopped); got > test.limit {
							t.Errorf("with renewal %d, no holder works for %v, promised are %v", renewal, got, test.limit)
						}
					})
				}
			})
		}
	}
}

func TestAPromiseHoldsForAHandOver(t *testing.T) {
	for _, test := range []struct {
		name   string
		silent bool
		limit  func(promises) time.Duration
	}{
		{"that is heard", false, func(p promises) time.Duration { return p.handOver }},
		{"that is not heard", true, func(p promises) time.Duration { return p.crash }},
	} {
		for _, options := range promised {
			limit := test.limit(promisesOf(options.Options))
			t.Run(test.name+" with "+options.name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					a, b := newNode(t, store, "node-a", options.Options), newNode(t, store, "node-b", options.Options)
					tenure := a.mustAcquire(t)
					acquired := acquireInBackground(t.Context(), t, b)
					time.Sleep(3*options.TTL + options.TTL/7)
					b.conn.Silence(test.silent)
					released := time.Now()
					if err := tenure.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					await.Receive(acquired)
					if got := time.Since(released); got > limit {
						t.Errorf("the hand-over took %v, promised are %v", got, limit)
					}
				})
			})
		}
	}
}

func TestInvariant7OptionsThatCannotSurviveOneLostReplyAreRefused(t *testing.T) {
	second := time.Second
	for _, test := range []struct {
		name    string
		options lease.Options
		want    string // in the error; empty: accepted
	}{
		{"the zero value", lease.Options{}, ""},
		{"a TTL alone", lease.Options{TTL: 100 * time.Millisecond}, ""},
		{"the shortest TTL", lease.Options{TTL: lease.MinTTL}, ""},
		{"a TTL that is too short", lease.Options{TTL: lease.MinTTL - time.Millisecond}, "at least 50ms"},
		{"the longest TTL", lease.Options{TTL: lease.MaxTTL}, ""},
		{"a TTL that is too long", lease.Options{TTL: lease.MaxTTL + time.Millisecond}, "at most 87600h0m0s"},
		{"a jitter that is too long", lease.Options{Jitter: lease.MaxTTL + 1}, "Jitter 87600h0m0.000000001s is longer"},
		{"a negative TTL", lease.Options{TTL: -second}, "TTL -1s"},
		{"a TTL with a fraction of a millisecond", lease.Options{TTL: second + time.Microsecond}, "whole milliseconds"},
		{"a negative margin", lease.Options{Margin: -1}, "Margin -1ns is negative"},
		{"a negative grace period", lease.Options{GracePeriod: -1}, "GracePeriod -1ns is negative"},
		{"a negative renewal interval", lease.Options{RenewEvery: -1}, "RenewEvery -1ns is negative"},
		{"a negative timeout", lease.Options{RequestTimeout: -1}, "RequestTimeout -1ns is negative"},
		{"a negative jitter", lease.Options{Jitter: -1}, "Jitter -1ns is negative"},
		{"a negative acquire delay", lease.Options{AcquireDelay: -1}, "AcquireDelay -1ns is negative"},
		{"exactly enough time for one lost reply", lease.Options{
			TTL: 10 * second, Margin: second, GracePeriod: second,
			RenewEvery: 4 * second, RequestTimeout: 19 * second / 10,
		}, ""},
		{"a nanosecond too little", lease.Options{
			TTL: 10 * second, Margin: second, GracePeriod: second,
			RenewEvery: 4*second + 1, RequestTimeout: 19 * second / 10,
		}, "RenewEvery at most 4s"},
		{"instant failover with requests that take as long as a connection may be silent", lease.Options{
			TTL: 6 * second, RenewEvery: second, RequestTimeout: second + second/2, InstantFailover: true,
		}, "make RenewEvery or RequestTimeout shorter, or TTL longer"},
		{"a margin that eats the TTL", lease.Options{TTL: 10 * second, Margin: 9 * second}, "make TTL at least"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
				_, err := lease.New(client, name, test.options)
				if valid := test.options.Validate(); (valid == nil) != (err == nil) {
					t.Errorf("Validate: %v, and New: %v", valid, err)
				}
				switch {
				case test.want == "" && err != nil:
					t.Errorf("refused: %v", err)
				case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
					t.Errorf("error %v, want one that says %q", err, test.want)
				}
			})
		})
	}
}

