// Package limits has the limits that the server and the attached store have in common. Both
// document them, each in its Options.
package limits

import "github.com/tenurelock/tenure/statestore"

// What both allow by default.
const (
	PacketSize    = 1 << 20 // bytes of a packet
	Clients       = 10_000
	AllWatchBytes = 256 << 20 // bytes that the watches of all clients take up

	watches    = 10_000  // of one client
	watchBytes = 4 << 20 // bytes that these take up
)

// Fill sets a limit that is 0 to its default.
func Fill[T int | int64 | uint32](limit *T, standard T) {
	if *limit == 0 {
		*limit = standard
	}
}

// FillWatches sets the limits of watches that are 0 to their defaults. all is the default for
// the watches of all clients together, in bytes.
func FillWatches(o *statestore.Options, all int64) {
	Fill(&o.MaxWatches, watches)
	Fill(&o.MaxAllWatchBytes, all)
	Fill(&o.MaxWatchBytes, min(watchBytes, o.MaxAllWatchBytes))
}
