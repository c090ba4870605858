package statestore

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// DefaultNode is the node id of the store's own versions.
const DefaultNode = "StateStore"

// MaxSkew is how far a request's timestamp or fencing token may be ahead of the
// store's clock (docs/protocol.md §3.4). A token that is not above every version that the store
// has issued may be ahead by more.
const MaxSkew = time.Minute

// Options configures a Store. The zero value is an unlimited store.
type Options struct {
	// Node is the node id in the store's versions; default DefaultNode.
	Node string
	// Identity names the data of the store: it is new when a store starts without the data
	// of an earlier one, and stays the same when the data does. A request that names
	// another identity is refused before anything else is looked at. Empty: the store has
	// none and applies requests for any.
	Identity string
	// HoldOff is how long, from Begin or zero on Instant.Elapsed, a store grants no lease: a SET with
	// NX or NEX that would create a key with PX fails its condition, as if the key were
	// held. A store that starts without the data of an earlier one needs at least the
	// longest TTL in use, so that the leases of the earlier store run out first. Zero: the
	// store grants at once.
	HoldOff time.Duration
	// MaxKeys limits the number of keys; 0 means no limit. A SET that would
	// create one more is refused, one that replaces a value is not.
	MaxKeys int
	// MaxBytes limits the sum of the lengths of keys and values; 0 means no
	// limit. A SET that does not grow the store is never refused, so a lease
	// can always be renewed.
	MaxBytes int64
	// MaxValue limits the length of a value; 0 means no limit beyond that of the
	// request's transport.
	MaxValue int
	// MaxWatches limits how many keys one client may watch; 0 means no limit.
	// A KEYNOTIFY beyond it is refused; one for a key that the client watches
	// already is not.
	MaxWatches int
	// MaxWatchBytes limits what the watches of one client may take up, and MaxAllWatchBytes
	// the same for all clients; 0 means no limit. A watch counts for the length of its key
	// and 256 bytes. A KEYNOTIFY beyond a limit is refused. Of MaxAllWatchBytes, a client may
	// have as much as is left for all others together, and 16 KiB in any case; so clients with
	// few watches may pass it by 16 KiB each.
	MaxWatchBytes, MaxAllWatchBytes int64
	// DedupWindow is how many requests of one client are remembered, so that
	// one that is delivered again is not applied again; default
	// DefaultDedupWindow. It must be at least the number of requests that a
	// client may have unacknowledged: the Receive Maximum that the server
	// announces. A remembered request takes up about 128 bytes, whatever it holds.
	DedupWindow int

	// Strict closes holes that the protocol leaves open, at the price of
	// refusing what other stores accept. The fence of a protected key survives
	// DEL, VDEL and expiry (and counts as a key towards MaxKeys, for good: a
	// fence that was forgotten would let the oldest token in). A fencing token
	// above every version that this store has issued is refused.
	Strict bool
	// LockPrefixes, in a strict store, begin the keys that are locks: a SET of
	// one needs PX and a value that is the client's id followed by a colon and
	// anything (as package lease writes it unless it is told another name), a
	// VDEL such a value, and DEL is refused.
	LockPrefixes []string
}

// Store is the set of keys. It is not safe for concurrent use.
type Store struct {
	options  Options
	clock    hlc.Timestamp // the latest version issued
	began    time.Duration // on Instant.Elapsed: when the hold-off began
	entries  map[string]*entry
	expiries expiries
	bytes    int64
	watches  watches
	sessions sessions
	fences   map[string]hlc.Token // of keys that are gone, in a strict store
}

type entry struct {
	key     string
	value   string
	version hlc.Timestamp
	token   hlc.Token // zero: the key is not protected

	// Of a key that expires; next is nil otherwise.
	deadline       time.Duration // on Instant.Elapsed
	filed          tick          // under which it is filed in expiries; not later than the deadline's
	next, previous *entry        // in the list of that tick
}

func (e *entry) size() int64 { return int64(len(e.key) + len(e.value)) }

