package lease_test

import (
	"context"
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
					if err := context.Cause(tenure.Context()); err != nil {
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

func TestAnOutageOfTheStoreAsLongAsPromisedCostsNoLease(t *testing.T) {
	for _, options := range promised {
		t.Run(options.name, func(t *testing.T) {
			outlasts(t, options.Options, promisesOf(options.Options).outage-options.TTL/400-time.Millisecond) // the least pause, and a reply
		})
	}
}

