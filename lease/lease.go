package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// Lease is a name in the store and the settings under which this process holds
// it. What it acquires is in the tenures that it returns, and nothing of them is in the
// Lease. It is safe for concurrent use.
type Lease struct {
	client  *transport.Client
	name    string
	options Options
	last    atomic.Pointer[Holder] // what LastHolder returns; nil: not known
}

// New returns a lease on name, which is the key in the store. The error says
// which option makes no sense and which values would do.
func New(client *transport.Client, name string, options Options) (*Lease, error) {
	if name == "" {
		return nil, errors.New("lease: the name is empty")
	}
	if err := options.complete(client.ClientID()); err != nil {
		return nil, fmt.Errorf("lease: %q: %w", name, err)
	}
	return &Lease{client: client, name: name, options: options}, nil
}

// Name returns the lease's name.
func (l *Lease) Name() string { return l.name }

// Holder describes the holder of a lease at one moment.
type Holder struct {
	// Held is false if the lease is free. The other fields are then zero.
	Held bool
	// Name is the holder's name.
	Name string
	// Value is the value of the lease's key. It differs between two tenures, those of
	// one holder too.
	Value string
	// Version is that of the latest renewal. It is not a fencing token.
	Version hlc.Timestamp
}

// LastHolder returns the holder of which this Lease heard last while it waited, observed or
// asked. It does not ask the store, so the answer may be old, and a notification may have
// been forged: it is for display. It is the zero Holder if the lease was free, if nothing
// was heard yet, or if this Lease acquired the lease since.
func (l *Lease) LastHolder() Holder {
	if last := l.last.Load(); last != nil {
		return *last
	}
	return Holder{}
}

// heard returns the holder that an entry names, and keeps it for LastHolder.
func (l *Lease) heard(entry transport.Entry) Holder {
	holder := holderOf(entry)
	l.last.Store(&holder)
	return holder
}

func holderOf(entry transport.Entry) Holder {
	if !entry.Exists {
		return Holder{}
	}
	value := string(entry.Value)
	name := value
	if colon := strings.LastIndexByte(value, ':'); colon >= 0 {
		name = value[:colon]
	}
	return Holder{Held: true, Name: name, Value: value, Version: entry.Version}
}

// Holder asks the store who holds the lease at this moment.
func (l *Lease) Holder(ctx context.Context) (Holder, error) {
	entry, err := l.client.Get(ctx, l.name)
	if err != nil {
		return Holder{}, fmt.Errorf("lease: holder of %q: %w", l.name, err)
	}
	return l.heard(entry), nil
}

// TryAcquire acquires the lease if it is free. If somebody has it the error is a
// *HeldError, which names the holder; this process is somebody too, since each
// tenure is a holder of its own.
//
// A request without an answer is repeated, with the same effect as if it had
// been sent once, until ctx ends. If it ends first the error matches
// transport.ErrOutcomeUnknown, and the client tries in the background to free
// what may have been acquired.
func (l *Lease) TryAcquire(ctx context.Context) (*Tenure, error) {
	if l.options.InstantFailover { // spare the client a new connection that would be of no use
		if holder, err := l.Holder(ctx); err == nil && holder.Held {
			return nil, &HeldError{Lease: l.name, Holder: holder}
		}
	}
	tenure, err := l.campaign(ctx, nil, func(c *candidacy) (*Tenure, error) {
		tenure, _, err := l.try(ctx, c)
		return tenure, err
	})
	if !errors.Is(err, transport.ErrConditionFailed) {
		return tenure, l.acquireError(err)
	}
	entry, unread := l.client.Get(ctx, l.name)
	held := &HeldError{Lease: l.name} // also if the holder cannot be read
	if unread == nil {
		held.Holder = l.heard(entry)
	}
	if errors.Is(err, transport.ErrOutcomeUnknown) {
		return nil, l.acquireError(fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, held))
	}
	return nil, held
}

