package fencing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Update reads a key, lets update make a new value of what it holds, sets that,
// and returns the new version.
//
// The protocol has no compare-and-swap. Update needs none: it claims the key
// before it reads, so that from then on only writers of this tenure can change it.
// (A later tenure can too, but then the store refuses the write of this one.)
// Updates of one key through one guard follow one another, in the order in which
// they came as far as possible; those of different keys do not wait for each other.
// Nothing else waits: a Set, Clear, Del or VDel of the same key at the same time, or
// an update through another guard of the same tenure, may come between the reading
// and the setting and is then overwritten. Where a key has several writers let all
// of them use Update on one guard.
//
// The entry that update is given always exists, since claiming creates a missing
// key with an empty value, and its Value belongs to update. Update calls it at most
// once, with no lock held, and waits for it; its time counts against the tenure. It
// must not update the same key through the same guard, which would wait for itself.
// If it returns an error nothing is set, and Update returns that error, wrapped. If
// it panics the panic goes on to the caller, and the next update gets its turn.
//
// # When the outcome is unknown
//
// An error that matches transport.ErrOutcomeUnknown says that the value may have
// been set, or may be set yet. Update does not try again, because update may not
// bear to be applied twice: what adds one to a counter would add two. Any other
// error says that nothing was set; one before the setting, such as a read without
// an answer, matches transport.ErrNotSent.
//
// What the caller does depends on what it knows of the value. If it can recognize
// its own update, for example by an id that update puts into the value, it calls
// Update again and lets update look. If update can be applied twice without harm it
// just calls again. Otherwise it releases the tenure and acquires another: the
// request may still be on its way, and carries a token that is good for as long as
// no later tenure has claimed the key; the next claim shuts it out, and what that
// returns is the outcome.
func (g *Guard) Update(ctx context.Context, key string, update func(old transport.Entry) (value []byte, err error)) (version hlc.Timestamp, err error) {
	done, err := g.awaitTurn(ctx, key)
	if err != nil {
		return hlc.Timestamp{}, guardError("update", key, notSetError{err})
	}
	defer done()
	old, err := g.readClaimed(ctx, key)
	if err != nil {
		return hlc.Timestamp{}, guardError("update", key, notSetError{err})
	}
	value, err := update(old)
	if err != nil {
		return hlc.Timestamp{}, guardError("update", key, err)
	}
	err = g.write(ctx, "update", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		version, err = g.client.Set(ctx, key, value, transport.SetOptions{FencingToken: token, Binding: binding})
		return err
	})
	return version, err
}

// awaitTurn waits for the turn of an update until ctx or the tenure ends. The
// tenure may be extended many times meanwhile.
func (g *Guard) awaitTurn(ctx context.Context, key string) (done func(), err error) {
	turn := g.turns.join(key)
	ended := g.tenure.TokenContext().Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// First, so that whoever is late is refused even when its turn has come.
		if _, err = g.token(); err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			g.turns.leave(key)
			return nil, err
		}
		timer.Reset(g.tenure.Remaining())
		select {
		case turn <- struct{}{}:
			return func() { <-turn; g.turns.leave(key) }, nil
		case <-ctx.Done():
		case <-ended:
		case <-timer.C:
		}
	}
}

// readClaimed returns what a key holds, after it was made sure that no earlier
// tenure can change it.
func (g *Guard) readClaimed(ctx context.Context, key string) (transport.Entry, error) {
	if g.claims.holds(key) {
		ctx, cancel := context.WithTimeout(ctx, g.tenure.Remaining()/claimAttempts)
		entry, err := g.Get(ctx, key)
		cancel()
		if err == nil && entry.Exists {
			return entry, nil
		}
		// Either the read failed, which Claim survives, or somebody deleted the
		// key past this guard, and with it the token.
	}
	return g.Claim(ctx, key)
}

// notSetError is the error of an update that ended before its write. It hides
// that the outcome of an earlier request is unknown: that of the update is not.
type notSetError struct{ cause error }

func (e notSetError) Error() string { return fmt.Sprintf("nothing was set: %v", e.cause) }

func (e notSetError) Is(target error) bool {
	switch target {
	case transport.ErrNotSent:
		return true
	case transport.ErrOutcomeUnknown:
		return false
	}
	return errors.Is(e.cause, target)
}

// As reaches the typed errors in the cause, as Is reaches the sentinels: there is
// no Unwrap, which would reach all of them.
func (e notSetError) As(target any) bool { return errors.As(e.cause, target) }

// turns lets one at a time pass for each key. It holds something for a key only
// while somebody has the turn or waits for it. The zero value is ready for use.
type turns struct {
	mu   sync.Mutex
	keys map[string]*turn
}

type turn struct {
	taken chan struct{} // holds one item while somebody has the turn
	users int           // who have it or wait for it
}

// join returns the channel to send to when waiting for the turn, and to receive
// from when it is over. Each join needs a leave.
func (t *turns) join(key string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys == nil {
		t.keys = make(map[string]*turn)
	}
	of := t.keys[key]
	if of == nil {
		of = &turn{taken: make(chan struct{}, 1)}
		t.keys[key] = of
	}
	of.users++
	return of.taken
}

func (t *turns) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.keys[key]
	of.users--
	if of.users == 0 {
		delete(t.keys, key)
	}
}
