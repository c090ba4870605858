package lease_test

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// outages are the ways in which a store is away.
var outages = []struct {
	name        string
	begin, over func(node)
}{
	{"clients are not connected", func(n node) { n.conn.Cut() }, func(n node) { n.conn.Restore() }},
	{"requests are refused at once", func(n node) {
		n.conn.SetFault(func(transport.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} })
	}, func(n node) { n.conn.SetFault(nil) }},
}

// outlasts lets the store be away for some time, once from each of many moments on, and reports an error if
// a tenure ends.
func outlasts(t *testing.T, options lease.Options, away time.Duration) {
	t.Helper()
	for _, outage := range outages {
		for part := range time.Duration(40) {
			t.Run(fmt.Sprintf("%s after %.1f %% of the TTL", outage.name, 2.5*float64(part)), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					n := newNode(t, store, "node-a", options)
					tenure := n.mustAcquire(t)
					time.Sleep(3*options.TTL + part*options.TTL/40 + time.Microsecond) // between two renewals
					outage.begin(n)
					time.Sleep(away)
					outage.over(n)
					time.Sleep(3 * options.TTL)
					if err := tenure.Err(); err != nil {
						t.Errorf("an outage of %v ended it: %v", away, err)
					}
				})
			})
		}
	}
}

// A pair of gateways takes at most 2.5 s for the takeover of its store.
func TestATTLOf4SecondsOutlastsATakeoverOfTheStore(t *testing.T) {
	outlasts(t, lease.Options{TTL: 4 * time.Second}, 2500*time.Millisecond)
}

func TestAnOutageOfTheStoreThatABudgetAllowsCostsNoLease(t *testing.T) {
	for _, options := range budgets {
		budget, err := options.Budget()
		if err != nil {
			t.Fatal(err)
		}
		t.Run(options.name, func(t *testing.T) {
			outlasts(t, options.Options, budget.Outage-options.TTL/400-time.Millisecond) // the least pause, and a reply
		})
	}
}

// A budget that promises less than it could would make TTLs longer than they have to be.
func TestABudgetsOutageIsTheLongestThatCostsNoLease(t *testing.T) {
	for _, options := range budgets {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			budget, err := options.Budget()
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(t, store, "node-a", options.Options)
			tenure := n.mustAcquire(t)
			renewed := n.scripted("SET", func(int64) transporttest.Fault { return transporttest.Fault{} })
			for began := renewed(); renewed() == began; {
				time.Sleep(time.Millisecond)
			}
			// It was renewed a moment ago. The next renewal is due a RenewEvery later, less a tenth of it.
			time.Sleep(cmp.Or(options.RenewEvery, options.TTL/6) * 85 / 100)
			n.conn.Cut()
			// A request may be due the moment the outage ends, where the budget counts on the least pause and a reply.
			time.Sleep(budget.Outage + options.TTL/400 + time.Millisecond + cmp.Or(options.RenewEvery, options.TTL/6)*15/100)
			n.conn.Restore()
			time.Sleep(options.TTL)
			if err := tenure.Err(); !errors.Is(err, lease.ErrDeadlinePassed) {
				t.Errorf("%s: an outage of more than %v ended it with %v", options.name, budget.Outage, err)
			}
		})
	}
}

func TestTheTTLForAnOutageIsTheShortestThatOutlastsIt(t *testing.T) {
	second := time.Second
	for _, test := range []struct {
		name    string
		options lease.Options
		outage  time.Duration
		want    time.Duration // 0: there is none
	}{
		{"the defaults", lease.Options{}, 2500 * time.Millisecond, 3948 * time.Millisecond},
		{"the TTL that is given does not count", lease.Options{TTL: time.Hour}, 2500 * time.Millisecond, 3948 * time.Millisecond},
		{"frequent renewals", lease.Options{RenewEvery: second / 10}, 2500 * time.Millisecond, 3250 * time.Millisecond},
		{"a lost reply needs more than the outage", lease.Options{RequestTimeout: second}, second, 3261 * time.Millisecond},
		{"no outage", lease.Options{}, 0, lease.MinTTL},
		{"years", lease.Options{}, lease.MaxTTL, 0},
		{"more than a duration can hold", lease.Options{}, 1<<63 - 1, 0},
		{"a negative outage", lease.Options{}, -second, 0},
		{"a negative margin", lease.Options{Margin: -second}, second, 0},
	} {
		got, err := test.options.TTLFor(test.outage)
		if test.want > 0 && got != test.want || (err == nil) != (test.want > 0) {
			t.Errorf("%s: %v, %v; want %v", test.name, got, err, test.want)
		}
		if err != nil {
			continue
		}
		test.options.TTL = got
		if b, err := test.options.Budget(); err != nil || b.Outage < test.outage {
			t.Errorf("%s: with this TTL %+v, %v", test.name, b, err)
		}
		test.options.TTL = got - time.Millisecond
		if b, err := test.options.Budget(); err == nil && b.Outage >= test.outage {
			t.Errorf("%s: %v would do: %+v", test.name, test.options.TTL, b)
		}
	}
}