// Acquire waits until the lease is free and acquires it. It also waits out what can pass:
// no connection, a store that does not answer, a refusal (transport.ErrNotAuthorized,
// ErrQuotaExceeded, a clock that is wrong, …). Options.OnWaiting gets such a reason. Like
// TryAcquire it leaves no silent holder behind.
//
// It returns when it holds the lease, when ctx ends, or when waiting is in vain: because
// the client is closed or was taken over (transport.ErrClosed, ErrSessionTakenOver), or
// because the program must change. The program must change if the request is too large or
// makes no sense to the store (transport.ErrPacketTooLarge, ErrSyntax, ErrUnknownCommand,
// ErrWrongNumberOfArguments, ErrKeyLengthZero, ErrMissingTimestamp, ErrMalformedTimestamp,
// ErrLockRule), or if InstantFailover is not possible (transport.ErrWillInUse, or a
// keep-alive that does not fit the TTL).
//
// If ctx ends first, the error matches the cause of ctx. It matches ErrHeld too, with the
// last known holder in a *HeldError, if the store last said that another holds the lease.
// It says why the latest request failed, and matches the sentinel of a refusal. It matches
// transport.ErrOutcomeUnknown if the lease may have been acquired.
func (l *Lease) Acquire(ctx context.Context) (*Tenure, error) {
	var queue *waiter
	defer func() {
		if queue != nil {
			queue.close()
		}
	}()
	why := &obstacle{lease: l}
	backoff := l.options.retryBackoff(l.options.Jitter) // after refusals
	tenure, err := l.campaign(ctx, why, func(c *candidacy) (*Tenure, error) {
		if queue == nil && l.options.AcquireDelay > 0 {
			var err error
			if queue, err = l.newWaiter(why, hlc.Timestamp{}); err != nil {
				return nil, err
			}
		}
		for wait := l.options.AcquireDelay > 0; ; wait = true {
			var tenure *Tenure
			var version hlc.Timestamp
			var err error
			if wait {
				err = queue.turn(ctx, c.lost)
			}
			if err == nil {
				tenure, version, err = l.try(ctx, c)
			}
			held := errors.Is(err, transport.ErrConditionFailed)
			if err == nil || !held && (ctx.Err() != nil || errors.Is(err, errReconnected) || inVain(err)) {
				return tenure, err
			}
			if unheld := held && version.IsZero(); unheld {
				why.met(&HeldError{Lease: l.name})
			} else if held {
				why.refused()
				backoff.reset()
			} else if why.met(err) {
				l.options.Logger.Warn("the lease cannot be acquired for now", "lease", l.name, "error", err)
			}
			if queue == nil {
				if queue, err = l.newWaiter(why, version); err != nil {
					return nil, err
				}
			}
			if held {
				// Without a version there is no holder: the store is in its hold-off, and does
				// not notify when that ends.
				queue.deaf = queue.deaf || version.IsZero()
				queue.refused(version)
			} else {
				queue.rest(backoff.next(random.Fraction()))
			}
		}
	})
	if err != nil && ctx.Err() != nil && !inVain(err) {
		err = why.gaveUp(ctx, err)
	}
	return tenure, l.acquireError(err)
}

func (l *Lease) acquireError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("lease: acquire %q: %w", l.name, err)
}

