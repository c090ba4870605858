package fencing

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/transport"
)

// Update reads a key, calls update with its entry, sets the key to the value that update
// returns, and returns the new version.
//
// The protocol has no compare-and-swap, and Update needs none: it claims the key before it
// reads, so that from then on only writers of this tenure can change the key. (A later tenure
// can change it too, but then the store refuses the write of this one.) Updates of one key
// through one guard run one after the other, about in the order of the calls. Updates of
// different keys do not wait for each other. Other writes do not wait either: a Set, Del
// or VDel of the key, or an update through another guard of the same tenure, may come
// between the read and the write, and is then overwritten. If a key has several writers, let
// all of them use Update on one guard.
//
// The entry always exists, because the claim creates a missing key with an empty value.
// update owns its Value. Update calls update at most once, with no lock held, and waits for
// it while the tenure's time runs. update must not update the same key through the same
// guard: it would deadlock. If update returns an error nothing is set, and Update returns the
// error wrapped. If update panics, so does Update, and the next update gets its turn.
//
// # When the outcome is unknown
//
// An error that matches transport.ErrOutcomeUnknown means that the value may have been set, or
// may be set yet. Update does not try again, because an update such as adding one to a counter
// must not be applied twice. Any other error means that nothing was set. If it occurred before
// the write, for example because a read got no reply, it matches transport.ErrNotSent.
//
// What to do then depends on the value. If the caller can recognize its own update, for
// example by an id in the value, it calls Update again and checks the entry. If applying the
// update twice does no harm, it calls Update again. Otherwise it releases the tenure and
// acquires another: the request may still be under way, and the store accepts its token until
// a later tenure has claimed the key. The entry that the next claim returns is the outcome.
func (g *Guard) Update(ctx context.Context, key string,
	update func(old transport.Entry) (value []byte, err error)) (version hlc.Timestamp, err error) {
	done, err := g.awaitTurn(ctx, key)
	if err != nil {
		if _, over := g.token(); over != nil {
			g.tenure.NoteRefusal(ctx, "update", key, true, over)
		}
		return hlc.Timestamp{}, guardError("update", key, notSetError{err})
	}
	defer done()
	old, err := g.Claim(ctx, key)
	if err != nil {
		return hlc.Timestamp{}, guardError("update", key, notSetError{operror.Inner(err)})
	}
	value, err := update(old)
	if err != nil {
		return hlc.Timestamp{}, guardError("update", key, err)
	}
	return g.set(ctx, "update", key, value)
}

// awaitTurn waits for the turn of an update until ctx or the tenure ends. The tenure may be
// extended many times meanwhile. The caller calls done when the update is over.
func (g *Guard) awaitTurn(ctx context.Context, key string) (done func(), err error) {
	g.mu.Lock()
	t := g.turns[key]
	if t == nil {
		t = &turn{taken: make(chan struct{}, 1)}
		g.turns[key] = t
	}
	t.users++
	g.mu.Unlock()
	leave := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(g.turns, key)
		}
	}
	done = leave
	select {
	case t.taken <- struct{}{}:
		done = func() { <-t.taken; leave() }
	case <-ctx.Done():
	case <-g.tenure.TokenContext().Done():
	}
	// A late update is refused even if it has its turn.
	if _, err = g.token(); err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		done()
	}
	return done, err
}

// notSetError is the error of an update that ended before its write. It does not match
// ErrOutcomeUnknown, whatever became of the earlier requests of the update: nothing was set.
type notSetError struct{ cause error }

func (e notSetError) Error() string { return fmt.Sprintf("nothing was set: %v", e.cause) }

func (e notSetError) Is(target error) bool {
	return target == transport.ErrNotSent || target != transport.ErrOutcomeUnknown && errors.Is(e.cause, target)
}

// As finds typed errors in the cause. With Unwrap errors.Is would find ErrOutcomeUnknown.
func (e notSetError) As(target any) bool { return errors.As(e.cause, target) }

// turn is the turn of one key.
type turn struct {
	taken chan struct{} // holds an item while a goroutine has the turn
	users int           // goroutines that have the turn or wait for it
}
