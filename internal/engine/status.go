package engine

import (
	"runtime"
	"slices"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

const (
	// statusBatch is how many leases are shown while the lock is held, see expireBatch.
	statusBatch = 64

	maxVerb    = statestore.VerbKeyNotify
	maxOutcome = statestore.Expired
)

// Buckets are the upper bounds of the durations that Answers.Buckets counts.
var Buckets = [...]time.Duration{
	25 * time.Microsecond, 100 * time.Microsecond, 250 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second,
}

// Answers counts the replies to one verb that could leave, by outcome. Buckets counts those that took up to
// the duration with its index in [Buckets], from the reading of the request until its reply could leave, and
// Timed and Took are how many were timed and how long they took together.
type Answers struct {
	Outcomes [maxOutcome + 1]uint64
	Buckets  [len(Buckets)]uint64
	Timed    uint64
	Took     time.Duration
}

// Status is what a store shows of its leases, and of the requests that it has answered.
type Status struct {
	statestore.Status
	Leases  []statestore.Lease
	Answers [maxVerb + 1]Answers // by verb
}

// countLocked counts a reply that may leave.
func (e *Engine) countLocked(reply statestore.Reply, arrived time.Duration) {
	if reply.Outcome == statestore.Expired {
		return // it is not sent
	}
	a := &e.left[reply.Verb]
	a.Outcomes[reply.Outcome]++
	if arrived == 0 {
		return
	}
	took := e.Elapsed() - arrived
	a.Timed++
	a.Took += took
	if i, _ := slices.BinarySearch(Buckets[:], took); i < len(Buckets) {
		a.Buckets[i]++
	}
}

// Lost says that the connection of a client of a user has ended.
func (e *Engine) Lost(client, user string) {
	e.do(func(now statestore.Instant) { e.store.Lost(now, client, user) })
}

// News returns the changes of holders since the call before, see statestore.
func (e *Engine) News() (news []statestore.News) {
	e.do(func(statestore.Instant) { news = e.store.News() })
	return news
}

// Status returns what the store shows, with up to limit leases, each as it is at some time during the
// call. Now and then it releases the lock. It may show a change a moment before its commit.
func (e *Engine) Status(limit int) (status Status) {
	var names []string
	e.do(func(now statestore.Instant) {
		status.Answers = e.left
		status.Status, names = e.store.Status(now, limit)
	})
	for some := range slices.Chunk(names, statusBatch) {
		runtime.Gosched() // or the next step would take the lock before those that wait for it
		e.do(func(now statestore.Instant) {
			for _, name := range some {
				if lease, ok := e.store.Lease(now, name); ok {
					status.Leases = append(status.Leases, lease)
				}
			}
		})
	}
	return status
}
