// Package random draws the delays that spread what many would otherwise do at once.
// They come from here, and not from math/rand, so that a simulation can make them
// follow its seed.
package random

import (
	"math/rand/v2"
	"sync"
	"time"
)

var (
	mu     sync.Mutex
	follow *rand.Rand // nil: nobody can foretell what is drawn
)

// Duration returns a duration of at least zero and less than limit; zero if limit is
// not positive. It is safe for concurrent use.
func Duration(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	mu.Lock()
	defer mu.Unlock()
	if follow != nil {
		return time.Duration(follow.Int64N(int64(limit)))
	}
	return rand.N(limit)
}

// Follow makes all that is drawn in this process follow seed until stop is called. It is
// for tests, one at a time.
func Follow(seed uint64) (stop func()) {
	set := func(source *rand.Rand) {
		mu.Lock()
		defer mu.Unlock()
		follow = source
	}
	set(rand.New(rand.NewPCG(seed, 0)))
	return func() { set(nil) }
}
