package load

import (
	"math/bits"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
)

const (
	// slowest bounds what is measured; a longer time counts as this one.
	slowest = time.Hour
	// digits is how exact percentiles are: two digits are one percent.
	digits = 2
	// omittedGroups bounds how many records stand for operations that were due and never sent.
	omittedGroups = 1000
)

// recorder counts latencies. It is safe for concurrent use.
type recorder struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram // of microseconds
}

func newRecorder() *recorder {
	return &recorder{histogram: hdrhistogram.New(1, slowest.Microseconds(), digits)}
}

// record counts n operations that took so long.
func (r *recorder) record(took time.Duration, n int64) {
	took = min(max(took, time.Microsecond), slowest)
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.histogram.RecordValues(took.Microseconds(), n) // it is within the bounds
}

// recordOmitted counts n operations that were due at regular times up to the end and were never
// sent. The first one would have taken longest at least, and the last one nothing.
func (r *recorder) recordOmitted(longest time.Duration, n int64) {
	groups := min(n, omittedGroups)
	for i := range groups {
		count := n*(i+1)/groups - n*i/groups
		share := 1 - (float64(i)+0.5)/float64(groups)
		r.record(time.Duration(share*float64(longest)), count)
	}
}

// Latency is how long operations took. The zero value is of none.
type Latency struct {
	Count int64         `json:"count"`
	Min   output.Millis `json:"minMillis"`
	Mean  output.Millis `json:"meanMillis"`
	P50   output.Millis `json:"p50Millis"`
	P90   output.Millis `json:"p90Millis"`
	P99   output.Millis `json:"p99Millis"`
	P999  output.Millis `json:"p999Millis"`
	P9999 output.Millis `json:"p9999Millis"`
	Max   output.Millis `json:"maxMillis"`
	// Buckets has how many operations took less than each bound and not less than the one before. The
	// bounds are powers of two in microseconds.
	Buckets []Bucket `json:"buckets"`
}

// Bucket counts operations that took less than Below.
type Bucket struct {
	Below output.Millis `json:"belowMillis"`
	Count int64         `json:"count"`
}

// latency returns what was recorded.
func (r *recorder) latency() Latency {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.histogram
	if h.TotalCount() == 0 {
		return Latency{}
	}
	micros := func(n int64) output.Millis { return output.Millis{Duration: time.Duration(n) * time.Microsecond} }
	at := func(percentile float64) output.Millis { return micros(min(h.ValueAtPercentile(percentile), h.Max())) }
	l := Latency{
		Count: h.TotalCount(), Min: micros(h.Min()), Mean: output.Millis{Duration: time.Duration(h.Mean() * float64(time.Microsecond))},
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), P9999: at(99.99), Max: micros(h.Max()),
	}
	var counts [64]int64 // by the number of bits of the microseconds
	first, last := len(counts), 0
	for _, bar := range h.Distribution() {
		if bar.Count > 0 {
			size := bits.Len64(uint64(bar.From))
			counts[size] += bar.Count
			first, last = min(first, size), max(last, size)
		}
	}
	for size := first; size <= last; size++ {
		l.Buckets = append(l.Buckets, Bucket{Below: micros(1 << size), Count: counts[size]})
	}
	return l
}
