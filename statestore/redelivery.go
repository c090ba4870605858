package statestore

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
)

// DefaultDedupWindow is the default of Options.DedupWindow.
const DefaultDedupWindow = 256

// Delivery says what is known of earlier deliveries of a request.
type Delivery uint8

const (
	// FirstDelivery is a request that comes over its client's own connection without DUP: MQTT says that
	// it is not a redelivery. It is applied, unless an earlier connection brought the same: some clients
	// deliver again without DUP, so such a request counts as an UnknownDelivery.
	FirstDelivery Delivery = iota
	// Redelivery is a request with DUP. If the store remembers it, it gets the first reply.
	Redelivery
	// UnknownDelivery is a request from a broker in between, which does not pass DUP on: it may be a
	// redelivery of one that came within the last RedeliveryWindow.
	UnknownDelivery
)

// RedeliveryWindow is how long a request that comes again with UnknownDelivery, or without DUP over a later
// connection, counts as a redelivery if its bytes and its correlation data are the same. It is as long as clients
// take to connect again after a lost connection, and short for a client that means its second request.
const RedeliveryWindow = 10 * time.Second

// fingerprint distinguishes a redelivery from a new request; zero: the request has no correlation data. A redelivery
// is the same message byte for byte. A different message with the same correlation data comes from a client that
// does not make its correlation data unique, and must not get the reply to the other request.
//
// It is the first half of a SHA-256, without a secret key, so that replicas agree. A client needs
// about 2^64 attempts to make two requests with the same one, and harms only itself.
type fingerprint [16]byte

func fingerprintOf(request Request) fingerprint {
	if len(request.Correlation) == 0 {
		return fingerprint{}
	}
	var buffer [512]byte
	text := append(binary.AppendUvarint(buffer[:0], uint64(len(request.Correlation))), request.Correlation...)
	for _, property := range []*string{request.Timestamp, request.FencingToken} {
		if property != nil {
			text = append(binary.AppendUvarint(text, uint64(len(*property))), *property...)
		}
		text = append(text, 0)
	}
	sum := sha256.Sum256(append(text, request.Payload...))
	return fingerprint(sum[:len(fingerprint{})])
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
	seed     maphash.Seed // of the chains; it keeps clients from choosing data of one chain
	byClient map[string]*session
	count    int      // of the entries of all sessions
	sequence uint64   // of the latest request of all
	obsolete []uint64 // slots of the records of sessions that have ended
}

// dedupEntryBytes is the memory that an entry takes at most, in its ring and its chain, with the
// space that both have for more.
const dedupEntryBytes = 128

// session is a ring of the last requests of one client.
type session struct {
	ring       []dedupEntry
	chains     []link // by hash: to the latest entry
	next       int    // position of the oldest entry once the ring is full
	connection uint32 // how many connections of the session have ended
	number     uint64 // above those of the client's earlier sessions
	restored   bool   // from records
	asked      string // the lease that the client has asked for last, and not got
}

// dedupEntry is a request and its reply, without Value.
type dedupEntry struct {
	fingerprint
	connection uint32 // session.connection when the request was applied
	verb       Verb
	outcome    Outcome
	refusal    uint8  // protocol.Refusal.Number; 0: none
	second     uint32 // on Instant.Elapsed, when the request came; 0 if it was restored
	chain      link   // to an earlier entry with the same hash
	packetID   uint16 // 0: not known
	slot       uint64 // of the record, of this request or of an earlier one in this place; 0: there is none
	version    stamp
}

// link is the position of an entry in its ring, plus one; 0: there is none.
type link uint32

// home returns the chain of a request.
func (s *session) home(seed maphash.Seed, request *fingerprint) *link {
	return &s.chains[maphash.Bytes(seed, request[:])%uint64(len(s.chains))]
}

// find returns the latest delivery of a request; nil: there is none.
func (s *session) find(seed maphash.Seed, request *fingerprint) *dedupEntry {
	if len(s.ring) == 0 {
		return nil
	}
	for at := *s.home(seed, request); at != 0; at = s.ring[at-1].chain {
		if s.ring[at-1].fingerprint == *request {
			return &s.ring[at-1]
		}
	}
	return nil
}

// link makes an entry of the ring the first of its chain.
func (s *session) link(seed maphash.Seed, position int) {
	home := s.home(seed, &s.ring[position].fingerprint)
	s.ring[position].chain, *home = *home, link(position)+1
}

func (s *session) unlink(seed maphash.Seed, position int) {
	at := s.home(seed, &s.ring[position].fingerprint)
	for *at != link(position)+1 {
		at = &s.ring[*at-1].chain
	}
	*at = s.ring[position].chain
}

// add adds an entry to the ring, in place of the oldest one if the window is full, and returns it.
func (s *session) add(seed maphash.Seed, window int, entry dedupEntry) *dedupEntry {
	position := s.next
	switch {
	case len(s.ring) >= window:
		s.next = (position + 1) % len(s.ring)
		s.unlink(seed, position)
		entry.slot = s.ring[position].slot
		s.ring[position] = entry
	case len(s.ring) < cap(s.ring):
		position = len(s.ring)
		s.ring = append(s.ring, entry)
	default: // twice the size, as append has it, would be more than dedupEntryBytes for each entry
		position = len(s.ring)
		s.ring = append(make([]dedupEntry, 0, min(position+max(1, position/2), window)), append(s.ring, entry)...)
		s.chains = make([]link, cap(s.ring))
		for earlier := range position {
			s.link(seed, earlier)
		}
	}
	s.link(seed, position)
	return &s.ring[position]
}

