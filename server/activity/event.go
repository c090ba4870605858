package activity

import (
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/statestore"
)

// Kind is what an event reports.
type Kind uint8

// The kinds of events.
const (
	// Request: the store has answered a request, or a Will that is one. If the request changed
	// something, the change is committed.
	Request Kind = iota + 1
	// Expired: the time of a key was over, so the store has removed it.
	Expired
	// Connected: a client has connected. Only a server reports it.
	Connected
	// Disconnected: the connection of a client has ended, for the reason in Event.Reason. An
	// attached store reports it for a client that it has forgotten.
	Disconnected
	// TakenOver: a client has connected while another connection with its client id was open,
	// which the server has ended. Event.Remote is the new address, and Event.Reason the old one.
	TakenOver
	// Refused: a connection was refused at its CONNECT, for the reason in Event.Reason. Those that
	// end before are in the counts of the server only.
	Refused
	// Dropped: a request was not given to the store, for the reason in Event.Reason.
	Dropped
	// Unwatched: an attached store has ended a watch, because the client does not subscribe to its
	// notifications any more.
	Unwatched
	// Started: the store begins to answer. Event.Continues says whether it has the data of an earlier
	// one.
	Started
)

var kindNames = [...]string{"unknown", "request", "expired", "connected", "disconnected", "taken over", "refused", "dropped", "unwatched", "started"}

// String returns the kind in words.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// MarshalText implements [encoding.TextMarshaler]; it returns the text of String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Event is what happened at a store. A store reports one event at a time, those about a key in the
// order in which the store applied them. It keeps no part of an event.
//
// Texts that clients choose are bounded: see MaxText and CutKey. They may contain any bytes.
type Event struct {
	// Kind is what happened. Which of the other fields are set depends on it.
	Kind Kind
	// At is when it happened, on the clock of the store's machine.
	At time.Time
	// Lost is how many events before this one were not reported, because they came faster than
	// the observer took them.
	Lost uint64

	// Client is the client id, as CutKey returns it; empty in Expired, and perhaps in Refused.
	Client string
	// User is the name with which the client has authenticated; empty if it has not, and at an
	// attached store, which does not know it.
	User string
	// Remote is the client's address; empty at an attached store.
	Remote string

	// Verb, Key and the fields below are of a Request. Expired has the Key too.
	Verb statestore.Verb
	// Key is the key, as CutKey returns it.
	Key string
	// Condition and Lifetime are what a SET asks for.
	Condition statestore.Condition
	// Swap says that a SET with IfMissingOrEqual expects another value than the one that it sets.
	Swap     bool
	Lifetime time.Duration
	// Stop says that a KEYNOTIFY has ended a watch.
	Stop bool
	// Holder is the name of the holder, where the value of a SET or VDEL clearly belongs to a lease:
	// the text before ":" and a nonce of package lease, or the client id, if the value is that, or
	// begins with it and a colon. It is empty for any other value, no part of which an event may tell.
	Holder string
	// Rank is the number after the last colon of a fail-back request; -1 if there is none.
	Rank int
	// Value is the value of a SET or VDEL, cut to MaxText. It is empty unless values were asked for.
	Value string
	// Outcome is what the store did, and Refusal why it refused the request. Created says that a SET
	// was applied, and that the key had no value before: the client acquires the lease.
	Outcome statestore.Outcome
	Created bool
	Refusal string
	// Version is the version that the reply carries; zero if it has none.
	Version hlc.Timestamp
	// Token says that the request carried a fencing token.
	Token bool
	// Bound says that the request named the only store that may apply it. A tenure of package lease
	// begins with such a request: a client that has had no answer yet sends another one before.
	Bound bool
	// Will says that the request is a Will, which the server applied because the connection of its
	// client was lost.
	Will bool
	// Forced says why a lease was deleted by force, as the client told; empty: it was not, or
	// the client did not tell.
	Forced string
	// HasClock says that the request carried the clock of its client. ClockOffset is how far that
	// was ahead of the store's when the request was read; negative: behind. The clock of a client
	// goes on from the latest timestamp that it has seen, so one that is behind seems less so.
	HasClock    bool
	ClockOffset time.Duration
	// Took is the time from the reading of the request until its reply could leave.
	Took time.Duration

	// Continues says, of Started, that the store has the data of an earlier one: leases that no event
	// has reported.
	Continues bool

	// Reason is why a connection ended or was refused, or a request was dropped.
	Reason string
}

// The reasons of Disconnected.
const (
	// ReasonLeft: the client has sent a DISCONNECT.
	ReasonLeft = "left"
	// ReasonLost: the connection broke, or the client has closed it without a DISCONNECT.
	ReasonLost = "connection lost"
	// ReasonSilent: the client was silent for one and a half keep-alives.
	ReasonSilent = "silent for longer than its keep-alive"
	// ReasonTakenOver: another connection with the same client id has taken its place.
	ReasonTakenOver = "taken over"
	// ReasonSlow: the client did not read what was written to it.
	ReasonSlow = "did not read"
	// ReasonFault: the client has sent something forbidden.
	ReasonFault = "sent something forbidden"
	// ReasonStopped: the server has stopped.
	ReasonStopped = "server stopped"
	// ReasonForgotten: an attached store remembers as many clients as it may, and this one was
	// silent.
	ReasonForgotten = "forgotten"
	// ReasonBrokerRestarted: the broker of an attached store was restarted.
	ReasonBrokerRestarted = "broker restarted"
)

// MaxText bounds each text of an event in bytes, other than a key and a client id.
const MaxText = 256
