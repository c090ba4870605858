package latency

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// slowest bounds what a histogram has; a longer time counts as this one.
	slowest = 2 * time.Minute
	// digits is how exact it is: three digits are a tenth of a per cent.
	digits = 3
)

// shards are a histogram in parts, so that goroutines that record at the same time do not wait for
// each other: one reads from each connection, and records. The zero value is empty. prepare allocates
// the parts before a load.
type shards [16]shard

type shard struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram // of microseconds; nil: empty
	_         [64]byte                // keeps neighbours out of the same line of the cache
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, slowest.Microseconds(), digits)
}

// prepare makes the memory of so many shards resident: a fresh page costs a virtual machine tens of
// microseconds, and would count as latency.
func (s *shards) prepare(n int) {
	for i := range min(n, len(s)) {
		if s[i].histogram == nil {
			s[i].histogram = newHistogram()
		}
		// Writes to each page; a reset histogram is as good as new.
		for micros := int64(1); micros < slowest.Microseconds(); micros += micros/128 + 1 {
			_ = s[i].histogram.RecordValue(micros)
		}
		s[i].histogram.Reset()
	}
}

// record adds a time to the shard of a number.
func (s *shards) record(number int, took time.Duration) {
	micros := min(max(took, time.Microsecond), slowest).Microseconds()
	one := &s[number%len(s)]
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.histogram == nil {
		one.histogram = newHistogram()
	}
	_ = one.histogram.RecordValue(micros) // it is within the bounds
}

// merged returns all that was recorded.
func (s *shards) merged() *hdrhistogram.Histogram {
	all := newHistogram()
	for i := range s {
		s[i].mu.Lock()
		if s[i].histogram != nil {
			all.Merge(s[i].histogram)
		}
		s[i].mu.Unlock()
	}
	return all
}
