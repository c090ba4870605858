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

	"github.com/tenurelock/tenure/statestore"
)

const (
	// expireBatch is how many keys expire while the lock is held: for about a quarter of a millisecond.
	// With 256, half as many requests came through while 100,000 keys expired, and the last key expired
	// later: see BenchmarkPause.
	expireBatch = 64
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
	system  atomic.Pointer[func() time.Time]

	// Of a store with a journal; nil or zero otherwise.
	journal statestore.Journal
	commit  chan struct{} // signals that open is not empty
	ended   chan struct{} // closed with failure
	waiting atomic.Int64  // how much waits for a commit, see maxWaiting

	mu    sync.Mutex
	store *statestore.Store
	wall  wall
	next  time.Duration // the expiry that Run waits for; valid while armed
	armed bool
	left  [maxVerb + 1]Answers

	// Of a store with a journal; nil or zero otherwise.
	open       *batch        // what the next commit makes durable; never nil
	committing *batch        // from its commit until all that rests on it has left; may be nil
	order      uint64        // how much was held so far
	freed      chan struct{} // closed, and replaced, when waiting falls below maxWaiting
	sealed     bool          // no more commands are applied
	failure    error         // why nothing leaves any more
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

// wakeExpiryLocked wakes runExpiry if a key expires before the time for which it waits.
func (e *Engine) wakeExpiryLocked() {
	if next, ok := e.store.NextExpiry(); ok && (!e.armed || next < e.next) {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// leaveNowLocked lets the reply to a command and what that caused leave. arrived is Command.Arrived.
func (e *Engine) leaveNowLocked(
	reply statestore.Reply, effects *statestore.Effects, arrived time.Duration, done func(statestore.Reply),
) {
	e.countLocked(reply, arrived)
	if done != nil {
		done(reply)
	}
	for _, notification := range effects.Notifications {
		e.deliver(notification)
	}
}

// Disconnect drops the watches of a client that has lost its connection. It releases the lock now
// and then, so that other clients need not wait for long. The client's next connection must
// not send requests before Disconnect returns.
func (e *Engine) Disconnect(client string) {
	for e.disconnectSome(client) {
		runtime.Gosched() // or the next step would take the lock before those that wait for it
	}
}

func (e *Engine) disconnectSome(client string) (more bool) {
	system := e.systemTime()
	e.mu.Lock()
	defer e.unlock()
	e.forgetHeldLocked(client)
	return e.store.DisconnectSome(e.nowLocked(system), client, disconnectBatch)
}

// EndSession drops the watches and the remembered replies of a client after its MQTT session
// ended. Like Disconnect, it must return before the client's next connection sends requests. With
// a journal, Run removes the records of the replies later, a few with each commit.
func (e *Engine) EndSession(client string) {
	e.Disconnect(client)
	system := e.systemTime()
	e.mu.Lock()
	defer e.unlock()
	e.store.EndSession(e.nowLocked(system), client)
	e.removeObsoleteLocked()
}

// RestoredClients returns the clients with remembered replies that Open has loaded, unless their
// sessions have ended since. Clients that never come back need EndSession.
func (e *Engine) RestoredClients() []string {
	e.mu.Lock()
	defer e.unlock()
	return e.store.RestoredClients()
}

// Continues reports whether the store goes on with the data of an earlier one, see statestore.
func (e *Engine) Continues() bool { return e.store.Continues() } // without the lock: it never changes

// RestoredUntil returns up to which wall clock the store has restored versions, see statestore.
func (e *Engine) RestoredUntil() int64 { return e.store.RestoredUntil() } // without the lock: it never changes

// Usage returns what the store holds now.
func (e *Engine) Usage() statestore.Usage {
	e.mu.Lock()
	defer e.unlock()
	return e.store.Usage()
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

// unlock is deferred in each method that uses the store. It panics again with an InDoubt.
func (e *Engine) unlock() {
	value := recover()
	if value == nil {
		e.mu.Unlock()
		return
	}
	doubt := &InDoubt{Value: value, Stack: debug.Stack()}
	if e.journal != nil {
		e.failLocked(doubt) // what is half done must not be committed
	}
	e.mu.Unlock()
	panic(doubt)
}

// Begin starts the hold-off of the store: requests can reach it from now on.
func (e *Engine) Begin() {
	system := e.systemTime()
	e.mu.Lock()
	defer e.unlock()
	e.store.Begin(e.nowLocked(system))
}

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

// runExpiry removes keys as they expire, until ctx ends.
func (e *Engine) runExpiry(ctx context.Context) {
	timer := time.NewTimer(1)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		case <-timer.C:
		}
		if wait, ok := e.expire(ctx); ok {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

// expire removes the expired keys and returns the time until the next expiry. Between two
// batches it releases the lock and checks ctx.
func (e *Engine) expire(ctx context.Context) (wait time.Duration, ok bool) {
	for more := true; more && e.Room(ctx) == nil && ctx.Err() == nil; {
		if more, wait, ok = e.expireSome(); more {
			// Without it a request that waits for the lock gets it only after a millisecond: until then
			// the next batch takes the lock first, because this goroutine has a processor already.
			runtime.Gosched()
		}
	}
	return wait, ok
}

func (e *Engine) expireSome() (more bool, wait time.Duration, ok bool) {
	system := e.systemTime()
	e.mu.Lock()
	defer e.unlock()
	now := e.nowLocked(system)
	if e.failure != nil || e.sealed {
		return false, 0, false
	}
	effects, more := e.store.Expire(now, expireBatch)
	switch {
	case e.journal == nil:
		for _, notification := range effects.Notifications {
			e.deliver(notification)
		}
	case len(effects.Groups) > 0:
		e.addLocked(effects.Groups, effects.Keys)
		// A part of them leaves at a time, though many clients may watch many keys that expire.
		for some := range slices.Chunk(effects.Notifications, leaveBatch) {
			e.holdLocked(e.open, held{notifications: some, expired: true})
		}
	}
	e.next, e.armed = e.store.NextExpiry()
	return more, max(e.next-now.Elapsed, 0), e.armed
}

// systemTime reads the system's clock for nowLocked. It is called without the lock, because
// the clock may be a user's function.
func (e *Engine) systemTime() time.Time { return (*e.system.Load())() }

// nowLocked returns the time on both clocks of the store. Elapsed is monotonic: it does not
// step with the wall clock. system was read earlier, before the wait for the lock; the slew
// evens out the difference.
func (e *Engine) nowLocked(system time.Time) statestore.Instant {
	elapsed := e.Elapsed()
	return statestore.Instant{WallMillis: e.wall.at(system, elapsed), Elapsed: elapsed}
}
