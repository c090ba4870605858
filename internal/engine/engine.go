// Package engine runs a [statestore.Store] on the real clock. An [Engine] has a lock around
// the store, a timer for the next expiry, and delivers notifications in the order of the
// store. With a [statestore.Journal] it commits what changed, and holds back replies and
// notifications until what they show is committed. The server and the in-process connection
// of tests both use it.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/wake"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// expireBatch is how many keys expire while the lock is held: for about a quarter of a millisecond.
	expireBatch = 64
	// expireBatches is how many times this between two commits: clients wait for the next one.
	expireBatches = 16
	// disconnectBatch is how many watches are removed while the lock is held: for some tens
	// of microseconds.
	disconnectBatch = 64
)

// Engine is a store with a clock. It is safe for concurrent use.
type Engine struct {
	deliver func(statestore.Notification)
	pause   func() // may be nil
	started time.Time
	wake    chan struct{}
	life    context.Context         // ends with the reason why nothing leaves any more
	fail    context.CancelCauseFunc // is called with the lock
	system  atomic.Pointer[func() time.Time]

	// Of a store with a journal; nil or zero otherwise.
	journal statestore.Journal
	commit  chan struct{} // signals that open is not empty
	waiting atomic.Int64  // how much waits for a commit, see maxWaiting

	mu    sync.Mutex
	store *statestore.Store
	wall  wall
	next  time.Duration // the expiry that Run waits for; valid while armed
	armed bool
	left  [maxVerb + 1]Answers

	// Of a store with a journal; nil or zero otherwise.
	open       *batch        // what the next commit makes durable; never nil
	committing *batch        // from its commit until all that depends on it has left; may be nil
	order      uint64        // how much was held so far
	freed      chan struct{} // closed, and replaced, when waiting falls below maxWaiting
	sealed     bool          // no more commands are applied
}

// BetweenDeliveries makes Run call pause, without the lock, between the parts of what leaves after a
// commit: all of it leaves at once otherwise, faster than a client can read. pause may wait for a
// moment, but not for a client. It is not called for what was held after the commit. Call
// BetweenDeliveries before any other method.
func (e *Engine) BetweenDeliveries(pause func()) { e.pause = pause }

// SystemClock is the system's clock of all engines without one of their own: time.Now.
// Only a process that a test has started sets it, before its first engine.
var SystemClock = time.Now

// SetSystemClock makes now the system's clock from now on; nil means SystemClock, the default.
// The engine slews the store's time of day towards it, see [wall]. now is called by several
// goroutines at once, without a lock.
func (e *Engine) SetSystemClock(now func() time.Time) {
	if now == nil {
		now = SystemClock
	}
	e.system.Store(&now)
}

// wakeExpiryLocked wakes Run if a key expires before the time for which it waits.
func (e *Engine) wakeExpiryLocked() {
	if next, ok := e.store.NextExpiry(); ok && (!e.armed || next < e.next) {
		wake.Up(e.wake)
	}
}

// Disconnect drops the watches of a client that has lost its connection. It releases the lock now
// and then, so that other clients need not wait for long. The client's next connection must
// not send requests before Disconnect returns.
func (e *Engine) Disconnect(client string) {
	for more := true; more; {
		e.do(func(now statestore.Instant) {
			e.forgetHeldLocked(client)
			more = e.store.Disconnect(now, client, disconnectBatch)
		})
		runtime.Gosched() // or the next step would take the lock before those that wait for it
	}
}

// EndSession drops the watches and the remembered replies of a client after its MQTT session
// ended. Like Disconnect, it must return before the client's next connection sends requests. With
// a journal, Run removes the records of the replies later, a few with each commit.
func (e *Engine) EndSession(client string) {
	e.Disconnect(client)
	e.do(func(statestore.Instant) {
		e.store.EndSession(client)
		wake.Up(e.commit) // nil without a journal
	})
}

// RestoredClients returns the clients with remembered replies that Open has loaded, unless their
// sessions have ended since. Clients that never come back need EndSession.
func (e *Engine) RestoredClients() (clients []string) {
	e.do(func(statestore.Instant) { clients = e.store.RestoredClients() })
	return clients
}

