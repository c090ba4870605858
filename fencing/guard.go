package fencing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is the part of a tenure that a Guard needs. [*lease.Tenure] implements it.
type Tenure interface {
	// Name returns the key of the lease.
	Name() string
	// Token returns the fencing token, or an error once the tenure is over.
	Token() (hlc.Token, error)
	// Remaining returns how long the token is still valid if nothing extends the tenure.
	Remaining() time.Duration
	// TokenContext returns a context that ends, with its cause, when the token becomes invalid.
	TokenContext() context.Context
	// FencedOut ends the tenure because its token was refused; evidence is the refusal.
	FencedOut(evidence error)
	// Bind returns what binds a request of client to the store that granted the tenure. It may
	// send a request to the store first. After an error the caller must not send its request.
	//
	// A Tenure that also has the method Bound of [lease.Tenure], which says whether Bind would send
	// one, saves each write two contexts and a timer.
	Bind(ctx context.Context, client *transport.Client) (transport.Binding, error)
}

// ErrLeaseKey: the key is the lease's own, or the key of its election's fail-back requests.
// With a fence on it the store would refuse all renewals, also by later holders. Protect
// the keys that the holder writes.
var ErrLeaseKey = errors.New("the key belongs to the lease itself and cannot be protected by its token; protect the keys that the holder writes")

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
// Each request is bound to the store that granted the tenure (Tenure.Bind), so claimed keys
// stay claimed: a store that was restarted without its data refuses the next write. With a
// store without an identity, as most deployed ones, the guard confirms the tenure on each new
// connection before its first request: a store that has the lease's key has not lost its data.
//
// The lease's own key, and the key of its election's fail-back requests, can be read but
// neither written nor claimed: the error matches ErrLeaseKey.
type Guard struct {
	client *transport.Client
	tenure Tenure
	turns  turns  // of Update
	claims claims // keys that Update need not claim again
}

// NewGuard returns a guard that reads and writes through client while tenure lasts.
func NewGuard(client *transport.Client, tenure Tenure) *Guard {
	return &Guard{client: client, tenure: tenure}
}

// Get returns the entry of a key; a missing key is not an error.
//
// The store had this entry at some moment during the call, and the tenure was not over, as
// far as this node can tell, when Get returned. The value may change any time: a write of an
// earlier tenure may still be under way to a key that this tenure has neither claimed nor
// written. Claim the key first, or use the entry that Claim returns.
func (g *Guard) Get(ctx context.Context, key string) (entry transport.Entry, err error) {
	err = g.once(ctx, "get", key, func(ctx context.Context, _ hlc.Token, binding transport.Binding) error {
		if entry, err = g.client.GetWith(ctx, key, transport.GetOptions{Binding: binding}); err != nil {
			return err
		}
		_, over := g.token() // the tenure may have ended before the reply came
		return over
	})
	if err != nil {
		return transport.Entry{}, err
	}
	return entry, nil
}

// Set sets a key, protects it with the tenure's token, and returns its new version.
func (g *Guard) Set(ctx context.Context, key string, value []byte) (hlc.Timestamp, error) {
	return g.set(ctx, "set", key, value)
}

// Clear sets a key to the empty value, and protects it with the tenure's token as Set does.
func (g *Guard) Clear(ctx context.Context, key string) error {
	_, err := g.set(ctx, "clear", key, nil)
	return err
}

// set sets a key in an operation with the given name.
func (g *Guard) set(ctx context.Context, name, key string, value []byte) (version hlc.Timestamp, err error) {
	err = g.writeOnce(ctx, name, key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		version, err = g.client.Set(ctx, key, value, transport.SetOptions{FencingToken: token, Binding: binding})
		return err
	})
	return version, err
}

// Del deletes a key and reports whether it existed.
//
// The store drops the token with the key, and then accepts writes of former tenures, unless
// it is strict. Use Clear, unless no such write can be under way.
func (g *Guard) Del(ctx context.Context, key string) (deleted bool, err error) {
	defer g.claims.remove(key)
	err = g.writeOnce(ctx, "delete", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		deleted, err = g.client.Del(ctx, key, transport.DelOptions{FencingToken: token, Binding: binding})
		return err
	})
	return deleted, err
}

// VDel deletes a key if it has the given value, and reports whether the key existed. If the
// key has another value, the error matches transport.ErrConditionFailed. Like Del it removes
// the protection too.
func (g *Guard) VDel(ctx context.Context, key string, value []byte) (deleted bool, err error) {
	defer g.claims.remove(key)
	err = g.writeOnce(ctx, "delete", key, func(ctx context.Context, token hlc.Token, binding transport.Binding) error {
		deleted, err = g.client.VDel(ctx, key, value, transport.DelOptions{FencingToken: token, Binding: binding})
		return err
	})
	return deleted, err
}

// operation sends the requests of one operation, each with the token and the binding.
type operation func(ctx context.Context, token hlc.Token, binding transport.Binding) error

