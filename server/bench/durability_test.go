package bench_test

import (
	"testing"

	"github.com/tenurelock/tenure/server/bench/durability"
)

// BenchmarkDurability compares a store in memory with one whose data is in a file.
func BenchmarkDurability(b *testing.B) {
	durability.Run(b, durability.Memory(), durability.File())
}
