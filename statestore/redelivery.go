package statestore

import (
	"crypto/sha256"
	"hash/crc32"
	"strings"

	"github.com/tenurelock/tenure/hlc"
)

// DefaultDedupWindow is how many requests of one client a Store remembers unless
// Options say otherwise.
const DefaultDedupWindow = 256

// identity tells a request that is delivered again from a new one. A redelivery
// has the correlation data of the first delivery, and is the same message byte for
// byte. What has the same correlation data and says something else is a request of
// a client that does not make its correlation data unique: answering it with the
// reply to another request would tell it that something was done which was not.
type identity struct {
	correlation correlation
	sum         uint32 // of the content
}

// correlation stands for the correlation data of a request; the zero value for none. It has
// the same size for all of them, and so has what is remembered of a request. Correlation
// data may have 64 KiB, and a bound in bytes would have to forget requests that can still
// be delivered again, or refuse them.
//
// Up to 16 bytes, as our clients send, are kept as they are. Of more it has a hash: the
// first half of SHA-256, which clients that differ in all else have in common, so that
// replicas agree. Two requests are taken for one only if both are from one client, their
// hashes agree, and so do the sums of their contents. A client that wants that needs 2^64
// attempts, and deceives itself.
type correlation struct {
	kind uint8 // 0: none; up to 16: the length of the data; hashed
	data [16]byte
}

const hashed = 255

func correlate(data []byte) (c correlation) {
	if len(data) <= len(c.data) {
		c.kind = uint8(copy(c.data[:], data))
		return c
	}
	sum := sha256.Sum256(data)
	c.kind = hashed
	copy(c.data[:], sum[:])
	return c
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
	return identity{correlation: correlate(request.Correlation), sum: sum}
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
//
// What is remembered of a request has one size, whatever the request holds, so this count
// and the number of clients bound the memory. There is no bound for all clients together:
// a client that filled it would make the requests of all others fail.
type sessions struct {
	remembered int
	node       string // of all versions in replies
	byClient   map[string]*session
	count      int // of all that is remembered
}

// dedupEntryBytes is what a remembered request takes up, in its ring and in the map.
const dedupEntryBytes = 128

// session is a ring of the last replies to one client.
type session struct {
	positions  map[correlation]uint32 // in ring
	ring       []answered
	next       int    // where the next reply goes once the ring is full
	connection uint32 // how many connections of the session have ended
}

// answered is a request and the reply to it, without Value.
type answered struct {
	identity
	connection uint32 // of the session, in which it was answered
	verb       Verb
	outcome    Outcome
	versioned  bool
	wall       int64
	counter    uint64
	err        error
}

func newSessions(remembered int, node string) sessions {
	return sessions{remembered: remembered, node: node, byClient: make(map[string]*session)}
}

// worthRemembering reports whether a command must not be evaluated twice. Reading
// twice does no harm, and remembering what was read would let a client pin as much
// memory as it likes.
func worthRemembering(command *Command) bool {
	return command.identity.correlation != correlation{} && command.Verb != VerbGet
}

// recall returns the reply to the first delivery of a command. A KEYNOTIFY that comes again
// on the next connection has to register again, since the watch went with the old one.
func (s *sessions) recall(command *Command) (Reply, bool) {
	session := s.byClient[command.Client]
	if session == nil {
		return Reply{}, false
	}
	position, ok := session.positions[command.identity.correlation]
	if !ok {
		return Reply{}, false
	}
	first := &session.ring[position]
	if first.sum != command.identity.sum || first.verb == VerbKeyNotify && first.connection != session.connection {
		return Reply{}, false
	}
	reply := Reply{Verb: first.verb, Outcome: first.outcome, Err: first.err}
	if first.versioned {
		reply.Version = hlc.Timestamp{Wall: first.wall, Counter: first.counter, Node: s.node}
	}
	return reply, true
}

// remember keeps the reply to a command, in place of the client's oldest.
func (s *sessions) remember(command *Command, reply Reply) {
	current := s.byClient[command.Client]
	if current == nil {
		current = &session{positions: make(map[correlation]uint32)}
		s.byClient[strings.Clone(command.Client)] = current
	}
	entry := answered{
		identity:   command.identity,
		connection: current.connection,
		verb:       reply.Verb,
		outcome:    reply.Outcome,
		versioned:  !reply.Version.IsZero(),
		wall:       reply.Version.Wall,
		counter:    reply.Version.Counter,
		err:        reply.Err,
	}
	position := len(current.ring)
	if position < s.remembered {
		current.ring = append(current.ring, entry)
		s.count++
	} else {
		position = current.next
		current.next = (position + 1) % s.remembered
		if oldest := current.ring[position].correlation; current.positions[oldest] == uint32(position) {
			delete(current.positions, oldest)
		}
		current.ring[position] = entry
	}
	// Also where another request of the same correlation data is in the ring: that one is
	// not found any more.
	current.positions[entry.correlation] = uint32(position)
}

// disconnect forgets what is true of one connection only, see recall.
func (s *sessions) disconnect(client string) {
	if session := s.byClient[client]; session != nil {
		session.connection++
	}
}

func (s *sessions) end(client string) {
	if session := s.byClient[client]; session != nil {
		s.count -= len(session.ring)
		delete(s.byClient, client)
	}
}
