package fencing

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// Claim protects a key with this tenure's token without changing its value, and returns the
// entry of the key. From then on no write of a former tenure can succeed, not even one that
// is already under way, so the entry stays true until this tenure changes the key. A leader
// claims the keys that it works on, then reads, then acts.
//
// Claim creates a missing key with an empty value, because the store keeps tokens only with
// keys. A key with a TTL loses the TTL.
//
// Claim tries again when another client changes the key meanwhile, and when a request gets no
// reply, until ctx or the tenure ends. If the tenure ends, the key may or may not have the
// token; its value is unchanged.
func (g *Guard) Claim(ctx context.Context, key string) (entry transport.Entry, err error) {
	for {
		err = g.write(ctx, "claim", key, func(token hlc.Token, binding transport.Binding) error {
			entry, err = g.claimOnce(ctx, key, token, binding)
			return err
		})
		if err == nil {
			return entry, nil
		}
		_, over := g.token()
		unanswered := errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, transport.ErrNotSent)
		switch {
		case over == nil && errors.Is(err, transport.ErrConditionFailed): // the key changed after it was read
		case over != nil, !unanswered, !sleep.For(ctx, claimPause):
			return transport.Entry{}, err
		}
	}
}

const (
	// claimAttempts is how many requests without a reply use up the remaining time of a tenure.
	claimAttempts = 4
	// claimPause separates the attempts of a claim whose requests fail at once.
	claimPause = 20 * time.Millisecond
)

// claimOnce sets the key to the value that it has, unless that changes meanwhile.
func (g *Guard) claimOnce(ctx context.Context, key string, token hlc.Token,
	binding transport.Binding) (transport.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, g.tenure.Remaining()/claimAttempts)
	defer cancel()
	entry, err := g.client.GetWith(ctx, key, binding)
	if err != nil {
		return transport.Entry{}, err
	}
	if _, over := g.token(); over != nil { // the tenure may have ended during the read
		return transport.Entry{}, over
	}
	if g.isFenced(key, entry) {
		return entry, nil
	}
	entry.Version, err = g.setFenced(ctx, key, entry.Value, transport.SetOptions{
		Condition:    transport.IfMissingOrEqual,
		FencingToken: token,
		Binding:      binding,
	})
	if err == nil {
		_, err = g.token() // or during the write
	}
	entry.Exists = true
	return entry, err
}

// claimsAtOnce is how many claims ClaimAll makes at a time: enough to hide the round trips,
// and few enough to leave space on the connection for renewals.
const claimsAtOnce = 16

// ClaimAll claims several keys, 16 at a time, each as [Guard.Claim] does, and returns their
// entries. The claims are not one atomic operation. But when ClaimAll returns all keys are
// claimed, and only this tenure can change them until a later tenure claims them.
//
// After the first error ClaimAll cancels the claims that are under way, starts no other, and
// returns the error without entries. The keys claimed by then keep this tenure's token.
func (g *Guard) ClaimAll(ctx context.Context, keys ...string) (map[string]transport.Entry, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(claimsAtOnce)
	var mu sync.Mutex
	entries := make(map[string]transport.Entry, len(keys))
	for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
		group.Go(func() error {
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
