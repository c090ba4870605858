package transport

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/resp3"
)

// Change is the state of a watched key after it changed.
type Change struct {
	Entry
	// Missed says that changes may have been lost before this one, because the
	// connection was lost or the store had forgotten the watch. The Entry was read after
	// that.
	Missed bool
}

// Watch reports the changes of one key. Any number of watches may have the same key; each is
// to be closed. Its methods are safe for concurrent use.
type Watch struct {
	client  *Client
	key     string
	waits   bool // the client waits for the lease with this key
	changes chan Change

	// Guarded by the client's lock.
	ended  bool
	err    error
	fresh  bool  // it has not got its first Change yet
	missed bool  // the next Change comes after a gap
	known  Entry // the latest that it got
}

// Changes returns the channel of changes; the first is the key's present state. A slow
// reader gets only the latest change, and delays no other reader. The channel is closed when
// the watch ends.
//
// A change may be late. Read the key to know its present value.
func (w *Watch) Changes() <-chan Change { return w.changes }

// Err returns why the channel of Changes was closed: nil while it is open and after Close,
// the store's refusal, or ErrClosed.
func (w *Watch) Err() error {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	return w.err
}

// Close ends the watch. It returns before the store knows that.
func (w *Watch) Close() {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	w.endLocked(nil)
	if registered := w.client.watched[w.key]; registered != nil {
		if i := slices.Index(registered.watches, w); i >= 0 {
			registered.watches = slices.Delete(registered.watches, i, i+1)
			registered.wakeLocked()
		}
	}
}

func (w *Watch) endLocked(err error) {
	if w.ended {
		return
	}
	close(w.changes)
	w.ended, w.err = true, err
}

// offerLocked replaces a change that was not read yet. The client's lock makes it the only
// sender, so there is space once the old change is out.
func (w *Watch) offerLocked(change Change) {
	if w.ended {
		return
	}
	change.Missed = w.missed
	w.fresh, w.missed, w.known = false, false, change.Entry
	w.known.Value = bytes.Clone(change.Value) // the reader may change its own
	select {
	case unread := <-w.changes:
		change.Missed = change.Missed || unread.Missed
	default:
	}
	w.changes <- change
}

// Watch starts to watch a key. It returns at once; the first Change arrives when there is a
// connection, the store has registered the watch, and the key was read.
//
// The client registers the watch and reads the key again after a lost connection, when
// another store answers, and when a store answers again after ErrNoStore. It does so every minute
// if the store has no identity (see [Client.Store]) or answers nothing, because it could not notice
// another store then. So a restart of the store interrupts a watch for a minute at most.
//
// The error is ErrClosed after Close, and nil otherwise. A refusal by the store ends the
// watch: see Err.
func (c *Client) Watch(key string) (*Watch, error) { return c.watch(key, false) }

// WatchWaiting is Watch by a client that waits for the lease with this key. It tells the store that, which shows
// on its status page whether a holder has a standby.
func (c *Client) WatchWaiting(key string) (*Watch, error) { return c.watch(key, true) }

func (c *Client) watch(key string, waits bool) (*Watch, error) {
	watch := &Watch{client: c, key: key, waits: waits, changes: make(chan Change, 1), fresh: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, operror.New("transport: KEYNOTIFY", key, ErrClosed)
	}
	if c.life.Err() != nil {
		watch.endLocked(context.Cause(c.life))
		return watch, nil
	}
	registered := c.watched[key]
	if registered == nil {
		registered = &registration{client: c, key: key, refresh: refreshEvery - random.Duration(refreshEvery/10)}
		c.watched[key] = registered
	}
	registered.watches = append(registered.watches, watch)
	registered.wakeLocked()
	return watch, nil
}

func (c *Client) notify(notification storeconn.Notification) {
	change, hasValue, ok := c.readNotification(notification)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if registered := c.watched[notification.Key]; registered != nil {
		if hasValue {
			registered.heard++
			for _, watch := range registered.watches {
				watch.offerLocked(change)
			}
			return
		}
		registered.changed = true
		registered.wakeLocked()
	}
}

