package statestore

import "time"

// Instant is a moment on two independent clocks.
//
// Versions must agree with the clocks of the clients, so they come from the time of day,
// which may step. After a step back versions still rise, and fencing tokens that the store
// issued stay valid. But the store refuses clients with clocks that did not step while they
// are more than MaxSkew ahead, so the caller should slew WallMillis after a step.
//
// Expiry is measured on a clock that never steps: a key with a lifetime of two seconds
// lives for two seconds even if the time of day is corrected meanwhile.
type Instant struct {
	// WallMillis is the time of day in milliseconds since the Unix epoch.
	WallMillis int64
	// Elapsed is the time since the store started. It must not go back from one call
	// to the next.
	Elapsed time.Duration
}

// recorded returns WallMillis as a record can have it, whatever the clock of the machine says: 0 is no time.
func (i Instant) recorded() int64 { return min(max(i.WallMillis, 1), latestMoment) }

// wall returns the time of day, as recorded.
func (i Instant) wall() time.Time { return wallOf(i.recorded()) }

// wallOf returns a time of day; the zero time for 0.
func wallOf(millis int64) time.Time {
	if millis == 0 {
		return time.Time{}
	}
	return time.UnixMilli(millis).UTC()
}

// millisOf is the reverse of wallOf.
func millisOf(wall time.Time) int64 {
	if wall.IsZero() {
		return 0
	}
	return wall.UnixMilli()
}
