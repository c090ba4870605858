package semaphore

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
	semaphore *Fair[string]
	mu        sync.Mutex
	done      []string
	most      int
	now       int
}

func (v *visits) begin(source, name string) {
	go func() {
		release, err := v.semaphore.Acquire(context.Background(), source)
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
		release()
		release() // does nothing
	}()
	synctest.Wait()
}

func TestSourcesTakeTurnsHoweverManyAnotherHasWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{semaphore: New(1, 100, func(string) int { return 100 })}
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
		if len(v.semaphore.queues) != 0 || len(v.semaphore.sources) != 0 || v.semaphore.busy != 0 || v.semaphore.waits != 0 {
			t.Errorf("something is left: %+v", v.semaphore)
		}
	})
}

func TestWhatFindsNoPlaceIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{semaphore: New(1, 3, func(string) int { return 2 })}
		v.begin("a", "runs")
		for range 3 {
			v.begin("a", "a")
		}
		v.begin("b", "b")
		v.begin("c", "c")
		want := []string{"runs", "a: " + ErrFull.Error(), "c: " + ErrFull.Error()}
		if !slices.Equal(v.done, want) || v.semaphore.Waiting() != 3 {
			t.Errorf("%q, and %d wait; want %q", v.done, v.semaphore.Waiting(), want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
	})
}

func TestAPlaceThatIsGivenUpCostsNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &visits{semaphore: New(1, 10, func(string) int { return 10 })}
		v.begin("a", "runs")
		gone, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		left := make(chan error, 2)
		for _, source := range []string{"a", "b"} {
			go func() {
				_, err := v.semaphore.Acquire(gone, source)
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
		if v.semaphore.Waiting() != 1 {
			t.Errorf("%d wait", v.semaphore.Waiting())
		}
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if want := []string{"runs", "stays"}; !slices.Equal(v.done, want) {
			t.Errorf("%q, want %q", v.done, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := v.semaphore.Acquire(gone, "a"); !errors.Is(err, context.DeadlineExceeded) || v.semaphore.busy != 0 {
			t.Errorf("with a context that is over: %v", err)
		}
	})
}

// The end of a context and the turn may come together: no turn may be lost by that.
func TestATurnThatComesTooLateIsPassedOn(t *testing.T) {
	semaphore := New(1, 100, func(int) int { return 100 })
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
				if release, err := semaphore.Acquire(ctx, i%5); err == nil {
					release()
				}
				cancel()
			}
		})
	}
	await.Done(all.Wait)
	if semaphore.busy != 0 || semaphore.waits != 0 || len(semaphore.queues) != 0 || len(semaphore.sources) != 0 {
		t.Errorf("something is left: %+v", semaphore)
	}
}
