package events

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// maxGone is how many clients are remembered that are gone.
	maxGone = 1000
	// maxStale is of how many clients a state has the latest stale write.
	maxStale = 100
	// clockOff is from which offset a clock counts as wrong, and maxClockOffset up to which one it is
	// plausible.
	clockOff, maxClockOffset = time.Second, 24 * time.Hour
	// clockFor is how long a clock counts after the request that carried it. A client that has left, or
	// is mended and silent, would be an alarm that never ends.
	clockFor = 5 * time.Minute
	// flapGap is how soon after a take-over the next one must come to count as part of the same
	// series: longer than clients wait before they connect again.
	flapGap = 2 * time.Minute
	// flapsFrom is how many take-overs in a series are suspicious: taken over, back, and again. A
	// client whose network fails once or twice also takes its own dead connection over.
	flapsFrom = 3
	// The first warnings about a client id are at least warnAgain apart; that doubles up to
	// warnAgainMax.
	warnAgain, warnAgainMax = time.Minute, time.Hour
)

// Clients are the clients of a store: those that it has, and the last ones that are gone. The store bounds
// how many it has. It is safe for concurrent use.
type Clients struct {
	restoredUntil int64 // see NewClients
	takeOvers     atomic.Uint64
	stale         atomic.Uint64 // writes, of those too that are not remembered

	mu   sync.Mutex
	byID map[string]*Client
	gone list.List // of *Client; the one that ended first is in front
}

// Client is what a store has seen of a client. It is safe for concurrent use.
type Client struct {
	clients *Clients
	place   *list.Element // in Clients.gone; nil: it is not gone. Guarded by Clients.mu

	mu                sync.Mutex
	row               activity.Client // without what show adds
	offset            time.Duration   // of the last clock that was plausible
	offsetAt, clockAt time.Time       // when that came, and the last clock; zero: never
	implausible       bool            // the last clock was not plausible
	stale             activity.StaleWrite

	// Take-overs that came soon one after the other, and the warnings about them.
	series       int
	last, warned time.Time
	silence      time.Duration
}

// NewClients returns an empty list of clients of a store that has restored versions up to a wall clock, in Unix
// milliseconds.
func NewClients(restoredUntil int64) *Clients {
	return &Clients{byID: make(map[string]*Client), restoredUntil: restoredUntil}
}

