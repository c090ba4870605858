package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is what a Guard needs of a holding. [*lease.Tenure] is one.
type Tenure interface {
	// Name returns the key of the lease.
	Name() string
	// Token returns the fencing token, or an error once the tenure is over.
	Token() (hlc.Token, error)
	// Remaining is how long the token may be used if nothing extends it.
	Remaining() time.Duration
	// TokenContext ends, with its cause, when the token may not be used any more.
	TokenContext() context.Context
	// FencedOut ends the tenure because its token was refused; evidence is the
	// refusal.
	FencedOut(evidence error)
	// Bind returns what ties a request of client to the store that granted the tenure.
	// It may ask the store first. After an error the request must not be sent.
	Bind(ctx context.Context, client *transport.Client) (transport.Binding, error)
}

// ErrLeaseKey: the key is the lease's own, or the one where its election keeps bids. A
// fence there would refuse all renewals, of later holders too. Protect the keys that the
// holder writes.
var ErrLeaseKey = errors.New("the key belongs to the lease itself and cannot be protected by its token; protect the keys that the holder writes")

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
// (transport.ErrFencingTokenTooFarAhead), or because another store answers than the
// one that granted the tenure (transport.ErrOtherStore). The last three say that this is
// not, or no longer, the store that granted the tenure, which is worth nothing there. A
// refusal of the request for another reason ends nothing.
//
// Each request is bound to the store that granted the tenure (Tenure.Bind), so what was
// claimed stays claimed: a store that was restarted without its data refuses the next
// write. A store deployed today has no identity. There the guard has the tenure confirmed
// on each new connection before the first request leaves over it: a store that still has
// the lease's own key has not lost its data.
//
// The lease's own key, and the key with its election's bids, can be read but not written
// or claimed: the error matches ErrLeaseKey.
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
	err = g.do(ctx, "get", key, func(ctx context.Context, _ hlc.Token, binding transport.Binding) error {
		if entry, err = g.client.GetWith(ctx, key, transport.GetOptions{Binding: binding}); err != nil {
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
	err = g.write(ctx, "set", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		version, err = g.client.Set(ctx, key, value, transport.SetOptions{FencingToken: token, Binding: binding})
		return err
	})
	return version, err
}

// Clear empties a key and keeps its protection: afterwards it holds the empty
// value, and an older token is refused as before.
func (g *Guard) Clear(ctx context.Context, key string) error {
	return g.write(ctx, "clear", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		_, err := g.client.Set(ctx, key, nil, transport.SetOptions{FencingToken: token, Binding: binding})
		return err
	})
}

// Del deletes a key and reports whether it was there.
//
// With the key its protection is gone: the store then accepts a write of an older
// tenure. Use Clear unless no write can be under way any more.
func (g *Guard) Del(ctx context.Context, key string) (deleted bool, err error) {
	defer g.claims.forget(key)
	err = g.write(ctx, "delete", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		deleted, err = g.client.Del(ctx, key, transport.DelOptions{FencingToken: token, Binding: binding})
		return err
	})
	return deleted, err
}

// VDel deletes a key if it holds value, and reports whether it was there; another
// value is an error that matches transport.ErrConditionFailed. Like Del it
// removes the protection too.
func (g *Guard) VDel(ctx context.Context, key string, value []byte) (deleted bool, err error) {
	defer g.claims.forget(key)
	err = g.write(ctx, "delete", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		deleted, err = g.client.VDel(ctx, key, value, transport.DelOptions{FencingToken: token, Binding: binding})
		return err
	})
	return deleted, err
}

// operation makes the requests of one operation, under a token, each with the binding.
type operation func(ctx context.Context, token hlc.Token, binding transport.Binding) error

// write is do for an operation that writes or protects the key.
func (g *Guard) write(ctx context.Context, name, key string, request operation) error {
	if lease := g.tenure.Name(); key == lease || key == lease+protocol.FailBackSuffix {
		return guardError(name, key, ErrLeaseKey)
	}
	return g.do(ctx, name, key, request)
}

// do runs one operation under the tenure's token. Nothing is sent once the tenure
// is over, and no request outlasts it.
func (g *Guard) do(ctx context.Context, name, key string, request operation) error {
	token, err := g.token()
	if err != nil {
		return guardError(name, key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.tenure.Remaining())
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	usable := g.tenure.TokenContext()
	defer context.AfterFunc(usable, func() { end(context.Cause(usable)) })()
	err = g.bound(ctx, token, request)
	if tokenRefused(err) {
		g.tenure.FencedOut(err)
	}
	return guardError(name, key, err)
}

// bound binds a request to the store and makes it. If the connection of the binding was
// lost before the request could leave, it binds it to the next, while the tenure lasts.
func (g *Guard) bound(ctx context.Context, token hlc.Token, request operation) error {
	for {
		binding, err := g.tenure.Bind(ctx, g.client)
		if err != nil {
			return err
		}
		err = request(ctx, token, binding)
		if !errors.Is(err, transport.ErrNotSent) || binding.Err() == nil || ctx.Err() != nil {
			return err
		}
		if _, over := g.token(); over != nil {
			return fmt.Errorf("%w: %w", transport.ErrNotSent, over)
		}
	}
}

// token returns the tenure's token while the tenure lasts. A holding without one
// is refused: its writes would go out unprotected, and nobody would notice.
func (g *Guard) token() (hlc.Token, error) {
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
		errors.Is(err, transport.ErrOtherStore) ||
		errors.Is(err, transport.ErrFencingTokenTooFarAhead)
}

func guardError(name, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fencing: %s %q: %w", name, key, err)
}
