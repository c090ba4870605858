package activity

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/statestore"
)

// Options bounds a Model. The zero value is right for most stores.
type Options struct {
	// Names bounds how many names the model remembers. Default 10,000. Each user has an equal share of
	// them, and in it each client; a name belongs to its first holder. Beyond the bound the model
	// forgets a name of the largest share: those first that are only watched, then those without a
	// holder, and of them the one that has been without an event for longest.
	Names int
	// Clients bounds how many clients it remembers. Default 10,000. Beyond that it forgets clients of
	// the user that has most, and those first that are not connected.
	Clients int
	// Timeline bounds how many changes of holders it remembers. Default 500. They are shared like names.
	Timeline int
	// StaleWrites bounds how many refused writes it remembers. Default 100. They are shared too.
	StaleWrites int
	// Shown bounds how many leases and how many clients a State has. Default 1,000. The users take
	// turns; leases that were released and for which no client waits come last, apart from those with
	// the lowest tenth of the turns.
	Shown int
	// FreeFor is how long a name without a holder, and for which no client waits, is shown. Default
	// one hour.
	FreeFor time.Duration
}

const (
	defaultNames, defaultClients  = 10_000, 10_000
	defaultTimeline, defaultStale = 500, 100
	defaultShown, defaultFreeFor  = 1_000, time.Hour

	verbs    = int(statestore.VerbKeyNotify) + 1
	outcomes = int(statestore.Expired) + 1

	// clockOff is from which offset a clock counts as wrong, and maxClockOffset up to which one it is
	// plausible.
	clockOff, maxClockOffset = time.Second, 24 * time.Hour
	// clockFor is how long a clock counts after the request that carried it. A client that has left, or
	// is mended and silent, would be an alarm that never ends.
	clockFor = 5 * time.Minute
	// The classes of names and of clients. A lower class is forgotten first.
	watchedName, freeName, heldName = 0, 1, 2
	awayClient, connectedClient     = 0, 1

	// maxTakeOvers is how many client ids are watched for flapping.
	maxTakeOvers = 1024
)

// Model is what the events of a store amount to. Its methods are safe for concurrent use.
type Model struct {
	options Options

	mu       sync.Mutex
	totals   Totals
	requests [verbs][outcomes]uint64
	ends     map[Cause]uint64

	names         map[string]*member[*name]
	nameShares    shares[*name]
	created       uint64 // names so far
	forgotten     uint64 // names that were leases
	clients       map[string]*member[*client]
	clientShares  shares[*client]
	forgotClients uint64
	waits         shares[*waiter] // of all names, by the client that waits
	hiddenWatches int             // clients with watchesHidden
	hiddenSpan    uint64          // begins anew when hiddenWatches becomes 0; see hidden.watching
	timeline      history[*Change]
	changes       uint64 // entries of the timeline so far
	stale         history[*StaleWrite]
	takeOvers     *TakeOvers
}

// client is what the model knows about a client id.
type client struct {
	id, user, remote        string
	connected               bool
	since                   time.Time
	reason                  string
	lastSeen, lastEvent     time.Time // lastSeen is of a request
	requests                uint64
	offset                  time.Duration // of the last clock that was plausible
	offsetAt                time.Time     // when that came; zero: never
	implausible             bool          // the last clock was not
	clockAt                 time.Time     // when the last clock came; zero: never
	takeOvers               uint64
	refused, stale, dropped uint64
	waits                   []*waiter
	watchesHidden           bool // its connection watches a name, and the model does not remember for which it does
}