// try sets the key to the candidate's value unless another has it, and repeats that
// while the outcome is unknown. Repeating is safe: to the store it is a renewal. If the
// store refuses, version is what stood in the way.
func (l *Lease) try(ctx context.Context, c *candidacy) (tenure *Tenure, version hlc.Timestamp, err error) {
	backoff, replaced := l.options.retryBackoff(0), false
	for {
		if l.options.EndOnDisconnect && c.bequest == nil {
			c.lost = l.client.Lost()
		}
		c.store, c.replaced = l.client.Store()
		known := c.replaced != nil
		c.connection = l.client.Unbroken()
		sent := l.options.Clock()
		version, err = l.set(ctx, c.value, c.binding())
		switch {
		case err == nil:
			late := l.options.Clock()-sent > l.options.RequestTimeout
			c.mayHold = true
			if known && !late && !isClosed(c.lost) && !isClosed(c.replaced) {
				tenure, err = l.begin(c, hlc.Token(version), sent)
				return tenure, version, err
			}
			if c.bequest == nil || !isClosed(c.lost) {
				// It took so long that little of the TTL is left, because the
				// process stood still; or it went by another connection than the
				// one to watch; or the store that granted it is gone; or it was the
				// client's first request, and could not be bound to a store. Ask again,
				// for a fresh deadline.
				continue
			}
		case errors.Is(err, transport.ErrConditionFailed):
			return nil, version, err
		case errors.Is(err, transport.ErrOutcomeUnknown):
			c.mayHold = true
		}
		if isRefusal(err) && !errors.Is(err, transport.ErrOtherStore) || isTerminal(err) || errors.Is(err, transport.ErrQuotaExceeded) {
			break
		}
		if c.bequest != nil && isClosed(c.lost) { // it went with the connection
			return nil, version, errReconnected
		}
		if now, _ := l.client.Store(); errors.Is(err, transport.ErrOtherStore) && now != c.store && !replaced {
			// It was bound to the store before, of which it holds nothing. The one that
			// refused it so is known now, and nothing stands in the way there.
			replaced = true
			continue
		}
		if ctx.Err() == nil {
			l.options.Logger.Warn("an attempt to acquire failed and will be repeated", "lease", l.name, "error", err)
			c.why.met(err)
		}
		if !sleep.For(ctx, backoff.next(random.Fraction())) {
			break
		}
	}
	return nil, version, err
}

// asNotSent turns the error of a GET into the error of the request that should have followed
// and was not sent: an unknown outcome of the GET is not an unknown outcome of the request.
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

// set makes one attempt to set the key, bounded in time.
func (l *Lease) set(ctx context.Context, value string, binding transport.Binding) (hlc.Timestamp, error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.RequestTimeout)
	defer cancel()
	version, err := l.client.Set(ctx, l.name, []byte(value), transport.SetOptions{
		Condition: transport.IfMissingOrEqual,
		TTL:       l.options.TTL,
		Binding:   binding,
		Urgent:    true,
	})
	l.probeIfUnanswered(l.client, err)
	return version, err
}

// get reads the lease's key, bounded in time.
func (l *Lease) get(ctx context.Context, client *transport.Client, binding transport.Binding) (transport.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, l.options.RequestTimeout)
	defer cancel()
	entry, err := client.GetWith(ctx, l.name, transport.GetOptions{Binding: binding, Urgent: true})
	l.probeIfUnanswered(client, err)
	return entry, err
}

// probeIfUnanswered has the connection probed if err says that a request was not answered
// in time. If the connection is dead, the next attempt goes over a new one; otherwise each
// would go over this one until the keep-alive notices.
func (l *Lease) probeIfUnanswered(client *transport.Client, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		client.Probe(l.options.probe())
	}
}

// abandon frees, in the background, what an acquisition may have left.
func (l *Lease) abandon(value string, binding transport.Binding) {
	l.client.Go(func(ctx context.Context) {
		if err := l.free(ctx, value, binding, l.options.TTL); err != nil {
			l.options.Logger.Warn("an abandoned acquisition may hold the lease until its TTL ends", "lease", l.name, "error", err)
		}
	})
}

// free deletes the key if it holds value, and repeats that while the outcome is
// unknown, until ctx ends. It is nil when nothing of value is left: at the latest after
// within, which is how long the store keeps it anyway, or when another store is there.
func (l *Lease) free(ctx context.Context, value string, binding transport.Binding, within time.Duration) error {
	backoff, end := l.options.retryBackoff(0), time.Now().Add(within)
	for {
		attempt, cancel := context.WithTimeout(ctx, min(l.options.RequestTimeout, time.Until(end)))
		_, err := l.client.VDel(attempt, l.name, []byte(value), transport.DelOptions{Binding: binding, Urgent: true})
		cancel()
		l.probeIfUnanswered(l.client, err)
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