// Continues reports whether the store goes on with the data of an earlier one, see statestore.
func (e *Engine) Continues() bool { return e.store.Continues() } // without the lock: it never changes

// RestoredUntil returns up to which wall clock the store has restored versions, see statestore.
func (e *Engine) RestoredUntil() int64 { return e.store.RestoredUntil() } // without the lock: it never changes

// Usage returns what the store holds now.
func (e *Engine) Usage() (usage statestore.Usage) {
	e.do(func(statestore.Instant) { usage = e.store.Usage() })
	return usage
}

// InDoubt is the value of a panic that occurred while the store was changed: the change may
// be half done. A program that recovers from panics must let this one end the process.
type InDoubt struct {
	Value any    // the value of the first panic
	Stack []byte // the stack of the first panic
}

// Error returns the value and the stack of the first panic.
func (d *InDoubt) Error() string {
	return fmt.Sprintf("the state of the store is in doubt after a panic: %v\n%s", d.Value, d.Stack)
}

// do calls f with the lock and the time.
func (e *Engine) do(f func(now statestore.Instant)) {
	now := e.lock()
	defer e.unlock()
	f(now)
}

// lock takes the lock, and returns the time on both clocks of the store. Elapsed is monotonic: it does not step with
// the wall clock. The system's clock is read before the wait for the lock, because it may be a user's function; the
// slew evens out the difference.
func (e *Engine) lock() statestore.Instant {
	system := (*e.system.Load())()
	e.mu.Lock()
	elapsed := e.Elapsed()
	return statestore.Instant{WallMillis: e.wall.at(system, elapsed), Elapsed: elapsed}
}

// unlock is deferred in each function that uses the store. It panics again with an InDoubt.
func (e *Engine) unlock() {
	value := recover()
	if value == nil {
		e.mu.Unlock()
		return
	}
	doubt := &InDoubt{Value: value, Stack: debug.Stack()}
	if e.journal != nil {
		e.fail(doubt) // what is half done must not be committed
	}
	e.mu.Unlock()
	panic(doubt)
}

// Begin starts the hold-off of the store: requests can reach it from now on.
func (e *Engine) Begin() { e.do(e.store.Begin) }

// Identity returns the identity of the store.
func (e *Engine) Identity() string { return e.store.Identity() } // without the lock: it never changes

// NewIdentity returns a new identity for a store without the data of an earlier one: 16
// random bytes in lower-case hex.
func NewIdentity() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails, says its documentation
	return hex.EncodeToString(random[:])
}

// Elapsed returns the time on the clock of statestore.Request.Expires.
func (e *Engine) Elapsed() time.Duration { return time.Since(e.started) }

// expireSome removes expired keys, some at a time: between two batches it releases the lock. It returns the time until
// it is to be called again, and false if no key expires.
func (e *Engine) expireSome() (wait time.Duration, ok bool) {
	more := true
	for batches := 0; more && batches < expireBatches; batches++ {
		e.do(func(now statestore.Instant) {
			more = e.expireLocked(now)
			wait, ok = max(e.next-now.Elapsed, 1), e.armed
		})
		// Without it a request that waits for the lock gets it only after a millisecond: until then
		// the next batch takes the lock first, because this goroutine has a processor already.
		runtime.Gosched()
	}
	return wait, ok
}

func (e *Engine) expireLocked(now statestore.Instant) (more bool) {
	if e.endsLocked() {
		e.armed = false
		return false
	}
	effects, more := e.store.Expire(now, expireBatch)
	if len(effects.Groups) > 0 {
		e.addLocked(effects.Groups, effects.Keys)
	}
	// A part of them leaves at a time, though many clients may watch many keys that expire.
	for some := range slices.Chunk(effects.Notifications, sendBatch) {
		if h := (pending{notifications: some, expired: true}); e.journal == nil {
			e.sendLocked(nil, &h)
		} else {
			e.addPendingLocked(e.open, h)
		}
	}
	e.next, e.armed = e.store.NextExpiry()
	return more
}
