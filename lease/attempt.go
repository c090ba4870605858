package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// attempt is one attempt to hold a lease. A tenure keeps the attempt that it began with.
type attempt struct {
	lease  *Lease
	waiter *waiter         // nil once a tenure has begun
	began  time.Duration   // when the acquisition began, on the lease's clock
	value  string          // of the key; no other attempt has the same
	lost   <-chan struct{} // closed when the connection drops, if the attempt ends with it; else nil
	will   *transport.Will // deletes the key when the connection is lost; nil if nothing does

	// As they were when the latest request was about to leave: the identity of the store, and
	// the channels that are closed when another store answers and when the connection is lost.
	store                string
	replaced, connection <-chan struct{}

	acquisition acquisition
}

// errReconnected says that an attempt ended with its connection.
var errReconnected = fmt.Errorf("the attempt ended: %w", ErrConnectionLost)

// errTooSlow says that the store granted the lease twice, and the second time too little of the TTL was left when this
// process could begin to use it.
var errTooSlow = errors.New("the store granted the lease, but this process noticed it too late to hold it: " +
	"it stood still for too much of the TTL")

// errUnsteady says that the store granted the lease again and again, and was gone each time.
var errUnsteady = errors.New("the store granted the lease, and at once another store answered or the connection was " +
	"lost")

// errNoConnectionWithWill is why no attempt begins while the client has a connection.
var errNoConnectionWithWill = errors.New("the broker accepts no connection with a Will yet")

// acquire makes attempts to acquire the lease until one does not end with its connection.
// It frees what an attempt that failed may hold.
func (w *waiter) acquire(ctx context.Context, try func(context.Context, *attempt) (*Tenure, error)) (*Tenure, error) {
	l := w.lease
	began, backoff := l.options.Clock(), l.options.retryBackoff(0)
	left := false // the store may keep an attempt
	orUnknown := func(err error) error {
		if left && !errors.Is(err, transport.ErrOutcomeUnknown) {
			return fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
		}
		return err
	}
	for {
		a, err := w.newAttempt(ctx, began)
		if err != nil {
			return nil, orUnknown(err)
		}
		tenure, err := try(ctx, a)
		if tenure != nil {
			return tenure, nil
		}
		a.closeWill()
		again, binding := again(err) && ctx.Err() == nil, transport.Binding{Store: a.store}
		if a.acquisition.mayHold && !(again && l.free(ctx, a.value, binding, l.options.TTL) == nil) {
			left = true
			l.abandon(a.value, binding)
		}
		if !again || ctx.Err() != nil {
			return nil, orUnknown(err)
		}
		if errors.Is(err, errTooSlow) {
			w.failed(ctx, err)
			sleep.For(ctx, backoff.next(random.Fraction())) // other processes can acquire it meanwhile
		}
	}
}

func (w *waiter) newAttempt(ctx context.Context, began time.Duration) (*attempt, error) {
	l := w.lease
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails, says its documentation
	a := &attempt{lease: l, waiter: w, began: began, value: protocol.LeaseValue(l.options.Holder, nonce)}
	if !l.options.InstantFailover {
		return a, nil
	}
	will, err := a.setWill(ctx)
	var refused *transport.ConnectionError
	switch {
	case err == nil:
	case errors.Is(err, transport.ErrNoWill), errors.As(err, &refused):
		l.options.Logger.Warn("there will be no instant failover; after a crash the TTL decides",
			"lease", l.name, "error", err)
		return a, nil
	default:
		return nil, err
	}
	// A broker declares a connection dead after some silence. If the holder gave up later
	// than that, it and its successor would both believe that they hold the lease.
	if silence := will.Silence(); silence > 0 && silence < l.options.TTL {
		will.Close()
		return nil, fmt.Errorf("InstantFailover: the broker declares a silent connection dead after %v, "+
			"and then frees a lease that its holder may believe in for TTL %v: make TTL at most %v, or the client's "+
			"KeepAlive longer than two thirds of the TTL, if MQTT has so long a one",
			silence, l.options.TTL, silence)
	}
	a.will, a.lost = will, will.Lost()
	return a, nil
}

// setWill makes a connection that deletes the key when it is lost. If the broker takes longer than
// RequestTimeout, the reason to wait is a request that was not sent.
func (a *attempt) setWill(ctx context.Context) (*transport.Will, error) {
	client, noted := a.lease.client, make(chan struct{})
	late := time.AfterFunc(a.lease.options.RequestTimeout, func() {
		defer close(noted)
		cause := cmp.Or(client.Connection().Err, errNoConnectionWithWill)
		a.waiter.note(fmt.Errorf("%w: %w", transport.ErrNotSent, cause))
	})
	will, err := client.SetWill(ctx, a.lease.name, []byte(a.value))
	if !late.Stop() {
		<-noted
	}
	return will, operror.Inner(err)
}

// closeWill lets the client set another Will. This one stays with the connection, and does
// no harm: it deletes a value that never comes again.
func (a *attempt) closeWill() {
	if a.will != nil {
		a.will.Close()
	}
}

// binding returns what ties the requests of this attempt to the store that is asked and, if
// a Will would delete what they set, to the connection of the Will.
func (a *attempt) binding() transport.Binding {
	b := transport.Binding{Store: a.store}
	if a.will != nil {
		b.Connection = a.lost
	}
	return b
}

// try sets the key to the attempt's value unless another holder has it, and repeats that
// while the outcome is unknown. Repeating is safe: to the store it is a renewal. If the
// store refuses, version is the version of the other holder's value.
func (a *attempt) try(ctx context.Context) (tenure *Tenure, version hlc.Timestamp, err error) {
	l := a.lease
	a.acquisition = l.options.newAcquisition(a.will != nil, a.acquisition.mayHold)
	for {
		if l.options.EndOnDisconnect && a.will == nil {
			a.lost = l.client.Lost()
		}
		a.store, a.replaced = l.client.Store()
		a.connection = l.client.Unbroken()
		sent := l.options.Clock()
		binding := a.binding()
		version, err = l.set(ctx, a.value, &binding, l.options.probe())
		now := l.options.Clock()
		l.traceAttempt(ctx, now-sent, err)
		freed := errors.Is(err, transport.ErrConditionFailed) && l.freeLeft(ctx)
		store, _ := l.client.Store()
		var next requestAction
		a.acquisition, next = a.acquisition.next(now, answer{
			err: err, sent: sent, known: a.replaced != nil, other: store != a.store,
			replaced: closed.Is(a.replaced), lost: closed.Is(a.lost), freed: freed, random: random.Fraction,
		})
		switch next.do {
		case begin:
			tenure, err = a.begin(ctx, hlc.Token(version), sent)
			return tenure, version, err
		case stop:
			return nil, version, next.err
		case pause:
			a.waiter.failed(ctx, next.err)
			if !sleep.For(ctx, next.pause) {
				return nil, version, next.err
			}
		}
	}
}
