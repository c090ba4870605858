package fencing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// ErrLeaseKey: the key is the lease's own, or the key of its election's fail-back requests.
// With a fence on it the store would refuse all renewals, also by later holders. Protect
// the keys that the holder writes.
var ErrLeaseKey = errors.New("the key belongs to the lease itself and cannot be protected by its token; protect the " +
	"keys that the holder writes")

// Guard reads and writes keys of the store with the token of one tenure. It is safe for
// concurrent use: the writers of one tenure have the same token and never fence each other out.
//
// Once the tenure is over each method sends nothing and returns the tenure's error. While it
// lasts, no method waits for a connection or a reply longer than the tenure's remaining time
// at the request, and all stop waiting when the tenure ends.
//
// A method ends the tenure with FencedOut when the store refuses the token: because it has
// seen a higher one (transport.ErrFencingTokenLower), never issued it
// (transport.ErrFencingTokenNeverIssued, in strict mode), or sees it too far ahead of its
// clock (transport.ErrFencingTokenTooFarAhead). It also does so when another store replies
// than the one that granted the tenure (transport.ErrOtherStore). The last three mean that
// this is not the store that granted the tenure, or that it lost its data. Other refusals of
// a request do not end the tenure.
//
// Each request is bound to the store that granted the tenure (lease.Tenure.Bind), so claimed keys
// stay claimed: a store that was restarted without its data refuses the next write. With a
// store without an identity, as most deployed ones, the guard confirms the tenure on each new
// connection before its first request: a store that has the lease's key has not lost its data.
//
// The lease's own key, and the key of its election's fail-back requests, can be read but
// neither written nor claimed: the error matches ErrLeaseKey.
type Guard struct {
	client *transport.Client
	tenure *lease.Tenure

	mu     sync.Mutex
	turns  map[string]*turn         // of Update, only while a goroutine has the turn of a key or waits for it
	fenced map[string]hlc.Timestamp // the version that a key got with the token: while it has that, it has the token
}

const maxFenced = 1024 // keys

// NewGuard returns a guard that reads and writes through client while tenure lasts.
func NewGuard(client *transport.Client, tenure *lease.Tenure) *Guard {
	return &Guard{client: client, tenure: tenure, turns: make(map[string]*turn), fenced: make(map[string]hlc.Timestamp)}
}

// Get returns the entry of a key; a missing key is not an error.
//
// The store had this entry at some moment during the call, and the tenure was not over, as
// far as this node can tell, when Get returned. The value may change any time: a write of an
// earlier tenure may still be under way to a key that this tenure has neither claimed nor
// written. Claim the key first, or use the entry that Claim returns.
func (g *Guard) Get(ctx context.Context, key string) (entry transport.Entry, err error) {
	err = g.do(ctx, "get", key, func(_ hlc.Token, binding transport.Binding) error {
		if entry, err = g.client.GetWith(ctx, key, binding); err == nil {
			_, err = g.token() // the tenure may have ended before the reply came
		}
		return err
	})
	if err != nil {
		return transport.Entry{}, err
	}
	return entry, nil
}

// Set sets a key, protects it with the tenure's token, and returns its new version. To remove what a key holds,
// rather set it to the empty value than delete it: see Del.
func (g *Guard) Set(ctx context.Context, key string, value []byte) (hlc.Timestamp, error) {
	return g.set(ctx, "set", key, value)
}

// set sets a key in an operation with the given name.
func (g *Guard) set(ctx context.Context, name, key string, value []byte) (version hlc.Timestamp, err error) {
	err = g.write(ctx, name, key, func(token hlc.Token, binding transport.Binding) error {
		version, err = g.setFenced(ctx, key, value, transport.SetOptions{FencingToken: token, Binding: binding})
		return err
	})
	return version, err
}