// New returns an empty store. The error says which option makes no sense.
func New(options Options) (*Store, error) {
	if options.Node == "" {
		options.Node = DefaultNode
	}
	clock, err := hlc.Parse("0:0:" + options.Node)
	if err != nil {
		return nil, fmt.Errorf("statestore: Options.Node %q is not a node id: %w", options.Node, err)
	}
	if options.HoldOff < 0 {
		return nil, fmt.Errorf("statestore: Options.HoldOff %v is negative; 0 means none", options.HoldOff)
	}
	if min(options.MaxKeys, options.MaxValue, options.MaxWatches, options.DedupWindow) < 0 ||
		min(options.MaxBytes, options.MaxWatchBytes, options.MaxAllWatchBytes) < 0 {
		return nil, fmt.Errorf("statestore: limits may not be negative "+
			"(MaxKeys %d, MaxBytes %d, MaxValue %d, MaxWatches %d, MaxWatchBytes %d, MaxAllWatchBytes %d, DedupWindow %d); "+
			"0 means no limit, or the default",
			options.MaxKeys, options.MaxBytes, options.MaxValue, options.MaxWatches, options.MaxWatchBytes,
			options.MaxAllWatchBytes, options.DedupWindow)
	}
	if options.DedupWindow == 0 {
		options.DedupWindow = DefaultDedupWindow
	}
	if len(options.LockPrefixes) > 0 && !options.Strict {
		return nil, errors.New("statestore: Options.LockPrefixes is a rule of the strict mode; set Options.Strict too")
	}
	if slices.Contains(options.LockPrefixes, "") {
		return nil, errors.New("statestore: an empty prefix in Options.LockPrefixes would make every key a lock")
	}
	return &Store{
		options:  options,
		clock:    clock,
		entries:  make(map[string]*entry),
		expiries: newExpiries(),
		watches:  newWatches(),
		sessions: newSessions(options.DedupWindow, options.Node),
		fences:   make(map[string]hlc.Token),
	}, nil
}

// Begin makes Options.HoldOff count from now. Call it when the first request can reach the
// store, if that is later than its start: until then an earlier store may grant leases.
func (s *Store) Begin(now Instant) { s.began = now.Elapsed }

// Identity returns Options.Identity.
func (s *Store) Identity() string { return s.options.Identity }

// Len returns the number of keys, those included whose time has passed but
// which Expire has not yet removed.
func (s *Store) Len() int { return len(s.entries) }

// Apply performs one command and returns its reply and the notifications that
// it causes, in the order in which they must be delivered. A refused command
// changes nothing: not the value, the expiry, the version or the token.
//
// A key whose time has passed is gone for every command, whether or not Expire
// has run; the notification of its expiry then comes first.
//
// A command that is delivered again gets the reply that it got the first time, and
// does nothing more. A command whose message has expired does nothing; nothing waits for a
// reply to it, and Expired has none. A command that names another store is refused before
// either is looked at.
func (s *Store) Apply(now Instant, command Command) (Reply, []Notification) {
	if command.store != nil && s.options.Identity != "" && *command.store != s.options.Identity {
		return Reply{Verb: command.Verb, Err: protocol.OtherStore}, nil
	}
	if command.expires != 0 && now.Elapsed >= command.expires {
		return Reply{Verb: command.Verb, Outcome: Expired}, nil
	}
	if !worthRemembering(&command) {
		return s.apply(now, &command)
	}
	if reply, again := s.sessions.recall(&command); again {
		return reply, nil
	}
	reply, notifications := s.apply(now, &command)
	if !command.last {
		s.sessions.remember(&command, reply)
	}
	return reply, notifications
}

// apply performs a command that has not been applied before.
func (s *Store) apply(now Instant, command *Command) (Reply, []Notification) {
	reply := Reply{Verb: command.Verb}
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
			// The sender can tell by how much which clock is wrong, and adapt its own.
			reply.Version = hlc.Timestamp{Wall: max(now.WallMillis, 0), Node: s.options.Node}
		}
		return reply, nil
	}
	var notifications []Notification
	current := s.entries[command.Key]
	if current != nil && current.due(now) {
		notifications = s.remove(notifications, current)
		current = nil
	}
	if refusal := s.checkToken(current, command); refusal != "" {
		reply.Err = refusal
		return reply, notifications
	}
	switch command.Verb {
	case VerbSet:
		return s.set(now, reply, notifications, current, command)
	case VerbGet:
		if current == nil {
			reply.Outcome = Missing
		} else {
			reply.Outcome, reply.Value, reply.Version = Found, current.value, current.version
		}
	case VerbDel, VerbVDel:
		switch {
		case current == nil:
			reply.Outcome = NothingThere
			if fence, fenced := s.fences[command.Key]; fenced {
				s.fences[command.Key] = newerToken(fence, command)
			}
		case command.Verb == VerbVDel && current.value != string(command.Value):
			reply.Outcome = ConditionFailed
		default:
			reply.Outcome, reply.Version = Deleted, current.version
			if !current.token.IsZero() {
				current.token = newerToken(current.token, command)
			}
			notifications = s.remove(notifications, current)
		}
	case VerbKeyNotify:
		switch {
		case command.Stop && !s.watches.remove(command.Client, command.Key):
			reply.Outcome = NothingThere
		case !command.Stop && !s.watches.add(command.Client, command.Key, &s.options):
			reply.Err = protocol.QuotaExceeded
		default:
			reply.Outcome = OK
		}
	}
	return reply, notifications
}

