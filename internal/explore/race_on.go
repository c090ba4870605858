//go:build race

package explore

// UnderRace says that the race detector watches. A walk then ends after some hundred states: it takes ten
// times as long, and pure code has no races.
const UnderRace = true