// needsDedup reports whether a redelivery of a command must not be applied again. A GET may
// be: it changes nothing, and its reply has a value that would need much memory.
func needsDedup(command *Command) bool {
	return command.fingerprint != fingerprint{} && command.Verb != VerbGet
}

// lookup returns the reply to the first delivery of a command that may be a redelivery. It finds no
// KEYNOTIFY of an earlier connection: that must be applied again, since its watch ended with the
// connection.
func (s *Store) lookup(now Instant, command *Command) (Reply, bool) {
	session := s.sessions.byClient[command.Client]
	if session == nil {
		return Reply{}, false
	}
	first := session.find(s.sessions.seed, &command.fingerprint)
	if first == nil {
		return Reply{}, false
	}
	earlier := first.connection != session.connection
	if first.verb == VerbKeyNotify && earlier {
		return Reply{}, false
	}
	switch {
	case command.Delivery == Redelivery:
		if first.packetID != 0 && command.PacketID != 0 && first.packetID != command.PacketID {
			return Reply{}, false
		}
	case command.Delivery == FirstDelivery && !earlier:
		return Reply{}, false
	default:
		came := max(time.Duration(first.second)*time.Second, s.began) // a restored one came before that
		if now.Elapsed.Truncate(time.Second)-came > RedeliveryWindow {
			return Reply{}, false
		}
	}
	reply := Reply{Verb: first.verb, Dialect: s.dialectOf(command), Outcome: first.outcome,
		Version: first.version.timestamp()}
	if refusal, refused := protocol.RefusalNumber(first.refusal); refused {
		reply.Err = refusal
	}
	return reply, true
}

// remember keeps the reply to a command, in place of the client's oldest if the window is full. It returns the record
// of that, if a journal keeps it too.
func (s *sessions) remember(now Instant, command *Command, reply *Reply, journaled bool) (records []Record) {
	s.sequence++
	current := s.byClient[command.Client]
	if current == nil {
		current = &session{number: s.sequence}
		s.byClient[strings.Clone(command.Client)] = current
	}
	if command.isClaim() {
		if current.asked = ""; reply.Outcome == ConditionFailed {
			current.asked = shown.Cut(command.Key)
		}
	}
	entry := dedupEntry{
		fingerprint: command.fingerprint,
		connection:  current.connection,
		verb:        reply.Verb,
		outcome:     reply.Outcome,
		second:      uint32(now.Elapsed / time.Second),
		packetID:    command.PacketID,
		version:     stampOf(reply.Version),
	}
	if refusal, refused := reply.Err.(protocol.Refusal); refused {
		entry.refusal = refusal.Number()
	}
	s.count -= len(current.ring)
	kept := current.add(s.seed, s.window, entry)
	s.count += len(current.ring)
	if !journaled {
		return nil
	}
	kept.slot = cmp.Or(kept.slot, s.sequence)
	return []Record{Item{
		Kind: KindReply, Client: command.Client, Sequence: s.sequence, Session: current.number, Verb: entry.verb,
		Outcome: entry.outcome, Version: reply.Version, slot: kept.slot, request: entry.fingerprint,
	}.Record()}
}

// hasAsked reports whether the client of a command has just asked for the lease and not got it.
func (s *sessions) hasAsked(c *Command) bool {
	session := s.byClient[c.Client]
	return session != nil && session.asked == shown.Cut(c.Key)
}

// disconnect records the end of a connection of the client, see lookup.
func (s *sessions) disconnect(client string) {
	if session := s.byClient[client]; session != nil {
		session.connection++
	}
}

// end forgets a client. Its records are obsolete from now on.
func (s *sessions) end(client string) {
	session := s.byClient[client]
	if session == nil {
		return
	}
	for i := range session.ring {
		if slot := session.ring[i].slot; slot != 0 {
			s.obsolete = append(s.obsolete, slot)
		}
	}
	s.count -= len(session.ring)
	delete(s.byClient, client)
}

// removeObsolete returns the groups that remove up to limit obsolete records.
func (s *sessions) removeObsolete(limit int) (groups []Group) {
	left := max(len(s.obsolete)-limit, 0)
	for slots := range slices.Chunk(s.obsolete[left:], MaxGroup) {
		var group Group
		for _, slot := range slots {
			group = append(group, Item{Kind: KindReply, slot: slot}.gone())
		}
		groups = append(groups, group)
	}
	if s.obsolete = s.obsolete[:left]; left == 0 {
		s.obsolete = nil
	}
	return groups
}

// restoredReply is an entry of a ring, as a journal had it.
type restoredReply struct {
	sequence, session uint64
	dedupEntry
}

// restore adds a client with the replies that a journal had. There may be more than the window
// has now: they stay until later requests take their places. If a later session has records, replies of
// the sessions before it are obsolete.
func (s *sessions) restore(client string, replies []restoredReply) {
	slices.SortFunc(replies, func(a, b restoredReply) int { return cmp.Compare(a.sequence, b.sequence) })
	latest := replies[len(replies)-1]
	s.sequence = max(s.sequence, latest.sequence)
	// Its connection is later than the one of the entries, which is 0.
	current := &session{number: latest.session, restored: true, connection: 1}
	for _, r := range replies {
		if r.session == latest.session {
			current.add(s.seed, len(replies), r.dedupEntry)
		} else {
			s.obsolete = append(s.obsolete, r.slot)
		}
	}
	s.byClient[client] = current
	s.count += len(current.ring)
}
