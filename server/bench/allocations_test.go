package bench_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// How often an operation may allocate, one at a time or with others in flight. Unlike times, allocations
// are the same on any machine, busy or not. Client, broker and store are counted together.
const (
	wantedSetAllocations     = 10
	wantedGuardAllocations   = 14
	wantedPairAllocations    = 26
	wantedRenewalAllocations = 20 // of a watched lease
)

func TestAnOperationAllocatesLittle(t *testing.T) {
	ours := newSpeed(t)
	allocatesAtMost(t, wantedSetAllocations, ours.set)
	allocatesAtMost(t, wantedGuardAllocations, ours.guardSet(t))
	allocatesAtMost(t, wantedPairAllocations, ours.leasePair(t)) // a tenure that is short needs no context of its own
}

// allocatesAtMost fails the test if an operation allocates more often, and returns how often it does.
func allocatesAtMost(t *testing.T, most float64, operation func(ctx context.Context, worker int) error) float64 {
	t.Helper()
	if testsupport.UnderRace {
		t.Skip("the race detector allocates too")
	}
	run := func() {
		if err := operation(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		run() // until all that is made once has been made
	}
	got := testing.AllocsPerRun(5000, run)
	t.Logf("%.0f allocations", got)
	if got > most {
		t.Errorf("it allocates %.0f times, want at most %.0f", got, most)
	}
	return got
}

// The holder of many leases watches all of them, and gets a notification of each renewal. A renewal waits for
// no commit, so a journal costs it nothing.
func TestARenewalAllocatesLittle(t *testing.T) {
	renewals := func(most float64, watch bool, options server.Options) float64 {
		t.Helper()
		client := dialSpeed(t, startSpeed(t, options), transport.TLSOptions{})
		turn := 0
		if watch {
			for _, key := range keys[:2] {
				watch, err := client.Watch(key)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(watch.Close)
			}
		}
		return allocatesAtMost(t, most, func(ctx context.Context, _ int) error {
			turn++
			_, err := client.Set(ctx, keys[turn%2], []byte(speedValue), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: time.Hour})
			return err
		})
	}
	renewals(wantedRenewalAllocations, true, server.Options{})
	inMemory := renewals(wantedRenewalAllocations, false, server.Options{})
	renewals(inMemory+1, false, server.Options{Journal: new(transporttest.Journal).Open()})
}
