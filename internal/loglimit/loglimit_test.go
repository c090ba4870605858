package loglimit_test

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/loglimit"
)

func TestAFailureIsDueAtOnceAndThenWithGrowingPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l loglimit.Limiter
		began := time.Now()
		var due []time.Duration
		for range 300 {
			for _, name := range []string{"a", "b"} {
				if l.Level(slog.LevelWarn, name) == slog.LevelWarn && name == "b" {
					due = append(due, time.Since(began))
				}
			}
			time.Sleep(time.Second)
		}
		want := "[0s 1s 3s 7s 15s 31s 1m3s 2m3s 3m3s 4m3s]"
		if got := fmt.Sprint(due); got != want {
			t.Errorf("due after %s, want %s", got, want)
		}
		l.Reset()
		if !l.Due("a", time.Now()) {
			t.Error("after Reset the first failure is not due")
		}
	})
}

// A peer may choose the texts of its refusals.
func TestTheNumberOfKindsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l loglimit.Limiter
		due := 0
		for i := range 1000 {
			if l.Due(fmt.Sprint(i), time.Now()) {
				due++
			}
		}
		if due != 8 {
			t.Errorf("%d of 1000 failures of different kinds are due at once, want 8", due)
		}
	})
}
