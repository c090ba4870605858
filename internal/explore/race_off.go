//go:build !race

package explore

// UnderRace says that the race detector watches.
const UnderRace = false
