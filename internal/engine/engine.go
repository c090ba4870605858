// Package engine runs a [statestore.Store] on the real clock: one lock around
// the state machine, one timer for the next expiry, and notifications handed
// out in the store's order. The server and the in-process connection of the
// tests are two ways of reaching the same engine.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// expireBatch bounds how long one expiry run holds the lock while many keys fall due
// at once: for about a millisecond. Smaller batches would be interrupted more often
// than they are worth, each time for as long as others are quicker to take the lock.
const expireBatch = 256

// disconnectBatch is how many watches are freed while the lock is held: for some tens of
// microseconds.
const disconnectBatch = 64

// Engine is a store with a clock. It is safe for concurrent use.
type Engine struct {
	deliver func(statestore.Notification)
	wakeAll func([]statestore.Notification) // nil: nothing
	started time.Time
	wake    chan struct{}
	system  atomic.Pointer[func() time.Time] // nil: time.Now

	mu     sync.Mutex
	store  *statestore.Store
	wall   wall
	filing time.Duration // the expiry that Run sleeps towards; valid while armed
	armed  bool
}

// New returns an engine over store, which must not be used directly any more.
//
// The engine calls deliver for each notification, one at a time, with its lock
// held, so that each client sees the changes of a key in the order in which the
// store made them. It must therefore only hand over: never block, never call
// the engine.
func New(store *statestore.Store, deliver func(statestore.Notification)) *Engine {
	e := &Engine{deliver: deliver, started: time.Now(), wake: make(chan struct{}, 1), store: store}
	e.wall.at(e.started, 0)
	return e
}

// AfterDelivery makes the engine call wake with the notifications of each change after it
// has delivered them, without its lock: to wake a goroutine for each of a thousand watchers
// takes several times as long as to queue a notification for each. wake may be called by
// several goroutines at once, and when later changes have been delivered already. Call
// AfterDelivery before the engine is used.
func (e *Engine) AfterDelivery(wake func([]statestore.Notification)) { e.wakeAll = wake }

// SetSystemClock makes now the system's clock from here on; nil, like at first, is time.Now.
// The store's time of day is slewed towards it, see [wall]. now is called without a lock,
// and by several goroutines at once.
func (e *Engine) SetSystemClock(now func() time.Time) {
	if now == nil {
		e.system.Store(nil)
		return
	}
	e.system.Store(&now)
}

// Apply performs a command now.
func (e *Engine) Apply(command statestore.Command) statestore.Reply {
	return e.ApplyThen(command, nil)
}

// ApplyThen performs a command now and, unless then is nil, calls it with the reply
// before any notification of the command and before any other command, so that a record
// of what happened is in the store's order. Like deliver it is called with the lock held
// and must only hand over.
func (e *Engine) ApplyThen(command statestore.Command, then func(statestore.Reply)) statestore.Reply {
	reply, notifications := e.applyThen(command, then)
	e.delivered(notifications)
	return reply
}

func (e *Engine) applyThen(command statestore.Command, then func(statestore.Reply)) (statestore.Reply, []statestore.Notification) {
	system := e.systemTime()
	e.mu.Lock()
	defer e.mu.Unlock()
	defer inDoubt()
	reply, notifications := e.store.Apply(e.nowLocked(system), command)
	if then != nil {
		then(reply)
	}
	for _, notification := range notifications {
		e.deliver(notification)
	}
	if next, ok := e.store.NextExpiry(); ok && (!e.armed || next < e.filing) {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	return reply, notifications
}

// delivered is called without the lock.
func (e *Engine) delivered(notifications []statestore.Notification) {
	if e.wakeAll != nil && len(notifications) > 0 {
		e.wakeAll(notifications)
	}
}

// Disconnect drops the watches of a client whose connection ended. It may take a while; others
// get the lock in between. Until it returns no request of the client may come, so the
// client's next connection must wait for it.
func (e *Engine) Disconnect(client string) {
	for e.disconnectSome(client) {
		// A goroutine that waits for the lock was woken and is not yet running: without
		// this the next slice would take the lock again.
		runtime.Gosched()
	}
}

func (e *Engine) disconnectSome(client string) (more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer inDoubt()
	return e.store.DisconnectSome(client, disconnectBatch)
}

// EndSession drops all that is kept for a client whose MQTT session ended. What Disconnect says
// holds here too.
func (e *Engine) EndSession(client string) {
	e.Disconnect(client)
	e.mu.Lock()
	defer e.mu.Unlock()
	defer inDoubt()
	e.store.EndSession(client)
}

// Usage returns what the store holds now.
func (e *Engine) Usage() statestore.Usage {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer inDoubt()
	return e.store.Usage()
}

// InDoubt is the value of a panic while the store was changed: it may hold half a change.
// Who recovers from panics must let this one end the process.
type InDoubt struct {
	Value any    // of the first panic
	Stack []byte // where that was
}

// Error says what happened, with the stack.
func (d *InDoubt) Error() string {
	return fmt.Sprintf("the state of the store is in doubt after a panic: %v\n%s", d.Value, d.Stack)
}

// inDoubt is deferred where the store is changed.
func inDoubt() {
	if value := recover(); value != nil {
		panic(&InDoubt{Value: value, Stack: debug.Stack()})
	}
}

// Begin tells the store that requests can reach it from now on.
func (e *Engine) Begin() {
	system := e.systemTime()
	e.mu.Lock()
	defer e.mu.Unlock()
	defer inDoubt()
	e.store.Begin(e.nowLocked(system))
}

// Identity returns the identity of the store.
func (e *Engine) Identity() string { return e.store.Identity() } // it never changes

// NewIdentity returns an identity for a store that starts without what an earlier one
// knew: 16 random bytes in lower-case hex.
func NewIdentity() string {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails, says its documentation
	return hex.EncodeToString(random[:])
}

// Elapsed returns the time on the clock by which requests expire.
func (e *Engine) Elapsed() time.Duration { return time.Since(e.started) }

// Run removes keys as their time comes, until ctx ends. Without it keys still
// end in time for every request, but nobody is notified.
func (e *Engine) Run(ctx context.Context) {
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

// expire removes what is due and returns the time until the next expiry. Between
// two batches others get the lock, and the end of ctx is noticed.
func (e *Engine) expire(ctx context.Context) (wait time.Duration, ok bool) {
	for more := true; more && ctx.Err() == nil; {
		var notifications []statestore.Notification
		notifications, more, wait, ok = e.expireSome()
		e.delivered(notifications)
	}
	return wait, ok
}

func (e *Engine) expireSome() (notifications []statestore.Notification, more bool, wait time.Duration, ok bool) {
	system := e.systemTime()
	e.mu.Lock()
	defer e.mu.Unlock()
	defer inDoubt()
	now := e.nowLocked(system)
	notifications, more = e.store.Expire(now, expireBatch)
	for _, notification := range notifications {
		e.deliver(notification)
	}
	e.filing, e.armed = e.store.NextExpiry()
	return notifications, more, max(e.filing-now.Elapsed, 0), e.armed
}

// systemTime reads the system's clock for nowLocked. It is called before the lock is taken,
// because the clock may be a test's function.
func (e *Engine) systemTime() time.Time {
	if system := e.system.Load(); system != nil {
		return (*system)()
	}
	return time.Now()
}

// nowLocked reads both of the store's clocks. Since of a monotonic reading does not
// step with the wall clock. system is older than that by the wait for the lock, which the
// slew evens out.
func (e *Engine) nowLocked(system time.Time) statestore.Instant {
	elapsed := e.Elapsed()
	return statestore.Instant{WallMillis: e.wall.at(system, elapsed), Elapsed: elapsed}
}
