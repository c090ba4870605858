package activity

import (
	"cmp"
	"slices"
)

// classes is how many classes of values a share has.
const classes = 3

// shares holds members for as long as there is room for them, and each user has an equal share of the room,
// and in it each client. What does not fit is taken from the client that has most, of the user that has
// most: first from its lowest class, and there the one that was used last the longest ago. A client
// that does not authenticate belongs to the user "". The zero value is ready for use.
//
// So a client that fills a model with names makes it forget that client's names.
type shares[T any] struct {
	count   int
	users   map[string]*node[*userShare[T]]
	byCount tally[*userShare[T]]
}

// member is a value in a share. newMember makes one.
type member[T any] struct {
	value T
	node  node[*member[T]]
	share *node[*share[T]] // nil: it is in none
}

func newMember[T any](value T) *member[T] {
	m := &member[T]{value: value}
	m.node.value = m
	return m
}

// userShare is the share of a user.
type userShare[T any] struct {
	user    string
	count   int
	clients map[string]*node[*share[T]]
	byCount tally[*share[T]]
}

// share is the share of a client.
type share[T any] struct {
	of      *node[*userShare[T]]
	client  string
	count   int
	classes [classes]list[*member[T]]
}

// use puts a member into the share of a client, as the one of its class that was used last, and takes it
// out of the share in which it was.
func (s *shares[T]) use(m *member[T], user, client string, class int) {
	if in := m.share; in != nil && in.value.client == client && in.value.of.value.user == user {
		s.add(in, 0)
	} else {
		s.leave(m)
		m.share = s.shareOf(user, client)
		s.add(m.share, 1)
	}
	m.share.value.classes[class].use(&m.node)
}

func (s *shares[T]) shareOf(user, client string) *node[*share[T]] {
	u := s.users[user]
	if u == nil {
		u = &node[*userShare[T]]{value: &userShare[T]{user: user, clients: make(map[string]*node[*share[T]])}}
		if s.users == nil {
			s.users = make(map[string]*node[*userShare[T]])
		}
		s.users[user] = u
	}
	c := u.value.clients[client]
	if c == nil {
		c = &node[*share[T]]{value: &share[T]{of: u, client: client}}
		u.value.clients[client] = c
	}
	return c
}

// add notes that a share was used, and that it has more members, or fewer.
func (s *shares[T]) add(c *node[*share[T]], more int) {
	u := c.value.of
	c.value.count += more
	u.value.count += more
	s.count += more
	u.value.byCount.use(c, c.value.count)
	s.byCount.use(u, u.value.count)
	if c.value.count == 0 {
		delete(u.value.clients, c.value.client)
	}
	if u.value.count == 0 {
		delete(s.users, u.value.user)
	}
}

// leave takes a member out of its share, if it is in one.
func (s *shares[T]) leave(m *member[T]) {
	if in := m.share; in != nil {
		m.node.leave()
		m.share = nil
		s.add(in, -1)
	}
}

// surplus returns the member that is to be dropped when there are too many. keep is the one that was used
// last; it is returned only if the share has no other one.
func (s *shares[T]) surplus(keep *member[T]) *member[T] {
	largest := s.byCount.largest().byCount.largest()
	for i := range largest.classes {
		// keep was used last, so it is the last one of its class only if it is alone.
		if n := largest.classes[i].last; n != nil && n.value != keep {
			return n.value
		}
	}
	return keep
}

// inTurn returns the values in the order in which the users take turns, and the clients of a user in each
// of its turns. A client takes its values in the order of before, and before also decides which of two
// clients or users is first in one round.
func (s *shares[T]) inTurn(before func(a, b T) int) []T {
	var all []turn[T]
	for _, u := range s.users {
		var ofUser []turn[T]
		for _, c := range u.value.clients {
			ofClient := c.value.values()
			slices.SortFunc(ofClient, before)
			for i, value := range ofClient {
				ofUser = append(ofUser, turn[T]{i, value})
			}
		}
		all = append(all, inRounds(ofUser, before)...)
	}
	values := make([]T, 0, len(all))
	for _, t := range inRounds(all, before) {
		values = append(values, t.value)
	}
	return values
}

// turn is a value and the round in which it has its turn.
type turn[T any] struct {
	round int
	value T
}

// inRounds sorts values by round, and makes the place of each its next round.
func inRounds[T any](all []turn[T], before func(a, b T) int) []turn[T] {
	slices.SortFunc(all, func(a, b turn[T]) int {
		return cmp.Or(cmp.Compare(a.round, b.round), before(a.value, b.value))
	})
	for i := range all {
		all[i].round = i
	}
	return all
}

// values returns the values of a client, the highest class first, and of a class those that were used last.
func (c *share[T]) values() []T {
	values := make([]T, 0, c.count)
	for _, class := range slices.Backward(c.classes[:]) {
		for n := class.first; n != nil; n = n.next {
			values = append(values, n.value.value)
		}
	}
	return values
}

// tally orders nodes by their counts, and those with the same count by their last use. Counts change by
// one at a time.
type tally[T any] struct{ byCount []*list[T] } // the last one is not empty

// use notes the count of a node, which was used now. A node whose count is zero leaves.
func (t *tally[T]) use(n *node[T], count int) {
	for len(t.byCount) <= count {
		t.byCount = append(t.byCount, new(list[T]))
	}
	if count == 0 {
		n.leave()
	} else {
		t.byCount[count].use(n)
	}
	for len(t.byCount) > 0 && t.byCount[len(t.byCount)-1].count == 0 {
		t.byCount = t.byCount[:len(t.byCount)-1]
	}
}

// largest returns the value with the largest count which was used last the longest ago. There must be one.
func (t *tally[T]) largest() T { return t.byCount[len(t.byCount)-1].last.value }

// history keeps the latest values, up to a limit of which each user and client has an equal share.
type history[T any] struct {
	limit  int
	shares shares[T]
	lost   uint64
}

// add adds a value, or notes that one has changed.
func (h *history[T]) add(m *member[T], user, client string) {
	h.shares.use(m, user, client, 0)
	for h.shares.count > h.limit {
		h.shares.leave(h.shares.surplus(m))
		h.lost++
	}
}