// New returns a model without events.
func New(options Options) *Model {
	options.Names = cmp.Or(max(options.Names, 0), defaultNames)
	options.Clients = cmp.Or(max(options.Clients, 0), defaultClients)
	options.Timeline = cmp.Or(max(options.Timeline, 0), defaultTimeline)
	options.StaleWrites = cmp.Or(max(options.StaleWrites, 0), defaultStale)
	options.Shown = cmp.Or(max(options.Shown, 0), defaultShown)
	options.FreeFor = cmp.Or(max(options.FreeFor, 0), defaultFreeFor)
	return &Model{
		options:   options,
		ends:      make(map[Cause]uint64),
		names:     make(map[string]*member[*name]),
		clients:   make(map[string]*member[*client]),
		timeline:  history[*Change]{limit: options.Timeline},
		stale:     history[*StaleWrite]{limit: options.StaleWrites},
		takeOvers: NewTakeOvers(min(maxTakeOvers, options.Clients)),

		hiddenSpan: 1,
	}
}

// Observe takes an event. It does not wait for anything but other calls of the model. Events must come
// in their order, and in time: State shows no event before it is observed.
func (m *Model) Observe(event Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &event
	m.totals.Events++
	m.totals.LostEvents += e.Lost
	switch e.Kind {
	case Request:
		m.requested(e)
	case Expired:
		m.expired(e)
	case Connected:
		m.totals.Connections++
		m.connected(m.clientOf(e).value, e)
	case Disconnected:
		m.disconnected(e)
	case TakenOver:
		m.totals.TakeOvers++
		m.clientOf(e).value.takeOvers++
		m.takeOvers.Note(e.User, e.Client, e.At)
	case Started:
		m.started(e)
	case Unwatched:
		m.unwatched(m.clients[e.Client], e)
	case Refused:
		m.totals.Refused++
	case Dropped:
		m.totals.Dropped++
		if c := m.clients[e.Client]; c != nil { // another would cost as much as a real client
			c.value.dropped++
		}
	}
}

// started notes that the store begins to answer.
func (m *Model) started(e *Event) {
	if e.Continues {
		return
	}
	for _, n := range m.names { // they are gone with the data of an earlier store
		m.dropName(n)
	}
}

// clientOf returns the client of an event, which has been seen now.
func (m *Model) clientOf(e *Event) *member[*client] {
	n := m.clients[e.Client]
	if n == nil {
		n = newMember(&client{id: e.Client, since: e.At})
		m.clients[e.Client] = n
	}
	c := n.value
	c.user, c.remote = cmp.Or(e.User, c.user), cmp.Or(e.Remote, c.remote)
	c.lastEvent = e.At
	m.fileClient(n)
	for len(m.clients) > m.options.Clients {
		m.forgetClient(m.clientShares.surplus(n))
	}
	return n
}

// fileClient puts a client where it belongs: into the share of its user, as the one that was seen last.
func (m *Model) fileClient(n *member[*client]) {
	class := awayClient
	if n.value.connected {
		class = connectedClient
	}
	m.clientShares.use(n, n.value.user, "", class)
}

func (m *Model) forgetClient(n *member[*client]) {
	for len(n.value.waits) > 0 {
		m.dropWaiter(n.value.waits[0])
	}
	m.endHiddenWatches(n.value)
	m.clientShares.leave(n)
	delete(m.clients, n.value.id)
	m.forgotClients++
}

func (m *Model) connected(c *client, e *Event) {
	c.connected, c.since, c.reason = true, e.At, ""
	c.user, c.remote = e.User, e.Remote
	m.endHiddenWatches(c)
	m.fileClient(m.clients[c.id])
}

func (m *Model) disconnected(e *Event) {
	n := m.clients[e.Client]
	if n == nil {
		return
	}
	c := n.value
	c.connected, c.since, c.reason = false, e.At, e.Reason
	m.endHiddenWatches(c)
	m.fileClient(n)
	for i := len(c.waits) - 1; i >= 0; i-- {
		w := c.waits[i]
		// Watches end with the connection. A bid goes on until it expires.
		w.watching = false
		if w.attempts = 0; !w.isWaiting(e.At) {
			m.dropWaiter(w)
		}
	}
}

