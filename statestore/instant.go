package statestore

import "time"

// Instant is a moment as the store sees it, on two clocks that fail apart.
//
// Versions must agree with the clocks of the clients, so they come from wall
// time, which may step. A step decides nothing: versions rise all the same, and a
// fencing token that the store issued before a step back is still good. But clients
// whose clocks did not step along are refused while they are more than MaxSkew ahead,
// so whoever calls the store should let its wall time follow such a step slowly. Expiry must not: a key that was set for two seconds
// lives for two seconds even while somebody corrects the time of day, so it is
// measured on a clock that only ever goes forward.
type Instant struct {
	// WallMillis is the time of day in milliseconds since the Unix epoch.
	WallMillis int64
	// Elapsed is the time since the store started. It must not go back from one call
	// to the next.
	Elapsed time.Duration
}
