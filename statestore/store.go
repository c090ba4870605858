package statestore

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// MaxSkew is how far a request's timestamp or fencing token may be ahead of the
// store's clock (docs/protocol.md §3.4). A token that is not above every version that the store
// has issued may be ahead by more.
const MaxSkew = time.Minute

// Options configures a Store. The zero value is an unlimited store.
type Options struct {
	// Identity names the data of the store: a store that starts without the data of an
	// earlier one needs a new identity, a store that kept its data the same. The store
	// refuses a request for another identity before any other check. Empty: the store has
	// no identity and applies requests for any.
	Identity string
	// HoldOff is how long the store grants no lease, from Begin or zero on Instant.Elapsed:
	// the condition of a SET with PX and NX or NEX fails, as if the key were held, unless the
	// key was set since the store began. A store that starts without the data of an earlier
	// one, or from a backup, needs at least the longest TTL in use, so that the leases of the
	// earlier store run out first. Zero: none.
	HoldOff time.Duration
	// MaxKeys limits the number of keys; 0 means no limit. The store refuses a SET that
	// would create one more, but not one that replaces a value.
	MaxKeys int
	// MaxBytes limits the sum of the lengths of keys, values and fencing tokens; 0 means no
	// limit. A token counts as the length of its node plus 16 bytes. The store accepts each
	// SET that does not need more, so a lease can always be renewed. It refuses a DEL or a VDEL
	// only if a strict store would keep a longer token than the limit allows.
	MaxBytes int64
	// MaxValue limits the length of a value; 0 means no limit.
	MaxValue int
	// MaxWatches limits how many keys one client may watch; 0 means no limit. The store
	// refuses a KEYNOTIFY for one key more, but not one for a key that the client already
	// watches.
	MaxWatches int
	// MaxWatchBytes limits the memory for the watches of one client, and MaxAllWatchBytes
	// for the watches of all clients; 0 means no limit. A watch counts as the length of its
	// key plus 256 bytes. The store refuses a KEYNOTIFY beyond a limit. One client may use
	// at most as much of MaxAllWatchBytes as is left for all others together, but at least
	// 16 KiB: clients with few watches may exceed MaxAllWatchBytes by 16 KiB each.
	MaxWatchBytes, MaxAllWatchBytes int64
	// DedupWindow is how many requests of each client the store keeps the replies of, so
	// that it does not apply a redelivery again; default DefaultDedupWindow. It must be at
	// least the number of requests that a client may have unacknowledged: the Receive
	// Maximum that the server announces. A request takes about 128 bytes of memory.
	DedupWindow int
	// Dialect is how the store writes replies and notifications; the default is the dialect of
	// each client.
	Dialect Dialect

	// Journaled says that a journal keeps the data of the store: the store then returns the
	// records that change, see Effects and Restored. False: it returns none, and its data
	// ends with it.
	Journaled bool

	// Strict closes holes in the protocol: the store then refuses requests that other
	// stores accept. It keeps the fence of a protected key after DEL, VDEL and expiry, and
	// never drops it, because the oldest token could write then; the fence counts towards
	// MaxKeys. And it refuses a fencing token above every version that it has issued.
	Strict bool
	// LockPrefixes are prefixes of the keys that are locks, in a strict store. A SET of a
	// lock needs PX, and a value of the client id, a colon and a text without a colon, as
	// package lease writes it by default. A VDEL needs such a value. The store refuses DEL.
	LockPrefixes []string
}

// Store is the set of keys. It is not safe for concurrent use.
type Store struct {
	options   Options
	versions  versions
	began     time.Duration // on Instant.Elapsed: when the hold-off began
	continues bool          // see Continues
	holding   bool          // the record of the identity says that the hold-off is not over
	earlier   stamp         // restored keys have versions up to it, and later ones are above it
	entries   map[string]*entry
	expiries  expiries
	bytes     int64
	full      bool // see SetFull
	watches   watches
	sessions  sessions
	fences    map[string]hlc.Token // of keys that are gone, in a strict store
	leases    leases

	restoring restoring
}

// entry is a key with its value.
type entry struct {
	key, value string
	version    stamp
	fence      *hlc.Token // nil: the key is not protected
	lease      *lease     // nil: the key is no lease
	willed     bool       // see Command.Willed
	// lifetime is what a journal has; zero: the key does not expire. The lifetimes of
	// renewals are not longer.
	lifetime time.Duration

	// Of a key that expires.
	place    int           // in expiries, plus one; 0: it does not expire
	deadline time.Duration // on Instant.Elapsed
	filed    time.Duration // the deadline by which it has its place; not later than deadline
}

func (e *entry) size() int64 { return int64(len(e.key)+len(e.value)) + tokenSize(e.token()) }

