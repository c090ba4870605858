//go:build race

package server_test

// underRace reports whether the race detector watches, which makes everything several
// times slower.
const underRace = true
