package simulation

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// checker knows what the store did, in its order, and what each tenure reports, and compares
// the two by true time, which is the time of the bubble. The numbers are those of
// docs/invariants.md. It checks
//
//   - each tenure, whenever the store applied something to the lease, when a tenure begins
//     and every second: it must not call itself valid while, or until after, the store does
//     not hold its value. Values are unique, so no two tenures can pass at once (invariants
//     1 to 6, 22);
//   - each tenure, when the store was restarted without its data: it must not renew at a
//     store that did not grant it, write there, or go on after that store has answered. With
//     a hold-off the new store must not grant the lease while an old tenure calls itself
//     valid (47);
//   - each tenure, when a backup was restored: the same (47);
//   - each durable store that starts again after a crash: what it has is the last state that
//     was acknowledged or a newer one, no key is there that was seen gone, and no token or
//     version is lower than before (11, 33, 36, 37, 59);
//   - each write to the protected key: its token is the one token of a tenure and not older
//     than the last, and the first write of a tenure changes nothing, as a claim does (11 to
//     14, 17);
//   - each acquisition: most of its time is left (10), or, if it failed, nothing is left in
//     the store but what its error reports (19);
//   - each request: it does not belong to a tenure that was released (18), and not many go
//     out at once (28);
//   - each campaign: only an error that cannot pass ends it, and a hold-off follows each
//     short term (50). An unhealthy node does not lead, an observer does not keep the lease
//     (45), and a status does not contradict itself;
//   - each leader in an hour of gentle faults, such as half-open connections and wall clocks
//     that step by hours: it keeps its lease (48, 49, 52);
//   - each tenure that ends with its connection: nothing of it is sent over the next (53);
//   - an onlooker that gets forged notifications: it shows the holder at the end (26, 51);
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
	store    string                          // its identity: what follows is about this one
	value    string                          // of the lease's key; empty when it is free
	expires  time.Duration                   // when value goes, on the simulation's time
	highest  hlc.Timestamp                   // of all versions of the lease's key
	versions map[hlc.Timestamp]string        // of all stores
	grants   map[hlc.Timestamp]string        // the identity of the store that gave each version
	given    map[hlc.Timestamp]time.Duration // when
	refused  map[string]bool                 // values whose SET met another holder
	deleted  map[string]bool                 // values that the rogue client deleted
	deleting bool                            // since the store started, the rogue client sent a DEL, perhaps without an answer
	tokens   map[string]string               // the token of each value, as writes carry it
	fenced   map[string]bool                 // tokens that were refused as older
	held     string                          // the last value, also after its expiry
	restored string                          // the value that a backup has, and that its store did not grant
	gone     map[string]bool                 // values that were seen gone
	freeing  map[string]bool                 // values that a VDEL was sent for
	willed   map[string]bool                 // values that a Will may release
	count    hlc.Timestamp                   // the version of the protected key
	written  string                          // the value of the protected key
	writer   hlc.Token                       // and its token
	began    hlc.Token                       // the highest token with which a tenure began
	numbers  map[string]int                  // of values, for the trace
	bursts   map[*process]int                // requests in the present second
	latest   map[*process]string             // the value that each sent last in a SET
	owners   map[string]*holding             // by value
	firsts   map[string]bool                 // values with which processes began

	courses map[*process]*course // of electors

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
		given:    make(map[hlc.Timestamp]time.Duration),
		refused:  make(map[string]bool),
		deleted:  make(map[string]bool),
		tokens:   make(map[string]string),
		fenced:   make(map[string]bool),
		numbers:  make(map[string]int),
		bursts:   make(map[*process]int),
		latest:   make(map[*process]string),
		owners:   make(map[string]*holding),
		firsts:   make(map[string]bool),
		gone:     make(map[string]bool),
		freeing:  make(map[string]bool),
		willed:   make(map[string]bool),
		courses:  make(map[*process]*course),
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

// applied is the store's tap.
func (c *checker) applied(a transporttest.Applied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests++
	c.meetLocked(a.Store)
	if a.Again && !c.judgedAnewLocked(a) {
		return
	}
	switch a.Command.Key {
	case lockKey:
		c.lockAppliedLocked(a)
	case dataKey:
		c.dataAppliedLocked(a)
	}
}

// judgedAnewLocked reports whether a SET that was delivered again has set its key: the first delivery
// changed nothing, and a crash made the store forget that.
func (c *checker) judgedAnewLocked(a transporttest.Applied) bool {
	newest := c.highest
	if a.Command.Key == dataKey {
		newest = c.count
	}
	return a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.OK && a.Reply.Version.Compare(newest) > 0
}

