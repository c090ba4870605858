package transport

import (
	"context"
	"errors"
	"time"
)

// Conn is a connection to a state store: the seam between what the library says
// and how it travels. [Dial] gives a Client one that speaks MQTT; package
// transporttest has one that reaches a store in the same process, with which
// everything above can be tested in virtual time.
//
// An implementation is safe for concurrent use.
type Conn interface {
	// ClientID returns the name by which the store knows this client.
	ClientID() string

	// Start sets who hears of events and begins their delivery. The Client calls
	// it once, before anything else; a connection that is already up reports
	// that at once.
	Start(Events)

	// RoundTrip sends a request once and waits for its reply. While the
	// connection is down it waits for it to come up; it never sends after ctx
	// has ended. It does not retry.
	//
	// Every error says whether the request may have been applied: one that
	// matches [ErrOutcomeUnknown] means that it was or may have been sent,
	// any other that the store never acted on it. A request that waits for
	// its reply while the connection drops fails at once.
	RoundTrip(ctx context.Context, request Request) (Reply, error)

	// Close ends the connection and returns when nothing of it is left.
	// Pending requests fail with [ErrClosed].
	Close() error
}

// Prober is a [Conn] that can find out whether its connection still works.
type Prober interface {
	Conn

	// Probe asks the other end of the present connection for a sign of life, and replaces
	// the connection if nothing arrives within that time. It returns at once, and does
	// nothing while there is no connection or an earlier Probe is under way.
	Probe(within time.Duration)
}

// Events is what a Conn reports. The functions must not block: they run where
// the connection reads.
type Events struct {
	// Up: requests and notifications can travel. The store remembers no
	// watches from before.
	Up func()
	// Down: the connection is lost; it will be tried again.
	Down func()
	// Ended: there will be no more connections, for this reason. A Conn that ends only
	// with Close need not call it.
	Ended func(cause error)
	// Notify: the store told of a change.
	Notify func(Notification)
	// Ignored: a message came in that was of no use. A Conn that cannot tell need
	// not call it.
	Ignored func(Ignored)
}

// Request is one request on its way out.
type Request struct {
	// Payload is the RESP3 command. The Conn does not keep it after RoundTrip
	// has returned.
	Payload []byte
	// Timestamp and FencingToken are the user properties __ts and __ft; empty
	// means that the request has none.
	Timestamp, FencingToken string
	// Binding says which store may apply the request, and no other.
	Binding Binding
	// Persist asks the store to keep what is set on disk, by the user property
	// aio-persistence.
	Persist bool
	// Urgent requests leave in order among themselves, and before all others that wait.
	Urgent bool
}

// Binding ties a request to one store, such as the one that granted a tenure, so that a
// store that replaced it does not apply the request. The zero Binding ties it to none.
type Binding struct {
	// Store is the identity of the store, as [Client.Store] returns it. Another store
	// refuses the request with [ErrOtherStore]. It is empty for a store without an
	// identity, such as those deployed today.
	Store string
	// Connection, if not nil, is what [Client.Lost] or [Client.Unbroken] returned: the
	// request leaves over that connection, and before the channel is closed, or not at all
	// (ErrNotSent).
	Connection <-chan struct{}
}

// Err returns nil while a request with this binding may be sent, and an error that matches
// ErrNotSent once its connection is lost. A Conn calls it when it has chosen the connection
// over which to send.
func (b Binding) Err() error {
	if b.Connection != nil && isClosed(b.Connection) {
		return notSent(errBoundConnection)
	}
	return nil
}

var errBoundConnection = errors.New("the connection that it is bound to was lost")

// Reply is the store's answer as it came in.
type Reply struct {
	Payload []byte
	// Timestamp is the user property __ts, empty when the reply has none.
	Timestamp string
	// Store is the user property tenure-store: the identity of the store that answered,
	// empty when the reply has none.
	Store string
}

// Notification is a change that the store told of, as it came in.
type Notification struct {
	Key       string
	Payload   []byte
	Timestamp string
	// Store is the user property tenure-store, empty when there is none.
	Store string
}