// readNotification accepts both spellings of a delete, and ignores a notification that it
// cannot read: every waiter also has a timer. A SET may come without its value, which is to be asked for then.
func (c *Client) readNotification(notification storeconn.Notification) (change Change, hasValue, ok bool) {
	var buffer [4][]byte
	words, err := resp3.DecodeArray(buffer[:0], notification.Payload)
	event := ""
	if err == nil && len(words) >= 2 && string(words[0]) == protocol.NotifyWord {
		event = string(words[1])
	}
	hasValue = true
	switch {
	case event == protocol.NotifySet && len(words) == 2:
		change.Exists, hasValue = true, false
	case event == protocol.NotifySet && len(words) == 4 && string(words[2]) == protocol.NotifyValue:
		change.Exists, change.Value = true, words[3]
	case (event == protocol.NotifyDelete || event == protocol.NotifyDel) && len(words) == 2:
	default:
		c.logger.Debug("ignored a message", "reason", "malformed notification", "key", notification.Key)
		return Change{}, false, false
	}
	if version, err := hlc.Parse(notification.Timestamp); err == nil {
		c.observe(version)
		if change.Exists {
			change.Version = version
		}
	}
	return change, hasValue, true
}

// registration keeps one key registered at the store while there are watches of it. It has a goroutine
// while it looks what there is to do, and not while it waits: a client may watch ten thousand keys. As it
// has one goroutine at a time, KEYNOTIFY and STOP of its key stay in order.
type registration struct {
	client *Client
	key    string

	// Guarded by the client's lock.
	watches []*Watch
	heard   uint64      // notifications with a state so far
	changed bool        // a notification said so, without the value
	woken   bool        // something has changed since the goroutine, if any, looked
	running bool        // it has a goroutine
	timer   *time.Timer // wakes it when it is due; nil before it has waited

	// Owned by its goroutine.
	tried   int                         // the last connection over which KEYNOTIFY was sent
	done    uint64                      // the last epoch in which KEYNOTIFY is known to have worked; 0: none
	begun   time.Time                   // when KEYNOTIFY was last sent
	waits   bool                        // it said that the client waits for the lease
	refresh time.Duration               // how long after that it is sent again, if needed
	pauses  *backoff.ExponentialBackOff // after requests in a row that failed; nil: the latest did not
}

// mostRegistering is how many registrations of a client make requests at once, so that many leave space for
// the requests of the program. A registration whose request has no answer delays the others only if as many
// have none.
const mostRegistering = 64

// wakeLocked has the registration look what there is to do.
func (r *registration) wakeLocked() {
	r.woken = true
	if r.timer != nil {
		r.timer.Stop()
	}
	if !r.running && !r.client.closed {
		r.running = true
		r.client.tasks.Go(r.run)
	}
}

