package statestore

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/protocol"
)

// DefaultNode is the node id of the store's own versions.
const DefaultNode = "StateStore"

// MaxSkew is how far a request's timestamp or fencing token may be ahead of the
// store's clock (PROTOCOL 3).
const MaxSkew = time.Minute

// Options configures a Store. The zero value is an unlimited store.
type Options struct {
	// Node is the node id in the store's versions; default DefaultNode.
	Node string
	// MaxKeys limits the number of keys; 0 means no limit. A SET that would
	// create one more is refused, one that replaces a value is not.
	MaxKeys int
	// MaxBytes limits the sum of the lengths of keys and values; 0 means no
	// limit. A SET that does not grow the store is never refused, so a lease
	// can always be renewed.
	MaxBytes int64
}

// Store is the set of keys. It is not safe for concurrent use.
type Store struct {
	options  Options
	clock    hlc.Timestamp // the latest version issued
	entries  map[string]*entry
	expiries expiries
	bytes    int64
	watches  watches
}

type entry struct {
	key     string
	value   []byte // never written to after it was stored
	version hlc.Timestamp
	token   hlc.Timestamp // zero: the key is not protected

	deadline time.Duration // on Instant.Elapsed; valid while position >= 0
	filed    time.Duration // the deadline by which it is filed in expiries; never later than deadline
	position int           // in expiries; -1: the key does not expire
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
	if options.MaxKeys < 0 || options.MaxBytes < 0 {
		return nil, fmt.Errorf("statestore: limits may not be negative (MaxKeys %d, MaxBytes %d); 0 means no limit",
			options.MaxKeys, options.MaxBytes)
	}
	return &Store{
		options: options,
		clock:   clock,
		entries: make(map[string]*entry),
		watches: newWatches(),
	}, nil
}

// Len returns the number of keys, those included whose time has passed but
// which Expire has not yet removed.
func (s *Store) Len() int { return len(s.entries) }

// Apply performs one command and returns its reply and the notifications that
// it causes, in the order in which they must be delivered. A refused command
// changes nothing: not the value, the expiry, the version or the token.
//
// A key whose time has passed is gone for every command, whether or not Expire
// has run; the notification of its expiry then comes first.
func (s *Store) Apply(now Instant, command Command) (Reply, []Notification) {
	reply := Reply{Verb: command.Verb}
	if command.refusal != "" {
		reply.Err = command.refusal
		return reply, nil
	}
	if refusal := checkStamps(now, command); refusal != "" {
		reply.Err = refusal
		return reply, nil
	}
	var notifications []Notification
	current := s.entries[command.Key]
	if current != nil && current.due(now) {
		notifications = s.remove(notifications, current)
		current = nil
	}
	if refusal := checkToken(current, command); refusal != "" {
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
		case command.Verb == VerbVDel && !bytes.Equal(current.value, command.Value):
			reply.Outcome = ConditionFailed
		default:
			reply.Outcome, reply.Version = Deleted, current.version
			notifications = s.remove(notifications, current)
		}
	case VerbKeyNotify:
		reply.Outcome = OK
		if !command.Stop {
			s.watches.add(command.Client, command.Key)
		} else if !s.watches.remove(command.Client, command.Key) {
			reply.Outcome = NothingThere
		}
	}
	return reply, notifications
}

func (s *Store) set(now Instant, reply Reply, notifications []Notification, current *entry, command Command) (Reply, []Notification) {
	if current != nil {
		refused := command.Condition == IfMissing ||
			command.Condition == IfMissingOrEqual && !bytes.Equal(current.value, command.Value)
		if refused {
			reply.Outcome, reply.Version = ConditionFailed, current.version
			return reply, notifications
		}
	}
	for s.overQuota(current, command) {
		// Keys whose time has passed take up no room, whether or not Expire has run.
		expired, more := s.Expire(now, 1)
		notifications = append(notifications, expired...)
		if !more {
			reply.Err = protocol.QuotaExceeded
			return reply, notifications
		}
	}
	version, err := hlc.Merge(s.clock, command.timestamp.Timestamp, now.WallMillis)
	if err != nil {
		// The only way to fail is a counter at the end of its range, which no
		// honest clock sends.
		reply.Err = protocol.MalformedTimestamp
		return reply, notifications
	}
	s.clock = version
	if current == nil {
		current = &entry{key: command.Key, position: -1}
		s.entries[command.Key] = current
	} else {
		s.bytes -= current.size()
	}
	if !bytes.Equal(current.value, command.Value) || current.value == nil {
		current.value = append(make([]byte, 0, len(command.Value)), command.Value...)
	}
	s.bytes += current.size()
	current.version = version
	if command.token.present && command.token.Compare(current.token) > 0 {
		current.token = command.token.Timestamp
		// Parse left the node where it found it, in a message that the network
		// layer may use again, and whose memory need not outlive it.
		current.token.Node = strings.Clone(current.token.Node)
	}
	if command.Lifetime > 0 {
		s.expiries.schedule(current, saturatingAdd(now.Elapsed, command.Lifetime))
	} else {
		s.expiries.cancel(current)
	}
	reply.Outcome, reply.Version = OK, version
	return reply, s.watches.notify(notifications, Notification{Key: current.key, Value: current.value, Version: version})
}

// checkStamps judges __ts and __ft by themselves.
func checkStamps(now Instant, command Command) protocol.Refusal {
	latest := now.WallMillis + MaxSkew.Milliseconds()
	switch {
	case !command.timestamp.present:
		if command.Verb == VerbSet {
			return protocol.MissingTimestamp
		}
	case command.timestamp.malformed:
		return protocol.MalformedTimestamp
	case command.timestamp.Wall > latest:
		return protocol.TimestampTooFarAhead
	}
	switch {
	case !command.token.present:
	case command.token.malformed:
		return protocol.MalformedTimestamp
	case command.token.Wall > latest:
		return protocol.FencingTokenTooFarAhead
	}
	return ""
}

// checkToken applies the fencing rule: a protected key changes only for an
// equal or newer token.
func checkToken(current *entry, command Command) protocol.Refusal {
	writes := command.Verb == VerbSet || command.Verb == VerbDel || command.Verb == VerbVDel
	switch {
	case !writes || current == nil || current.token.IsZero():
		return ""
	case !command.token.present:
		return protocol.FencingTokenRequired
	case command.token.Compare(current.token) < 0:
		return protocol.FencingTokenLower
	}
	return ""
}

func (s *Store) overQuota(current *entry, command Command) bool {
	if current == nil && s.options.MaxKeys > 0 && len(s.entries) >= s.options.MaxKeys {
		return true
	}
	grows := int64(len(command.Key) + len(command.Value))
	if current != nil {
		grows -= current.size()
	}
	return grows > 0 && s.options.MaxBytes > 0 && s.bytes+grows > s.options.MaxBytes
}

// remove deletes an entry and appends the notifications of it.
func (s *Store) remove(notifications []Notification, gone *entry) []Notification {
	s.expiries.cancel(gone)
	delete(s.entries, gone.key)
	s.bytes -= gone.size()
	return s.watches.notify(notifications, Notification{Key: gone.key, Deleted: true, Version: gone.version})
}

// Forget drops all watches of a client. Call it when the client's connection
// ends: watches, unlike MQTT subscriptions, die with the connection.
func (s *Store) Forget(client string) { s.watches.forget(client) }

func saturatingAdd(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
