package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is what a Guard needs of a holding. [*lease.Tenure] is one.
type Tenure interface {
	// Token returns the fencing token, or an error once the tenure is over.
	Token() (hlc.Timestamp, error)
	// Remaining is how long the token may be used if nothing extends it.
	Remaining() time.Duration
	// TokenContext ends, with its cause, when the token may not be used any more.
	TokenContext() context.Context
	// FencedOut ends the tenure because its token was refused; evidence is the
	// refusal.
	FencedOut(evidence error)
}

// Guard reads and writes the store in the name of one tenure. It is safe for
// concurrent use: the writers of one tenure carry the same token and never fence
// each other out.
//
// Each method refuses without a request once the tenure is over, with the
// tenure's own error, and none waits for a connection or an answer beyond what
// remained of the tenure when it asked, nor when the tenure is ended meanwhile. Each
// ends the tenure, by FencedOut, as soon as the store
// refuses its token: because a newer one was there (transport.ErrFencingTokenLower),
// because the store never issued it (transport.ErrFencingTokenNeverIssued, of a
// strict store), or because it is too far ahead of the store's clock
// (transport.ErrFencingTokenTooFarAhead). The last two say that this is not, or no
// longer, the store that granted the tenure, so that nobody can tell what the
// tenure is worth. A refusal of the request for another reason ends nothing.
type Guard struct {
	client *transport.Client
	tenure Tenure
	turns  turns  // of Update
	claims claims // what Update need not claim again
}

// NewGuard returns a guard that reads and writes through client while tenure
// lasts.
func NewGuard(client *transport.Client, tenure Tenure) *Guard {
	return &Guard{client: client, tenure: tenure}
}

// Get returns what a key holds; a missing key is not an error.
//
// It promises no more than that the store held this at some moment during the
// call, and that the tenure was not over, as far as this node can tell, when Get
// returned. It does not promise that the value stays: a write of an earlier
// tenure may still be on its way and change a key that this tenure has neither
// claimed nor written. Claim a key first, or let Claim read it.
func (g *Guard) Get(ctx context.Context, key string) (entry transport.Entry, err error) {
	err = g.do(ctx, "get", key, func(ctx context.Context, _ hlc.Timestamp) error {
		if entry, err = g.client.Get(ctx, key); err != nil {
			return err
		}
		_, over := g.token() // it may have ended while the reply was on its way
		return over
	})
	if err != nil {
		return transport.Entry{}, err
	}
	return entry, nil
}

// Set sets a key, protects it with the tenure's token, and returns its new
// version.
func (g *Guard) Set(ctx context.Context, key string, value []byte) (version hlc.Timestamp, err error) {
	err = g.do(ctx, "set", key, func(ctx context.Context, token hlc.Timestamp) error {
		version, err = g.client.Set(ctx, key, value, transport.SetOptions{FencingToken: token})
		return err
	})
	return version, err
}

// Clear empties a key and keeps its protection: afterwards it holds the empty
// value, and an older token is refused as before.
func (g *Guard) Clear(ctx context.Context, key string) error {
	return g.do(ctx, "clear", key, func(ctx context.Context, token hlc.Timestamp) error {
		_, err := g.client.Set(ctx, key, nil, transport.SetOptions{FencingToken: token})
		return err
	})
}

// Del deletes a key and reports whether it was there.
//
// With the key its protection is gone: the store then accepts a write of an older
// tenure. Use Clear unless no write can be under way any more.
func (g *Guard) Del(ctx context.Context, key string) (deleted bool, err error) {
	defer g.claims.forget(key)
	err = g.do(ctx, "delete", key, func(ctx context.Context, token hlc.Timestamp) error {
		deleted, err = g.client.Del(ctx, key, transport.DelOptions{FencingToken: token})
		return err
	})
	return deleted, err
}

// VDel deletes a key if it holds value, and reports whether it was there; another
// value is an error that matches transport.ErrConditionFailed. Like Del it
// removes the protection too.
func (g *Guard) VDel(ctx context.Context, key string, value []byte) (deleted bool, err error) {
	defer g.claims.forget(key)
	err = g.do(ctx, "delete", key, func(ctx context.Context, token hlc.Timestamp) error {
		deleted, err = g.client.VDel(ctx, key, value, transport.DelOptions{FencingToken: token})
		return err
	})
	return deleted, err
}

// do runs one operation under the tenure's token. Nothing is sent once the tenure
// is over, and no request outlasts it.
func (g *Guard) do(ctx context.Context, operation, key string, request func(context.Context, hlc.Timestamp) error) error {
	token, err := g.token()
	if err != nil {
		return guardError(operation, key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.tenure.Remaining())
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	usable := g.tenure.TokenContext()
	defer context.AfterFunc(usable, func() { end(context.Cause(usable)) })()
	err = request(ctx, token)
	if tokenRefused(err) {
		g.tenure.FencedOut(err)
	}
	return guardError(operation, key, err)
}

// token returns the tenure's token while the tenure lasts. A holding without one
// is refused: its writes would go out unprotected, and nobody would notice.
func (g *Guard) token() (hlc.Timestamp, error) {
	token, err := g.tenure.Token()
	if err == nil && token.IsZero() {
		err = ErrMissingToken
	}
	return token, err
}

// tokenRefused reports whether the store refused the token itself. It does not
// count that the store saw none (transport.ErrFencingTokenRequired): a guard always
// sends one, so something on the way lost it, and that says nothing of who leads.
func tokenRefused(err error) bool {
	return errors.Is(err, transport.ErrFencingTokenLower) ||
		errors.Is(err, transport.ErrFencingTokenNeverIssued) ||
		errors.Is(err, transport.ErrFencingTokenTooFarAhead)
}

func guardError(operation, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fencing: %s %q: %w", operation, key, err)
}
