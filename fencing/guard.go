package fencing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/pause"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is what a Guard needs of a holding. [*lease.Tenure] is one.
type Tenure interface {
	// Token returns the fencing token, or an error once the tenure is over.
	Token() (hlc.Timestamp, error)
	// Remaining is how long the token may be used if nothing extends it.
	Remaining() time.Duration
	// FencedOut ends the tenure because a newer token was seen.
	FencedOut(evidence error)
}

// Guard writes to the store in the name of one tenure. It is safe for concurrent
// use: the writers of one tenure carry the same token and never fence each other
// out.
type Guard struct {
	client *transport.Client
	tenure Tenure
}

// NewGuard returns a guard that writes through client while tenure lasts.
func NewGuard(client *transport.Client, tenure Tenure) *Guard {
	return &Guard{client: client, tenure: tenure}
}

// Set sets a key, protects it with the tenure's token, and returns its new
// version.
func (g *Guard) Set(ctx context.Context, key string, value []byte) (version hlc.Timestamp, err error) {
	err = g.write(ctx, "set", key, func(ctx context.Context, token hlc.Timestamp) error {
		version, err = g.client.Set(ctx, key, value, transport.SetOptions{FencingToken: token})
		return err
	})
	return version, err
}

// Clear empties a key and keeps its protection: afterwards it holds the empty
// value, and an older token is refused as before.
func (g *Guard) Clear(ctx context.Context, key string) error {
	return g.write(ctx, "clear", key, func(ctx context.Context, token hlc.Timestamp) error {
		_, err := g.client.Set(ctx, key, nil, transport.SetOptions{FencingToken: token})
		return err
	})
}

// Del deletes a key and reports whether it was there.
//
// With the key its protection is gone: the store then accepts a write of an older
// tenure. Use Clear unless no write can be under way any more.
func (g *Guard) Del(ctx context.Context, key string) (deleted bool, err error) {
	err = g.write(ctx, "delete", key, func(ctx context.Context, token hlc.Timestamp) error {
		deleted, err = g.client.Del(ctx, key, transport.DelOptions{FencingToken: token})
		return err
	})
	return deleted, err
}

// VDel deletes a key if it holds value, and reports whether it was there; another
// value is an error that matches transport.ErrConditionFailed. Like Del it
// removes the protection too.
func (g *Guard) VDel(ctx context.Context, key string, value []byte) (deleted bool, err error) {
	err = g.write(ctx, "delete", key, func(ctx context.Context, token hlc.Timestamp) error {
		deleted, err = g.client.VDel(ctx, key, value, transport.DelOptions{FencingToken: token})
		return err
	})
	return deleted, err
}

// Claim protects a key with this tenure's token without changing its value, and
// returns what the key holds. From then on no write of an older tenure can
// succeed, not even one that is already on its way, so what Claim returned stays
// true until this tenure changes it. A leader claims what it works on, then
// reads, then acts.
//
// A missing key is created with an empty value, because the store keeps tokens
// only with keys; Claim then returns the empty value. A key with a TTL loses it.
//
// Claim repeats itself while others change the key, and when a request got no
// answer, until ctx or the tenure ends.
func (g *Guard) Claim(ctx context.Context, key string) (entry transport.Entry, err error) {
	err = g.write(ctx, "claim", key, func(ctx context.Context, token hlc.Timestamp) error {
		patience := g.tenure.Remaining() / claimAttempts
		for {
			if entry, err = g.claimOnce(ctx, patience, key, token); err == nil {
				return nil
			}
			unanswered := errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)
			switch {
			case errors.Is(err, transport.ErrConditionFailed): // it changed after it was read
			case !unanswered || !pause.For(ctx, claimPause):
				return err
			}
			if _, over := g.tenure.Token(); over != nil {
				return over
			}
		}
	})
	if err != nil {
		return transport.Entry{}, err
	}
	return entry, nil
}

const (
	// claimAttempts is how many requests without an answer a claim can survive
	// within what remains of the tenure.
	claimAttempts = 4
	// claimPause keeps a claim whose requests fail at once from a hot loop.
	claimPause = 20 * time.Millisecond
)

// claimOnce sets the key to what it holds, unless that changes meanwhile.
func (g *Guard) claimOnce(ctx context.Context, patience time.Duration, key string, token hlc.Timestamp) (transport.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	entry, err := g.client.Get(ctx, key)
	if err != nil {
		return transport.Entry{}, err
	}
	entry.Version, err = g.client.Set(ctx, key, entry.Value, transport.SetOptions{
		Condition:    transport.IfMissingOrEqual,
		FencingToken: token,
	})
	entry.Exists = true
	return entry, err
}

// claimsAtOnce bounds the claims that ClaimAll has under way.
const claimsAtOnce = 16

// ClaimAll claims several keys, a few at a time. It returns the first error and
// then starts no further claim.
func (g *Guard) ClaimAll(ctx context.Context, keys ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(claimsAtOnce)
	for _, key := range keys {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			_, err := g.Claim(ctx, key)
			return err
		})
	}
	return group.Wait()
}

// write runs one operation under the tenure's token. The request is not sent
// once the tenure is over, and does not outlast it.
func (g *Guard) write(ctx context.Context, operation, key string, do func(context.Context, hlc.Timestamp) error) error {
	token, err := g.tenure.Token()
	if err != nil {
		return guardError(operation, key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, g.tenure.Remaining())
	defer cancel()
	err = do(ctx, token)
	if errors.Is(err, transport.ErrFencingTokenLower) {
		g.tenure.FencedOut(err)
	}
	return guardError(operation, key, err)
}

func guardError(operation, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fencing: %s %q: %w", operation, key, err)
}
