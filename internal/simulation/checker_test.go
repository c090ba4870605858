package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// checker knows what the store did, in its order, and what each tenure reports, and compares
// the two by true time, which is the time of the bubble. The numbers refer to
// docs/invariants.md. It checks
//
//   - each tenure, whenever the store applied something to the lease, when a tenure begins
//     and every second: it must not call itself valid while, or until after, the store does
//     not hold its value. Values are unique, so no two tenures can pass at once (invariants
//     1 to 6, 22);
//   - each tenure, when the store was restarted without its data: it must not renew at a
//     store that did not grant it, write there, or go on after that store has answered. With
//     a hold-off the new store must not grant the lease while an old tenure calls itself
//     valid, nor one that was restored from a backup (47);
//   - each durable store that starts again after a crash: what it has is the last state that
//     was acknowledged or a newer one, and no token or version is lower than before (11, 33, 36, 37, 59);
//   - each write to the protected key: its token is the one token of a tenure and not older
//     than the last, and the first write of a tenure changes nothing, as a claim does (11 to
//     14, 17);
//   - each acquisition: most of its time is left (10), or, if it failed, nothing is left in
//     the store but what its error reports (19);
//   - each request: it does not belong to a tenure that was released (18), and not many go
//     out at once (28);
//   - each campaign: only an error that cannot pass ends it (50);
//   - each leader in an hour of gentle faults, such as half-open connections and wall clocks
//     that step by hours: it keeps its lease (48, 49, 52);
//   - each tenure that ends with its connection: nothing of it is sent over the next (53);
//   - each end: its cause agrees with what happened, and stays the same (9);
//   - the calm at the end of the hour: a node leads, in time, and stays the leader (25).
//
// It is called with the store's lock held, so it asks the store nothing.
type checker struct {
	sim *simulation

	mu         sync.Mutex
	violations []string
	requests   int
	ends       map[string]int
	tenures    []*holding
	valid      []*holding // those that may still be valid

	// The store, from its tap.
	store    string                   // its identity: what follows is about this one
	value    string                   // of the lease's key; empty when it is free
	expires  time.Duration            // when value goes, on the simulation's time
	highest  hlc.Timestamp            // of all versions of the lease's key
	versions map[hlc.Timestamp]string // of all stores
	grants   map[hlc.Timestamp]string // the identity of the store that gave each version
	refused  map[string]bool          // values whose SET met another holder
	tokens   map[string]string        // the token of each value, as writes carry it
	fenced   map[string]bool          // tokens that were refused as older
	held     string                   // the last value, also after its expiry
	restored string                   // the value that a backup has, and that its store did not grant
	released bool                     // the present store found a lease that ended with its connection, and nothing has set it since
	freeing  map[string]bool          // values that a VDEL was sent for
	willed   map[string]bool          // values that a Will may release
	count    hlc.Timestamp            // the version of the protected key
	written  string                   // the value of the protected key
	writer   hlc.Token                // and its token
	began    hlc.Token                // the highest token with which a tenure began
	numbers  map[string]int           // of values, for the trace
	bursts   map[*process]int         // requests in the present second
	latest   map[*process]string      // the value that each sent last in a SET
	owners   map[string]*holding      // by value
	firsts   map[string]bool          // values with which processes began

	leftAlone bool     // by the last fault
	final     *holding // the leader after it
}

// holding is a tenure, and what the checker knows about it.
type holding struct {
	process   *process
	tenure    *lease.Tenure
	value     string
	name      string
	token     hlc.Token
	store     string          // the identity of the store that granted it
	jumps     int64           // of its machine's clock, when the tenure began
	lost      <-chan struct{} // closed when the connection on which it began is lost
	releasing atomic.Bool
	released  atomic.Bool
	cause     error
	forgotten bool // its process was killed: nothing acts on it
}

func newChecker(s *simulation) *checker {
	return &checker{
		sim:      s,
		ends:     make(map[string]int),
		versions: make(map[hlc.Timestamp]string),
		grants:   make(map[hlc.Timestamp]string),
		refused:  make(map[string]bool),
		tokens:   make(map[string]string),
		fenced:   make(map[string]bool),
		numbers:  make(map[string]int),
		bursts:   make(map[*process]int),
		latest:   make(map[*process]string),
		owners:   make(map[string]*holding),
		firsts:   make(map[string]bool),
		freeing:  make(map[string]bool),
		willed:   make(map[string]bool),
	}
}

func (c *checker) violation(format string, arguments ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violationLocked(format, arguments...)
}

