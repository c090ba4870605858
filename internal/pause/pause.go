// Package pause waits, unless there is a reason not to.
package pause

import (
	"context"
	"time"
)

// For waits for d and reports true, or reports false as soon as ctx ends.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
