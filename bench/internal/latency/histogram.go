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

// shards are a histogram in parts, so that goroutines that record at the same time seldom wait for
// each other. The zero value is empty.
type shards [16]shard

type shard struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram // of microseconds; nil: empty
	_         [64]byte                // keeps neighbours out of the same line of the cache
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, slowest.Microseconds(), digits)
}

func (s *shards) record(number int64, took time.Duration) {
	micros := min(max(took, time.Microsecond), slowest).Microseconds()
	one := &s[number%int64(len(s))]
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