func (c *checker) violationLocked(format string, arguments ...any) {
	text := fmt.Sprintf(format, arguments...)
	c.sim.tracef("VIOLATION %s", text)
	if len(c.violations) < 10 {
		c.violations = append(c.violations, fmt.Sprintf("%v: %s", c.sim.elapsed(), text))
	}
}

// nameLocked returns the name of a value in the trace: values are random.
func (c *checker) nameLocked(value string) string {
	if value == "" {
		return "no tenure"
	}
	holder, _, found := strings.Cut(value, ":")
	if !found {
		return value
	}
	number, known := c.numbers[value]
	if !known {
		number = len(c.numbers) + 1
		c.numbers[value] = number
	}
	return fmt.Sprintf("%s#%d", holder, number)
}

// checkLocked asks every tenure whether it is valid, and checks that it may be.
func (c *checker) checkLocked() {
	still := c.valid[:0]
	for _, h := range c.valid {
		if !h.forgotten && h.tenure.Remaining() > 0 {
			still = append(still, h)
		}
	}
	clear(c.valid[len(still):])
	c.valid = still
	for _, h := range c.valid {
		if h.process.node.clock.stops.Load() == nil { // else nothing acts on it
			c.checkOneLocked(h)
		}
	}
}

func (c *checker) checkOneLocked(h *holding) {
	now := c.sim.elapsed()
	if h.store != c.store {
		// The store that granted it is gone, and its node need not know yet.
		if c.sim.holdOff > 0 && c.value != "" && c.value != c.restored && now < c.expires {
			c.violationLocked("%s calls itself valid, and another store has granted the lease to %s", h.name, c.nameLocked(c.value))
		}
		return
	}
	left := time.Duration(float64(h.tenure.Remaining()) / h.process.node.clock.rate) // true time
	switch {
	case left <= 0:
	case c.value != h.value:
		c.violationLocked("%s calls itself valid for %v, but the store holds %s", h.name, left, c.nameLocked(c.value))
	case now+left > c.expires:
		c.violationLocked("%s calls itself valid for %v, but the store holds it for %v", h.name, left, c.expires-now)
	}
}

// begin notes a tenure as soon as its owner has it.
func (c *checker) begin(p *process, tenure *lease.Tenure) *holding {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &holding{process: p, tenure: tenure, lost: p.client.Lost(), name: p.name + " (over at once)", jumps: p.node.clock.jumps.Load()}
	c.tenures = append(c.tenures, h)
	p.work.Go(func() { c.watch(h) })
	token, err := tenure.Token()
	if err != nil {
		return h
	}
	version := hlc.Timestamp(token)
	value, issued := c.versions[version]
	h.token, h.value, h.name, h.store = token, value, c.nameLocked(value), c.grants[version]
	c.sim.tracef("%s: has %s", p.name, h.name)
	switch {
	case !issued:
		c.violationLocked("%s began under a token that the store never gave", p.name)
	case c.owners[value] != nil:
		c.violationLocked("two tenures have the value of %s", h.name)
	case h.store == c.store && token.Compare(c.began) <= 0:
		c.violationLocked("%s began under token %v after %v", h.name, token, c.began)
	}
	if c.owners[value] = h; h.store == c.store {
		c.began = token
	}
	c.valid = append(c.valid, h)
	c.checkLocked()
	return h
}

// fresh checks that a useful part is left of a tenure that Acquire has just returned (10).
func (c *checker) fresh(h *holding) {
	if _, err := h.tenure.Token(); err != nil {
		return // it lost its client id, or its client was closed, at this very moment
	}
	// The request may have taken all of its time, which is counted by another clock than the lease's.
	took := time.Duration(float64(requestTimeout) * h.process.node.clock.rate)
	if left := h.tenure.Remaining(); left < ttl-margin-took {
		c.violation("%s was acquired with %v left", h.name, left)
	}
}

// failed checks an acquisition that failed. It must not hold the lease, unless its error says
// that it may; then it is released (19).
func (c *checker) failed(p *process, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	value := c.latest[p]
	if value != "" && value == c.value && c.sim.elapsed() < c.expires && c.owners[value] == nil && !errors.Is(err, transport.ErrOutcomeUnknown) {
		c.violationLocked("%s failed to acquire the lease, and the store holds its %s for %v: %v", p.name, c.nameLocked(value), c.expires-c.sim.elapsed(), err)
	}
}