// token returns the token that protects the key; zero: it is not protected.
func (e *entry) token() hlc.Token {
	if e.fence == nil {
		return hlc.Token{}
	}
	return *e.fence
}

func (e *entry) setToken(token hlc.Token) {
	if token != e.token() { // it seldom changes
		kept := token // so that a token that does not change costs no memory
		e.fence = &kept
	}
}

// New returns an empty store. It returns an error for an invalid option.
func New(options Options) (*Store, error) {
	if options.HoldOff < 0 {
		return nil, fmt.Errorf("statestore: Options.HoldOff %v is negative; 0 means none", options.HoldOff)
	}
	if min(options.MaxKeys, options.MaxValue, options.MaxWatches, options.DedupWindow) < 0 ||
		min(options.MaxBytes, options.MaxWatchBytes, options.MaxAllWatchBytes) < 0 {
		return nil, fmt.Errorf("statestore: limits cannot be negative "+
			"(MaxKeys %d, MaxBytes %d, MaxValue %d, MaxWatches %d, MaxWatchBytes %d, MaxAllWatchBytes %d, DedupWindow %d); "+
			"0 means no limit, or the default",
			options.MaxKeys, options.MaxBytes, options.MaxValue, options.MaxWatches, options.MaxWatchBytes,
			options.MaxAllWatchBytes, options.DedupWindow)
	}
	if options.Dialect > Documented {
		return nil, fmt.Errorf("statestore: there is no Options.Dialect %d", options.Dialect)
	}
	options.DedupWindow = cmp.Or(options.DedupWindow, DefaultDedupWindow)
	if len(options.LockPrefixes) > 0 && !options.Strict {
		return nil, errors.New("statestore: Options.LockPrefixes needs Options.Strict")
	}
	if slices.Contains(options.LockPrefixes, "") {
		return nil, errors.New("statestore: an empty prefix in Options.LockPrefixes makes every key a lock")
	}
	return &Store{
		options:  options,
		entries:  make(map[string]*entry),
		watches:  watches{byKey: make(map[string]*watched), byClient: make(map[string]*watcher)},
		sessions: sessions{window: options.DedupWindow, seed: maphash.MakeSeed(), byClient: make(map[string]*session)},
		fences:   make(map[string]hlc.Token),
		leases: leases{
			sources: make(map[sourceID]*source), latest: make(map[string]*change),
			totals: Totals{EndsBy: make(map[Cause]uint64)},
		},
		restoring: restoring{replies: make(map[string][]restoredReply)},
	}, nil
}

// Begin restarts Options.HoldOff. If requests can reach the store only some time after its start,
// call Begin at that time: until then another store may grant leases.
func (s *Store) Begin(now Instant) { s.began = now.Elapsed }

// Identity returns Options.Identity, or the identity of the data that was restored.
func (s *Store) Identity() string { return s.options.Identity }

// Apply applies one command. It returns the reply, and what the command causes besides: the
// notifications in the order in which to deliver them, and the records to keep. A refused
// command changes nothing: neither value, expiry, version nor token.
//
// An expired key does not exist for any command, whether or not Expire has removed it. If
// Apply removes it, the notification of its expiry comes first.
//
// A redelivery within Options.DedupWindow gets the reply of the first delivery and changes
// nothing. A command after its Request.Expires changes nothing and has the outcome Expired.
// Both checks come after the refusal of a command for another store.
//
// The store remembers the replies to all commands for redeliveries. Records have only the replies to
// commands with a group of their own. Other commands are judged anew after a restart: they changed
// nothing that survived it.
func (s *Store) Apply(now Instant, command Command) (Reply, Effects) {
	if command.Store != nil && s.options.Identity != "" && *command.Store != s.options.Identity {
		return Reply{Verb: command.Verb, Dialect: s.dialectOf(&command), Err: protocol.OtherStore}, Effects{}
	}
	if command.Expires != 0 && now.Elapsed >= command.Expires {
		return Reply{Verb: command.Verb, Outcome: Expired}, Effects{}
	}
	dedup := needsDedup(&command)
	if dedup {
		if reply, redelivered := s.lookup(now, &command); redelivered {
			return reply, Effects{}
		}
	}
	var effects Effects
	reply, changed := s.apply(now, &command, &effects)
	history := s.takeChanged()
	var group Group
	if s.options.Journaled {
		group = s.group(now, &command, &reply, changed, history)
	}
	if dedup {
		group = append(group, s.sessions.remember(now, &command, &reply, group != nil)...)
	}
	if group != nil {
		effects.Groups = append(effects.Groups, group)
		effects.Keys = append(effects.Keys, command.Key)
	}
	return reply, effects
}