// Come notes that a store has a client now. connected says whether it knows the client's connection; remote
// is its address.
func (c *Clients) Come(id, user, remote string, connected bool) *Client {
	id = shown.Cut(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	client := c.byID[id]
	switch {
	case client == nil:
		id = strings.Clone(id)
		client = &Client{clients: c, row: activity.Client{Client: id}}
		c.byID[id] = client
	case client.place != nil:
		c.gone.Remove(client.place)
		client.place = nil
	}
	client.mu.Lock()
	defer client.mu.Unlock()
	client.row.User, client.row.Remote = strings.Clone(shown.Cut(user)), remote
	client.row.Connected, client.row.Since, client.row.Reason = connected, time.Time{}, ""
	if connected {
		client.row.Since = time.Now()
	}
	return client
}

// Go notes that a store has no connection with the client any more, or has forgotten it.
func (c *Client) Go(reason string) {
	all := c.clients
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.place == nil {
		c.place = all.gone.PushBack(c)
	}
	c.mu.Lock()
	c.row.Connected, c.row.Since, c.row.Reason = false, time.Now(), reason
	c.mu.Unlock()
	if all.gone.Len() > maxGone {
		oldest := all.gone.Remove(all.gone.Front()).(*Client)
		delete(all.byID, oldest.row.Client)
	}
}

// Answered notes a request of the client, which was read at some time.
func (c *Client) Answered(command *statestore.Command, reply *statestore.Reply, at time.Time) {
	if reply.Outcome == statestore.Expired {
		return // it is dropped
	}
	isStale := reply.Err == protocol.FencingTokenLower
	if isStale {
		c.clients.stale.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row.Requests++
	c.row.LastSeen = at
	if reply.Outcome == statestore.Refused {
		c.row.Refused++
	}
	if isStale {
		c.row.StaleWrites++
		c.stale = activity.StaleWrite{
			At: at, Key: strings.Clone(shown.Cut(command.Key)), Client: c.row.Client, User: c.row.User, Remote: c.row.Remote,
			Verb: command.Verb.String(), Refusal: string(protocol.FencingTokenLower),
		}
	}
	// A client can send any clock, so one that is far off does not count as an offset: it would be the largest of
	// all. One that the store refused because it is ahead counts, like one that is as far behind.
	// One that is ahead, but not of the restored versions, says nothing: the client may have it from the store.
	clock, has := command.Timestamp()
	if has && (clock.Wall <= at.UnixMilli() || clock.Wall > c.clients.restoredUntil) {
		offset := time.UnixMilli(clock.Wall).Sub(at)
		c.clockAt = at
		c.implausible = offset.Abs() > maxClockOffset
		if !c.implausible {
			c.offset, c.offsetAt = offset, at
		}
	}
}

// Dropped notes that a request of the client was not given to the store.
func (c *Client) Dropped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row.Dropped++
}

// TakenOver notes that a connection of the client has ended another one. It returns how many did in the
// present series, and whether it is time to warn that the client id flaps: at the third one of a series, and
// then at growing intervals of a minute up to an hour.
func (c *Client) TakenOver() (count int, warn bool) {
	c.clients.takeOvers.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.row.TakeOvers++
	if now.Sub(c.last) > flapGap {
		c.series = 0
	}
	c.series, c.last = c.series+1, now
	if c.series < flapsFrom || now.Sub(c.warned) < c.silence {
		return c.series, false
	}
	if now.Sub(c.warned) > 2*warnAgainMax {
		c.silence = 0 // long ago: it is news again
	}
	c.warned, c.silence = now, min(max(2*c.silence, warnAgain), warnAgainMax)
	return c.series, true
}

// show returns the client as it is at a time, and its latest stale write; zero: it has none.
func (c *Client) show(now time.Time) (activity.Client, activity.StaleWrite) {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) <= clockFor }
	row := c.row
	row.Flapping = c.series >= flapsFrom && now.Sub(c.last) <= flapGap
	row.ClockImplausible = c.implausible && counts(c.clockAt)
	if counts(c.offsetAt) {
		millis := c.offset.Milliseconds()
		row.ClockOffsetMillis = &millis
	}
	return row, c.stale
}

// show adds up to limit clients to a state, the users in turn, those that are connected first, and what the
// state counts of all.
func (c *Clients) show(state *activity.State, limit int) {
	c.mu.Lock()
	all := make([]*Client, 0, len(c.byID))
	for _, client := range c.byID {
		all = append(all, client)
	}
	c.mu.Unlock()
	state.Totals.TakeOvers, state.Totals.StaleWrites = c.takeOvers.Load(), c.stale.Load()
	users := make(map[string][]activity.Client)
	for _, client := range all {
		row, stale := client.show(state.At)
		users[row.User] = append(users[row.User], row)
		countClient(&state.Totals, &row)
		if row.StaleWrites > 0 {
			state.StaleWrites = append(state.StaleWrites, stale)
		}
	}
	slices.SortFunc(state.StaleWrites, func(a, b activity.StaleWrite) int { return b.At.Compare(a.At) })
	state.StaleWrites = state.StaleWrites[:min(len(state.StaleWrites), maxStale)]
	queues := make([][]activity.Client, 0, len(users))
	for _, rows := range users {
		slices.SortFunc(rows, before)
		queues = append(queues, rows)
	}
	slices.SortFunc(queues, func(a, b []activity.Client) int { return before(a[0], b[0]) })
	rows := shown.InTurn(len(queues), func(i int) shown.Queue[activity.Client] { return shown.Of(queues[i]) })
	state.Clients = append(state.Clients, rows.Take(limit)...)
	state.ClientsHidden = len(all) - len(state.Clients)
}

// countClient adds a client to the totals.
func countClient(totals *activity.Totals, row *activity.Client) {
	switch offset := row.ClockOffsetMillis; {
	case row.ClockImplausible:
		totals.ClocksImplausible++
	case offset != nil && max(*offset, -*offset) > clockOff.Milliseconds():
		totals.ClocksOff++
	}
	if row.Flapping {
		totals.Flapping++
	}
}

// before orders the clients of a user: those that are connected, and then those that were seen last, first.
func before(a, b activity.Client) int {
	return cmp.Or(shown.Compare(b.Connected, a.Connected), b.LastSeen.Compare(a.LastSeen), b.Since.Compare(a.Since),
		strings.Compare(a.Client, b.Client))
}
