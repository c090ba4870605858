//go:build race

package testsupport

// UnderRace reports whether the race detector watches, which makes everything several
// times slower.
const UnderRace = true
