package waitingroom

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// visits notes the turns that begin, each of which takes a second.
type visits struct {
	room *Room[string]
	mu   sync.Mutex
	done []string
	most int
	now  int
}

func (v *visits) begin(source, name string) {
	go func() {
		leave, err := v.room.Enter(context.Background(), source)
		v.mu.Lock()
		if err != nil {
			name += ": " + err.Error()
		} else if v.now++; v.now > v.most {
			v.most = v.now
		}
		v.done = append(v.done, name)
		v.mu.Unlock()
		if err != nil {
			return
		}
		time.Sleep(time.Second)
		v.mu.Lock()
		v.now--
		v.mu.Unlock()
		leave()
		leave() // does nothing
	}()
	synctest.Wait()
}

func TestSourcesTakeTurnsHoweverManyAnotherHasWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{room: New(1, 100, func(string) int { return 100 })}
		for _, name := range []string{"a1", "a2", "a3", "a4"} {
			v.begin("a", name)
		}
		v.begin("b", "b1")
		v.begin("b", "b2")
		v.begin("c", "c1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []string{"a1", "a2", "b1", "c1", "a3", "b2", "a4"}; !slices.Equal(v.done, want) {
			t.Errorf("the turns are %q, want %q", v.done, want)
		}
		if len(v.room.queues) != 0 || len(v.room.sources) != 0 || v.room.busy != 0 || v.room.waits != 0 {
			t.Errorf("something is left: %+v", v.room)
		}
	})
}

func TestNoMoreRunAtOnceThanMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{room: New(3, 100, func(string) int { return 100 })}
		for range 20 {
			v.begin("a", "a")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if v.most != 3 || len(v.done) != 20 {
			t.Errorf("%d at once, %d in all", v.most, len(v.done))
		}
	})
}

func TestWhatFindsNoPlaceIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{room: New(1, 3, func(string) int { return 2 })}
		v.begin("a", "runs")
		for range 3 {
			v.begin("a", "a")
		}
		v.begin("b", "b")
		v.begin("c", "c")
		want := []string{"runs", "a: " + ErrFull.Error(), "c: " + ErrFull.Error()}
		if !slices.Equal(v.done, want) || v.room.Waiting() != 3 {
			t.Errorf("%q, and %d wait; want %q", v.done, v.room.Waiting(), want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}

func TestAPlaceThatIsGivenUpCostsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{room: New(1, 10, func(string) int { return 10 })}
		v.begin("a", "runs")
		gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		left := make(chan error, 2)
		for _, source := range []string{"a", "b"} {
			go func() {
				_, err := v.room.Enter(gone, source)
				left <- err
			}()
		}
		synctest.Wait()
		v.begin("b", "stays")
		for range 2 {
			if err := await.Receive(left); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if v.room.Waiting() != 1 {
			t.Errorf("%d wait", v.room.Waiting())
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if want := []string{"runs", "stays"}; !slices.Equal(v.done, want) {
			t.Errorf("%q, want %q", v.done, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := v.room.Enter(gone, "a"); !errors.Is(err, context.DeadlineExceeded) || v.room.busy != 0 {
			t.Errorf("with a context that is over: %v", err)
		}
	})
}

// The end of a context and the turn may come together: no turn may be lost by that.
func TestATurnThatComesTooLateIsPassedOn(t *testing.T) {
	room := New(1, 100, func(int) int { return 100 })
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
				if leave, err := room.Enter(ctx, i%5); err == nil {
					leave()
				}
				cancel()
			}
		})
	}
	await.Done(all.Wait)
	if room.busy != 0 || room.waits != 0 || len(room.queues) != 0 || len(room.sources) != 0 {
		t.Errorf("something is left: %+v", room)
	}
}
