package transport

import (
	"context"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/resp3"
)

// Change is the state of a watched key after it changed.
type Change struct {
	Entry
	// Missed says that changes may have been lost before this one, because the
	// connection was down in between. The Entry itself was read afterwards.
	Missed bool
}

// Watch follows one key. Any number of watches may follow the same key; each
// is closed by its owner.
type Watch struct {
	client  *Client
	key     string
	changes chan Change
	once    sync.Once

	// Guarded by the client's lock.
	ended  bool
	err    error
	fresh  bool // has not received its first Change yet
	missed bool // the next Change comes after a gap
}

// Changes returns the channel on which changes arrive; the first is the key's
// present state. A reader that is slow sees the latest change only and delays
// nobody. The channel is closed when the watch ends.
//
// A change is a hint that came over a network: it may be late. Read the key to
// know what it holds now.
func (w *Watch) Changes() <-chan Change { return w.changes }

// Err returns why Changes was closed: nil while it is open and after Close, the
// store's refusal, or ErrClosed.
func (w *Watch) Err() error {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	return w.err
}

// Close ends the watch. It does not wait for the store to be told.
func (w *Watch) Close() {
	w.client.mu.Lock()
	defer w.client.mu.Unlock()
	w.endLocked(nil)
	if registered := w.client.watched[w.key]; registered != nil {
		delete(registered.watches, w)
		registered.wakeUp()
	}
}

func (w *Watch) endLocked(err error) {
	w.once.Do(func() {
		w.ended, w.err = true, err
		close(w.changes)
	})
}

// offerLocked replaces a change that was not read yet. The client's lock makes
// it the only sender, so after the old change is out there is room.
func (w *Watch) offerLocked(change Change) {
	if w.ended {
		return
	}
	change.Missed = w.missed
	w.fresh, w.missed = false, false
	select {
	case unread := <-w.changes:
		change.Missed = change.Missed || unread.Missed
	default:
	}
	w.changes <- change
}

// Watch begins to follow a key. It returns at once; the first Change arrives
// when the store has registered the watch and the key was read, which takes
// until the connection is up. After a lost connection the watch is registered
// again and the key read again, by itself.
//
// It fails only once the client is closed. A refusal by the store ends the
// watch: see Err.
func (c *Client) Watch(key string) (*Watch, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, operationError(protocol.VerbKeyNotify, key, ErrClosed)
	}
	watch := &Watch{client: c, key: key, changes: make(chan Change, 1), fresh: true}
	registered := c.watched[key]
	if registered == nil {
		registered = &registration{
			client:  c,
			key:     key,
			watches: make(map[*Watch]struct{}),
			wake:    make(chan struct{}, 1),
		}
		c.watched[key] = registered
		c.tasks.Add(1)
		go func() {
			defer c.tasks.Done()
			registered.run(c.life)
		}()
	}
	registered.watches[watch] = struct{}{}
	registered.wakeUp()
	return watch, nil
}

// up, down and notify are the events of the connection.

func (c *Client) up() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected++
	c.connection = c.connected
	c.lost = make(chan struct{})
	for _, registered := range c.watched {
		registered.wakeUp()
	}
}

func (c *Client) down() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connection != 0 {
		close(c.lost)
	}
	c.connection = 0
}

func (c *Client) notify(notification Notification) {
	change, ok := c.readNotification(notification)
	if !ok {
		return
	}
	c.suspectStore(notification)
	c.mu.Lock()
	defer c.mu.Unlock()
	if registered := c.watched[notification.Key]; registered != nil {
		registered.heard++
		registered.offerLocked(change, false)
	}
}

// readNotification understands both spellings of a delete and drops everything
// else that it does not understand: a notification is a hint, and a waiter that
// misses one still has its timer.
func (c *Client) readNotification(notification Notification) (Change, bool) {
	var room [4][]byte
	words, err := resp3.DecodeArray(room[:0], notification.Payload)
	if err != nil || len(words) < 2 || string(words[0]) != protocol.NotifyWord {
		c.ignore(MalformedNotification)
		c.logger.Debug("ignored a malformed notification", "key", notification.Key)
		return Change{}, false
	}
	var change Change
	switch event := string(words[1]); {
	case event == protocol.NotifySet && len(words) == 4 && string(words[2]) == protocol.NotifyValue:
		change.Exists, change.Value = true, words[3]
	case (event == protocol.NotifyDelete || event == protocol.NotifyDel) && len(words) == 2:
	default:
		c.ignore(MalformedNotification)
		c.logger.Debug("ignored an unknown notification", "key", notification.Key)
		return Change{}, false
	}
	if version, err := hlc.Parse(notification.Timestamp); err == nil {
		c.observe(version)
		if change.Exists {
			change.Version = version
		}
	}
	return change, true
}

