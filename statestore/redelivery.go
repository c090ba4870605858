package statestore

import (
	"hash/crc32"
	"strings"
)

// DefaultRemembered is how many requests of one client a Store remembers unless
// Options say otherwise.
const DefaultRemembered = 256

// identity tells a request that is delivered again from a new one. A redelivery
// has the correlation data of the first delivery, and is the same message byte for
// byte. What has the same correlation data and says something else is a request of
// a client that does not make its correlation data unique: answering it with the
// reply to another request would tell it that something was done which was not.
type identity struct {
	correlation string // empty: none
	sum         uint32 // of the content
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func identify(request Request) identity {
	if len(request.Correlation) == 0 {
		return identity{}
	}
	sum := crc32.Update(0, castagnoli, request.Payload)
	for _, property := range []*string{request.Timestamp, request.FencingToken} {
		// A byte that no timestamp holds parts what would otherwise run together.
		sum = updateSum(sum, "\x00")
		if property != nil {
			sum = updateSum(sum, *property)
		}
	}
	return identity{correlation: string(request.Correlation), sum: sum}
}

// updateSum is crc32.Update for a string, which that would have copied.
func updateSum(sum uint32, text string) uint32 {
	sum = ^sum
	for i := range len(text) {
		sum = castagnoli[byte(sum)^text[i]] ^ sum>>8
	}
	return ^sum
}

// sessions remembers the last replies to each client, so that a request that is
// delivered twice is applied once and answered twice.
//
// How many that must be follows from MQTT: only what was not acknowledged can be
// delivered again, acknowledgements leave in the order of the requests
// [MQTT-4.6.0-2], and no more than the Receive Maximum may be unacknowledged. So
// the last as many as that are enough, for as long as the client's session lasts.
type sessions struct {
	remembered int
	byClient   map[string]*session
}

// session is a ring of the last replies to one client.
type session struct {
	positions map[string]int // in ring, by correlation
	ring      []answered
	next      int // where the next reply goes once the ring is full
}

type answered struct {
	identity
	reply Reply // without Value
}

func newSessions(remembered int) sessions {
	return sessions{remembered: remembered, byClient: make(map[string]*session)}
}

// worthRemembering reports whether a command must not be evaluated twice. Reading
// twice does no harm, and remembering what was read would let a client pin as much
// memory as it likes.
func worthRemembering(command *Command) bool {
	return command.identity.correlation != "" && command.Verb != VerbGet
}

// recall returns the reply to the first delivery of a command.
func (s *sessions) recall(command *Command) (Reply, bool) {
	session := s.byClient[command.Client]
	if session == nil {
		return Reply{}, false
	}
	position, ok := session.positions[command.identity.correlation]
	if !ok || session.ring[position].sum != command.identity.sum {
		return Reply{}, false
	}
	return session.ring[position].reply, true
}

// remember keeps the reply to a command, in place of the client's oldest.
func (s *sessions) remember(command *Command, reply Reply) {
	current := s.byClient[command.Client]
	if current == nil {
		current = &session{positions: make(map[string]int)}
		s.byClient[strings.Clone(command.Client)] = current
	}
	entry := answered{identity: command.identity, reply: reply}
	if position, ok := current.positions[entry.correlation]; ok {
		current.ring[position] = entry // another request of the same correlation data
		return
	}
	position := len(current.ring)
	if position < s.remembered {
		current.ring = append(current.ring, entry)
	} else {
		position = current.next
		current.next = (position + 1) % s.remembered
		if oldest := current.ring[position].correlation; current.positions[oldest] == position {
			delete(current.positions, oldest)
		}
		current.ring[position] = entry
	}
	current.positions[entry.correlation] = position
}

// disconnect forgets what is true of one connection only: a KEYNOTIFY that comes
// again on the next has to register again, since the watch went with the old one.
func (s *sessions) disconnect(client string) {
	session := s.byClient[client]
	if session == nil {
		return
	}
	for i := range session.ring {
		entry := &session.ring[i]
		if entry.reply.Verb == VerbKeyNotify && session.positions[entry.correlation] == i {
			delete(session.positions, entry.correlation)
		}
	}
}

func (s *sessions) end(client string) { delete(s.byClient, client) }
