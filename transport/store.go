package transport

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/sleep"
)

// Store returns the identity of the store that answered last, and a channel that is
// closed when another store answers. A store that starts without the data of an earlier one
// has a new identity, and the leases that the earlier one granted are void. Any other store
// refuses a request with a [Binding] to the identity.
//
// Stores deployed today have no identity: it is empty. Before the first answer identity is
// empty and replaced is nil.
func (c *Client) Store() (identity string, replaced <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store, c.replaced
}

// answeredBy notes which store sent a reply. Another instance of it has the same data, and no
// watches.
func (c *Client) answeredBy(identity, instance string) {
	now := time.Now()
	c.mu.Lock()
	before, first, again := c.store, c.replaced == nil, c.storeless
	another := !first && before != identity
	restarted := !first && c.instance != instance
	c.answered, c.storeless, c.instance = now, false, instance
	if again && c.connection != 0 {
		c.unbroken = make(chan struct{})
	}
	if another {
		close(c.replaced)
	}
	if first || another {
		c.store, c.replaced = identity, make(chan struct{})
	}
	if another || restarted || again {
		c.newEraLocked(now) // this store may have no watches of ours
	}
	c.mu.Unlock()
	if another {
		c.log(slog.LevelWarn, "another store answers: the leases of the earlier one are void", "before", mqtt.Shown(before),
			"now", mqtt.Shown(identity))
	}
}

// newEraLocked has all watches registered again: at once, or leastRepeat after the latest time. Otherwise
// each reply of a store whose identity changes with each reply would cost a look at each watch.
func (c *Client) newEraLocked(now time.Time) {
	c.epoch++
	if c.eraDue || c.closed {
		return
	}
	c.eraDue = true
	wait := leastRepeat - now.Sub(c.eraBegan)
	c.tasks.Go(func() {
		sleep.For(c.life, wait)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.eraBegan, c.eraDue = time.Now(), false
		c.wakeAllLocked()
	})
}

func (c *Client) wakeAllLocked() {
	// In an order: a map has none, and a simulation would take a new course each time.
	for _, key := range slices.Sorted(maps.Keys(c.watched)) {
		c.watched[key].wakeLocked()
	}
}

// unanswered notes that no store is connected to the broker, if err says so. The next store
// that answers may have restarted in between, and forgotten all watches.
func (c *Client) unanswered(err error) {
	if !errors.Is(err, ErrNoStore) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.storeless = true
	c.breakLocked()
}

// Unbroken returns a channel that is closed when the store may have been replaced by one
// without an identity: when the present connection is lost, as with [Client.Lost], or when
// a request met no store (ErrNoStore). It stays closed until there is a connection and a
// store answers over it.
func (c *Client) Unbroken() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unbroken
}

func (c *Client) breakLocked() {
	if !closed.Is(c.unbroken) {
		close(c.unbroken)
	}
}
