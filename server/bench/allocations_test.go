package bench_test

import (
	"context"
	"testing"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// How often an operation may allocate, one at a time or with others in flight. Unlike times, allocations
// are the same on any machine, busy or not. Client, broker and store are counted together.
const (
	wantedSetAllocations     = 10
	wantedGuardAllocations   = 14
	wantedPairAllocations    = 24
	wantedRenewalAllocations = 20 // of a watched lease
)

func TestASetAllocatesLittle(t *testing.T) {
	allocatesAtMost(t, wantedSetAllocations, newSpeed(t).set)
}

func TestAGuardedWriteAllocatesLittle(t *testing.T) {
	allocatesAtMost(t, wantedGuardAllocations, newSpeed(t).guardSet(t))
}

// allocatesAtMost fails the test if an operation allocates more often.
func allocatesAtMost(t *testing.T, most float64, operation func(ctx context.Context, worker int) error) {
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
}

// A tenure that is short needs no context of its own.
func TestALeasePairAllocatesLittle(t *testing.T) {
	if testsupport.UnderRace {
		t.Skip("the race detector allocates too")
	}
	l, err := lease.New(dialSpeed(t, testsupport.Start(t, server.Options{})), "press-7/active", lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	pair := func() {
		tenure, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		pair()
	}
	got := testing.AllocsPerRun(5000, pair)
	t.Logf("%.0f allocations", got)
	if got > wantedPairAllocations {
		t.Errorf("obtaining and releasing a lease allocates %.0f times, over both sides, want at most %d", got, wantedPairAllocations)
	}
}

// The holder of many leases watches all of them, and gets a notification of each renewal.
func TestARenewalOfAWatchedLeaseAllocatesLittle(t *testing.T) {
	client := dialSpeed(t, testsupport.Start(t, server.Options{}))
	keys := []string{"press-7/active", "press-8/active"}
	for _, key := range keys {
		watch, err := client.Watch(key)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(watch.Close)
	}
	turn := 0
	allocatesAtMost(t, wantedRenewalAllocations, func(ctx context.Context, _ int) error {
		turn++
		_, err := client.Set(ctx, keys[turn%len(keys)], []byte(speedValue), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: time.Hour})
		return err
	})
}

// A renewal waits for no commit, so a journal costs it nothing.
func TestARenewalAllocatesAsLittleWithAJournal(t *testing.T) {
	if testsupport.UnderRace {
		t.Skip("the race detector allocates too")
	}
	renewals := func(options server.Options) float64 {
		client := dialSpeed(t, testsupport.Start(t, options))
		renew := func() {
			if _, err := client.Set(t.Context(), "lease", []byte(speedValue), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		for range 1000 {
			renew()
		}
		return testing.AllocsPerRun(5000, renew)
	}
	memory, durable := renewals(server.Options{}), renewals(server.Options{Journal: new(testsupport.Journal).Open()})
	t.Logf("a renewal allocates %.0f times in memory, %.0f with a journal", memory, durable)
	if durable > memory+1 {
		t.Errorf("a renewal allocates %.0f times with a journal, and %.0f without", durable, memory)
	}
}
