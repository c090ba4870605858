// Package pauses records what stops a Go program for a moment: the collector, the wait of a goroutine
// for a processor, and a machine that does not wake a thread in time.
package pauses

import (
	"context"
	"encoding/gob"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Event is a pause, or a collection.
type Event struct {
	// End is when it ended, on the wall clock, which the processes of one machine share.
	End time.Time
	// Took is for how long the program stood still.
	Took time.Duration
}

// Snapshot is what happened since the start of a process.
type Snapshot struct {
	// Collections are the collections since the recorder started, the oldest first: at most maxEvents,
	// later ones are left out. The pause of a collection has two parts, which Took has together.
	Collections []Event
	// Stalls are the moments at which a thread that slept woke late, if the recorder has looked for
	// them: at most maxEvents, later ones are left out.
	Stalls []Event
	// Away are the moments at which a processor was away: the host of a virtual machine gave it to others
	// (steal time). Then a thread with a real-time priority, which runs on this processor only, wakes late.
	// AwayKnown says that the recorder could look for them: on Linux, with the right to use real-time
	// priorities. At most maxEvents, as with Stalls.
	Away      []Event
	AwayKnown bool
	// Pauses counts the times for which all goroutines stood still, and Waits counts the times for
	// which a goroutine that could run waited for a processor.
	Pauses, Waits Histogram
	// Lateness counts by how much a thread that slept woke late.
	Lateness Histogram
	// Collecting and Used are seconds of processor time, of the collector and of all of the program, by
	// the estimate of the Go runtime.
	Collecting, Used float64
}

// Histogram counts durations. Its fields are the fields of metrics.Float64Histogram, in seconds.
type Histogram struct {
	Counts  []uint64
	Buckets []float64 // the bounds of the counts; one more than Counts
}

// Since returns what was counted after an earlier state of the same histogram.
func (h Histogram) Since(earlier Histogram) Histogram {
	since := Histogram{Counts: make([]uint64, len(h.Counts)), Buckets: h.Buckets}
	for i, count := range h.Counts {
		since.Counts[i] = count
		if i < len(earlier.Counts) {
			since.Counts[i] -= earlier.Counts[i]
		}
	}
	return since
}

// Count returns how many durations were counted.
func (h Histogram) Count() (count uint64) {
	for _, c := range h.Counts {
		count += c
	}
	return count
}

// At returns a duration that this share of all, from 0 to 1, does not exceed: the upper bound of
// its bucket. It is 0 if none was counted.
func (h Histogram) At(share float64) time.Duration {
	wanted := uint64(math.Ceil(share * float64(h.Count())))
	if wanted == 0 {
		return 0
	}
	var below uint64
	for i, count := range h.Counts {
		if below += count; below >= wanted {
			bound := h.Buckets[i+1]
			if math.IsInf(bound, 1) {
				bound = h.Buckets[i]
			}
			return time.Duration(bound * float64(time.Second))
		}
	}
	return 0
}

// Sum returns all durations together. Each counts as the upper bound of its bucket, so the sum is too
// high by a few per cent.
func (h Histogram) Sum() (sum time.Duration) {
	for i, count := range h.Counts {
		if bound := h.Buckets[i+1]; count > 0 && !math.IsInf(bound, 1) {
			sum += time.Duration(float64(count) * bound * float64(time.Second))
		}
	}
	return sum
}

const (
	// maxEvents bounds the lists of a recorder.
	maxEvents = 1 << 17
	// interval is how often the recorder asks for collections. The runtime remembers the last 256.
	interval = 100 * time.Millisecond
	// nap is how long the thread sleeps that looks for stalls, and worthwhile is a lateness that
	// counts as a stall.
	nap        = time.Millisecond
	worthwhile = 500 * time.Microsecond
)

// Recorder records the pauses of its process. Its methods are safe for concurrent use.
type Recorder struct {
	stop    context.CancelFunc
	working sync.WaitGroup

	mu          sync.Mutex // guards what follows
	seen        int64      // collections that the recorder has looked at
	collections []Event
	stalls      []Event
	lateness    Histogram
	away        []Event
	awayKnown   bool
}

// Start starts a recorder. With stalls it also lets a thread sleep a thousand times a second, and
// records when that wakes late: for a process that does nothing else, so that only the machine can be
// the reason. Stop ends it.
func Start(stalls bool) *Recorder {
	ctx, stop := context.WithCancel(context.Background())
	r := &Recorder{stop: stop, lateness: newLateness()}
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	r.seen = stats.NumGC
	r.working.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				r.lookAtCollections()
			}
		}
	})
	if stalls {
		r.working.Go(func() { r.lookForStalls(ctx) })
		for processor := range runtime.NumCPU() {
			r.working.Go(func() { r.lookForAbsence(ctx, processor) })
		}
	}
	return r
}

// Stop ends the recorder, and waits until it has ended.
func (r *Recorder) Stop() {
	r.stop()
	r.working.Wait() // bounded: the goroutines look at the context many times a second
}

