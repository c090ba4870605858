package statestore

import (
	"cmp"
	"crypto/sha256"
	"hash/crc32"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
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

// fingerprint distinguishes a redelivery from a new request. A redelivery is the same message
// byte for byte. A different message with the same correlation data comes from a client that
// does not make its correlation data unique, and must not get the reply to the other request.
type fingerprint struct {
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

func fingerprintOf(request Request) fingerprint {
	if len(request.Correlation) == 0 {
		return fingerprint{}
	}
	sum := crc32.Update(0, castagnoli, request.Payload)
	for _, property := range []*string{request.Timestamp, request.FencingToken} {
		// A separator, which no timestamp contains.
		sum = updateSum(sum, "\x00")
		if property != nil {
			sum = updateSum(sum, *property)
		}
	}
	return fingerprint{correlation: correlate(request.Correlation), sum: sum}
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
	seed     maphash.Seed // of the positions
	byClient map[string]*session
	count    int // of the entries of all sessions

	// Of a store with a journal; empty otherwise.
	journaled bool
	leftovers map[string]*leftover
	removals  []*leftover // the same, in the order in which their sessions ended
	obsolete  int         // records of all leftovers
}

// leftover is what a journal still has of the sessions of a client that have ended. Sessions can end by
// the thousand at once, so their records are removed later, a few at a time.
type leftover struct {
	client   string
	slots    []uint32 // of the records, in order
	sequence uint64   // of the latest request
}

// The upper bits of a sequence number the session, as far as the records of an earlier session are left:
// then a store that is restored can tell which records belong to the latest one.
const sessionBits = 24

func sessionNumber(sequence uint64) uint64 { return sequence >> (64 - sessionBits) }

// firstSequence returns the sequence just before the first request of a session, when records of an
// earlier session are left. After 2^24 sessions whose records were never all removed, the numbers end: the
// sessions then count as one.
func (l *leftover) firstSequence() uint64 {
	if next := sessionNumber(l.sequence) + 1; next < 1<<sessionBits {
		return next << (64 - sessionBits)
	}
	return l.sequence
}

// dedupEntryBytes is the memory that an entry takes at most, in its ring and among the positions, with the
// room that both have for more.
const dedupEntryBytes = 128

// session is a ring of the last requests of one client.
type session struct {
	ring       []dedupEntry
	positions  positions // in ring
	next       int       // position of the oldest entry once the ring is full
	connection uint32    // how many connections of the session have ended
	slots      uint32    // all slots are below it
	sequence   uint64    // of the latest request
	restored   bool      // from records
	left       *leftover // of earlier sessions of the client, whose slots this one uses again; may be nil
}

// dedupEntry is a request and its reply, without Value.
type dedupEntry struct {
	fingerprint
	connection uint32 // session.connection when the request was applied
	verb       Verb
	outcome    Outcome
	refusal    uint8 // protocol.Refusal.Number; 0: none
	records    recordState
	slot       uint32 // of the record
	second     uint32 // on Instant.Elapsed, when the request came; 0 if it was restored
	packetID   uint16 // 0: not known
	version    stamp
}

// positions finds the position in a ring of the latest request with some correlation data. It is a hash
// table with linear probing: a map would take five times the memory, in each of thousands of sessions,
// and each request would take longer. The seed keeps clients from choosing data with the same hash.
type positions struct {
	slots []uint32 // positions plus one; 0: free. Their number is a power of two, and half of them are free
	count int
}

func (p *positions) home(seed maphash.Seed, c *correlation) int {
	return int(maphash.Bytes(seed, c.data[:])) & (len(p.slots) - 1)
}

// at returns the slot of some correlation data, or the free one that it would have. There is one.
func (p *positions) at(ring []dedupEntry, seed maphash.Seed, c *correlation) (slot int, found bool) {
	for slot = p.home(seed, c); p.slots[slot] != 0; slot = (slot + 1) & (len(p.slots) - 1) {
		if ring[p.slots[slot]-1].correlation == *c {
			return slot, true
		}
	}
	return slot, false
}

func (p *positions) find(ring []dedupEntry, seed maphash.Seed, c *correlation) (position int, ok bool) {
	if p.count == 0 {
		return 0, false
	}
	slot, found := p.at(ring, seed, c)
	return int(p.slots[slot]) - 1, found
}

// set makes the position of a request, which is in the ring, the latest one with its correlation data.
func (p *positions) set(ring []dedupEntry, seed maphash.Seed, position int) {
	if 2*(p.count+1) > len(p.slots) {
		p.grow(ring, seed)
	}
	slot, found := p.at(ring, seed, &ring[position].correlation)
	if !found {
		p.count++
	}
	p.slots[slot] = uint32(position) + 1
}

func (p *positions) grow(ring []dedupEntry, seed maphash.Seed) {
	old := p.slots
	p.slots = make([]uint32, max(8, 2*len(old)))
	for _, taken := range old {
		if taken != 0 {
			slot, _ := p.at(ring, seed, &ring[taken-1].correlation)
			p.slots[slot] = taken
		}
	}
}

// remove removes the position of a request that is still in the ring, unless a later request with the
// same correlation data has its place.
func (p *positions) remove(ring []dedupEntry, seed maphash.Seed, position int) {
	gap, found := p.at(ring, seed, &ring[position].correlation)
	if !found || p.slots[gap] != uint32(position)+1 {
		return
	}
	p.count--
	// What follows moves up, unless that would put it before its home.
	last := len(p.slots) - 1
	for next := (gap + 1) & last; p.slots[next] != 0; next = (next + 1) & last {
		home := p.home(seed, &ring[p.slots[next]-1].correlation)
		if (next-home)&last >= (next-gap)&last {
			p.slots[gap], gap = p.slots[next], next
		}
	}
	p.slots[gap] = 0
}

// recordState is what a journal has under the slot of an entry.
type recordState uint8

const (
	noRecord    recordState = iota
	otherRecord             // of an earlier request, which this one replaced in the ring
	ownRecord
)

// needsDedup reports whether a redelivery of a command must not be applied again. A GET may
// be: it changes nothing, and its reply has a value that would need much memory.
func needsDedup(command *Command) bool {
	return command.fingerprint.correlation != correlation{} && command.Verb != VerbGet
}

// lookup returns the reply to the first delivery of a command that may be a redelivery. It finds no
// KEYNOTIFY of an earlier connection: that must be applied again, since its watch ended with the
// connection.
func (s *Store) lookup(now Instant, command *Command) (Reply, bool) {
	session := s.sessions.byClient[command.Client]
	if session == nil {
		return Reply{}, false
	}
	position, ok := session.positions.find(session.ring, s.sessions.seed, &command.fingerprint.correlation)
	if !ok {
		return Reply{}, false
	}
	first := &session.ring[position]
	earlier := first.connection != session.connection
	if first.sum != command.fingerprint.sum || first.verb == VerbKeyNotify && earlier {
		return Reply{}, false
	}
	switch {
	case command.delivery == Redelivery:
		if first.packetID != 0 && command.packetID != 0 && first.packetID != command.packetID {
			return Reply{}, false
		}
	case command.delivery == FirstDelivery && !earlier:
		return Reply{}, false
	default:
		came := max(time.Duration(first.second)*time.Second, s.began) // a restored one came before that
		if now.Elapsed.Truncate(time.Second)-came > RedeliveryWindow {
			return Reply{}, false
		}
	}
	reply := Reply{Verb: first.verb, Dialect: s.dialectOf(command), Outcome: first.outcome, Version: first.version.timestamp()}
	if refusal, refused := protocol.RefusalNumber(first.refusal); refused {
		reply.Err = refusal
	}
	return reply, true
}

// remember keeps the reply to a command, in place of the client's oldest if the window is full.
// version is the version of the reply. journaled says that a journal keeps it too: then the caller
// needs the entry and its sequence for the record.
func (s *sessions) remember(now Instant, command *Command, reply *Reply, version stamp, journaled bool) (*dedupEntry, uint64) {
	current := s.byClient[command.Client]
	if current == nil {
		current = new(session)
		if left := s.leftovers[command.Client]; left != nil {
			current.left, current.sequence = left, left.firstSequence()
		}
		s.byClient[strings.Clone(command.Client)] = current
	}
	current.sequence++
	entry := dedupEntry{
		fingerprint: command.fingerprint,
		connection:  current.connection,
		verb:        reply.Verb,
		outcome:     reply.Outcome,
		second:      uint32(now.Elapsed / time.Second),
		packetID:    command.packetID,
		version:     version,
	}
	if refusal, refused := reply.Err.(protocol.Refusal); refused {
		entry.refusal = refusal.Number()
	}
	position := len(current.ring)
	if position < s.window {
		entry.slot = current.slots
		current.slots++
		current.ring = append(s.withRoom(current.ring), entry)
		s.count++
	} else {
		position = current.next
		current.next = (position + 1) % len(current.ring)
		oldest := &current.ring[position]
		current.positions.remove(current.ring, s.seed, position)
		entry.slot = oldest.slot
		if oldest.records != noRecord {
			entry.records = otherRecord
		}
		*oldest = entry
	}
	// An older request with the same correlation data may be in the ring: lookup no longer
	// finds it.
	current.positions.set(current.ring, s.seed, position)
	kept := &current.ring[position]
	if journaled {
		kept.records = ownRecord
		s.overwrite(current.left, kept.slot)
	}
	return kept, current.sequence
}

// withRoom returns a ring with room for one entry at least. A ring grows by half, and not beyond the window:
// twice the size, as append has it, and the positions are more than dedupEntryBytes for each entry.
func (s *sessions) withRoom(ring []dedupEntry) []dedupEntry {
	if len(ring) < cap(ring) {
		return ring
	}
	grown := make([]dedupEntry, len(ring), min(len(ring)+max(1, len(ring)/2), s.window))
	copy(grown, ring)
	return grown
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
	var slots []uint32
	for i := range session.ring {
		if session.ring[i].records != noRecord {
			slots = append(slots, session.ring[i].slot)
		}
	}
	s.leave(client, slots, session.sequence)
	s.count -= len(session.ring)
	delete(s.byClient, client)
}

// leave adds the slots of a session that has ended to what is left of its client, which it returns. It
// returns nil if nothing is left.
func (s *sessions) leave(client string, slots []uint32, sequence uint64) *leftover {
	left := s.leftovers[client]
	if !s.journaled || left == nil && len(slots) == 0 {
		return nil
	}
	if left == nil {
		left = &leftover{client: strings.Clone(client)}
		s.leftovers[left.client] = left
		s.removals = append(s.removals, left)
	}
	left.slots = append(left.slots, slots...)
	slices.Sort(left.slots)
	left.sequence = sequence
	s.obsolete += len(slots)
	return left
}

// overwrite notes that a new record takes the place of one that is left, if there is one in its slot.
func (s *sessions) overwrite(left *leftover, slot uint32) {
	if left == nil {
		return
	}
	if at, found := slices.BinarySearch(left.slots, slot); found {
		left.slots = slices.Delete(left.slots, at, at+1)
		s.obsolete--
	}
}

// removeObsolete returns the groups that remove up to limit obsolete records.
func (s *sessions) removeObsolete(limit int) (groups []Group) {
	var group Group
	for len(s.removals) > 0 {
		left := s.removals[0]
		last := len(left.slots) - 1
		if last < 0 {
			s.removals[0], s.removals = nil, s.removals[1:]
			delete(s.leftovers, left.client)
			continue
		}
		if limit <= 0 {
			break
		}
		limit--
		group = append(group, Item{Kind: KindReply, Client: left.client, slot: left.slots[last]}.gone())
		left.slots = left.slots[:last]
		s.obsolete--
		if len(group) == MaxGroup {
			groups, group = append(groups, group), nil
		}
	}
	if len(group) > 0 {
		groups = append(groups, group)
	}
	return groups
}

// restore adds a client with the replies that a journal had. There may be more than the window
// has now: they stay until later requests take their places. If a later session has records, replies of
// the sessions before it are obsolete.
func (s *sessions) restore(client string, replies []restoredReply) error {
	slices.SortStableFunc(replies, func(a, b restoredReply) int { return cmp.Compare(a.sequence, b.sequence) })
	sequence := replies[len(replies)-1].sequence
	// The replies of sessions before come first. They need no room: Usage does not count it.
	latest := slices.IndexFunc(replies, func(r restoredReply) bool { return sessionNumber(r.sequence) == sessionNumber(sequence) })
	current := &session{ring: make([]dedupEntry, 0, len(replies)-latest), sequence: sequence, restored: true, connection: 1} // a later one than that of the entries
	taken := make(map[uint32]bool, len(replies))
	var ended []uint32
	var endedSequence uint64
	for i := range replies {
		reply := &replies[i].dedupEntry
		if taken[reply.slot] || i > 0 && replies[i].sequence == replies[i-1].sequence {
			return damaged("two have the slot %d or the sequence %d", reply.slot, replies[i].sequence)
		}
		taken[reply.slot] = true
		if i < latest {
			ended, endedSequence = append(ended, reply.slot), replies[i].sequence
			continue
		}
		current.slots = max(current.slots, reply.slot+1)
		current.ring = append(current.ring, *reply)
		current.positions.set(current.ring, s.seed, len(current.ring)-1)
	}
	current.left = s.leave(client, ended, endedSequence)
	s.byClient[client] = current
	s.count += len(current.ring)
	return nil
}

// item returns what a record says about an entry of the client.
func (e *dedupEntry) item(client string, sequence uint64) Item {
	return Item{
		Kind: KindReply, Client: client, Sequence: sequence, Verb: e.verb, Outcome: e.outcome,
		Version: e.version.timestamp(), slot: e.slot, request: e.fingerprint,
	}
}

// snapshot returns the records of a client's entries. The oldest entry is the first; the
// latest has the sequence of the session.
func (s *session) snapshot(client string) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for i := range s.ring {
			entry := &s.ring[(s.next+i)%len(s.ring)]
			sequence := s.sequence - uint64(len(s.ring)-1-i)
			if entry.records == ownRecord && !yield(entry.item(client, sequence).Record()) {
				return
			}
		}
	}
}