// write is do for an operation that writes or protects the key.
func (g *Guard) write(ctx context.Context, name, key string, request operation) error {
	if g.isLeaseKey(key) {
		return guardError(name, key, ErrLeaseKey)
	}
	return g.do(ctx, name, key, request)
}

// writeOnce is once for an operation that writes the key.
func (g *Guard) writeOnce(ctx context.Context, name, key string, request operation) error {
	if g.isLeaseKey(key) {
		return guardError(name, key, ErrLeaseKey)
	}
	return g.once(ctx, name, key, request)
}

// isLeaseKey reports whether a key belongs to the lease itself.
func (g *Guard) isLeaseKey(key string) bool {
	rest, begins := strings.CutPrefix(key, g.tenure.Name())
	return begins && (rest == "" || rest == protocol.FailBackSuffix)
}

// boundTenure is a Tenure that may know its binding without asking the store.
type boundTenure interface {
	Bound(client *transport.Client) (binding transport.Binding, ok bool)
}

// once is do for an operation of one request. Where the store need not be asked first, the bounds of
// the tenure travel with the request: that saves two contexts, a timer and what ties them, which is
// more than all else that a write allocates.
func (g *Guard) once(ctx context.Context, name, key string, request operation) error {
	tenure, ok := g.tenure.(boundTenure)
	if !ok {
		return g.do(ctx, name, key, request)
	}
	binding, ok := tenure.Bound(g.client)
	if !ok {
		return g.do(ctx, name, key, request)
	}
	token, err := g.token()
	if err != nil {
		return g.refused(ctx, name, key, err)
	}
	binding.While, binding.Until = g.tenure.TokenContext(), g.deadline()
	err = operror.Inner(request(ctx, token, binding)) // guardError names the key
	// At the deadline of the tenure, Until may be over before the context of the tenure has ended.
	over := binding.Err() != nil || !time.Now().Before(binding.Until)
	if errors.Is(err, transport.ErrNotSent) && over && ctx.Err() == nil {
		return g.do(ctx, name, key, request) // it tries again over the next connection, or says why the tenure is over
	}
	return g.ended(ctx, name, key, err)
}

// do runs one operation with the tenure's token. It sends nothing once the tenure is over, and
// cancels the operation when the tenure ends.
func (g *Guard) do(ctx context.Context, name, key string, request operation) error {
	token, err := g.token()
	if err != nil {
		return g.refused(ctx, name, key, err)
	}
	caller := ctx
	ctx, cancel := context.WithDeadline(ctx, g.deadline())
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	usable := g.tenure.TokenContext()
	defer context.AfterFunc(usable, func() { end(context.Cause(usable)) })()
	return g.ended(caller, name, key, g.bound(ctx, token, request))
}

// deadline returns when the tenure is over if no further renewal succeeds. The time is read before the
// tenure is asked: if the process stands still in between, the deadline is early, and never late.
func (g *Guard) deadline() time.Time {
	now := time.Now()
	return now.Add(g.tenure.Remaining())
}

// refused returns the error of an operation that is refused here, because of the tenure.
func (g *Guard) refused(ctx context.Context, name, key string, err error) error {
	g.noteRefusal(ctx, name, key, true, err)
	return guardError(name, key, err)
}

// ended returns the error of an operation that was tried. A refusal of the token ends the tenure.
func (g *Guard) ended(ctx context.Context, name, key string, err error) error {
	switch {
	case err == nil:
	case transport.TokenRefused(err):
		g.tenure.FencedOut(err)
		g.noteRefusal(ctx, name, key, false, err)
	case errors.Is(err, transport.ErrNotSent):
		g.noteIfOver(ctx, name, key)
	}
	return guardError(name, key, err)
}

// noteRefusal reports a refusal to a tenure that wants to know. See [lease.Tenure.NoteRefusal].
func (g *Guard) noteRefusal(ctx context.Context, name, key string, local bool, err error) {
	if tenure, ok := g.tenure.(refusalNoter); ok {
		tenure.NoteRefusal(ctx, name, key, local, err)
	}
}

// noteIfOver reports an operation that was not sent as a refusal if the tenure is over.
func (g *Guard) noteIfOver(ctx context.Context, name, key string) {
	if _, over := g.token(); over != nil {
		g.noteRefusal(ctx, name, key, true, over)
	}
}

// refusalNoter is a Tenure with hooks for refusals.
type refusalNoter interface {
	NoteRefusal(ctx context.Context, operation, key string, local bool, err error)
}

// bound binds the operation to the store and runs it. If the connection of the binding was lost
// before a request was sent, it does so again over the next one, while the tenure lasts.
func (g *Guard) bound(ctx context.Context, token hlc.Token, request operation) error {
	for {
		binding, err := g.tenure.Bind(ctx, g.client)
		if err != nil {
			return err
		}
		err = operror.Inner(request(ctx, token, binding)) // guardError names the key
		if !errors.Is(err, transport.ErrNotSent) || binding.Err() == nil || ctx.Err() != nil {
			return err
		}
		if _, over := g.token(); over != nil {
			return fmt.Errorf("%w: %w", transport.ErrNotSent, over)
		}
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
