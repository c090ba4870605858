package lease_test

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// promised are the options with which the promises of docs/embed.md are tested.
var promised = []struct {
	name string
	lease.Options
}{
	{"the defaults", lease.Options{TTL: ttl}},
	{"short requests", lease.Options{TTL: ttl, RequestTimeout: ttl / 20}},
	{"frequent renewals", lease.Options{TTL: ttl, RenewEvery: ttl / 10}},
	{"acquire delay", lease.Options{TTL: ttl, AcquireDelay: ttl / 5}},
	{"a short TTL", lease.Options{TTL: 100 * time.Millisecond}},
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

// A cut may lose the reply to a renewal. The store counts from this one, and the tenure from the one before.
func TestAPromiseHoldsForACut(t *testing.T) {
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
			{name: "the renewal is lost", cut: transporttest.Fault{LoseRequest: true, Cut: true}, limit: limits.unheld},
			{name: "the renewal arrives at once", cut: transporttest.Fault{Cut: true}, limit: limits.unheld},
			{name: "the renewal arrives late", cut: transporttest.Fault{Cut: true, HoldRequest: late}, limit: limits.unheld},
			{name: "the replies before it are late", before: transporttest.Fault{HoldReply: late},
				cut: transporttest.Fault{Cut: true, HoldRequest: late}, limit: limits.unheld},
			{name: "requests still arrive", cut: transporttest.Fault{LoseReply: true}, goesOn: true, limit: limits.crash},
		} {
			t.Run(options.name+", "+test.name, func(t *testing.T) {
				for renewal := range int64(10) {
					inBubble(t, func(t *testing.T, store *transporttest.Store) {
						a, b := twoNodes(t, store, options.Options)
						b.conn.Silence(true)
						tenure := a.mustAcquire(t)
						acquired := acquireInBackground(t.Context(), t, b)
						var cut time.Time
						a.scripted("SET", func(number int64) transporttest.Fault {
							if number == renewal+1 || test.goesOn && number > renewal {
								if number == renewal+1 {
									cut = time.Now()
								}
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
						if got := time.Since(cut); test.cut.LoseRequest && got > limits.crash {
							t.Errorf("the next one holds %v after renewal %d was lost, promised are %v", got, renewal, limits.crash)
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
					a, b := twoNodes(t, store, options.Options)
					tenure := a.mustAcquire(t)
					acquired := acquireInBackground(t.Context(), t, b)
					time.Sleep(3*options.TTL + options.TTL/7)
					b.conn.Silence(test.silent)
					released := time.Now()
					mustRelease(t, tenure)
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
	const second = time.Second
	enough := lease.Options{TTL: 10 * second, Margin: second, GracePeriod: second, RenewEvery: 4 * second, RequestTimeout: 19 * second / 10}
	tooLittle := enough
	tooLittle.RenewEvery++
	for _, test := range []struct {
		options lease.Options
		want    string // in the error; empty: accepted
	}{
		{lease.Options{}, ""},
		{lease.Options{TTL: lease.MinTTL}, ""},
		{lease.Options{TTL: lease.MinTTL - time.Millisecond}, "at least 50ms"},
		{lease.Options{TTL: lease.MaxTTL}, ""},
		{lease.Options{TTL: lease.MaxTTL + time.Millisecond}, "at most 87600h0m0s"},
		{lease.Options{TTL: second + time.Microsecond}, "whole milliseconds"},
		{lease.Options{Jitter: lease.MaxTTL + 1}, "Jitter 87600h0m0.000000001s is longer"},
		{lease.Options{Margin: -1}, "Margin -1ns is negative"},
		{lease.Options{GracePeriod: -1}, "GracePeriod -1ns is negative"},
		{lease.Options{RenewEvery: -1}, "RenewEvery -1ns is negative"},
		{lease.Options{RequestTimeout: -1}, "RequestTimeout -1ns is negative"},
		{lease.Options{AcquireDelay: -1}, "AcquireDelay -1ns is negative"},
		{enough, ""},
		{tooLittle, "make TTL longer, or"},
		{lease.Options{TTL: 6 * second, RenewEvery: second, RequestTimeout: second + second/2, InstantFailover: true},
			"make RenewEvery or RequestTimeout shorter, or TTL longer"},
	} {
		synctest.Test(t, func(t *testing.T) {
			client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
			_, err := lease.New(client, name, test.options)
			if valid := test.options.Validate(); (valid == nil) != (err == nil) {
				t.Errorf("Validate: %v, and New: %v", valid, err)
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%+v: error %v, want one that says %q", test.options, err, test.want)
			}
			if _, err := lease.New(client, "", test.options); err == nil {
				t.Error("an empty name was accepted")
			}
		})
	}
}

// outlasts lets the store be away for some time, once from each of many moments on, and reports an error if
// a tenure ends.
func outlasts(t *testing.T, options lease.Options, away time.Duration) {
	t.Helper()
	for _, refuses := range []bool{false, true} { // requests at once, or clients are not connected
		for part := range time.Duration(40) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", options)
				tenure := n.mustAcquire(t)
				time.Sleep(3*options.TTL + part*options.TTL/40 + time.Microsecond) // between two renewals
				if refuses {
					n.conn.SetFault(func(transporttest.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} })
				} else {
					n.conn.Cut()
				}
				time.Sleep(away)
				n.conn.SetFault(nil)
				n.conn.Restore()
				time.Sleep(3 * options.TTL)
				if err := context.Cause(tenure.Context()); err != nil {
					t.Errorf("an outage of %v, with refusals %t, after %v/40 of the TTL ended it: %v", away, refuses, part, err)
				}
			})
		}
	}
}

// A pair of gateways takes at most 2.5 s for the takeover of its store.
func TestATTLOf4SecondsOutlastsATakeoverOfTheStore(t *testing.T) {
	outlasts(t, lease.Options{TTL: 4 * time.Second}, 2500*time.Millisecond)
}

func TestAnOutageOfTheStoreAsLongAsPromisedCostsNoLease(t *testing.T) {
	for _, options := range promised {
		t.Run(options.name, func(t *testing.T) {
			outlasts(t, options.Options, promisesOf(options.Options).outage-options.TTL/400-time.Millisecond) // the least pause, and a reply
		})
	}
}
