package server

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func noneEntered(string) bool { return false }

// The next connection may not be admitted, so it has no claim until it has made one.
func TestAClaimDoesNotPassToTheConnectionThatWaits(t *testing.T) {
	n := newClientIDs()
	release, err := n.lock(t.Context(), "p", "alice")
	if err != nil || !n.claim("p", noneEntered) {
		t.Fatalf("the client id is not free: %v", err)
	}
	if !n.collides("70", noneEntered) {
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
	if n.collides("70", noneEntered) {
		t.Error("the claim of a connection outlives it")
	}
	n.unlock("p")
	if len(n.locked) != 0 {
		t.Error("the client id is taken by no connection")
	}
}

func TestAClientIdIsTakenByOneConnectionAtATime(t *testing.T) {
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
