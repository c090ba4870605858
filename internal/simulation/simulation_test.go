//go:debug randseednop=0

package simulation

import (
	"flag"
	"fmt"
	"slices"
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
	for _, cause := range []string{"released", "lost", "deadline passed", "deleted", "closed", "taken over"} {
		if total.Ends[cause] == 0 && count >= 150 {
			t.Errorf("no tenure ended by %q: the faults are too tame", cause)
		}
	}
}

// maxCourses is how many runs of one seed may all differ. A callback that is given up at the
// instant at which a request is due is a fork: the request is sent or not. So an hour with
// such callbacks has a few courses, and one of them soon comes twice.
const maxCourses = 8

// TestASeedReplays repeats some seeds until a trace comes twice, but for the order of events
// of one instant. Nearly always the second is like the first. The package comment says why
// not always.
func TestASeedReplays(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector shuffles goroutines on purpose")
	}
	prerequisite.Long(t, "it takes ten hours and more of virtual time")
	trace := func(seed uint64) []string {
		events := Run(t, seed, true).Trace
		slices.Sort(events) // a line begins with the time
		return events
	}
	count, atOnce := max(*seeds/10, 5), 0
	for i := range uint64(count) {
		once, again := trace(*first+i), trace(*first+i)
		if slices.Equal(once, again) {
			atOnce++
			continue
		}
		t.Logf("seed %d parts: %s", *first+i, parting(once, again))
		courses := [][]string{once, again}
		for repeated := false; !repeated; {
			next := trace(*first + i)
			repeated = slices.ContainsFunc(courses, func(course []string) bool { return slices.Equal(course, next) })
			if courses = append(courses, next); !repeated && len(courses) == maxCourses {
				t.Errorf("seed %d took %d courses in %d runs", *first+i, maxCourses, maxCourses)
				break
			}
		}
	}
	t.Logf("%d of %d seeds replayed at once", atOnce, count)
}

// parting describes where two traces differ first.
func parting(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("after %d of %d events:\n\t%s\n\t%s", i, len(a), a[i], b[i])
		}
	}
	return fmt.Sprintf("one has %d events, the other %d", len(a), len(b))
}

func TestSeedsDiffer(t *testing.T) {
	if slices.Equal(Run(t, 1, true).Trace, Run(t, 2, true).Trace) {
		t.Error("seeds 1 and 2 give the same hour")
	}
}

func report(t *testing.T, seed uint64, result Result) {
	t.Helper()
	if len(result.Violations) > 0 {
		t.Errorf("seed %d:\n\t%s\nreplay with: go test ./internal/simulation -v -seed %d", seed, strings.Join(result.Violations, "\n\t"), seed)
	}
}