func (r *Recorder) lookAtCollections() {
	var stats debug.GCStats
	debug.ReadGCStats(&stats)
	r.mu.Lock()
	defer r.mu.Unlock()
	news := min(stats.NumGC-r.seen, int64(len(stats.PauseEnd)), int64(len(stats.Pause)))
	r.seen = stats.NumGC
	for i := news - 1; i >= 0; i-- { // the latest is the first
		r.collections = appendBounded(r.collections, Event{End: stats.PauseEnd[i].Round(0), Took: stats.Pause[i]})
	}
}

func (r *Recorder) lookForStalls(ctx context.Context) {
	sleep, done := Sleeper()
	defer done()
	for ctx.Err() == nil {
		due := time.Now().Add(nap)
		sleep(nap)
		now := time.Now()
		late := now.Sub(due)
		r.mu.Lock()
		r.lateness.add(late)
		if late >= worthwhile {
			r.stalls = appendBounded(r.stalls, Event{End: now.Round(0), Took: late})
		}
		r.mu.Unlock()
	}
}

// lookForAbsence looks for moments at which a processor is away.
func (r *Recorder) lookForAbsence(ctx context.Context, processor int) {
	sleep, done, err := realTimeSleeper(processor)
	if err != nil {
		return
	}
	defer done()
	r.mu.Lock()
	r.awayKnown = true
	r.mu.Unlock()
	for ctx.Err() == nil {
		due := time.Now().Add(nap)
		sleep(nap)
		now := time.Now()
		if late := now.Sub(due); late >= worthwhile {
			r.mu.Lock()
			r.away = appendBounded(r.away, Event{End: now.Round(0), Took: late})
			r.mu.Unlock()
		}
	}
}

func appendBounded(events []Event, event Event) []Event {
	if len(events) >= maxEvents {
		return events
	}
	return append(events, event)
}

// newLateness returns a histogram whose buckets grow by a tenth, from a microsecond to a minute.
func newLateness() Histogram {
	h := Histogram{Buckets: []float64{0}}
	for bound := 1e-6; bound < 60; bound *= 1.1 {
		h.Buckets = append(h.Buckets, bound)
	}
	h.Buckets = append(h.Buckets, math.Inf(1))
	h.Counts = make([]uint64, len(h.Buckets)-1)
	return h
}

func (h *Histogram) add(d time.Duration) {
	seconds := max(0, d.Seconds())
	bucket := 0
	for bucket < len(h.Counts)-1 && seconds >= h.Buckets[bucket+1] {
		bucket++
	}
	h.Counts[bucket]++
}

// Snapshot returns what was recorded up to now.
func (r *Recorder) Snapshot() Snapshot {
	r.lookAtCollections()
	samples := []metrics.Sample{
		{Name: "/sched/pauses/total/gc:seconds"},
		{Name: "/sched/latencies:seconds"},
		{Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/user:cpu-seconds"},
		{Name: "/cpu/classes/scavenge/total:cpu-seconds"},
	}
	metrics.Read(samples)
	var s Snapshot
	s.Pauses, s.Waits = histogram(samples[0].Value), histogram(samples[1].Value)
	s.Collecting = seconds(samples[2].Value)
	s.Used = s.Collecting + seconds(samples[3].Value) + seconds(samples[4].Value)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Collections = append([]Event(nil), r.collections...)
	s.Stalls = append([]Event(nil), r.stalls...)
	s.Away, s.AwayKnown = append([]Event(nil), r.away...), r.awayKnown
	s.Lateness = r.lateness.Since(Histogram{})
	return s
}

// A version of Go may lack a metric; then the histogram is empty and the seconds are 0.
func histogram(value metrics.Value) Histogram {
	if value.Kind() != metrics.KindFloat64Histogram {
		return Histogram{}
	}
	h := value.Float64Histogram()
	return Histogram{Counts: append([]uint64(nil), h.Counts...), Buckets: append([]float64(nil), h.Buckets...)}
}

func seconds(value metrics.Value) float64 {
	if value.Kind() != metrics.KindFloat64 {
		return 0
	}
	return value.Float64()
}

// ServeHTTP answers each request with a snapshot, for Fetch. It is meant for the other processes of one
// run: it has no protection, and listens on this machine only.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	// gob and not JSON: the outermost bounds are infinite.
	_ = gob.NewEncoder(w).Encode(r.Snapshot()) // an error is that the reader is gone
}

// maxSnapshot bounds the answer of a recorder in bytes.
const maxSnapshot = 64 << 20

// Fetch asks the recorder of another process, at the URL where its ServeHTTP listens.
func Fetch(ctx context.Context, url string) (Snapshot, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Snapshot{}, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Snapshot{}, fmt.Errorf("ask a process for its pauses: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Snapshot{}, fmt.Errorf("ask a process for its pauses: %s", response.Status)
	}
	var s Snapshot
	if err := gob.NewDecoder(http.MaxBytesReader(nil, response.Body, maxSnapshot)).Decode(&s); err != nil {
		return Snapshot{}, fmt.Errorf("ask a process for its pauses: %w", err)
	}
	return s, nil
}
