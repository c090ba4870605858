// Package standby has what a process needs that shares the data of a store with others, of which one is active at
// a time: a [Replica] stands by, serves and stands by again, on a [Listener] that stays open.
package standby

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server"
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
	// Listener is where clients connect. While the process stands by, server.StandBy answers them. Those that come
	// while a new store loads wait for it. Run closes it. Nil: there is nothing to answer, because the store is a
	// client of a broker.
	Listener *Listener
	// Options and Active are for server.StandBy.
	Options server.Options
	Active  func() string

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
		logger.Warn("this process is no longer the active one; it drops what it has in memory and stands by",
			"reason", deposed)
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
	var journal Journal
	err = r.answering(func() (err error) {
		journal, err = r.Campaign(ctx)
		return err
	})
	switch {
	case journal == nil && ctx.Err() != nil:
		return nil, nil
	case journal == nil:
		return nil, err
	case err == nil: // a client that comes now waits for the store
		err = r.serve(ctx, journal)
	}
	why := journal.Err() // before Close, which is a reason too
	if why == nil || !r.StandByAfter(why) || ctx.Err() != nil {
		r.closeListener()
		closed := journal.Close()
		if why != nil && r.StandByAfter(why) { // another process may have taken over already
			return why, nil
		}
		return nil, cmp.Or(err, why, closed)
	}
	// Close may wait for an etcd that is out of reach. Clients must not.
	return why, r.answering(func() error {
		_ = journal.Close() // another process may have taken over already
		sleep.For(ctx, campaignPause)
		return nil
	})
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
	store, err := r.Open(ctx, journal, socket)
	switch {
	case err == nil:
		return store.Serve(ctx)
	case ctx.Err() != nil:
		return nil
	}
	return err
}

// answering calls do while clients are told that the process stands by.
func (r *Replica) answering(do func() error) error {
	if r.Listener == nil {
		return do()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	options := r.Options
	options.Listener = r.Listener.Lend()
	answered := make(chan error, 1)
	go func() { answered <- server.StandBy(ctx, options, r.Active) }()
	err := do()
	cancel()
	return cmp.Or(err, <-answered)
}