// registration keeps one key registered at the store for as long as somebody
// watches it. One goroutine for each key makes KEYNOTIFY and STOP of that key
// follow one another, and lets no key wait for another.
type registration struct {
	client *Client
	key    string
	wake   chan struct{}

	// Guarded by the client's lock.
	watches map[*Watch]struct{}
	heard   uint64 // notifications so far

	// Owned by run.
	tried uint64 // the last connection on which KEYNOTIFY was sent
	done  uint64 // the last connection on which it is known to have worked
}

func (r *registration) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *registration) offerLocked(change Change, freshOnly bool) {
	for watch := range r.watches {
		if watch.fresh || !freshOnly {
			watch.offerLocked(change)
		}
	}
}

// run brings the store's idea of who watches into line with ours, whenever one
// of them changed, until nobody watches or the client is closed.
func (r *registration) run(ctx context.Context) {
	retry := time.NewTimer(time.Hour)
	retry.Stop() // until something fails
	defer retry.Stop()
	for {
		wait, finished := r.step(ctx)
		if finished {
			return
		}
		if wait > 0 {
			retry.Reset(wait)
		}
		select {
		case <-ctx.Done():
			r.endAll(context.Cause(ctx))
			return
		case <-r.wake:
		case <-retry.C:
		}
	}
}

// step does what is needed now. It returns when to try again, if something
// failed, and whether the registration is over.
func (r *registration) step(ctx context.Context) (retry time.Duration, finished bool) {
	c := r.client
	c.mu.Lock()
	connection := c.connection
	wanted := len(r.watches) > 0
	fresh := false
	for watch := range r.watches {
		fresh = fresh || watch.fresh
	}
	if !wanted && (connection == 0 || r.tried != connection) {
		// The store knows of no watch on this connection.
		delete(c.watched, r.key)
		c.mu.Unlock()
		return 0, true
	}
	c.mu.Unlock()

	switch {
	case connection == 0:
		return 0, false
	case !wanted:
		if err := c.keyNotify(ctx, r.key, protocol.OptionStop); err != nil && !isRefusal(err) {
			return retryDelay(), false
		}
		r.tried, r.done = 0, 0
		r.wakeUp() // look again: somebody may have come meanwhile
		return 0, false
	case r.done != connection:
		r.tried = connection
		r.markGap()
		if err := c.keyNotify(ctx, r.key); err != nil {
			return r.failed(err), false
		}
		r.done = connection
		return r.read(ctx, false), false
	case fresh:
		return r.read(ctx, true), false
	}
	return 0, false
}

// read gets the key and passes on what it holds. If a notification arrived while
// the GET was under way, that is at least as recent, and what was read is
// dropped: nobody may be left with the older of two states.
func (r *registration) read(ctx context.Context, freshOnly bool) (retry time.Duration) {
	c := r.client
	c.mu.Lock()
	heard := r.heard
	c.mu.Unlock()
	entry, err := c.Get(ctx, r.key)
	if err != nil {
		r.done = 0 // read again, and to be safe register again
		return r.failed(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.heard == heard {
		r.offerLocked(Change{Entry: entry}, freshOnly)
	}
	return 0
}

// markGap notes that whoever followed the key on an earlier connection may have
// missed something since.
func (r *registration) markGap() {
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	for watch := range r.watches {
		watch.missed = !watch.fresh
	}
}

// failed ends the watches where the store refused and says when to try again
// otherwise.
func (r *registration) failed(err error) time.Duration {
	if isRefusal(err) {
		r.endAll(err)
		return 0
	}
	return retryDelay()
}

func (r *registration) endAll(err error) {
	r.client.mu.Lock()
	defer r.client.mu.Unlock()
	for watch := range r.watches {
		watch.endLocked(err)
	}
	clear(r.watches)
	r.wakeUp()
}

// retryDelay spreads the repetitions of many clients that failed together.
func retryDelay() time.Duration {
	return 200*time.Millisecond + random.Duration(300*time.Millisecond)
}
