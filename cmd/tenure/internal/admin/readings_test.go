package admin

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// slow is a source of readings each of which takes some time.
type slow struct {
	*readings
	takes time.Duration
	mu    sync.Mutex
	made  []time.Time
	forms []form
	err   error
}

// begin runs readings until the function that it returns is called.
func (s *slow) begin(t *testing.T) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	s.readings = newReadings(func(now time.Time, forms form) (*reading, error) {
		time.Sleep(s.takes)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.made, s.forms = append(s.made, now), append(s.forms, forms)
		if s.err != nil {
			panic(s.err)
		}
		return &reading{now: now}, nil
	}, ctx.Done())
	var task sync.WaitGroup
	task.Go(func() { s.run(ctx) })
	return ctx, func() {
		cancel()
		await.Done(task.Wait)
	}
}

func TestReadersShareAReadingThatBeginsAfterTheirRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: 10 * time.Millisecond}
		ctx, stop := s.begin(t)
		defer stop()
		var tasks sync.WaitGroup
		for i := range 100 {
			tasks.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				asked := time.Now()
				reading, err := s.fresh(ctx, asAnswer)
				switch {
				case err != nil:
					t.Error(err)
				case reading.now.Before(asked):
					t.Errorf("asked at %v, it was begun %v earlier", asked, asked.Sub(reading.now))
				case time.Since(asked) > 110*time.Millisecond+s.takes:
					t.Errorf("it took %v", time.Since(asked))
				}
			})
		}
		await.Done(tasks.Wait)
		// The first at 0 ms, then one each 100 ms: they take a tenth of the time.
		if len(s.made) != 2 {
			t.Errorf("%d readings for 100 requests: %v", len(s.made), s.made)
		}
	})
}

func TestAReadingHasTheFormsOfAllThatWaitForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: 5 * time.Second}
		ctx, stop := s.begin(t)
		defer stop()
		var tasks sync.WaitGroup
		for _, forms := range []form{asState, asAnswer, asEvent} {
			tasks.Go(func() { _, _ = s.fresh(ctx, forms) })
			if forms == asState {
				time.Sleep(time.Second) // it is being made
			}
		}
		await.Done(tasks.Wait)
		if len(s.forms) != 2 || s.forms[0] != asState || s.forms[1] != asAnswer|asEvent {
			t.Errorf("the readings have the forms %v", s.forms)
		}
		if gap := s.made[1].Sub(s.made[0]); gap != s.takes+maxRest {
			t.Errorf("%v between two readings", gap)
		}
	})
}

func TestARequestDoesNotWaitForAReadingThatIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: 10 * time.Second}
		running, stop := s.begin(t)
		ctx, cancel := context.WithTimeout(running, 5*time.Second)
		defer cancel()
		if _, err := s.fresh(ctx, asState); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it ended with %v", err)
		}
		var stopping sync.WaitGroup
		defer await.Done(stopping.Wait)
		stopping.Go(func() {
			time.Sleep(time.Second)
			stop()
		})
		if _, err := s.fresh(t.Context(), asState); !errors.Is(err, errStopping) {
			t.Errorf("when the server stops it ended with %v", err)
		}
	})
}

// The store runs in the same process.
func TestAReadingThatPanicsIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{err: errors.New("an impossible event")}
		ctx, stop := s.begin(t)
		defer stop()
		for range 2 {
			if _, err := s.fresh(ctx, asState); err == nil || !strings.Contains(err.Error(), "an impossible event") {
				t.Errorf("it ended with %v", err)
			}
		}
	})
}
