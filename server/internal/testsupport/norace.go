//go:build !race

package testsupport

// UnderRace reports whether the race detector runs.
const UnderRace = false