// meetLocked notes the identity of the store.
func (c *checker) meetLocked(identity string) {
	if identity != c.store {
		c.store = identity // an empty one
		c.value, c.held, c.highest, c.count = "", "", hlc.Timestamp{}, hlc.Timestamp{}
		c.written, c.writer, c.began, c.restored = "", hlc.Token{}, hlc.Token{}, ""
	}
}

func (c *checker) lockAppliedLocked(a transporttest.Applied) {
	now := a.At.Sub(c.sim.began) // its reply may leave later
	if c.value != "" && now >= c.expires {
		c.value = ""
	}
	value := string(a.Command.Value)
	if c.sim.tracing && a.Command.Verb != statestore.VerbKeyNotify {
		c.sim.tracef("store: %v of %s by %s: %v", a.Command.Verb, c.nameLocked(value), a.Client, a.Reply.Outcome)
	}
	switch {
	case a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.OK:
		if a.Reply.Version.Compare(c.highest) <= 0 {
			c.violationLocked("the store gave version %v after %v", a.Reply.Version, c.highest)
		}
		c.highest, c.restored = a.Reply.Version, ""
		c.value, c.held, c.expires = value, value, now+a.Command.Lifetime
		delete(c.gone, value)
		c.versions[a.Reply.Version], c.grants[a.Reply.Version] = value, a.Store
		c.given[a.Reply.Version] = now
		// The first request of a client is not bound to a store: the client knows none.
		first := a.Request.Binding.Store == "" && c.firsts[value] && !c.sim.anonymous
		if h := c.owners[value]; h != nil && h.store != a.Store && !first {
			c.violationLocked("%s was renewed at a store that did not grant it", h.name)
		}
	case a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.ConditionFailed:
		c.refused[value] = true
	case a.Reply.Outcome == statestore.Missing,
		a.Reply.Outcome == statestore.NothingThere && a.Command.Verb != statestore.VerbKeyNotify:
		c.gone[c.held] = true
	case a.Reply.Outcome == statestore.Deleted:
		c.gone[c.held] = true
		switch {
		case a.Client == rogue:
			c.deleted[c.value] = true
		case a.Command.Verb != statestore.VerbVDel || value != c.value:
			c.violationLocked("%s deleted the lease of %s", a.Client, c.nameLocked(c.value))
		}
		c.value = ""
	}
	c.checkLocked()
}

func (c *checker) dataAppliedLocked(a transporttest.Applied) {
	text := a.Request.FencingToken
	if c.sim.tracing {
		c.sim.tracef("store: %v %q by %s: %v %v %q %v", a.Command.Verb, a.Command.Value, a.Client, a.Reply.Outcome, a.Reply.Err, a.Reply.Value, a.Reply.Version)
	}
	if a.Client == rogue {
		if a.Reply.Outcome == statestore.OK {
			c.count = a.Reply.Version
			c.writer, _ = hlc.ParseToken(text)
			c.written = string(a.Command.Value)
		}
		return
	}
	if errors.Is(a.Reply.Err, transport.ErrFencingTokenLower) {
		c.fenced[text] = true
	}
	if a.Command.Verb != statestore.VerbSet || a.Reply.Outcome != statestore.OK {
		return
	}
	if a.Reply.Version.Compare(c.count) <= 0 {
		c.violationLocked("the store gave version %v of the protected key after %v", a.Reply.Version, c.count)
	}
	c.count = a.Reply.Version
	token, err := hlc.ParseToken(text)
	version := hlc.Timestamp(token)
	value, issued := c.versions[version]
	if err != nil || !issued || c.grants[version] != a.Store {
		c.violationLocked("%s wrote under token %q, which this store did not issue", a.Client, text)
		return
	}
	if first, known := c.tokens[value]; known && first != text {
		c.violationLocked("%s wrote under a second token", c.nameLocked(value))
	}
	c.tokens[value] = text
	if token.Compare(c.writer) < 0 {
		c.violationLocked("%s wrote after a newer token", c.nameLocked(value))
	}
	if token != c.writer && string(a.Command.Value) != c.written {
		c.violationLocked("%s wrote %q over %q without a claim", c.nameLocked(value), a.Command.Value, c.written)
	}
	c.writer, c.written = token, string(a.Command.Value)
}

// notified notes a notification that leaves the store.
func (c *checker) notified(notification transport.Notification) {
	words, err := resp3.DecodeArray(nil, notification.Payload)
	if err != nil || len(words) != 2 || notification.Key != lockKey || strings.Contains(notification.Timestamp, "forger") {
		return
	}
	version, err := hlc.Parse(notification.Timestamp)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// An earlier SET of a value may be delivered late, and put it back.
	if value, known := c.versions[version]; known && version.Compare(c.highest) == 0 && value == c.held {
		c.gone[value] = true
	}
}

