package events

import (
	"cmp"
	"container/list"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// maxGone is how many clients are remembered that are gone.
	maxGone = 1000
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
	mu        sync.Mutex
	byID      map[string]*Client
	gone      list.List // of *Client, that of which the end is the longest ago in front
	takeOvers uint64
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

	// Take-overs that came soon one after the other, and the warnings about them.
	series       int
	last, warned time.Time
	silence      time.Duration
}

// NewClients returns an empty list of clients.
func NewClients() *Clients { return &Clients{byID: make(map[string]*Client)} }

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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row.Requests++
	c.row.LastSeen = at
	if reply.Outcome == statestore.Refused {
		c.row.Refused++
	}
	if reply.Err == protocol.FencingTokenLower {
		c.row.StaleWrites++
	}
	// A client can send any clock, so one that the store refused or that is far off does not count as an
	// offset: it would be the largest of all.
	if clock, has := command.Timestamp(); has {
		offset := time.UnixMilli(clock.Wall).Sub(at)
		c.clockAt = at
		c.implausible = offset.Abs() > maxClockOffset || reply.Err == protocol.TimestampTooFarAhead
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
	c.clients.mu.Lock()
	c.clients.takeOvers++
	c.clients.mu.Unlock()
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

// show returns the client as it is at a time.
func (c *Client) show(now time.Time) activity.Client {
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
	return row
}

// show adds up to limit clients to a state, the users in turn, those that are connected first, and what the
// state counts of all.
func (c *Clients) show(state *activity.State, limit int) {
	c.mu.Lock()
	all := make([]*Client, 0, len(c.byID))
	for _, client := range c.byID {
		all = append(all, client)
	}
	state.Totals.TakeOvers = c.takeOvers
	c.mu.Unlock()
	users := make(map[string][]activity.Client)
	for _, client := range all {
		row := client.show(state.At)
		users[row.User] = append(users[row.User], row)
		switch offset := row.ClockOffsetMillis; {
		case row.ClockImplausible:
			state.Totals.ClocksImplausible++
		case offset != nil && max(*offset, -*offset) > clockOff.Milliseconds():
			state.Totals.ClocksOff++
		}
		if row.Flapping {
			state.Totals.Flapping++
		}
	}
	queues := make([][]activity.Client, 0, len(users))
	for _, rows := range users {
		slices.SortFunc(rows, before)
		queues = append(queues, rows)
	}
	slices.SortFunc(queues, func(a, b []activity.Client) int { return before(a[0], b[0]) })
	state.Clients = append(state.Clients, shown.InTurn(queues, limit)...)
	state.ClientsHidden = len(all) - len(state.Clients)
}

// before orders the clients of a user: those that are connected, and then those that were seen last, first.
func before(a, b activity.Client) int {
	switch {
	case a.Connected != b.Connected && a.Connected:
		return -1
	case a.Connected != b.Connected:
		return 1
	}
	return cmp.Or(b.LastSeen.Compare(a.LastSeen), b.Since.Compare(a.Since), strings.Compare(a.Client, b.Client))
}
