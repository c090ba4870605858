package server

import (
	"context"
	"math"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

func TestANegativeLimitIsRefusedByItsName(t *testing.T) {
	limits := reflect.TypeFor[Limits]()
	for field := range limits.NumField() {
		var o Options
		reflect.ValueOf(&o.Limits).Elem().Field(field).SetInt(-1)
		name := "Options.Limits." + limits.Field(field).Name + " "
		if err := o.complete(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s-1: %v", name, err)
		}
	}
	for name, o := range map[string]Options{
		"Options.MaxMemory ":  {MaxMemory: -1},
		"Options.MaxClients ": {MaxClients: -1},
	} {
		if err := o.complete(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s-1: %v", name, err)
		}
	}
}

func TestTooLittleMemoryIsRefused(t *testing.T) {
	for memory, ok := range map[int64]bool{1: false, 32<<20 - 1: false, 32 << 20: true} {
		o := Options{MaxMemory: memory}
		if err := o.complete(); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "Options.MaxMemory") {
			t.Errorf("MaxMemory %d: %v", memory, err)
		}
	}
}

func TestLimitsFollowFromMaxMemory(t *testing.T) {
	const mebibyte = 1 << 20
	for name, test := range map[string]struct {
		memory int64
		clients,
		keys int
		keyBytes, outgoing, allOutgoing, session, allSessions, watches, subscriptions, retained int64
	}{
		"no limit": {0, 10_000, 0, 0, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte, 256 * mebibyte, 256 * mebibyte, 64 * mebibyte},
		"32 MiB": {32 * mebibyte, 51, 8 << 10, 8 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte, 4 * mebibyte,
			2 * mebibyte, 2 * mebibyte},
		"64 MiB": {64 * mebibyte, 102, 16 << 10, 16 * mebibyte, 8 * mebibyte, 8 * mebibyte, 4 * mebibyte, 8 * mebibyte, 8 * mebibyte,
			4 * mebibyte, 4 * mebibyte},
		"512 MiB": {512 * mebibyte, 819, 128 << 10, 128 * mebibyte, 8 * mebibyte, 64 * mebibyte, 4 * mebibyte, 64 * mebibyte, 64 * mebibyte,
			32 * mebibyte, 32 * mebibyte},
		"8 GiB": {8 << 30, 10_000, 2 << 20, 2 << 30, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte, 256 * mebibyte,
			256 * mebibyte, 64 * mebibyte},
		"all that can be said": {math.MaxInt64, 10_000, math.MaxInt32, math.MaxInt64 / 4, 8 * mebibyte, 256 * mebibyte, 4 * mebibyte, 256 * mebibyte,
			256 * mebibyte, 256 * mebibyte, 64 * mebibyte},
	} {
		o := Options{MaxMemory: test.memory}
		if err := o.complete(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for what, got := range map[string][2]int64{
			"MaxClients":              {int64(o.MaxClients), int64(test.clients)},
			"Store.MaxKeys":           {int64(o.Store.MaxKeys), int64(test.keys)},
			"Store.MaxBytes":          {o.Store.MaxBytes, test.keyBytes},
			"OutgoingBytes":           {o.Limits.OutgoingBytes, test.outgoing},
			"AllOutgoingBytes":        {o.Limits.AllOutgoingBytes, test.allOutgoing},
			"SessionBytes":            {o.Limits.SessionBytes, test.session},
			"AllSessionBytes":         {o.Limits.AllSessionBytes, test.allSessions},
			"SessionMessages":         {int64(o.Limits.SessionMessages), 10_000},
			"Subscriptions":           {int64(o.Limits.Subscriptions), 1000},
			"AllSubscriptionBytes":    {o.Limits.AllSubscriptionBytes, test.subscriptions},
			"SessionsPerUser":         {int64(o.Limits.SessionsPerUser), 100},
			"RetainedMessages":        {int64(o.Limits.RetainedMessages), 10_000},
			"RetainedBytes":           {o.Limits.RetainedBytes, test.retained},
			"Store.MaxAllWatchBytes":  {o.Store.MaxAllWatchBytes, test.watches},
			"Store.MaxWatchBytes":     {o.Store.MaxWatchBytes, min(4*mebibyte, test.watches)},
			"Store.MaxWatches":        {int64(o.Store.MaxWatches), 10_000},
			"Store.DedupWindow":       {int64(o.Store.DedupWindow), statestore.DefaultDedupWindow},
			"MaxPacketSize unchanged": {int64(o.MaxPacketSize), mebibyte},
		} {
			if got[0] != got[1] {
				t.Errorf("%s: %s is %d, want %d", name, what, got[0], got[1])
			}
		}
	}
}

func TestAnExplicitLimitIsNotChanged(t *testing.T) {
	set := Options{
		MaxMemory:  64 << 20,
		MaxClients: 7,
		Store: statestore.Options{
			MaxKeys: 8, MaxBytes: 1 << 40, MaxWatches: 9, MaxWatchBytes: 10, MaxAllWatchBytes: 11, DedupWindow: 12,
		},
	}
	limits := reflect.ValueOf(&set.Limits).Elem()
	for field := range limits.NumField() {
		limits.Field(field).SetInt(int64(100 + field))
	}
	got := set
	if err := got.complete(); err != nil {
		t.Fatal(err)
	}
	if got.Limits != set.Limits || got.MaxClients != set.MaxClients || !reflect.DeepEqual(got.Store, set.Store) {
		t.Errorf("of\n%+v\nthis was made:\n%+v", set, got)
	}
}

func TestALargeDedupWindowLeavesRoomForAClient(t *testing.T) {
	o := Options{MaxMemory: 32 << 20, Store: statestore.Options{DedupWindow: 1<<16 - 1}}
	if err := o.complete(); err != nil || o.MaxClients != 1 {
		t.Errorf("%d clients, %v", o.MaxClients, err)
	}
}

func TestAnInvalidDedupWindowIsRefused(t *testing.T) {
	for _, window := range []int{-1, -384, math.MinInt, 1 << 16, math.MaxInt} {
		s, err := New(Options{Addr: "127.0.0.1:0", MaxMemory: 64 << 20, Store: statestore.Options{DedupWindow: window}})
		if err == nil {
			_ = s.Close()
			t.Errorf("%d was accepted", window)
		}
	}
}

func noSession(string) bool { return false }

// The next connection may not be admitted, so it has no claim until it has made one.
func TestAClaimDoesNotPassToTheConnectionThatWaits(t *testing.T) {
	n := newClientIDs()
	release, err := n.lock(t.Context(), "p", "alice")
	if err != nil || !n.claim("p", noSession) {
		t.Fatalf("the client id is not free: %v", err)
	}
	if !n.collides("70", noSession) {
		t.Error("the claim is not seen")
	}
	turn, err := n.queue("p", "alice")
	if err != nil || turn == nil {
		t.Fatalf("the next connection does not wait: %v", err)
	}
	release()
	if !await.Receive(turn) {
		t.Fatal("the turn of the next connection does not come")
	}
	if n.collides("70", noSession) {
		t.Error("the claim of a connection outlives it")
	}
	n.unlock("p")
	if len(n.locked) != 0 {
		t.Error("the client id is taken by no connection")
	}
}

func TestOneConnectionAtATimeHasAClientID(t *testing.T) {
	n := newClientIDs()
	var inside, got, gaveUp atomic.Int64
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 500 {
				// Some give up when their turn is about to come.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration((i+j)%5)*10*time.Microsecond)
				release, err := n.lock(ctx, "p", "alice")
				cancel()
				if err != nil {
					gaveUp.Add(1)
					continue
				}
				if inside.Add(1) != 1 {
					t.Error("two connections have taken one client id")
				}
				got.Add(1)
				time.Sleep(time.Microsecond)
				inside.Add(-1)
				release()
			}
		})
	}
	await.Done(all.Wait)
	if got.Load() == 0 || gaveUp.Load() == 0 {
		t.Errorf("%d took it, %d gave up: nothing is tested", got.Load(), gaveUp.Load())
	}
	if len(n.locked) != 0 {
		t.Error("the client id is taken by no connection")
	}
}