func (s *Store) set(now Instant, reply Reply, notifications []Notification, current *entry, command *Command) (Reply, []Notification) {
	if current != nil {
		refused := command.Condition == IfMissing ||
			command.Condition == IfMissingOrEqual && current.value != string(command.Value)
		if refused {
			reply.Outcome, reply.Version = ConditionFailed, current.version
			return reply, notifications
		}
	} else if command.Condition != Always && command.Lifetime > 0 && now.Elapsed-s.began < s.options.HoldOff {
		reply.Outcome = ConditionFailed // without a version: nothing is known of the holder
		return reply, notifications
	}
	for s.overQuota(current, command) {
		// Keys whose time has passed take up no room, whether or not Expire has run.
		expired, found := s.expireOne(now)
		notifications = append(notifications, expired...)
		if !found {
			reply.Err = protocol.QuotaExceeded
			return reply, notifications
		}
	}
	version, err := hlc.Merge(s.clock, command.timestamp.value, now.WallMillis)
	if err != nil {
		// The only way to fail is a counter at the end of its range, which no
		// honest clock sends.
		reply.Err = protocol.MalformedTimestamp
		return reply, notifications
	}
	s.clock = version
	if current == nil {
		current = &entry{key: command.Key, token: s.revive(command.Key)}
		s.entries[command.Key] = current
	} else {
		s.bytes -= current.size()
	}
	if current.value != string(command.Value) {
		current.value = string(command.Value)
	}
	s.bytes += current.size()
	current.version = version
	current.token = newerToken(current.token, command)
	if command.Lifetime > 0 {
		s.expiries.schedule(current, saturatingAdd(now.Elapsed, command.Lifetime))
	} else {
		s.expiries.cancel(current)
	}
	reply.Outcome, reply.Version = OK, version
	return reply, s.watches.notify(notifications, Change{Key: current.key, Value: current.value, Version: version})
}

// checkStamps judges __ts and __ft by themselves. A token that this store issued before its
// clock was set back is accepted: its holder would be locked out until the clock has caught
// up.
func (s *Store) checkStamps(now Instant, command *Command) protocol.Refusal {
	latest := now.WallMillis + MaxSkew.Milliseconds()
	switch {
	case !command.timestamp.present:
		if command.Verb == VerbSet {
			return protocol.MissingTimestamp
		}
	case command.timestamp.malformed:
		return protocol.MalformedTimestamp
	case command.timestamp.value.Wall > latest:
		return protocol.TimestampTooFarAhead
	}
	switch {
	case !command.token.present:
	case command.token.malformed:
		return protocol.MalformedTimestamp
	case !s.neverIssued(command.token.value):
	case command.token.value.Wall > latest:
		return protocol.FencingTokenTooFarAhead
	}
	return ""
}

// remove deletes an entry and appends the notifications of it.
func (s *Store) remove(notifications []Notification, gone *entry) []Notification {
	s.expiries.cancel(gone)
	delete(s.entries, gone.key)
	s.bytes -= gone.size()
	s.outlive(gone.key, gone.token)
	return s.watches.notify(notifications, Change{Key: gone.key, Deleted: true, Version: gone.version})
}

// Disconnect drops all watches of a client. Call it when the client's connection
// ends: watches, unlike MQTT subscriptions, die with the connection.
func (s *Store) Disconnect(client string) {
	for s.DisconnectSome(client, math.MaxInt) {
	}
}

// DisconnectSome is Disconnect in slices, so that others need not wait while a client with a
// million watches is forgotten. The client is not notified any more from the first call
// on. Each call frees what up to limit watches took up, and reports whether there are more:
// call it again then. A watch that the client begins in between is dropped too, so its next
// connection must not send requests before the last call.
func (s *Store) DisconnectSome(client string, limit int) (more bool) {
	s.watches.disconnect(client)
	s.sessions.disconnect(client)
	return s.watches.sweep(limit)
}

// EndSession drops everything that is kept for a client. Call it when its MQTT
// session ends, at the end of the connection or later: from then on nothing can
// be delivered again that was sent in it.
func (s *Store) EndSession(client string) {
	s.Disconnect(client)
	s.sessions.end(client)
}

func saturatingAdd(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
