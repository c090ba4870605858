package fencing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/transport"
)

var (
	// ErrStaleToken: the resource has seen a higher token, so the tenure of the write is
	// over. The writer must end it with lease.Tenure.FencedOut, and must not try again.
	// The store's refusal is the same error, so that one test serves guards and checkers.
	ErrStaleToken = transport.ErrFencingTokenLower
	// ErrMissingToken: a write lacks the token it needs. The store refuses with the same error.
	ErrMissingToken = transport.ErrFencingTokenRequired
	// ErrNotAdmitted: a Checker did not run a write. Other errors in the chain say why.
	ErrNotAdmitted = errors.New("not admitted")
)

// StaleTokenError says that a resource has seen a higher token. It matches ErrStaleToken.
type StaleTokenError struct {
	Resource string
	Token    hlc.Token // the refused token
	Highest  hlc.Token // the highest token that the resource has seen
}

// Error returns the tokens. The errors of a Checker that wrap it name the resource.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("the token %v is stale: %v was seen", e.Token, e.Highest)
}

// Unwrap returns ErrStaleToken.
func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }

// Checker protects a resource outside the store, such as a file, a database row or a
// machine's controller, as the store protects a key: it admits a write whose token is equal
// to or higher than every token it has seen, and refuses lower ones. All writes to the
// resource must pass through one checker: a second one does not know the tokens of the
// first. It is safe for concurrent use.
//
// A checker cannot recognize a forged token, and a forged token far ahead shuts out all
// issued ones: admit only authenticated writers.
type Checker struct {
	resource string
	persist  func(context.Context, hlc.Token) error

	turn    *semaphore.Weighted       // taken while a call compares, persists or writes
	durable atomic.Pointer[hlc.Token] // the highest token that is known to be durable; at most floor
	floor   atomic.Pointer[hlc.Token] // the lowest token that is admitted; changes in turns only
}

// NewChecker returns a checker of a resource. The name of the resource appears in errors. It
// returns an error for an empty name and for a malformed highest.
//
// highest is the token that persist stored last, before the process began, such as
// [FileStore.Highest]; zero if it stored none. Without it, a restarted checker admits tokens of former tenures.
//
// persist stores a token that is higher than all before. The checker calls it before
// it admits the first write with that token: for one token at a time, with no lock
// held, and with the context of the write. When persist returns nil the token must
// survive everything that the resource survives; [FileStore.Persist] stores it in a file. It
// should return when ctx ends, because other writers wait for it. It must not use the checker.
//
// A nil persist stores nothing: after a restart the checker admits every token until the first higher
// one. That is right if a restart also clears the resource, and wrong for a file.
func NewChecker(resource string, highest hlc.Token,
	persist func(ctx context.Context, token hlc.Token) error) (*Checker, error) {
	if resource == "" {
		return nil, errors.New("fencing: new checker: the resource has no name; use the name that its operators know")
	}
	if _, err := highest.MarshalText(); err != nil {
		return nil, fmt.Errorf("fencing: new checker of %q: the highest token: %w; use the token that was stored",
			resource, err)
	}
	if persist == nil {
		persist = func(context.Context, hlc.Token) error { return nil }
	}
	c := &Checker{resource: resource, persist: persist, turn: semaphore.NewWeighted(1)}
	c.durable.Store(&highest)
	c.floor.Store(&highest)
	return c, nil
}

// Highest returns the highest token that is known to be durable: the higher of
// NewChecker's highest and the last that persist stored. It never goes back. Zero: none.
func (c *Checker) Highest() hlc.Token { return *c.durable.Load() }

// Do admits a write and runs it. Meanwhile the checker runs no other write and admits no
// token, so writes happen in the order of their tokens: when a write with a higher token
// runs, writes with lower tokens are over, and none follows.
//
// Do waits for its turn until ctx ends. It does not pass ctx to write. While write runs all
// other writes wait, because it may still take effect: give it a timeout.
//
// If write returns an error, Do returns it wrapped, and the token stays admitted. If write
// panics, so does Do, and the next write gets its turn. An error that matches ErrNotAdmitted
// means that write was not called:
//
//   - *StaleTokenError (ErrStaleToken): a higher token was seen. Nothing changed.
//   - ErrMissingToken, hlc.ErrMalformed: token is zero, or malformed.
//   - the error of persist: the token may or may not be durable. From then on the checker
//     refuses lower tokens, as it might have to after a restart. The same token or a higher
//     one may be tried again.
//   - the cause of the end of ctx, if it ended before the write got its turn.
//
// Neither write nor persist may use the checker: they would deadlock.
func (c *Checker) Do(ctx context.Context, token hlc.Token, write func() error) error {
	return c.run(ctx, "fencing: write to", token, write)
}

// Admit is the first half of Do, for writes that are not a function call. It returns nil if
// no higher token was seen and the token is durable. Its errors are the same as of Do,
// and match ErrNotAdmitted.
//
// A process that stops between Admit and the write may write late, when a write with a higher
// token is done. Use Do if the write is a call, and let the resource itself compare tokens if
// it can (see [SortableText]). Admit alone is enough only if a late write of a former tenure
// does no harm.
func (c *Checker) Admit(ctx context.Context, token hlc.Token) error {
	return c.run(ctx, "fencing: admit to", token, func() error { return nil })
}

// run admits a token and runs a write in one turn.
func (c *Checker) run(ctx context.Context, operation string, token hlc.Token, write func() error) error {
	// A malformed token must not become the highest. For a stale one waiting is useless: it stays stale.
	err := cmp.Or(validate(token), c.stale(token))
	switch {
	case err != nil:
	case c.turn.Acquire(ctx, 1) != nil:
		err = context.Cause(ctx)
	default:
		defer c.turn.Release(1)
		err = c.admit(ctx, token)
	}
	if err != nil {
		return operror.New(operation, c.resource, fmt.Errorf("%w: %w", ErrNotAdmitted, err))
	}
	return operror.New(operation, c.resource, write())
}

// admit makes token the lowest that is admitted, and durable.
func (c *Checker) admit(ctx context.Context, token hlc.Token) error {
	if err := c.stale(token); err != nil { // it can be by now
		return err
	}
	if *c.durable.Load() != token {
		// The floor rises before persist: even if persist fails, it may have stored the token,
		// and a restarted checker would begin with it. And because the token exists, the
		// tenures before it are over.
		highest := token // a copy, so that token stays on the stack
		c.floor.Store(&highest)
		if err := c.persist(ctx, token); err != nil {
			return fmt.Errorf("token %v may not be durable: %w", token, err)
		}
		c.durable.Store(&highest)
	}
	return nil
}

func (c *Checker) stale(token hlc.Token) error {
	if floor := *c.floor.Load(); token.Compare(floor) < 0 {
		return &StaleTokenError{Resource: c.resource, Token: token, Highest: floor}
	}
	return nil
}
