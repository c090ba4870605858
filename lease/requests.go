package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operr"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// set sends one request to set the key, bounded in time.
func (l *Lease) set(ctx context.Context, value string, binding transport.Binding) (hlc.Timestamp, error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.RequestTimeout)
	defer cancel()
	version, err := l.client.Set(ctx, l.name, []byte(value), transport.SetOptions{
		Condition: transport.IfMissingOrEqual,
		TTL:       l.options.TTL,
		Binding:   binding,
		Urgent:    true,
	})
	return version, l.answered(l.client, err)
}

// get reads the key, bounded in time.
func (l *Lease) get(ctx context.Context, client *transport.Client, binding transport.Binding) (transport.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.RequestTimeout)
	defer cancel()
	entry, err := client.GetWith(ctx, l.name, transport.GetOptions{Binding: binding, Urgent: true})
	return entry, l.answered(client, err)
}

// answered takes note of the result of a request, and returns its error without the key,
// which the errors of this package name themselves. After a request that was not answered in
// time the connection is probed: if it is dead, the next attempt goes over a new one. Without
// the probe each attempt would go over this one until the keep-alive ends it.
func (l *Lease) answered(client *transport.Client, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		client.Probe(l.options.probe())
	}
	return operr.Inner(err)
}

// abandon frees, in the background, what an attempt may have acquired.
func (l *Lease) abandon(value string, binding transport.Binding) {
	l.client.Go(func(ctx context.Context) {
		if err := l.free(ctx, value, binding, l.options.TTL); err != nil {
			l.options.Logger.Warn("an abandoned acquisition may hold the lease until its TTL ends", "lease", l.name, "error", err)
		}
	})
}

// free deletes the key if it holds value, and repeats that while the outcome is unknown,
// until ctx ends. The error is nil once the store holds value no more: at the latest after
// within, which is how long it keeps the value anyway, or when another store answers.
func (l *Lease) free(ctx context.Context, value string, binding transport.Binding, within time.Duration) error {
	backoff, end := l.options.retryBackoff(0), time.Now().Add(within)
	for {
		request, cancel := context.WithTimeout(ctx, min(l.options.RequestTimeout, time.Until(end)))
		_, err := l.client.VDel(request, l.name, []byte(value), transport.DelOptions{Binding: binding, Urgent: true})
		cancel()
		err = l.answered(l.client, err)
		switch {
		case err == nil, errors.Is(err, transport.ErrConditionFailed), errors.Is(err, transport.ErrOtherStore):
			return nil
		case isRefusal(err), isTerminal(err), !sleep.For(ctx, min(backoff.next(random.Fraction()), time.Until(end))):
			return err
		case !time.Now().Before(end):
			return nil
		}
	}
}

// asNotSent turns the error of a GET into the error of the request that should have followed
// and was not sent. An unknown outcome of the GET is not an unknown outcome of that request.
func asNotSent(err error) error {
	if !errors.Is(err, transport.ErrOutcomeUnknown) {
		return err
	}
	for _, terminal := range []error{transport.ErrClosed, transport.ErrSessionTakenOver} {
		if errors.Is(err, terminal) {
			return fmt.Errorf("%w: %w", transport.ErrNotSent, terminal)
		}
	}
	return fmt.Errorf("%w: %v", transport.ErrNotSent, err)
}
