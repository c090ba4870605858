package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// Lease is a name in the store and the settings under which this process holds it. It has
// no state of its own: what it acquires is a Tenure. It is safe for concurrent use.
type Lease struct {
	client  *transport.Client
	name    string
	options Options
	delay   atomic.Int64           // Options.AcquireDelay, until SetAcquireDelay changes it
	last    atomic.Pointer[Holder] // what LastHolder returns; nil: not known
	left    atomic.Pointer[left]   // what this Lease may have left in the store last; nil: nothing
	limit   loglimit.Limiter       // of log lines about attempts that fail

	freed atomic.Pointer[chan struct{}] // closed when all acquisitions that were given up are freed; nil: none was
}

// left is a value that could not be freed, and that the store may still have: also after its
// lifetime, because a store that restarts with its data gives the value its whole lifetime again.
type left struct {
	value string
	store string // the identity of the store; empty if it has none
}

// New returns a lease on name, which is the key in the store. The error says which option
// makes no sense and which values would do.
func New(client *transport.Client, name string, options Options) (*Lease, error) {
	if name == "" {
		return nil, errors.New("lease: the name is empty")
	}
	if err := options.complete(client.ClientID()); err != nil {
		return nil, fmt.Errorf("lease: %q: %w", name, err)
	}
	options.Logger = client.Dispatched(options.Logger)
	l := &Lease{client: client, name: name, options: options}
	l.SetAcquireDelay(options.AcquireDelay)
	return l, nil
}

// SetAcquireDelay replaces Options.AcquireDelay, also for an Acquire that waits already, from the next
// time on at which it finds the lease free. A negative delay is none.
func (l *Lease) SetAcquireDelay(delay time.Duration) { l.delay.Store(int64(delay)) }

func (l *Lease) acquireDelay() time.Duration { return time.Duration(l.delay.Load()) }

// Name returns the lease's name.
func (l *Lease) Name() string { return l.name }

// Holder describes the holder of a lease at one moment.
type Holder struct {
	// Held is false if the lease is free. The other fields are then zero.
	Held bool
	// Name is the holder's name.
	Name string
	// Value is the value of the lease's key. No two tenures have the same, even of one holder.
	Value string
	// Version is the version of the latest renewal. It is not a fencing token.
	Version hlc.Timestamp
}

// LastHolder returns the holder that an answer or a notification named last. It does not ask
// the store, so it may be old or forged: it is for display. It is the zero Holder if the
// lease was free, if no holder was named yet, or if this Lease acquired the lease since.
func (l *Lease) LastHolder() Holder {
	return *cmp.Or(l.last.Load(), &Holder{})
}

// heard returns the holder that an entry names, and notes it for LastHolder.
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
	name, _ := protocol.HolderOf(value)
	return Holder{Held: true, Name: name, Value: value, Version: entry.Version}
}

// Holder asks the store which holder the lease has at this moment.
func (l *Lease) Holder(ctx context.Context) (Holder, error) {
	entry, err := l.client.Get(ctx, l.name)
	if err != nil {
		return Holder{}, operror.New("lease: holder of", l.name, operror.Inner(err))
	}
	return l.heard(entry), nil
}

// bounded returns binding with a bound in time, counted from now, unless it has a closer one. The request is urgent.
func bounded(binding transport.Binding, bound time.Duration) transport.Binding {
	binding.Urgent = true
	if until := time.Now().Add(bound); binding.Until.IsZero() || until.Before(binding.Until) {
		binding.Until = until
	}
	return binding
}

// set sends one request to set the key, bounded in time. probe is as in probeAfter.
func (l *Lease) set(ctx context.Context, value string, binding *transport.Binding,
	probe time.Duration) (hlc.Timestamp, error) {
	version, err := l.client.Set(ctx, l.name, []byte(value), transport.SetOptions{
		Condition: transport.IfMissingOrEqual,
		TTL:       l.options.TTL,
		Binding:   bounded(*binding, l.options.RequestTimeout),
	})
	return version, l.probeAfter(l.client, err, probe)
}

// get reads the key, bounded in time. probe is as in probeAfter.
func (l *Lease) get(ctx context.Context, client *transport.Client, binding transport.Binding,
	probe time.Duration) (transport.Entry, error) {
	entry, err := client.GetWith(ctx, l.name, bounded(binding, l.options.RequestTimeout))
	return entry, l.probeAfter(client, err, probe)
}

// probeAfter takes note of the result of a request, and returns its error without the key,
// which the errors of this package name themselves. After a request that was not answered in
// time the connection is probed: if it is dead, the next attempt goes over a new one. Without
// the probe each attempt would go over this one until the keep-alive ends it. The broker has the time
// probe for a sign of life.
func (l *Lease) probeAfter(client *transport.Client, err error, probe time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		client.Probe(probe)
	}
	return operror.Inner(err)
}

// abandon frees, in the background, what an attempt may have acquired.
func (l *Lease) abandon(value string, binding transport.Binding) {
	freed := make(chan struct{})
	before := l.freed.Swap(&freed)
	if !l.client.Go(func(ctx context.Context) {
		defer close(freed)
		if err := l.free(ctx, value, binding, l.options.TTL); err != nil {
			l.options.Logger.Warn("an abandoned acquisition may hold the lease until its TTL ends",
				"lease", l.name, "error", err)
		}
		if before != nil {
			<-*before
		}
	}) {
		close(freed)
	}
}

// AwaitReleases waits until no acquisition that was given up is being freed in the background. Closing the
// client ends that work, so a program that gives up an acquisition and then closes the client calls
// AwaitReleases in between, with a bound: otherwise the store may keep the lease until its TTL ends. The
// error is the cause of the end of ctx. What could not be freed within the TTL is logged.
func (l *Lease) AwaitReleases(ctx context.Context) error {
	freed := l.freed.Load()
	if freed == nil || closed.Is(*freed) {
		return nil
	}
	select {
	case <-*freed:
		return nil
	case <-ctx.Done():
		return operror.New("lease: await releases", l.name, context.Cause(ctx))
	}
}

// free deletes the key if it holds value, and repeats that while the outcome is unknown, until
// ctx ends or within has passed, but for one RequestTimeout at least. The error is nil once the
// store no longer holds value, or another store answers. Time alone does not show that: see left.
// After an error the next acquisition that meets the value frees it, unless the request is bound
// to a connection.
func (l *Lease) free(ctx context.Context, value string, binding transport.Binding, within time.Duration) (err error) {
	defer func() {
		if err != nil && binding.Connection == nil {
			l.left.Store(&left{value, binding.Store})
		}
	}()
	began := time.Now()
	f := l.options.newFreeing(0, within)
	for {
		timeout := max(min(l.options.RequestTimeout, f.end-time.Since(began)), 1)
		_, err := l.client.VDel(ctx, l.name, []byte(value), transport.DelOptions{Binding: bounded(binding, timeout)})
		var next requestAction
		f, next = f.next(time.Since(began), l.probeAfter(l.client, err, l.options.probe()),
			closed.Is(binding.Connection), random.Fraction)
		if next.do == stop || !sleep.For(ctx, next.pause) || time.Since(began) >= f.end {
			return next.err
		}
	}
}

// freeLeft frees what this Lease may have left in the store. It reports whether there was
// something, and the store no longer has it: then the lease may be free.
func (l *Lease) freeLeft(ctx context.Context) bool {
	former := l.left.Swap(nil)
	return former != nil && l.free(ctx, former.value, transport.Binding{Store: former.store}, 0) == nil
}