// nameOf returns what is known about a key, and nil if nothing is and it is not to be remembered.
// A new name belongs to the client of the event.
func (m *Model) nameOf(key string, e *Event, remember bool) *member[*name] {
	n := m.names[key]
	if n == nil && remember {
		n = newMember(&name{key: key, rank: -1, user: e.User, creator: e.Client, number: m.created})
		m.created++
		m.names[key] = n
		m.file(n)
		for len(m.names) > m.options.Names {
			m.forgetName(m.nameShares.surplus(n))
		}
	}
	return n
}

// forgetName removes a name to which something may still happen.
func (m *Model) forgetName(n *member[*name]) {
	m.dropName(n)
	if n.value.isLease {
		m.forgotten++
	}
}

func (m *Model) dropName(n *member[*name]) {
	for len(n.value.waiters) > 0 {
		m.dropWaiter(n.value.waiters[0])
	}
	m.nameShares.leave(n)
	delete(m.names, n.value.key)
}

// file puts a name where it belongs, as the one that was used last.
func (m *Model) file(n *member[*name]) {
	l, class := n.value, watchedName
	switch {
	case l.held:
		class = heldName
	case l.isLease:
		class = freeName
	}
	m.nameShares.use(n, l.user, l.creator, class)
}

// requested notes a request that was answered.
func (m *Model) requested(e *Event) {
	m.totals.Requests++
	if int(e.Verb) < verbs && int(e.Outcome) < outcomes {
		m.requests[e.Verb][e.Outcome]++
	}
	by := m.clientOf(e)
	c := by.value
	c.requests++
	c.lastSeen = e.At
	c.noteClock(e)
	if e.Outcome == statestore.Refused {
		m.refused(c, e)
		return
	}
	if base, isBid := strings.CutSuffix(e.Key, protocol.FailBackSuffix); isBid && (e.Rank >= 0 || m.isBid(base, e)) {
		m.bid(base, by, e)
		return
	}
	switch e.Verb {
	case statestore.VerbSet:
		m.set(by, e)
	case statestore.VerbDel, statestore.VerbVDel:
		m.deleted(e)
	case statestore.VerbKeyNotify:
		m.watched(by, e)
	}
}

// noteClock notes the clock that a request carried. A client can send any, so one that the store refused or
// that is far off does not count as an offset: it would be the largest of all.
func (c *client) noteClock(e *Event) {
	if !e.HasClock {
		return
	}
	c.clockAt = e.At
	c.implausible = e.ClockOffset.Abs() > maxClockOffset || e.Refusal == string(protocol.TimestampTooFarAhead)
	if !c.implausible {
		c.offsetAt, c.offset = e.At, e.ClockOffset
	}
}

// clock returns what counts of the client's clock at a time.
func (c *client) clock(now time.Time) (offset time.Duration, hasOffset, implausible bool) {
	counts := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) <= clockFor }
	return c.offset, counts(c.offsetAt), c.implausible && counts(c.clockAt)
}

func (m *Model) refused(c *client, e *Event) {
	c.refused++
	if e.Refusal != string(protocol.FencingTokenLower) {
		return
	}
	c.stale++
	m.totals.StaleWrites++
	m.stale.add(newMember(&StaleWrite{
		At: e.At, Key: e.Key, Client: e.Client, User: e.User, Remote: e.Remote,
		Verb: e.Verb.String(), Refusal: e.Refusal, number: m.totals.StaleWrites,
	}), e.User, e.Client)
}

// set notes a SET.
func (m *Model) set(by *member[*client], e *Event) {
	asLease := e.Condition != statestore.Always && e.Lifetime > 0
	n := m.nameOf(e.Key, e, asLease && (e.Outcome == statestore.OK || !e.Version.IsZero()))
	if n == nil {
		return
	}
	l := n.value
	if e.Outcome != statestore.OK {
		if asLease {
			m.attempted(n, by, e)
		}
		return
	}
	if !l.isLease && !asLease || isRepeated(l.version, e.Version) {
		return
	}
	switch {
	case e.Lifetime == 0: // it is no lease any more
		if l.held {
			m.end(l, m.overwritten(l, e), e)
		}
		m.dropName(n)
		return
	case l.continues(e):
		missed := l.renew(e)
		m.totals.Renewed++
		m.totals.Missed += missed
	case l.held && l.client == "" && e.Condition == statestore.IfMissingOrEqual && !e.Created && !e.Swap:
		l.acquire(e, false) // another client has found it taken before: this is its holder
		m.totals.Renewed++
	default:
		m.acquired(n, e)
	}
	m.file(n)
	m.leaveWaiting(n, by)
}