// group returns the records of a command that was applied; nil if it needs none. changed says
// that its key changed; history are the records of what that changed of its lease.
func (s *Store) group(now Instant, command *Command, reply *Reply, changed bool, history []Record) (group Group) {
	const most = 4 // the key, a change of its lease, the bound, and the reply
	if changed {
		group = append(append(make(Group, 0, most), s.keyRecord(command.Key)), history...)
	}
	if v := &s.versions; command.Verb == VerbSet && reply.Outcome == OK && stampOf(reply.Version).above(v.committed) {
		if stampOf(reply.Version).above(v.bound) {
			v.move(now)
		}
		group = append(group, v.record())
	}
	return group
}

// apply applies a command that was not applied before. It reports whether the record of its
// key changed.
func (s *Store) apply(now Instant, command *Command, effects *Effects) (reply Reply, changed bool) {
	reply.Verb, reply.Dialect = command.Verb, s.dialectOf(command)
	refusal := command.refusal
	if refusal == "" {
		refusal = s.checkLock(command)
	}
	if refusal == "" {
		refusal = s.checkStamps(now, command)
	}
	if refusal != "" {
		reply.Err = refusal
		if refusal == protocol.TimestampTooFarAhead || refusal == protocol.FencingTokenTooFarAhead {
			// From the store's clock, the sender sees which clock is wrong and by how much.
			reply.Version = hlc.Timestamp{Wall: max(now.WallMillis, 0), Node: storeNode}
		}
		return reply, false
	}
	current := s.entries[command.Key]
	if current != nil && current.due(now) {
		s.expired(now, current, effects)
		current = nil
	}
	if refusal := s.checkToken(current, command); refusal != "" {
		reply.Err = refusal
		return reply, false
	}
	switch command.Verb {
	case VerbSet:
		changed = s.set(now, &reply, current, command, effects)
	case VerbGet:
		if current == nil {
			reply.Outcome = Missing
		} else {
			reply.Outcome, reply.Value, reply.Version = Found, current.value, current.version.timestamp()
		}
	case VerbDel, VerbVDel:
		switch {
		case command.Verb == VerbVDel && current != nil && current.value != string(command.Value):
			reply.Outcome = ConditionFailed
		case s.overBytes(s.fenceGrows(current, command)):
			reply.Err = protocol.QuotaExceeded
		case current == nil:
			reply.Outcome = NothingThere
			if fence, fenced := s.fences[command.Key]; fenced {
				s.keepFence(command.Key, higherToken(fence, command))
				changed = s.fences[command.Key] != fence
			}
		default:
			reply.Outcome, reply.Version = Deleted, current.version.timestamp()
			if current.lease != nil {
				s.end(now, current, current.value, command.deletes(current.lease), command, &reply)
			}
			if current.fence != nil {
				s.bytes -= current.size()
				current.setToken(higherToken(*current.fence, command))
				s.bytes += current.size()
			}
			s.remove(current, effects)
			changed = true
		}
	case VerbKeyNotify:
		watch := s.watches.find(command.Client, command.Key)
		waits := command.Waits || s.sessions.hasAsked(command)
		switch {
		case command.Stop && watch == nil:
			reply.Outcome = NothingThere
		case command.Stop:
			s.gone(now, watch)
			s.watches.remove(watch)
			reply.Outcome = OK
		case !protocol.CanNotify(command.Client, command.Key):
			reply.Err = protocol.KeyTooLong
		case !s.watches.add(command.Client, command.Key, reply.Dialect, waits, &s.options):
			reply.Err = protocol.QuotaExceeded
		default:
			reply.Outcome = OK
		}
	}
	return reply, changed
}

// fails reports whether the condition of a SET fails for a key that exists.
func (c *Command) fails(current *entry) bool {
	return c.Condition == IfMissing || c.Condition == IfMissingOrEqual && current.value != string(c.Expected)
}

// renews reports whether a SET changes the version and the deadline of its key only. It needs no
// record then: the key's, with the same lifetime or a longer one, is as good, because at the start
// of a store each key gets its whole lifetime again, and a new version.
func (c *Command) renews(current *entry) bool {
	return current != nil && current.value == string(c.Value) && current.willed == c.Willed &&
		c.Lifetime > 0 && current.lifetime > 0 && c.Lifetime <= current.lifetime &&
		c.token.Compare(current.token()) <= 0
}

