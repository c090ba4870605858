package top

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/transport"
)

// renewals is how many renewals a lifetime has, by the defaults of package lease.
const renewals = 6

// Watching is leases whose names are known, watched over MQTT. It is a Source, and safe for concurrent
// use.
type Watching struct {
	client *transport.Client
	names  []string
	ttl    time.Duration // 0: not known
	ready  chan struct{}

	mu     sync.Mutex
	leases map[string]*watched
	unread int // leases of which nothing is known yet
}

var _ Source = (*Watching)(nil)

// NewWatching returns a source of leases with these names, of which each may come once. ttl is the TTL of
// all of them; 0: estimate it.
func NewWatching(client *transport.Client, names []string, ttl time.Duration) *Watching {
	w := &Watching{client: client, names: names, ttl: ttl, ready: make(chan struct{}), leases: make(map[string]*watched), unread: len(names)}
	for _, name := range names {
		w.leases[name] = &watched{}
	}
	return w
}

// Ready implements Source.
func (w *Watching) Ready() <-chan struct{} { return w.ready }

// Run implements Source. It fails if a watch is refused.
func (w *Watching) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, name := range w.names {
		watch, err := w.client.Watch(name)
		if err != nil {
			cancel(err)
			break
		}
		tasks.Go(func() {
			defer watch.Close()
			if err := w.follow(ctx, name, watch); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// follow takes the changes of one key.
func (w *Watching) follow(ctx context.Context, name string, watch *transport.Watch) error {
	for {
		select {
		case change, open := <-watch.Changes():
			if !open {
				if err := watch.Err(); err != nil {
					return err
				}
				return errors.New("the watch ended")
			}
			w.take(name, change, time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

// take notes a change.
func (w *Watching) take(name string, change transport.Change, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lease := w.leases[name]
	first := lease.seen.IsZero()
	lease.change(change, now)
	if first {
		if w.unread--; w.unread == 0 {
			close(w.ready)
		}
	}
}

// Snapshot implements Source.
func (w *Watching) Snapshot(now time.Time) Snapshot {
	status := w.client.Connection()
	w.mu.Lock()
	defer w.mu.Unlock()
	snapshot := Snapshot{At: now, Title: status.Broker}
	for _, name := range w.names {
		lease := w.leases[name].at(now, w.ttl)
		lease.Name = name
		snapshot.Leases = append(snapshot.Leases, lease)
	}
	if status.State != transport.Connected {
		snapshot.Problem = "no connection"
		if status.Err != nil {
			snapshot.Problem += ": " + status.Err.Error()
		}
	}
	return snapshot
}

// watched is what is known of one lease. It has no clock.
type watched struct {
	seen    time.Time // the first change; zero: nothing is known
	held    bool
	value   string
	holder  string
	since   time.Time     // when value, or its absence, was first seen
	atLeast bool          // it may have been so before
	renewed time.Time     // the latest renewal that was seen; zero: none
	every   time.Duration // the time between two renewals; 0: not known
}

// change takes what a watch says.
func (w *watched) change(change transport.Change, now time.Time) {
	first := w.seen.IsZero()
	if first {
		w.seen = now
	}
	value := string(change.Value)
	switch {
	case change.Exists && w.held && value == w.value && !first:
		if !w.renewed.IsZero() && !change.Missed {
			w.every = now.Sub(w.renewed)
		}
		w.renewed = now
		if change.Missed { // it was read, and not renewed just now
			w.renewed = time.Time{}
		}
		return
	case !change.Exists && !w.held && !first:
		return
	}
	w.held, w.since, w.atLeast = change.Exists, now, first || change.Missed
	w.renewed, w.every = time.Time{}, 0
	if !change.Exists {
		return
	}
	if w.value = value; !w.atLeast {
		w.renewed = now
	}
	w.holder, _ = protocol.HolderOf(value)
}

// at returns the lease at a time. ttl is 0 if it is not known.
func (w *watched) at(now time.Time, ttl time.Duration) Lease {
	lease := Lease{Held: w.held, Holder: w.holder}
	switch {
	case w.seen.IsZero():
		lease.Problem = "not known yet"
		return lease
	case !w.held:
		if lease.NoHolder.Duration = now.Sub(w.since); w.atLeast {
			lease.AtLeast = true
		}
		return lease
	}
	lease.HeldFor.Duration, lease.AtLeast, lease.TTL.Duration = now.Sub(w.since), w.atLeast, ttl
	if ttl == 0 && w.every > 0 {
		lease.TTL.Duration, lease.Estimated = renewals*w.every, true
	}
	if lease.TTL.Duration > 0 && !w.renewed.IsZero() {
		lease.Left.Duration = lease.TTL.Duration - now.Sub(w.renewed)
	} else {
		lease.TTL.Duration = 0 // when it was renewed is not known
	}
	return lease
}