func (g *Guard) setFenced(ctx context.Context, key string, value []byte,
	options transport.SetOptions) (hlc.Timestamp, error) {
	version, err := g.client.Set(ctx, key, value, options)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.fenced) >= maxFenced {
			clear(g.fenced) // the next claims make one more round trip
		}
		g.fenced[key] = version
	}
	return version, err
}

// isFenced reports whether an entry is what this guard set with the token: a version rises with every Set.
func (g *Guard) isFenced(key string, entry transport.Entry) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !entry.Version.IsZero() && g.fenced[key] == entry.Version
}

// Del deletes a key and reports whether it existed.
//
// The store drops the token with the key, and then accepts writes of former tenures, unless
// it is strict. Set the key to the empty value, unless no such write can be under way.
func (g *Guard) Del(ctx context.Context, key string) (deleted bool, err error) {
	return g.delete(ctx, key, func(options transport.DelOptions) (bool, error) { return g.client.Del(ctx, key, options) })
}

// VDel deletes a key if it has the given value, and reports whether the key existed. If the
// key has another value, the error matches transport.ErrConditionFailed. Like Del it removes
// the protection too.
func (g *Guard) VDel(ctx context.Context, key string, value []byte) (deleted bool, err error) {
	return g.delete(ctx, key, func(options transport.DelOptions) (bool, error) {
		return g.client.VDel(ctx, key, value, options)
	})
}

func (g *Guard) delete(ctx context.Context, key string,
	request func(transport.DelOptions) (bool, error)) (deleted bool, err error) {
	err = g.write(ctx, "delete", key, func(token hlc.Token, binding transport.Binding) error {
		deleted, err = request(transport.DelOptions{FencingToken: token, Binding: binding})
		return err
	})
	return deleted, err
}

// operation sends the requests of one operation, each with the token and the binding.
type operation func(token hlc.Token, binding transport.Binding) error

// write is do for an operation that writes or protects the key, which must not belong to the lease itself.
func (g *Guard) write(ctx context.Context, name, key string, request operation) error {
	if rest, begins := strings.CutPrefix(key, g.tenure.Name()); begins && (rest == "" || rest == protocol.FailBackSuffix) {
		return guardError(name, key, ErrLeaseKey)
	}
	return g.do(ctx, name, key, request)
}

// do runs one operation while the tenure lasts. The bounds of the tenure travel with each request, in its
// binding. If the connection of the binding is lost before the request is sent, do goes on over the next.
func (g *Guard) do(ctx context.Context, name, key string, request operation) error {
	token, err := g.token()
	if err != nil {
		g.tenure.NoteRefusal(ctx, name, key, true, err)
		return guardError(name, key, err)
	}
	now := time.Now() // first: if the process stands still in between, until is early, and never late
	until := now.Add(g.tenure.Remaining())
	for {
		binding, err := g.tenure.Bind(ctx, g.client)
		bound := err == nil
		if bound {
			binding.While, binding.Until = g.tenure.TokenContext(), until
			err = operror.Inner(request(token, binding)) // guardError names the key
		}
		switch {
		case protocol.TokenRefused(err):
			g.tenure.FencedOut(err)
			g.tenure.NoteRefusal(ctx, name, key, false, err)
		case errors.Is(err, transport.ErrNotSent):
			if _, over := g.token(); over != nil {
				g.tenure.NoteRefusal(ctx, name, key, true, over)
				err = fmt.Errorf("%w: %w", transport.ErrNotSent, over)
			} else if bound && closed.Is(binding.Connection) && ctx.Err() == nil && time.Now().Before(until) {
				continue
			}
		}
		return guardError(name, key, err)
	}
}

// token returns the tenure's token while the tenure lasts. A tenure without a token is an
// error: its writes would be unprotected.
func (g *Guard) token() (hlc.Token, error) {
	token, err := g.tenure.Token()
	if err == nil && token.IsZero() {
		err = ErrMissingToken
	}
	return token, err
}

func guardError(name, key string, err error) error {
	if err == nil {
		return nil // before the names are joined, which allocates
	}
	return operror.New("fencing: "+name, key, err)
}
