// Package random draws the random part of delays, so that many clients do not act at the same
// moment. Unlike draws from math/rand, a simulation can repeat them from its seed.
package random

import (
	"math/rand/v2"
	"sync"
	"time"
)

var (
	mu     sync.Mutex
	source = rand.New(rand.NewPCG(rand.Uint64(), 0)) // with another seed in simulations
)

// Fraction returns a number of at least zero and less than one. It is safe for concurrent use.
func Fraction() float64 {
	mu.Lock()
	defer mu.Unlock()
	return source.Float64()
}

// Duration returns a duration of at least zero and less than limit. It returns zero if
// limit is not positive. It is safe for concurrent use.
func Duration(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	mu.Lock()
	defer mu.Unlock()
	return time.Duration(source.Int64N(int64(limit)))
}

// Seed makes every draw in this process follow from seed until stop is called. It is for
// tests that do not run in parallel.
func Seed(seed uint64) (stop func()) {
	use(seed)
	return func() { use(rand.Uint64()) }
}

func use(seed uint64) {
	mu.Lock()
	defer mu.Unlock()
	source = rand.New(rand.NewPCG(seed, 0))
}