// run takes one step, and lets the registration wait without a goroutine for the next one.
func (r *registration) run() {
	c := r.client
	if c.registering.Acquire(c.life, 1) != nil {
		return // the client has ended
	}
	c.mu.Lock()
	r.woken = false
	c.mu.Unlock()
	wait, finished := r.step(c.life)
	if wait <= 0 {
		wait = r.untilRefresh()
	}
	c.registering.Release(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	r.running = false
	switch {
	case finished, c.life.Err() != nil:
	case r.woken:
		r.wakeLocked()
	default:
		r.timer = time.AfterFunc(wait, r.wake)
	}
}

func (r *registration) wake() {
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	r.wakeLocked()
}

const (
	// refreshEvery is how often a registration is repeated if the client could not notice
	// another store, less up to a tenth at random.
	refreshEvery = time.Minute
	// leastRepeat is the least time between two registrations over one connection, so
	// that two stores that answer in turns cause no hot loop.
	leastRepeat = time.Second
)

// untilRefresh returns how long the registration can be expected to stand. While a store
// with an identity answers any request, the client would notice another store.
func (r *registration) untilRefresh() time.Duration {
	c := r.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connection == 0 || r.begun.IsZero() {
		return refreshEvery // the next connection wakes run
	}
	since := r.begun
	if c.store != "" && c.answered.After(since) {
		since = c.answered
	}
	// A store that keeps its data, and so its identity, over a restart forgets its watches
	// nevertheless. So an answer stands for the registration only for a while.
	return max(min(r.refresh-time.Since(since), mostTrust*r.refresh-time.Since(r.begun)), 0)
}

// mostTrust is for how many times refresh the store's answers may replace the repetition of
// a registration.
const mostTrust = 10

// step sends the requests that are needed now. If one failed, retry is when to try again.
// finished reports that the registration is over.
func (r *registration) step(ctx context.Context) (retry time.Duration, finished bool) {
	c := r.client
	due := r.untilRefresh() == 0
	c.mu.Lock()
	connection, epoch := c.connection, c.epoch
	wanted := len(r.watches) > 0
	waits := slices.ContainsFunc(r.watches, func(w *Watch) bool { return w.waits })
	r.waits = r.waits && waits // the store forgets it when the client acquires the lease
	fresh, changed := slices.ContainsFunc(r.watches, func(w *Watch) bool { return w.fresh }), r.changed
	if !wanted && (connection == 0 || r.tried != connection) {
		// The store has no watch of this key for this connection.
		delete(c.watched, r.key)
		c.mu.Unlock()
		return 0, true
	}
	c.mu.Unlock()

	switch {
	case connection == 0:
		return 0, false
	case !wanted:
		if err := c.keyNotify(ctx, r.key, false, protocol.OptionStop); err != nil && !isRefusal(err) {
			r.done = 0 // the store may have taken it; a watch that has begun meanwhile needs another
			return r.retryDelay(), false
		}
		r.tried, r.done, r.pauses = 0, 0, nil
		r.wake() // a watch may have begun meanwhile
		return 0, false
	case r.done != epoch || due || waits && !r.waits:
		if again := leastRepeat - time.Since(r.begun); r.tried == connection && r.done != 0 && again > 0 {
			return again, false
		}
		if r.done != epoch {
			c.mu.Lock()
			for _, watch := range r.watches {
				watch.missed = !watch.fresh
			}
			c.mu.Unlock()
		}
		r.tried, r.begun = connection, time.Now()
		if err := c.keyNotify(ctx, r.key, waits); err != nil {
			r.done = 0
			return r.failed(err), false
		}
		unnoticed := r.done == epoch && due
		r.done, r.waits = epoch, waits
		return r.read(ctx, unnoticed), false
	case fresh, changed:
		return r.read(ctx, false), false
	}
	return 0, false
}

// read gets the key and passes its state on to the watches that do not have it. If a notification arrived during
// the GET, its state is at least as recent, and read drops its own: no watch may end with the older of two states.
// A change that is unnoticed, because no notification of it came, may have had others before.
func (r *registration) read(ctx context.Context, unnoticed bool) (retry time.Duration) {
	c := r.client
	c.mu.Lock()
	heard := r.heard
	r.changed = false
	c.mu.Unlock()
	entry, err := c.Get(ctx, r.key)
	if err != nil {
		r.done = 0 // register and read again
		return r.failed(err)
	}
	r.pauses = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.heard != heard {
		return 0
	}
	for _, watch := range r.watches {
		if watch.fresh || watch.missed || !watch.known.equal(entry) {
			watch.missed = watch.missed || unnoticed && !watch.fresh
			watch.offerLocked(Change{Entry: entry})
		}
	}
	return 0
}

// failed ends the watches if the store refused, and returns when to try again otherwise.
func (r *registration) failed(err error) time.Duration {
	if isRefusal(err) {
		r.client.mu.Lock()
		defer r.client.mu.Unlock()
		r.endAllLocked(err)
		return 0
	}
	return r.retryDelay()
}

func (r *registration) endAllLocked(err error) {
	for _, watch := range r.watches {
		watch.endLocked(err)
	}
	r.watches = nil
	r.wakeLocked()
}

// retryDelay returns how long to wait after a failure: at random, to spread the repetitions of many clients
// that failed together, and longer after each failure in a row. A store that answers again ends the wait
// (see newEraLocked).
func (r *registration) retryDelay() time.Duration {
	if r.pauses == nil {
		r.pauses = backoff.NewExponentialBackOff(backoff.WithInitialInterval(200*time.Millisecond), backoff.WithMultiplier(2),
			backoff.WithMaxInterval(15*time.Second), backoff.WithMaxElapsedTime(0), backoff.WithRandomizationFactor(0))
	}
	delay := r.pauses.NextBackOff()
	return delay + random.Duration(delay) // a simulation can repeat this
}
