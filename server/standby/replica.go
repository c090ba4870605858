package standby

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/statestore"
)

// Journal is the journal of a process that is active for a time. Package cluster has one.
type Journal interface {
	statestore.Journal
	// Done is closed when this process must not answer any more.
	Done() <-chan struct{}
	// Err returns nil until Done is closed, and then why it was. An error of Standing closes Done
	// before it is returned.
	Err() error
}

// Store answers requests until its context ends, as *server.Server and *attach.Store do.
type Store interface {
	// Serve answers until ctx ends. It returns nil then, or why it had to end before. It
	// returns when nothing of the store is left.
	Serve(ctx context.Context) error
}

// Replica is one of several processes that share the data of a store. It stands by until it is
// the active one, serves until it no longer is, and stands by again.
//
// A store is used for one time of being active, and made anew for the next: what a deposed process
// has in memory may be more than what is in the journal, because its last changes may have been
// refused. So it is dropped, and the next store loads what the journal has.
type Replica struct {
	// Listener is where clients connect. While the process stands by, it answers them as Serve
	// does. Those that come while a new store loads wait for it, for patience at most; then they are
	// answered like that too. Run closes it. Nil: there is nothing to answer, because the store is a
	// client of a broker.
	Listener *Listener
	// Options configures the answers to clients while the process stands by.
	Options Options

	// Campaign waits until this process is the active one, and returns its journal, which the
	// Replica closes. Its error ends Run.
	Campaign func(ctx context.Context) (Journal, error)
	// Open loads a journal and returns the store that serves it, on a socket that is Listener's,
	// or nil without a Listener. After an error it has closed nothing but what it opened.
	Open func(ctx context.Context, journal Journal, socket net.Listener) (Store, error)
	// StandByAfter reports whether the process stands by again after a journal has ended with this
	// error: because another process is the active one, or because it could not tell. After any
	// other error Run ends: the next process would meet the same. It is called with the error of
	// Journal.Err.
	StandByAfter func(err error) bool
}

// patience is how long clients wait for a store that loads before they are sent away. Most stores
// load in less, and a client that waits is served at once; one that is sent away comes back after a
// pause, and has another handshake then.
const patience = 2 * time.Second

// campaignPause is the least time from the end of one time of being active to the next campaign of
// the same process: another one comes first, where there is one that can serve.
const campaignPause = 500 * time.Millisecond

// Run stands by and serves until ctx ends. Then it returns nil, after the store has ended and the
// journal is closed, so that another process can take over at once. Any other error says why the
// process cannot go on. It closes Listener before the last journal: a client that connects to a process
// that ends would wait for an answer in vain. It may be called once.
func (r *Replica) Run(ctx context.Context) error {
	defer r.closeListener()
	logger := cmp.Or(r.Options.Logger, slog.New(slog.DiscardHandler))
	for {
		deposed, err := r.term(ctx)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return nil
		}
		logger.Warn("this process is no longer the active one; it drops what it has in memory and stands by", "reason", deposed)
		if !sleep.For(ctx, campaignPause) {
			return nil
		}
	}
}

// closeListener closes the port, so that clients go elsewhere at once.
func (r *Replica) closeListener() {
	if r.Listener != nil {
		_ = r.Listener.Close()
	}
}

// term stands by and serves once. Without an error, ctx has ended, or the process is to stand by again,
// since it was deposed.
func (r *Replica) term(ctx context.Context) (deposed, err error) {
	stopAnswering := r.answerAfter(0)
	defer func() {
		if failure := stopAnswering(); err == nil {
			err = failure
		}
	}()
	journal, err := r.Campaign(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, nil
		}
		return nil, err
	}
	if err = stopAnswering(); err == nil { // a client that comes now waits for the store
		err = r.serve(ctx, journal)
	}
	why := journal.Err() // before Close, which is a reason too
	if why != nil && r.StandByAfter(why) {
		deposed, err = why, nil
	}
	// Close may wait for an etcd that is out of reach. Clients must not.
	if deposed != nil && ctx.Err() == nil {
		stopAnswering = r.answerAfter(0)
	} else {
		r.closeListener()
	}
	closed := journal.Close()
	if deposed != nil { // another process may have taken over already
		return deposed, nil
	}
	return nil, cmp.Or(err, why, closed)
}

// serve loads a journal and serves it until ctx or the journal ends.
func (r *Replica) serve(ctx context.Context, journal Journal) error {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-journal.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	var socket net.Listener
	if r.Listener != nil {
		socket = r.Listener.Lend()
	}
	stopAnswering := r.answerAfter(patience)
	store, err := r.Open(ctx, journal, socket)
	failure := stopAnswering()
	switch {
	case err != nil && ctx.Err() != nil:
		return failure
	case err != nil:
		return err
	case failure != nil:
		cancel() // the store must be served to be closed
	}
	return errors.Join(failure, store.Serve(ctx))
}

// answerAfter begins to answer clients of a process that stands by, after a time in which they wait. stop ends
// that, and returns why it ended before; it may be called twice.
func (r *Replica) answerAfter(wait time.Duration) (stop func() error) {
	if r.Listener == nil {
		return func() error { return nil }
	}
	ctx, cancel := context.WithCancel(context.Background())
	var answering sync.WaitGroup
	var err error
	answering.Go(func() {
		if sleep.For(ctx, wait) {
			err = Serve(ctx, r.Listener.Lend(), r.Options)
		}
	})
	return func() error {
		cancel()
		answering.Wait()
		if err != nil {
			return fmt.Errorf("standby: clients cannot be answered: %w", err)
		}
		return nil
	}
}
