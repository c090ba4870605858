package statestore

import "time"

// Instant is a moment as the store sees it, on two clocks that fail apart.
//
// Versions must agree with the clocks of the clients, so they come from wall
// time, which may step. After a step back versions still rise, and a fencing token that
// the store issued before is still good. But clients whose clocks did not step are refused
// while they are more than MaxSkew ahead, so the caller should slew WallMillis after a
// step.
//
// Expiry does not depend on the time of day: a key that was set for two seconds lives for
// two seconds while the time of day is corrected. It is measured on a clock that only ever
// goes forward.
type Instant struct {
	// WallMillis is the time of day in milliseconds since the Unix epoch.
	WallMillis int64
	// Elapsed is the time since the store started. It must not go back from one call
	// to the next.
	Elapsed time.Duration
}
