package fencing

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

var (
	// ErrStaleToken: a newer token was there before, so the write comes from a
	// tenure that is over. It is the refusal that the store gives too, under the
	// name that it has here, so that one test serves guards and checkers. Whoever
	// gets it ends the tenure (lease.Tenure.FencedOut does) and retries nothing.
	ErrStaleToken = transport.ErrFencingTokenLower
	// ErrMissingToken: there is no token where one is needed. It is the refusal
	// that the store gives too.
	ErrMissingToken = transport.ErrFencingTokenRequired
	// ErrNotAdmitted: a Checker did not admit a write, so it was not run. Other
	// errors in the chain say why.
	ErrNotAdmitted = errors.New("not admitted")
)

// StaleTokenError says that a resource refused a token because it knows a newer
// one. It matches ErrStaleToken.
type StaleTokenError struct {
	Resource string
	Token    hlc.Token // what was refused
	Highest  hlc.Token // what the resource knows; zero where it does not tell
}

// Error names the resource and the tokens.
func (e *StaleTokenError) Error() string {
	if e.Highest.IsZero() {
		return fmt.Sprintf("the token %v is stale: %q has seen a newer one", e.Token, e.Resource)
	}
	return fmt.Sprintf("the token %v is stale: %q has seen %v", e.Token, e.Resource, e.Highest)
}

// Unwrap returns ErrStaleToken.
func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }

// CheckerOptions are the settings of a Checker. The zero value keeps the highest
// token in memory only.
type CheckerOptions struct {
	// Highest is the token that Persist made durable last, before the process
	// began; zero if there was none. Without it a restart forgets who was there.
	Highest hlc.Token

	// Persist makes a token durable that is higher than every one before. It is
	// called before the first write with that token is admitted, for one token at
	// a time, with no lock held. When it returns nil the token must survive
	// whatever the resource survives. It should return when ctx, that of the
	// write, ends: other writers wait for it. It must not use the checker.
	//
	// Nil keeps nothing: then a restart opens the resource to every token again,
	// until the first newer one. That is right where the resource forgets what was
	// written too, and wrong for a file.
	Persist func(ctx context.Context, token hlc.Token) error
}

// Checker protects a resource outside the store, such as a file, a database row
// or a machine's controller, as the store protects a key: it admits a write whose
// token is equal to or newer than every one it has seen, and refuses older ones.
// It belongs where all writes to the resource pass, one checker for each resource;
// two checkers of one resource know nothing of each other. It is safe for
// concurrent use.
//
// A checker cannot tell a made-up token from an issued one, and one that is far
// ahead shuts out all that follow: admit only writers that have authenticated.
type Checker struct {
	resource string
	persist  func(context.Context, hlc.Token) error
	turn     chan struct{} // holds one item while somebody decides, persists or writes

	mu      sync.Mutex
	durable hlc.Token // what Persist has confirmed; at most floor
	floor   hlc.Token // below it nothing is admitted
}

// NewChecker returns the checker of a resource, whose name appears in errors. The
// error says what makes no sense: an empty name, or a malformed Options.Highest.
func NewChecker(resource string, options CheckerOptions) (*Checker, error) {
	if resource == "" {
		return nil, errors.New("fencing: new checker: the resource has no name; give the one by which its operators know it")
	}
	if _, err := options.Highest.MarshalText(); err != nil {
		return nil, fmt.Errorf("fencing: new checker of %q: CheckerOptions.Highest: %w; read back what Persist was given", resource, err)
	}
	if options.Persist == nil {
		options.Persist = func(context.Context, hlc.Token) error { return nil }
	}
	return &Checker{
		resource: resource,
		persist:  options.Persist,
		turn:     make(chan struct{}, 1),
		durable:  options.Highest,
		floor:    options.Highest,
	}, nil
}

// Highest returns the highest token that is known to be durable: the greater of
// CheckerOptions.Highest and what Persist has confirmed. Zero means none. It never
// goes back.
func (c *Checker) Highest() hlc.Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.durable
}