// set applies a SET. It reports whether the record of the key changed.
func (s *Store) set(now Instant, reply *Reply, current *entry, command *Command, effects *Effects) (changed bool) {
	if current != nil && command.fails(current) {
		if current.lease != nil && command.isClaim() {
			s.watches.find(command.Client, command.Key).wait(true)
		}
		reply.Outcome, reply.Version = ConditionFailed, current.version.timestamp()
		return false
	}
	if command.Condition != Always && command.Lifetime > 0 && now.Elapsed-s.began < s.options.HoldOff &&
		(current == nil || !current.version.above(s.earlier)) {
		// A value from a backup says as little about the present holder as none.
		reply.Outcome = ConditionFailed // without a version: the store does not know the holder
		return false
	}
	if !s.removeExpired(now, current, command, effects) {
		reply.Err = protocol.QuotaExceeded
		return false
	}
	renewed := current
	if changed = !command.renews(current); changed {
		renewed = nil
	}
	version, err := s.issue(now, command, renewed)
	if err != nil {
		// Only a counter near the end of its range is an error, which no correct clock sends.
		reply.Err = protocol.MalformedTimestamp
		return false
	}
	s.versions.use(version)
	goesOn, before := !changed, "" // a lease, and the value that it had
	if current != nil && current.lease != nil {
		goesOn, before = command.goesOn(current), current.value
	}
	if changed {
		if current == nil {
			current = &entry{key: command.Key}
			current.setToken(s.takeFence(command.Key))
			s.entries[current.key] = current
		} else {
			s.bytes -= current.size()
		}
		if current.value != string(command.Value) {
			current.value = string(command.Value)
		}
		current.setToken(higherToken(current.token(), command))
		current.lifetime, current.willed = command.Lifetime, command.Willed
		s.bytes += current.size()
	}
	current.version = version
	s.noteSet(now, command, reply, current, before, goesOn)
	if command.Lifetime > 0 {
		s.expiries.schedule(current, saturatingAdd(now.Elapsed, command.Lifetime))
	} else {
		s.expiries.cancel(current)
	}
	reply.Outcome, reply.Version = OK, version.timestamp()
	s.watches.notify(effects, Change{Key: command.Key, Value: current.value, Version: reply.Version})
	return changed
}

// checkStamps checks __ts and __ft without regard to the key. It accepts a token that this
// store issued before its clock was set back: otherwise its holder could not write until the
// clock has caught up.
func (s *Store) checkStamps(now Instant, command *Command) protocol.Refusal {
	latest := max(now.WallMillis, 0) + MaxSkew.Milliseconds()
	switch {
	case command.badTimestamp:
		return protocol.MalformedTimestamp
	case command.Verb == VerbSet && command.timestamp.IsZero():
		return protocol.MissingTimestamp
	case command.timestamp.Wall > latest:
		return protocol.TimestampTooFarAhead
	case command.badToken:
		return protocol.MalformedTimestamp
	case s.neverIssued(command.token) && command.token.Wall > latest:
		return protocol.FencingTokenTooFarAhead
	}
	return ""
}

// remove deletes an entry and adds the notifications of its removal.
func (s *Store) remove(gone *entry, effects *Effects) {
	s.expiries.cancel(gone)
	delete(s.entries, gone.key)
	s.bytes -= gone.size()
	s.keepFence(gone.key, gone.token())
	s.watches.notify(effects, Change{Key: gone.key, Deleted: true, Version: gone.version.timestamp()})
}

// expired removes an entry whose time is over, by a group of its own.
func (s *Store) expired(now Instant, gone *entry, effects *Effects) {
	if gone.lease != nil {
		cause := CauseExpired
		if gone.willed && !gone.version.above(s.earlier) { // Restored has shortened it
			cause = CauseWill
		}
		s.end(now, gone, gone.value, cause, nil, nil)
	}
	s.remove(gone, effects)
	history := s.takeChanged()
	if s.options.Journaled {
		effects.Groups = append(effects.Groups, append(Group{s.keyRecord(gone.key)}, history...))
		effects.Keys = append(effects.Keys, gone.key)
	}
}

// Disconnect drops all watches of a client, in steps, so that other clients need not wait while a client
// with a million watches is removed. Call it when the client's connection ends:
// unlike MQTT subscriptions, watches end with the connection. From the first call on the client is not notified. Each
// call frees the memory of up to limit watches and reports whether there are more: call it
// again then. The client's next connection must not send requests before the last call.
func (s *Store) Disconnect(now Instant, client string, limit int) (more bool) {
	s.watches.disconnect(client)
	s.sessions.disconnect(client)
	return s.watches.sweep(limit, func(x *watch) { s.gone(now, x) })
}

// EndSession drops the remembered replies to the requests of a client. Call it
// when the client's MQTT session ends, after Disconnect: after that MQTT does not
// deliver requests of the session again. The records of these replies are obsolete then, see
// RemoveObsolete.
func (s *Store) EndSession(client string) { s.sessions.end(client) }

// RemoveObsolete returns groups that remove up to limit records of replies whose sessions have
// ended. Usage says how many there are. They
// need not be removed soon: until then they take space in the journal only. After a restart, the
// latest session of a client that a journal has records of counts as not ended, and all earlier
// ones as ended.
func (s *Store) RemoveObsolete(limit int) []Group { return s.sessions.removeObsolete(limit) }

func saturatingAdd[T ~int64](a, b T) T {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
