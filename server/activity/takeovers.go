package activity

import "time"

const (
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

// TakeOvers finds client ids that flap: connections that end each other again and again, most likely
// of two programs with one client id. It remembers a bounded number of client ids, of which each user has
// an equal share, and of that those that were noted last. The zero value is not ready for use. It is not
// safe for concurrent use.
type TakeOvers struct {
	limit    int
	byClient map[string]*member[*series]
	shares   shares[*series]
}

// series is take-overs of one client id that came soon one after the other.
type series struct {
	client  string
	count   int
	last    time.Time
	warned  time.Time // zero: not in this series, nor lately
	silence time.Duration
}

// NewTakeOvers returns TakeOvers for a number of client ids, which must be positive.
func NewTakeOvers(limit int) *TakeOvers {
	return &TakeOvers{limit: limit, byClient: make(map[string]*member[*series])}
}

// Note notes that a connection of a client of a user has ended another one; user is empty if it is not
// known. It returns how many did in the present
// series, and whether it is time to warn that the client id flaps: at the third one of a series, and then
// at growing intervals of a minute up to an hour.
func (t *TakeOvers) Note(user, client string, at time.Time) (count int, warn bool) {
	n := t.byClient[client]
	if n == nil {
		n = newMember(&series{client: client})
		t.byClient[client] = n
	}
	t.shares.use(n, user, "", 0)
	for len(t.byClient) > t.limit {
		surplus := t.shares.surplus(n)
		t.shares.leave(surplus)
		delete(t.byClient, surplus.value.client)
	}
	s := n.value
	if at.Sub(s.last) > flapGap {
		s.count = 0
	}
	s.count, s.last = s.count+1, at
	if s.count < flapsFrom || at.Sub(s.warned) < s.silence {
		return s.count, false
	}
	if at.Sub(s.warned) > 2*warnAgainMax {
		s.silence = 0 // long ago: it is news again
	}
	s.warned, s.silence = at, min(max(2*s.silence, warnAgain), warnAgainMax)
	return s.count, true
}

// flaps reports whether a client id flaps at a time.
func (t *TakeOvers) flaps(client string, now time.Time) bool {
	n := t.byClient[client]
	return n != nil && n.value.count >= flapsFrom && now.Sub(n.value.last) <= flapGap
}

// flapping returns how many client ids flap at a time.
func (t *TakeOvers) flapping(now time.Time) (count int) {
	for client := range t.byClient {
		if t.flaps(client, now) {
			count++
		}
	}
	return count
}