// isRepeated reports whether a change is older than what is known, or the same: the request was delivered
// twice, and the event of the second delivery has the reply to the first.
func isRepeated(known, version hlc.Timestamp) bool {
	return !known.IsZero() && version.Compare(known) <= 0
}

func (m *Model) overwritten(l *name, e *Event) Cause {
	switch {
	case e.Condition != statestore.Always && !e.Swap:
		return CauseUnknown // the condition says that the key was free
	case l.client == e.Client:
		return CauseOverwritten
	}
	return CauseForced
}

// acquired notes that a client has a lease from now on. A SET that only goes on with a value is the
// renewal of a lease whose begin the model has not seen: it is in the data of an earlier store, was
// forgotten, or its event was lost.
func (m *Model) acquired(n *member[*name], e *Event) {
	l := n.value
	known := e.Created || e.Condition == statestore.Always || e.Swap
	if l.held {
		m.end(l, m.overwritten(l, e), e)
	}
	l.acquire(e, known)
	l.hidden = hidden{} // those that still want it come again with their next attempt
	switch {
	case l.last != nil && l.last.Began.IsZero():
		l.last.To, l.last.Began = l.holderName(), e.At
		l.last.GapMillis = max(0, e.At.Sub(l.last.Ended).Milliseconds())
		if l.last.To != l.last.From {
			l.changes++
		}
	case known:
		l.last = &Change{Name: l.key, Cause: CauseAcquired, To: l.holderName(), Began: e.At}
		m.addToTimeline(l)
	}
	if known {
		m.totals.Acquired++
	} else {
		m.totals.Renewed++
	}
}

// end notes the end of a lease.
func (m *Model) end(l *name, cause Cause, e *Event) {
	before := l.last
	ended := l.end(cause, e)
	m.ends[cause]++
	if before == nil || !before.isRoutine() || !ended.isRoutine() || before.From != ended.From {
		m.addToTimeline(l)
		return
	}
	// The same client had it, released it, had it again and has released it again: a job that runs
	// now and then must not push failovers out of the timeline.
	ended.Repeated = before.Repeated + 1
	*before = *ended
	l.last = before
	m.addToTimeline(l)
}

// addToTimeline makes the last change of a name the latest entry of the timeline.
func (m *Model) addToTimeline(l *name) {
	l.last.number = m.changes
	m.changes++
	if l.entry == nil || l.entry.value != l.last {
		l.entry = newMember(l.last)
	}
	m.timeline.add(l.entry, l.user, l.creator)
}

func (m *Model) deleted(e *Event) {
	n := m.names[e.Key]
	if n == nil || e.Outcome != statestore.Deleted || !n.value.held {
		return
	}
	if l := n.value; !l.version.IsZero() && e.Version.Compare(l.version) < 0 {
		return // a second delivery; the lease is another one since
	}
	m.end(n.value, n.value.causeOf(e), e)
	m.file(n)
}

func (m *Model) expired(e *Event) {
	if base, isBid := strings.CutSuffix(e.Key, protocol.FailBackSuffix); isBid {
		m.endBid(m.names[base], e.At)
	}
	n := m.names[e.Key]
	if n == nil || !n.value.held {
		return
	}
	l := n.value
	if every := l.rhythm.every(); every > 0 {
		// Without the events of its renewals, the last one may seem to be long ago.
		missed := uint64(max(0, min(e.At.Sub(l.lastRenewal), l.ttl)/every))
		l.missed += missed
		m.totals.Missed += missed
	}
	m.end(l, CauseExpired, e)
	m.file(n)
}
