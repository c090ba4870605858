package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// counters are keys that only grow: each has one writer, which sets it to 1, 2, 3, and so on,
// without an expiry. So each read tells whether a write was lost, however many there were.
type counters struct {
	recorder *recorder
	keys     []*counter

	notifications atomic.Int64
}

type counter struct {
	name string

	mu       sync.Mutex
	sent     int      // the highest number that was sent
	floor    int      // the highest number that is known to be written
	property Property // that holds the floor: what told it
}

func newCounters(r *recorder, n int) *counters {
	c := &counters{recorder: r}
	for i := range n {
		c.keys = append(c.keys, &counter{name: fmt.Sprintf("counter/%d", i)})
	}
	return c
}

// write counts until ctx ends.
func (c *counters) write(ctx context.Context, s *session, key *counter, random *rand.Rand) {
	for ctx.Err() == nil {
		key.mu.Lock()
		key.sent++
		n := key.sent
		key.mu.Unlock()
		o := s.do(ctx, Operation{Kind: Set, Key: key.name, Value: strconv.Itoa(n)})
		if o.Result == Done {
			key.raise(n, WritesSurvive)
		}
		sleep.For(ctx, time.Duration(random.IntN(4000))*time.Microsecond)
	}
}

// raise notes that a number was written.
func (k *counter) raise(n int, property Property) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n > k.floor {
		k.floor, k.property = n, property
	}
}

func (k *counter) known() (floor int, property Property) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.floor, k.property
}

// read reads a counter and compares it with what was known before. It returns whether there
// was a reply.
func (c *counters) read(ctx context.Context, s *session, key *counter) bool {
	floor, property := key.known()
	o := s.do(ctx, Operation{Kind: Get, Key: key.name})
	if o.Result != Done && o.Result != Absent {
		return false
	}
	n, err := strconv.Atoi(o.Read)
	if o.Result == Absent {
		n, err = 0, nil
	}
	key.mu.Lock()
	sent := key.sent
	key.mu.Unlock()
	if err != nil || n < floor || n > sent {
		c.recorder.violated(property, "%v; %d was known to be written, and %d was sent at most", o, floor, sent)
	}
	key.raise(n, WritesSurvive)
	return true
}

// watch compares a counter with its notifications until ctx ends. What a notification tells
// is known to be written.
func (c *counters) watch(ctx context.Context, s *session, key *counter) {
	watch, err := s.Watch(key.name)
	if err != nil {
		return // the client was closed
	}
	defer watch.Close()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case change, open := <-watch.Changes():
			if !open {
				return
			}
			c.notifications.Add(1)
			c.recorder.saw(change.Version)
			if n, err := strconv.Atoi(string(change.Value)); change.Exists && err == nil {
				key.raise(n, NotifiedIsKept)
			} else if floor, property := key.known(); change.Exists || floor > 0 && !change.Missed && !first {
				c.recorder.violated(property, "a notification says that %q is gone or %q; %d was known to be written", key.name, change.Value, floor)
			}
		}
	}
}