// Do admits a write and runs it. No other write of this checker runs meanwhile, nor
// is any token admitted, so the writes happen in the order of their tokens: when
// one with a newer token runs, those with older ones are over, and none follows.
//
// It waits for its turn until ctx ends. The context does not reach write by itself.
// A write that does not return holds up all others, newer ones too, because
// nobody can tell when it will take effect: bound it.
//
// The error of write is returned, wrapped; the token stays admitted. If write
// panics, the panic goes on to the caller and the next write gets its turn. An
// error that matches ErrNotAdmitted means that write was not called:
//
//   - *StaleTokenError (ErrStaleToken): a newer token was there. Nothing changed.
//   - ErrMissingToken, hlc.ErrMalformed: token is zero, or is none.
//   - the error of Persist: it is not known that the token is durable. It may be, so
//     from then on the checker refuses older ones, as it would after a restart; the
//     same token, or a newer one, may try again.
//   - the cause of the end of ctx, while it waited for its turn.
//
// Neither write nor Persist may use the checker: they would wait for themselves.
func (c *Checker) Do(ctx context.Context, token hlc.Token, write func() error) error {
	if err := c.enter(ctx, token); err != nil {
		return fmt.Errorf("fencing: write to %q: %w: %w", c.resource, ErrNotAdmitted, err)
	}
	defer c.leave()
	if err := write(); err != nil {
		return fmt.Errorf("fencing: write to %q: %w", c.resource, err)
	}
	return nil
}

// Admit is the first half of Do, for a resource that Do cannot enclose. It returns
// nil if the token is the highest, and durable; its errors are those of Do, and
// match ErrNotAdmitted.
//
// Between Admit and the write there is a gap: a process that is stopped there
// writes later, when a newer token may have been admitted and its write done. Use Do
// where the write is a call, and let the resource itself compare tokens where it
// can (see [SortableText]). Admit alone is enough only where a late write of an
// older tenure does no harm.
func (c *Checker) Admit(ctx context.Context, token hlc.Token) error {
	if err := c.enter(ctx, token); err != nil {
		return fmt.Errorf("fencing: admit to %q: %w: %w", c.resource, ErrNotAdmitted, err)
	}
	c.leave()
	return nil
}

// enter admits a token and keeps the turn, unless it fails.
func (c *Checker) enter(ctx context.Context, token hlc.Token) error {
	if token.IsZero() {
		return ErrMissingToken
	}
	// What is no timestamp must not become the highest.
	if _, err := token.MarshalText(); err != nil {
		return err
	}
	// Before waiting: whoever is stale already need not, since it stays stale.
	if err := c.stale(token); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	admitted := false
	defer func() { // also if Persist panics
		if !admitted {
			c.leave()
		}
	}()
	durable, err := c.raise(token)
	if err != nil {
		return err
	}
	if !durable {
		if err := c.persist(ctx, token); err != nil {
			return fmt.Errorf("token %v may not be durable: %w", token, err)
		}
		c.confirm(token)
	}
	admitted = true
	return nil
}

func (c *Checker) leave() { <-c.turn }

func (c *Checker) stale(token hlc.Token) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.staleLocked(token)
}

func (c *Checker) staleLocked(token hlc.Token) error {
	if token.Compare(c.floor) < 0 {
		return &StaleTokenError{Resource: c.resource, Token: token, Highest: c.floor}
	}
	return nil
}

// raise shuts out the tokens below one, unless that is stale, and reports whether
// it is known to be durable.
//
// It does so before Persist is called. Whatever Persist answers, the token may be
// stored by then, and be what the checker begins with after a restart; that it
// exists at all shows that the tenures before it are over. So an older token is not
// worth admitting any more, even if Persist failed.
func (c *Checker) raise(token hlc.Token) (durable bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.staleLocked(token); err != nil {
		return false, err
	}
	c.floor = token
	return c.durable == token, nil
}

func (c *Checker) confirm(token hlc.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.durable = token
}
