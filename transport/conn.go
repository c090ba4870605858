package transport

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/closed"
)

// Conn is a connection to a state store: the seam between the requests of the library and
// the network. [Dial] gives a Client one that uses MQTT; package transporttest has one to a
// store in the same process, for tests in virtual time. A program that may have one MQTT connection
// only implements it over that; examples/ownconnection does. It is safe for concurrent use.
type Conn interface {
	// ClientID returns the client id, by which the store knows this client.
	ClientID() string

	// Start begins the delivery of events. The Client calls it once, before any other
	// method; a connection that is already up calls Up at once.
	Start(Events)

	// RoundTrip sends a request once and waits for its reply. While there is no
	// connection it waits for one; it never sends after ctx has ended. It does not retry.
	//
	// Every error says whether the request may have been applied: one that matches
	// [ErrOutcomeUnknown] means that it was or may have been sent, any other that the
	// store did not act on it. A request that waits for its reply fails at once when the
	// connection is lost.
	RoundTrip(ctx context.Context, request Request) (Reply, error)

	// Probe asks the other end for an answer, and replaces the connection if nothing
	// arrives within that time. It returns at once, and does nothing while there is no
	// connection or an earlier Probe is under way. A Conn that cannot do it does nothing.
	Probe(within time.Duration)

	// SetWill sets a Will: a request that the broker makes in the client's name when it loses the
	// connection [MQTT-3.1.2.5]. It replaces the present connection, with a DISCONNECT, by one whose loss
	// makes the store apply will, and returns when requests can be sent over that. It
	// tries, with the Will each time, until it succeeds or ctx ends, unless the broker refuses the Will with
	// a [*ConnectionError], or the connection cannot have it (ErrNoWill). After an error, and
	// after a loss, the next connections have no Will. Only one call may be under way.
	//
	// lost is closed when the connection is over. silence is the least time that the
	// broker waits before it takes a silent connection for lost; zero means forever.
	//
	// A Conn that has no Wills returns ErrNoWill.
	SetWill(ctx context.Context, will Request) (lost <-chan struct{}, silence time.Duration, err error)

	// Close ends the connection and returns when its goroutines have ended. Pending
	// requests fail with [ErrClosed].
	Close() error
}

// Events are the functions that a Conn calls; the Client sets all of them. They do not block,
// because they run in the goroutine that reads from the connection.
type Events struct {
	// Up: there is a connection. The store has forgotten the watches of the one before.
	Up func()
	// Down: the connection is lost because of cause, which may be nil; the Conn connects again. A second call
	// for one Up has no effect.
	Down func(cause error)
	// Ended: there will be no more connections, because of cause. A Conn that ends only
	// with Close need not call it.
	Ended func(cause error)
	// Notify: a notification of a change arrived.
	Notify func(Notification)

	trying func(broker string) // an attempt to connect begins
	failed func(error)         // why one failed
}

// Request is one request to the store.
type Request struct {
	// Payload is the RESP3 command. The Conn does not keep it after RoundTrip
	// has returned.
	Payload []byte
	// Timestamp and FencingToken are the user properties __ts and __ft; empty
	// means that the request has none.
	Timestamp, FencingToken string
	// Binding names the one store that may apply the request.
	Binding Binding
	// Persist asks the store to keep the key on disk, with the user property
	// aio-persistence.
	Persist bool
	// Forced is the user property tenure-forced; empty means that the request has none.
	Forced string
	// Waiting says that the request has the user property tenure-waiting.
	Waiting bool
}

// Binding says when and to which store a request may go, such as to the one that granted a tenure, so that a
// store that replaced it does not apply the request. The zero Binding ties it to none.
type Binding struct {
	// Store is the identity of the store, as [Client.Store] returns it. Another store
	// refuses the request with [ErrOtherStore]. Empty: the store has no identity, like
	// those deployed today.
	Store string
	// Connection, if not nil, is a channel from [Client.Lost] or [Client.Unbroken]: the
	// request leaves over that connection, before the channel is closed, or not at all
	// (ErrNotSent).
	Connection <-chan struct{}
	// While, if not nil, bounds the request beside the context of the call, such as the
	// TokenContext of a tenure: when it ends, the request is given up with its cause. Its
	// deadline and its values are not used. The Client sees to it; a Conn need not.
	While context.Context
	// Until, if not zero, is when the request is given up at the latest. The Client sees to it;
	// a Conn need not.
	Until time.Time
	// Urgent makes the request leave before all waiting requests of its client that are not
	// urgent. Leases use it for their own requests. It is for few and small requests.
	Urgent bool
}

// Err returns nil while a request with this binding may be sent, and an error that matches
// ErrNotSent when its connection is lost or While has ended. A Conn calls it after it has chosen
// the connection for the request.
func (b Binding) Err() error {
	if b.Connection != nil && closed.Is(b.Connection) {
		return notSent(errBoundConnection)
	}
	if b.While != nil && b.While.Err() != nil {
		return notSent(context.Cause(b.While))
	}
	return nil
}

// boundedConn is a Conn of a program. It obeys contexts only, so the client makes one of all that bounds
// a request.
type boundedConn struct{ Conn }

// RoundTrip implements Conn.
func (c boundedConn) RoundTrip(ctx context.Context, request Request) (Reply, error) {
	if until := request.Binding.Until; !until.IsZero() {
		bounded, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		ctx = bounded
	}
	if while := request.Binding.While; while != nil {
		bounded, end := context.WithCancelCause(ctx)
		defer end(nil)
		defer context.AfterFunc(while, func() { end(context.Cause(while)) })()
		ctx = bounded
	}
	return c.Conn.RoundTrip(ctx, request)
}

var errBoundConnection = errors.New("the connection to which the request is bound was lost")

// Reply is the store's answer, not yet decoded.
type Reply struct {
	// Payload is the RESP3 value.
	Payload []byte
	// Timestamp is the user property __ts, or empty if the reply has none.
	Timestamp string
	// Store is the user property tenure-store: the identity of the store that answered,
	// or empty if the reply has none.
	Store string
	// Instance is the user property tenure-instance: another one than before if the store has
	// forgotten the client's watches, such as with its process; or empty if the reply has none.
	Instance string
}

// Notification is a store's message about a change of a key, not yet decoded.
type Notification struct {
	// Key is the key that changed; any bytes.
	Key string
	// Payload is the RESP3 array, such as NOTIFY SET VALUE and the value.
	Payload []byte
	// Timestamp is the user property __ts, the version after the change; empty if there is
	// none.
	Timestamp string
	// Store is the user property tenure-store, or empty if there is none.
	Store string
}