// watch waits for the end of a tenure and checks its cause.
func (c *checker) watch(h *holding) {
	await.Receive(h.tenure.Context().Done())
	left := h.tenure.Remaining()
	_, over := h.tenure.Token()
	c.mu.Lock()
	defer c.mu.Unlock()
	h.cause = context.Cause(h.tenure.Context())
	c.sim.tracef("%s: %s ends: %v", h.process.name, h.name, h.cause)
	replaced := h.store != c.store
	is := func(cause error) bool { return errors.Is(h.cause, cause) }
	name, holds := "another cause", false
	switch {
	case is(lease.ErrReleased):
		name = "released"
		holds = h.releasing.Load() || h.process.node.elects
	case is(lease.ErrLost):
		name = "lost"
		holds = c.refused[h.value] || replaced
	case is(lease.ErrDeleted):
		name, holds = "deleted", replaced
	case is(lease.ErrStoreReplaced):
		name = "store replaced"
		holds = c.sim.stores > 1 // a late reply of the earlier store may say so, too
	case is(lease.ErrConnectionLost):
		name = "connection lost"
		holds = c.sim.instant || h.process.node.fragile
	case is(lease.ErrFencedOut):
		name = "fenced out"
		holds = c.fenced[h.token.String()]
	case is(lease.ErrDeadlinePassed):
		name = "deadline passed"
		// The context ends while the token is still valid, unless the clock jumped. At the same
		// instant the owner may have released, or the connection may have been lost.
		holds = left > 0 || !errors.Is(over, lease.ErrDeadlinePassed) || h.jumps != h.process.node.clock.jumps.Load()
	case is(transport.ErrClosed):
		name = "closed"
		holds = h.process.ctx.Err() != nil
	case is(transport.ErrSessionTakenOver):
		name = "taken over"
		holds = h.process.succeeded.Load()
	}
	c.ends[name]++
	// By the owner, or because another process took the client id.
	intended := slices.Contains([]string{"released", "closed", "taken over"}, name)
	if c.sim.gentle && c.sim.elapsed() < lastAt && !intended && !h.process.node.endsWithConnection() && !h.forgotten {
		c.violationLocked("%s was lost, and there were only faults that it must outlast: %v", h.name, h.cause)
	}
	if !holds && h.value != "" {
		c.violationLocked("%s ended for a reason that was not there: %v, %v before its deadline", h.name, h.cause, left)
	}
}

// forget notes that a process was killed.
func (c *checker) forget(p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.tenures {
		if h.process == p {
			h.forgotten = true
		}
	}
}

// finish checks all tenures once more, when all processes are gone.
func (c *checker) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.tenures {
		if h.tenure.Remaining() != 0 {
			c.violationLocked("%s outlived its process", h.name)
		}
		if h.cause == nil || context.Cause(h.tenure.Context()) != h.cause {
			c.violationLocked("%s ended by %v, and now by %v", h.name, h.cause, context.Cause(h.tenure.Context()))
		}
	}
}

// leader returns the node with a valid tenure, nil if there is none.
func (c *checker) leader() *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.leadingLocked(); h != nil {
		return h.process.node
	}
	return nil
}

func (c *checker) leadingLocked() *holding {
	c.checkLocked()
	for _, h := range c.valid {
		if h.store == c.store {
			return h
		}
	}
	return nil
}

// last notes that the last fault has happened, and whether the leader stays.
func (c *checker) last(leftAlone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leftAlone = leftAlone
	if leftAlone {
		c.final = c.leadingLocked()
	}
}

// sample checks everything once a second.
func (c *checker) sample() {
	now := c.sim.elapsed()
	c.mu.Lock()
	defer c.mu.Unlock()
	for p, n := range c.bursts {
		if n > tooMany {
			c.violationLocked("%s sent %d requests in a second", p.name, n)
		}
	}
	clear(c.bursts)
	leading := c.leadingLocked()
	switch {
	case now < calmAt+calmWithin:
	case now < lastAt:
		if leading == nil {
			c.violationLocked("no node leads %v after the last fault", now-calmAt)
		}
	case now >= lastAt+lastWithin || c.leftAlone:
		if leading == nil {
			c.violationLocked("no node leads %v after the leader went", now-lastAt)
		} else if c.final == nil {
			c.final = leading
		} else if leading != c.final {
			c.violationLocked("%s leads in place of %s, and no fault was there", leading.name, c.final.name)
		}
	}
}

// campaignEnded checks why a campaign ended.
func (c *checker) campaignEnded(p *process, err error) {
	if p.ctx.Err() == nil && !errors.Is(err, transport.ErrClosed) && !errors.Is(err, transport.ErrSessionTakenOver) {
		c.violation("%s ended its campaign: %v", p.name, err)
	}
}
