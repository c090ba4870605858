// Package defaults has the default limits of the server and the attached store. Each documents
// them in its Options.
package defaults

import (
	"cmp"

	"github.com/tenurelock/tenure/statestore"
)

// Defaults of both.
const (
	PacketSize    = 1 << 20 // bytes of a packet
	Clients       = 10_000
	AllWatchBytes = 256 << 20 // bytes that the watches of all clients take up

	watches    = 10_000  // of one client
	watchBytes = 4 << 20 // bytes that these take up
)

// FillWatches sets the limits of watches that are 0 to their defaults. all is the default for
// the watches of all clients together, in bytes.
func FillWatches(o *statestore.Options, all int64) {
	o.MaxWatches = cmp.Or(o.MaxWatches, watches)
	o.MaxAllWatchBytes = cmp.Or(o.MaxAllWatchBytes, all)
	o.MaxWatchBytes = cmp.Or(o.MaxWatchBytes, min(watchBytes, o.MaxAllWatchBytes))
}
