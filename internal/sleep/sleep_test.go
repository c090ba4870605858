package sleep_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

func TestForWaitsUntilTheTimeOrTheContextEnds(t *testing.T) {
	for _, test := range []struct {
		name         string
		sleep, limit time.Duration
		want         bool
	}{
		{"the time ends first", time.Second, time.Minute, true},
		{"the context ends first", time.Minute, time.Second, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), test.limit)
			defer cancel()
			began := time.Now()
			if got := sleep.For(ctx, test.sleep); got != test.want || time.Since(began) != time.Second {
				t.Errorf("%s: %v after %v", test.name, got, time.Since(began))
			}
		})
	}
}
