// Package electapi tells the programs of a machine, in any language, whether this node leads. It answers
// over HTTP on a Unix socket or on an address of this machine:
//
//	GET  /               the state, as JSON
//	GET  /events         the state whenever it changes, as server-sent events
//	POST /drained        {"token": "…"}: the program does nothing any more under that token
//
// A program asks for the state before it acts, and counts deadline_ms from the moment before it asked. The
// deadline is computed from the clock of the lease while the request is handled, so such a program is as safe
// as one that calls [lease.Tenure.Token]. Events say when to begin and when to stop. They may be read late, so
// they have no deadline.
//
// When a term ends, its lease is kept until the program has confirmed that it has drained, or until the
// deadline. It is released at once if no answer ever said that the node leads: then no program acts.
package electapi

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/watchdog"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
)

// State is the answer to GET /.
type State struct {
	// Leading: the program may act until DeadlineMS has passed.
	Leading bool `json:"leading"`
	// Draining: the node has led. The program must stop, and confirm it, before DeadlineMS has passed.
	Draining bool `json:"draining"`
	// Token is the fencing token while the node leads or drains. SortableToken is the same for databases:
	// see [fencing.SortableText].
	Token         string `json:"token,omitempty"`
	SortableToken string `json:"sortable_token,omitempty"`
	// DeadlineMS is how many milliseconds the lease lasts without another renewal. Events have none.
	DeadlineMS *int64 `json:"deadline_ms,omitempty"`
	// Holder is the name under which the lease is held, as far as this node knows.
	Holder string `json:"holder"`
	// Cause is why this node does not lead, if anything but another leader keeps it.
	Cause string `json:"cause,omitempty"`
}

// Options of an Election.
type Options struct {
	// Watchdog opens a device that resets the machine if the lease ends before the program has drained, or
	// returns nil. After an error the term does not start.
	Watchdog func() (*watchdog.Dog, error)
	Logger   *slog.Logger
}

// Election is what one elector says to the programs of its machine. Its methods are safe for concurrent use.
type Election struct {
	Options
	status func() election.Status

	mu      sync.Mutex
	term    *term         // the latest; nil: there was none
	dog     *watchdog.Dog // of that term, while it is open
	changed chan struct{} // closed when the state changes
}

// A term is what Lead runs for.
type term struct {
	*election.Term
	ctx     context.Context
	drained chan struct{} // closed by the program's confirmation

	// Guarded by Election.mu.
	token     string
	announced bool // an answer said that the node leads
	over      bool // Lead has returned
}

// acts reports whether a program may act under the token of the term.
func (t *term) acts() bool {
	select {
	case <-t.drained:
		return false
	default:
		return t.announced
	}
}

// New returns an election without an elector.
func New(o Options) *Election { return &Election{Options: o, changed: make(chan struct{})} }

// Follow tells from which elector the state comes. It is called before the elector runs.
func (e *Election) Follow(elector *election.Elector) { e.status = elector.Status }

// Observe is the [election.Options.Observer].
func (e *Election) Observe(election.Status) { e.change(func() {}) }

// Lead is the function of a term: it returns when the program has drained, or when the lease is over.
func (e *Election) Lead(ctx context.Context, t *election.Term) error {
	token, err := t.Token()
	if err != nil {
		return err
	}
	var before *watchdog.Dog
	e.change(func() { before = e.dog })
	if before != nil {
		return errors.New("the program of an earlier term has not drained, and the watchdog is about to reset this machine")
	}
	dog, err := e.Watchdog()
	if err != nil {
		return err
	}
	current := &term{Term: t, ctx: ctx, drained: make(chan struct{}), token: token.String()}
	e.change(func() { e.term, e.dog = current, dog })
	defer e.change(func() { current.over = true })
	if dog == nil {
		e.drain(current)
		return nil
	}
	var feeding sync.WaitGroup
	ended, end := context.WithCancel(context.Background())
	feeding.Go(func() { e.feed(ended, dog, current) })
	e.drain(current)
	end()
	feeding.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	current.over = true // together with what follows: a confirmation comes before or after both
	if current.acts() {
		e.Logger.Error("the lease is over and the program has not drained: the watchdog resets the machine",
			"after", dog.Timeout)
		return nil // the device stays open, unless the confirmation still comes
	}
	return e.stopDog()
}

// stopDog stops the watchdog: no program acts. The caller holds e.mu.
func (e *Election) stopDog() error {
	dog := e.dog
	e.dog = nil
	return dog.Close()
}

// drain returns when the term has ended and its program has drained, or when the lease is over.
func (e *Election) drain(current *term) {
	<-current.ctx.Done()
	e.change(func() {})
	if e.acts(current) {
		select {
		case <-current.drained:
		case <-current.Tenure().TokenContext().Done():
		}
	}
}

// feed feeds the watchdog while the lease lasts, or while no program acts.
func (e *Election) feed(ctx context.Context, dog *watchdog.Dog, current *term) {
	tick := time.NewTicker(dog.Interval())
	defer tick.Stop()
	for {
		left := current.Tenure().Remaining()
		if !e.acts(current) {
			left = dog.Timeout
		}
		if err := dog.Feed(left); err != nil {
			e.Logger.Error("the watchdog cannot be fed, and will reset the machine", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (e *Election) acts(t *term) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return t.acts()
}

// change changes the state, and wakes the streams.
func (e *Election) change(with func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	with()
	close(e.changed)
	e.changed = make(chan struct{})
}

// State returns the state, and what is closed when it changes. The caller passes it on to a program.
func (e *Election) State() (State, <-chan struct{}) {
	status := e.status()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := State{Holder: status.Leader}
	if status.Cause != nil {
		s.Cause = status.Cause.Error()
	}
	if e.term == nil || e.term.over {
		return s, e.changed
	}
	left := e.term.Tenure().Remaining().Milliseconds()
	token, err := e.term.Token()
	if err != nil {
		s.Cause = err.Error()
		return s, e.changed
	}
	if e.dog != nil && !e.term.announced && left < e.dog.Timeout.Milliseconds() {
		s.Cause = "the lease ends before the watchdog would reset this machine"
		return s, e.changed // no program begins to act now
	}
	s.Leading = e.term.ctx.Err() == nil
	s.Draining = !s.Leading
	if s.Draining {
		s.Cause = context.Cause(e.term.ctx).Error()
	}
	e.term.announced = e.term.announced || s.Leading
	s.Token, s.DeadlineMS = e.term.token, &left
	s.SortableToken, _ = fencing.SortableText(token) // the store issues no malformed token
	return s, e.changed
}

// Drained notes that the program does nothing any more under a token. It reports whether the
// latest term has that token, and has ended.
func (e *Election) Drained(token string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.term == nil || e.term.token != token || e.term.ctx.Err() == nil {
		return false
	}
	select {
	case <-e.term.drained:
	default:
		close(e.term.drained)
		if e.term.over && e.dog != nil {
			if err := e.stopDog(); err != nil {
				e.Logger.Error("the watchdog cannot be stopped, and will reset the machine", "error", err)
			}
		}
	}
	return true
}