// recovered checks the records with which a store starts again. They are what was acknowledged,
// or what the store did last and could not say any more. The tap reports neither that nor what
// the crash undid.
func (c *checker) recovered(records []statestore.Record) {
	var lock, data, identity statestore.Item
	for _, record := range records {
		item, err := record.Decode()
		switch {
		case err != nil:
			c.violation("%v", err)
		case item.Kind == statestore.KindIdentity:
			identity = item
		case item.Key == lockKey:
			lock = item
		case item.Key == dataKey:
			data = item
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sim.tracef("store: has %q of the protected key, version %v, token %v", data.Value, data.Version, data.Token)
	if identity.Identity != c.store { // a backup has been restored: what it lacks is lost
		c.meetLocked(identity.Identity)
		c.restored = lock.Value
		delete(c.gone, lock.Value)
	}
	c.lockRecoveredLocked(lock)
	switch fresh := data.Version.Compare(c.count); {
	case fresh < 0:
		c.violationLocked("a crash lost %q of the protected key, version %v: there is %q, version %v", c.written, c.count, data.Value, data.Version)
	case data.Token.Compare(c.writer) < 0:
		c.violationLocked("a crash took the token of the protected key from %v back to %v", c.writer, data.Token)
	case fresh == 0 && data.Value != c.written:
		c.violationLocked("a crash made %q of %q", data.Value, c.written)
	}
	c.count, c.written, c.writer = data.Version, data.Value, data.Token
	c.checkLocked()
}

// rogueDeletes notes that the rogue client sends a DEL.
func (c *checker) rogueDeletes() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleting = true
}

// answers notes that a store which starts again begins to answer, some time after recovered. The
// lifetimes count from now.
func (c *checker) answers(after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expires += after
}

func (c *checker) lockRecoveredLocked(lock statestore.Item) {
	now := c.sim.elapsed()
	newer := lock.Version.Compare(c.highest) > 0
	defer func() { c.deleting = false }()
	switch {
	case lock.Kind != statestore.KindKey:
		// Its removal was not acknowledged, or nothing was there.
		if c.deleting {
			c.deleted[c.value] = true
		} else if c.value != "" && now < c.expires && !c.freeing[c.value] && !c.willed[c.value] {
			c.violationLocked("a crash lost the lease of %s, which has %v left", c.nameLocked(c.value), c.expires-now)
		}
		c.value = ""
		return
	case newer:
	case c.gone[lock.Value]:
		c.violationLocked("the lease of %s is back, which was seen gone", c.nameLocked(lock.Value))
	case lock.Value != c.held:
		c.violationLocked("a crash lost the lease of %s: there is that of %s", c.nameLocked(c.held), c.nameLocked(lock.Value))
	}
	if newer {
		c.highest = lock.Version
		if c.grants[lock.Version] == "" {
			c.versions[lock.Version], c.grants[lock.Version] = lock.Value, c.store
			c.given[lock.Version] = now
		}
	}
	c.value, c.held, c.expires = lock.Value, lock.Value, now+lock.Lifetime
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
		c.checkOneLocked(h)
	}
}

func (c *checker) checkOneLocked(h *holding) {
	if c.deleted[h.value] {
		return // the tenure cannot know until its next renewal
	}
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
	if left := h.tenure.Remaining(); left < ttl-margin-requestTimeout {
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
	current := h.process.node.current() == h.process
	c.mu.Lock()
	defer c.mu.Unlock()
	h.cause = h.tenure.Err()
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
		holds = c.refused[h.value] || c.deleted[h.value] || replaced
	case is(lease.ErrDeleted):
		name = "deleted"
		holds = c.deleted[h.value] || replaced
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
		holds = !current
	}
	c.ends[name]++
	if c.sim.gentle && c.sim.elapsed() < lastAt && h.wasLost(name) {
		c.violationLocked("%s was lost, and there were only faults that it must outlast: %v", h.name, h.cause)
	}
	if !holds && h.value != "" {
		c.violationLocked("%s ended for a reason that was not there: %v, %v before its deadline", h.name, h.cause, left)
	}
}

// wasLost reports whether a tenure that ended in this way was lost. Some ends are intended:
// with the connection, by the owner, or because another process took the client id.
func (h *holding) wasLost(end string) bool {
	switch end {
	case "released", "closed", "taken over":
		return false
	}
	return !h.process.node.endsWithConnection() && !h.forgotten
}

