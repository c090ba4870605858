package pauses_test

import (
	"context"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/tenurelock/tenure/bench/internal/pauses"
	"github.com/tenurelock/tenure/internal/await"
)

func TestARecorderSeesCollections(t *testing.T) {
	recorder := pauses.Start(false)
	defer recorder.Stop()
	site := httptest.NewServer(recorder)
	defer site.Close()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	before, err := pauses.Fetch(ctx, site.URL)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 3 {
		runtime.GC()
	}
	after, err := pauses.Fetch(ctx, site.URL)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(after.Collections) - len(before.Collections); got < 3 {
		t.Errorf("the recorder has %d collections of 3", got)
	}
	for i, event := range after.Collections[len(before.Collections):] {
		if event.End.Before(began.Round(0)) || event.End.After(time.Now().Round(0)) || event.Took <= 0 {
			t.Errorf("collection %d ended at %v and took %v", i, event.End, event.Took)
		}
	}
	if count := after.Pauses.Since(before.Pauses).Count(); count < 3 {
		t.Errorf("all goroutines stood still %d times", count)
	}
	if after.Waits.Count() == 0 || after.Used <= 0 || after.Collecting <= before.Collecting {
		t.Errorf("%d goroutines waited; the program used %v s, and the collector %v s after %v s",
			after.Waits.Count(), after.Used, after.Collecting, before.Collecting)
	}
}

func TestARecorderThatLooksForStallsSleepsAgainAndAgain(t *testing.T) {
	recorder := pauses.Start(true)
	defer recorder.Stop()
	await.Until(func() bool { return recorder.Snapshot().Lateness.Count() > 20 })
}

func TestHistogramsOfTwoMomentsHaveTheirDifference(t *testing.T) {
	h := pauses.Histogram{Counts: []uint64{5, 90, 9, 1}, Buckets: []float64{0, 0.001, 0.002, 0.004, 0.008}}
	since := h.Since(pauses.Histogram{Counts: []uint64{5, 0, 0, 0}, Buckets: h.Buckets})
	if since.Count() != 100 || h.Count() != 105 {
		t.Errorf("there are %d and %d", since.Count(), h.Count())
	}
	for share, want := range map[float64]time.Duration{
		0.5: 2 * time.Millisecond, 0.9: 2 * time.Millisecond, 0.91: 4 * time.Millisecond, 1: 8 * time.Millisecond,
	} {
		if got := since.At(share); got != want {
			t.Errorf("%v of all are at most %v, want %v", share, got, want)
		}
	}
	if got, want := since.Sum(), 224*time.Millisecond; got != want {
		t.Errorf("the sum is %v, want %v", got, want)
	}
	if got := (pauses.Histogram{}).At(1); got != 0 {
		t.Errorf("of nothing, the longest is %v", got)
	}
}
