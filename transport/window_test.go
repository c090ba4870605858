package transport

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAWindowKeepsAFewSlotsForUrgentRequests(t *testing.T) {
	for size, reserved := range map[int]int{1: 0, 7: 0, 8: 1, 20: 2, 128: 16, 65535: 16} {
		w := newWindow(size)
		none, cancel := context.WithCancel(t.Context())
		cancel()
		for range size - reserved {
			if !w.acquire(none, nil, false) {
				t.Fatalf("of %d, ordinary requests get %d", size, w.inUse())
			}
		}
		if w.acquire(none, nil, false) {
			t.Errorf("of %d, ordinary requests get more than %d", size, size-reserved)
		}
		for range reserved {
			if !w.acquire(none, nil, true) {
				t.Fatalf("of %d, urgent requests get %d", size, w.inUse()-(size-reserved))
			}
		}
		if w.acquire(none, nil, true) || w.inUse() != size {
			t.Errorf("of %d, %d are in use", size, w.inUse())
		}
	}
}

func TestAWindowTakesTurnsInOrderAndUrgentOnesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(1)
		w.acquire(t.Context(), nil, false)
		var got []string
		leaver, leave := context.WithCancel(t.Context())
		for _, name := range []string{"o1", "leaves", "o2", "u1", "u2"} {
			ctx := t.Context()
			if name == "leaves" {
				ctx = leaver
			}
			go func() {
				if w.acquire(ctx, nil, name[0] == 'u') {
					got = append(got, name)
				}
			}()
			synctest.Wait()
		}
		leave()
		for range 5 {
			synctest.Wait()
			w.free()
		}
		synctest.Wait()
		if want := []string{"u1", "u2", "o1", "o2"}; !slices.Equal(got, want) || w.inUse() != 0 {
			t.Errorf("turns %q, want %q; %d slots are in use", got, want, w.inUse())
		}
	})
}

func TestAWindowLosesNoSlotToARequestThatGivesUpInTheMomentOfItsTurn(t *testing.T) {
	w := newWindow(1)
	for range 20 {
		w.acquire(t.Context(), nil, true)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan bool, 1)
		go func() { got <- w.acquire(ctx, nil, true) }()
		for waiting := 0; waiting == 0; {
			w.mu.Lock()
			waiting = len(w.urgent)
			w.mu.Unlock()
		}
		w.mu.Lock()
		cancel()
		time.Sleep(time.Millisecond) // it leaves, and cannot say so yet
		w.freeLocked()
		w.mu.Unlock()
		select {
		case turn := <-got:
			if turn { // it was slow to leave
				w.free()
			}
		case <-time.After(10 * time.Second):
			t.Fatal("it does not return")
		}
		if w.inUse() != 0 {
			t.Fatalf("%d slots are in use", w.inUse())
		}
	}
}

// inUse returns how many slots are taken.
func (w *window) inUse() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used
}
