//go:debug randseednop=0

package simulation

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	seeds = flag.Int("seeds", 0, "how many seeds to simulate; 0: 300, or 30 with -short or under the race detector")
	first = flag.Uint64("first", 1, "the first of them")
	seed  = flag.Uint64("seed", 0, "simulate this seed alone, and print its trace")
)

func TestNodesKeepTheirPromisesUnderRandomFaults(t *testing.T) {
	if *seed != 0 {
		result := Run(t, *seed, true)
		fmt.Println(strings.Join(result.Trace, "\n"))
		report(t, *seed, result)
		return
	}
	count := *seeds
	if count == 0 {
		count = 300
		if testing.Short() || raceDetector {
			count = 30
		}
	}
	began := time.Now()
	var total Result
	for i := range uint64(count) {
		result := Run(t, *first+i, false)
		report(t, *first+i, result)
		total.Tenures += result.Tenures
		total.Requests += result.Requests
		total.Faults += result.Faults
	}
	elapsed := time.Since(began)
	t.Logf("%d seeds in %v (%.1f/s): %d tenures, %d requests, %d faults", count, elapsed.Round(time.Millisecond),
		float64(count)/elapsed.Seconds(), total.Tenures, total.Requests, total.Faults)
}

func report(t *testing.T, seed uint64, result Result) {
	t.Helper()
	if len(result.Violations) > 0 {
		t.Errorf("seed %d:\n\t%s\nreplay with: go test ./internal/simulation -seed %d", seed, strings.Join(result.Violations, "\n\t"), seed)
	}
}