// shown checks what an onlooker shows at the end.
func (c *checker) shown(holder lease.Holder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.value
	if c.sim.elapsed() >= c.expires {
		held = ""
	}
	if holder.Value != held {
		c.violationLocked("the onlooker shows %s, and the store holds %s", c.nameLocked(holder.Value), c.nameLocked(held))
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
		if h.cause == nil || h.tenure.Err() != h.cause {
			c.violationLocked("%s ended by %v, and now by %v", h.name, h.cause, h.tenure.Err())
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
		// A renewal may have put back what was deleted.
		if h.store == c.store && (!c.deleted[h.value] || c.value == h.value) {
			return h
		}
	}
	return nil
}

// untilExpiry returns the time until the lease expires, if no node renews it.
func (c *checker) untilExpiry() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.expires - c.sim.elapsed()
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

// tooMany requests of one process in a second are a hot loop.
const tooMany = 50

// sample checks everything once a second.
func (c *checker) sample() {
	now := c.sim.elapsed()
	for _, n := range c.sim.nodes {
		c.checkStatus(n.current())
	}
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

// sent is a request for the lease that left, or one for what it protects.
type sent struct {
	key, verb, value, token string
	late                    *holding // a tenure that ended with its connection before
	second                  bool     // by the second client
}

// sending checks a request before it leaves.
func (c *checker) sending(p *process, request transport.Request) sent {
	var room [8][]byte
	words, err := resp3.DecodeArray(room[:0], request.Payload)
	if err != nil || len(words) < 2 {
		c.violation("%s sends what is no request", p.name)
		return sent{}
	}
	s := sent{verb: string(words[0]), key: string(words[1]), token: request.FencingToken}
	if len(words) > 2 {
		s.value = string(words[2])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bursts[p]++
	if s.key != lockKey || s.verb != "SET" && s.verb != "VDEL" {
		return s
	}
	if c.sim.tracing {
		c.sim.tracef("%s: sends %s of %s", p.name, s.verb, c.nameLocked(s.value))
	}
	if s.verb == "VDEL" {
		c.freeing[s.value] = true
		return s // it may free what an earlier acquisition left, while the next is under way
	}
	if _, known := c.latest[p]; !known {
		c.firsts[s.value] = true
	}
	c.latest[p] = s.value
	if p.node.endsWithConnection() {
		c.willed[s.value] = true
	}
	if h := c.owners[s.value]; h != nil && h.released.Load() {
		c.violationLocked("%s sends %s of %s, which was released", p.name, s.verb, h.name)
	} else if h != nil && p.node.endsWithConnection() && isClosed(h.lost) && (s.verb == "SET" || c.sim.instant) {
		s.late = h
	}
	return s
}

// metStore checks, when a process has a reply of a store, that its tenures are of that store or
// end.
func (c *checker) metStore(p *process, reply transport.Reply) {
	if reply.Store == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.valid {
		if h.process == p && h.store != reply.Store {
			c.mustEndLocked(h, "another store answered")
		}
	}
}

// mustEndLocked checks, a moment later, that a tenure is over.
func (c *checker) mustEndLocked(h *holding, why string) {
	time.AfterFunc(time.Microsecond, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !h.forgotten && h.tenure.Remaining() > 0 {
			c.violationLocked("%s goes on after %s", h.name, why)
		}
	})
}

// answered checks a reply after its process has it. A tenure that was refused is over at
// once, and so is a tenure of a client that lost its client id.
func (c *checker) answered(p *process, s sent, reply transport.Reply, err error) {
	if c.sim.tracing && s.key == lockKey && s.verb != "KEYNOTIFY" {
		text := strings.TrimSpace(string(reply.Payload))
		if s.verb == "GET" {
			text = ""
		}
		c.mu.Lock()
		c.sim.tracef("%s: %s of %s got %q %v", p.name, s.verb, c.nameLocked(s.value), text, err)
		c.mu.Unlock()
	}
	if err != nil && !errors.Is(err, transport.ErrSessionTakenOver) {
		return
	}
	if s.late != nil && !errors.Is(err, transport.ErrNotSent) {
		c.violation("%s sent %s of %s over another connection than that with which it ended", p.name, s.verb, s.late.name)
	}
	if !s.second {
		c.metStore(p, reply)
	}
	text := strings.TrimPrefix(string(reply.Payload), ":") // one dialect has the colon
	refused := s.key == lockKey && s.verb == "SET" && (err != nil || strings.HasPrefix(text, "-1"))
	fenced := s.key == dataKey && s.verb == "SET" && strings.Contains(string(reply.Payload), "lower version")
	if !refused && !fenced {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var h *holding
	if refused {
		h = c.owners[s.value]
	} else if token, err := hlc.Parse(s.token); err == nil {
		h = c.owners[c.versions[token]]
	}
	if h == nil {
		return
	}
	c.mustEndLocked(h, "it was refused")
}
