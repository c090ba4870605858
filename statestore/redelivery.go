package statestore

import (
	"crypto/sha256"
	"hash/crc32"
	"strings"

	"github.com/tenurelock/tenure/hlc"
)

// DefaultDedupWindow is the default of Options.DedupWindow.
const DefaultDedupWindow = 256

// identity distinguishes a redelivery from a new request. A redelivery is the same message
// byte for byte. A different message with the same correlation data comes from a client that
// does not make its correlation data unique, and must not get the reply to the other request.
type identity struct {
	correlation correlation
	sum         uint32 // of the content
}

// correlation identifies the correlation data of a request in 17 bytes; the zero value means
// none. Its size is fixed because correlation data may have 64 KiB: with a limit in bytes,
// the store would have to drop requests that can still be delivered again, or refuse new
// ones.
//
// Up to 16 bytes, which our clients send, are kept as they are. Longer data is replaced by
// the first half of its SHA-256, without a secret key, so that replicas agree. A client needs
// about 2^64 attempts to make two requests of the same hash and checksum, and harms only
// itself.
type correlation struct {
	kind uint8 // 0: none; 1 to 16: the length of data; hashed
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
		// A separator, which no timestamp contains.
		sum = updateSum(sum, "\x00")
		if property != nil {
			sum = updateSum(sum, *property)
		}
	}
	return identity{correlation: correlate(request.Correlation), sum: sum}
}

// updateSum is crc32.Update for a string, without converting it to a slice.
func updateSum(sum uint32, text string) uint32 {
	sum = ^sum
	for i := range len(text) {
		sum = castagnoli[byte(sum)^text[i]] ^ sum>>8
	}
	return ^sum
}

// sessions keeps the last requests of each client with their replies, so that a redelivery
// is not applied again and gets the same reply.
//
// MQTT delivers only requests without an acknowledgement again, acknowledges requests in
// their order [MQTT-4.6.0-2], and leaves at most Receive Maximum of them unacknowledged. So
// the last Receive Maximum requests are enough, for as long as the client's session lasts.
//
// All entries have the same size, so the window and the number of clients bound the memory.
// There is no limit for all clients together: one client could use it up for all.
type sessions struct {
	window   int
	node     string // of the versions in all replies
	byClient map[string]*session
	count    int // of the entries of all sessions
}

// dedupEntryBytes is the memory that an entry takes in its ring and in the map.
const dedupEntryBytes = 128

// session is a ring of the last requests of one client.
type session struct {
	positions  map[correlation]uint32 // in ring
	ring       []dedupEntry
	next       int    // position of the oldest entry once the ring is full
	connection uint32 // how many connections of the session have ended
}

// dedupEntry is a request and its reply, without Value.
type dedupEntry struct {
	identity
	connection uint32 // session.connection when the request was applied
	verb       Verb
	outcome    Outcome
	versioned  bool
	wall       int64
	counter    uint64
	err        error
}

// needsDedup reports whether a redelivery of a command must not be applied again. A GET may
// be: it changes nothing, and its reply has a value that would need much memory.
func needsDedup(command *Command) bool {
	return command.identity.correlation != correlation{} && command.Verb != VerbGet
}

// lookup returns the reply to the first delivery of a command. It finds no KEYNOTIFY of an
// earlier connection: that must be applied again, since its watch ended with the connection.
func (s *sessions) lookup(command *Command) (Reply, bool) {
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

// record keeps the reply to a command, in place of the client's oldest if the window is full.
func (s *sessions) record(command *Command, reply Reply) {
	current := s.byClient[command.Client]
	if current == nil {
		current = &session{positions: make(map[correlation]uint32)}
		s.byClient[strings.Clone(command.Client)] = current
	}
	entry := dedupEntry{
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
	if position < s.window {
		current.ring = append(current.ring, entry)
		s.count++
	} else {
		position = current.next
		current.next = (position + 1) % s.window
		if oldest := current.ring[position].correlation; current.positions[oldest] == uint32(position) {
			delete(current.positions, oldest)
		}
		current.ring[position] = entry
	}
	// An older request with the same correlation data may be in the ring: lookup no longer
	// finds it.
	current.positions[entry.correlation] = uint32(position)
}

// disconnect records the end of a connection of the client, see lookup.
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
