//go:debug randseednop=0

package simulation

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/prerequisite"
)

var (
	seeds = flag.Int("seeds", 0, "how many seeds to simulate; 0: 20, or 150 in a long run, or 10 under the race detector")
	first = flag.Uint64("first", 1, "the first of them")
	step  = flag.Uint64("step", 1, "how far the next is; 2 from an even one: all stores have a journal")
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
		switch {
		case raceDetector:
			count = 10
		case prerequisite.LongRun():
			count = 150
		default:
			count = 20
		}
	}
	began := time.Now()
	total := Result{Ends: make(map[string]int)}
	for i := range uint64(count) {
		seed := *first + i**step
		result := Run(t, seed, false)
		report(t, seed, result)
		total.Tenures += result.Tenures
		total.Requests += result.Requests
		total.Faults += result.Faults
		for cause, n := range result.Ends {
			total.Ends[cause] += n
		}
	}
	elapsed := time.Since(began)
	t.Logf("%d seeds in %v (%.1f/s): %d tenures, %d requests, %d faults; ends: %v", count, elapsed.Round(time.Millisecond),
		float64(count)/elapsed.Seconds(), total.Tenures, total.Requests, total.Faults, total.Ends)
	if len(total.Ends) < 5 && count >= 20 {
		t.Error("the faults are too tame")
	}
}

func report(t *testing.T, seed uint64, result Result) {
	t.Helper()
	if len(result.Violations) > 0 {
		t.Errorf("seed %d:\n\t%s\nreplay with: go test ./internal/simulation -v -seed %d", seed, strings.Join(result.Violations, "\n\t"), seed)
	}
}
