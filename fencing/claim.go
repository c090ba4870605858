package fencing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

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
// answer, until ctx or the tenure ends. Where the tenure ends first the error says
// so, and whether the key carries the token is unknown; its value is the same.
func (g *Guard) Claim(ctx context.Context, key string) (entry transport.Entry, err error) {
	for {
		err = g.write(ctx, "claim", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
			entry, err = g.claim(ctx, key, token, binding)
			return err
		})
		if err == nil {
			return entry, nil
		}
		// The tenure could not be confirmed, perhaps.
		if _, over := g.token(); over != nil || !errors.Is(err, transport.ErrNotSent) || !sleep.For(ctx, claimPause) {
			return transport.Entry{}, err
		}
	}
}

const (
	// claimAttempts is how many requests without an answer a claim can survive
	// within what remains of the tenure.
	claimAttempts = 4
	// claimPause keeps a claim whose requests fail at once from a hot loop.
	claimPause = 20 * time.Millisecond
)

// claim repeats claimOnce until it holds.
func (g *Guard) claim(ctx context.Context, key string, token hlc.Token, binding transport.Binding) (transport.Entry, error) {
	patience := g.tenure.Remaining() / claimAttempts
	for {
		entry, err := g.claimOnce(ctx, patience, key, token, binding)
		_, over := g.token()
		unanswered := errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)
		switch {
		case over != nil && err == nil:
			return transport.Entry{}, over
		case over != nil && unanswered:
			return transport.Entry{}, fmt.Errorf("%w: %w", over, err)
		case err == nil:
			g.claims.remember(key)
			return entry, nil
		case binding.Err() != nil:
			return transport.Entry{}, err // to be bound to the next connection
		case over == nil && errors.Is(err, transport.ErrConditionFailed): // it changed after it was read
		case !unanswered || !sleep.For(ctx, claimPause):
			return transport.Entry{}, err
		}
	}
}

// claimOnce sets the key to what it holds, unless that changes meanwhile.
func (g *Guard) claimOnce(ctx context.Context, patience time.Duration, key string, token hlc.Token, binding transport.Binding) (transport.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	entry, err := g.client.GetWith(ctx, key, transport.GetOptions{Binding: binding})
	if err != nil {
		return transport.Entry{}, err
	}
	if _, over := g.token(); over != nil { // the read may have taken all that was left
		return transport.Entry{}, over
	}
	entry.Version, err = g.client.Set(ctx, key, entry.Value, transport.SetOptions{
		Condition:    transport.IfMissingOrEqual,
		FencingToken: token,
		Binding:      binding,
	})
	entry.Exists = true
	return entry, err
}

// claimsAtOnce bounds the claims that ClaimAll has under way: enough to hide the
// round trips, few enough to leave room on the connection for renewals.
const claimsAtOnce = 16

// ClaimAll claims several keys, 16 at a time, and returns what each of them holds;
// what [Guard.Claim] says of one key holds for each. They are not claimed at one
// moment, but once ClaimAll has returned all of them are, and until a
// later tenure claims them nobody but this one changes any.
//
// The first error ends the claims that are under way, starts no further one, and
// is returned without entries. Keys that were claimed until then stay protected,
// which does no harm: this tenure's token is on them.
func (g *Guard) ClaimAll(ctx context.Context, keys ...string) (map[string]transport.Entry, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(claimsAtOnce)
	var mu sync.Mutex
	entries := make(map[string]transport.Entry, len(keys))
	started := make(map[string]bool, len(keys))
	for _, key := range keys {
		if started[key] {
			continue
		}
		started[key] = true
		group.Go(func() error {
			if ctx.Err() != nil {
				return guardError("claim", key, context.Cause(ctx))
			}
			entry, err := g.Claim(ctx, key)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			entries[key] = entry
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return entries, nil
}

// claimsRemembered bounds what claims holds.
const claimsRemembered = 1024

// claims are the keys that are known to carry the tenure's token, so that an
// update of them need not claim again. It is a memory that may forget: a key that
// is missing from it costs a round trip and nothing else. So it need not grow with
// the keys that a tenure touches. The zero value is empty.
type claims struct {
	mu   sync.Mutex
	keys map[string]struct{}
}

func (c *claims) remember(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = make(map[string]struct{})
	}
	c.keys[key] = struct{}{}
	for other := range c.keys {
		if len(c.keys) <= claimsRemembered {
			break
		}
		delete(c.keys, other) // any will do
	}
}

func (c *claims) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, key)
}

func (c *claims) holds(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.keys[key]
	return ok
}
