// Package storeconn has the seam between the requests of the library and the network: package transport
// sends them over a Conn that speaks MQTT, and tests over the one of transporttest, to a store in the
// same process.
package storeconn

import (
	"context"
	"time"
)

// Conn is a connection to a state store. It is safe for concurrent use.
type Conn interface {
	// ClientID returns the client id, by which the store knows this client.
	ClientID() string

	// Start begins the delivery of events. The client calls it once, before any other
	// method; a connection that is already up calls Up at once.
	Start(Events)

	// RoundTrip sends a request once and waits for its reply. While there is no
	// connection it waits for one; it never sends after ctx or the binding has ended. It does not retry.
	//
	// Every error says whether the request may have been applied: one that matches
	// transport.ErrOutcomeUnknown means that it was or may have been sent, any other that the
	// store did not act on it. A request that waits for its reply fails at once when the
	// connection is lost.
	RoundTrip(ctx context.Context, request Request) (Reply, error)

	// Probe asks the other end for an answer, and replaces the connection if nothing
	// arrives within that time. It returns at once, and does nothing while there is no
	// connection or an earlier Probe is under way.
	Probe(within time.Duration)

	// SetWill sets a Will: a request with this payload, which the Conn keeps, that the broker makes in the
	// client's name when it loses the connection [MQTT-3.1.2.5]. It replaces the present connection, with a
	// DISCONNECT, by one whose loss makes the store apply it, and returns when requests can be sent over that. It
	// tries, with the Will each time, until it succeeds or ctx ends, unless the broker refuses the Will with a
	// *transport.ConnectionError, or the connection cannot have it (transport.ErrNoWill). After an error, and
	// after a loss, the next connections have no Will. Only one call may be under way.
	//
	// lost is closed when the connection is over. silence is the least time that the
	// broker waits before it takes a silent connection for lost; zero means forever.
	SetWill(ctx context.Context, payload []byte) (lost <-chan struct{}, silence time.Duration, err error)

	// Close ends the connection and returns when its goroutines have ended. Pending
	// requests fail with transport.ErrClosed.
	Close() error
}

// Events are the functions that a Conn calls; the client sets all of them. They do not block,
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
	// Trying and Failed: an attempt to connect to a broker begins, and why one failed. Only a Conn that
	// has a broker calls them.
	Trying func(broker string)
	Failed func(error)
}

// Request is one request to the store.
type Request struct {
	// Payload is the RESP3 command. The Conn does not keep it after RoundTrip
	// has returned.
	Payload []byte
	// The user properties __ts, __ft, tenure-forced, aio-persistence and tenure-waiting; empty means that the
	// request has none.
	Timestamp, FencingToken, Forced, Persist, Waiting string
	// Binding says when, and to which store, the request may go.
	Binding Binding
}

// Binding is a transport.Binding, which documents the fields.
type Binding struct {
	Store      string
	Connection <-chan struct{}
	While      context.Context
	Until      time.Time
	Urgent     bool
}

// Reply is the store's answer, not yet decoded.
type Reply struct {
	// Payload is the RESP3 value.
	Payload []byte
	// Timestamp and Store are the user properties __ts and tenure-store, or empty.
	Timestamp, Store string
	// Instance is the user property tenure-instance: another one than before if the store has
	// forgotten the client's watches, such as with its process; or empty.
	Instance string
}

// Notification is a store's message about a change of a key, not yet decoded.
type Notification struct {
	// Key is the key that changed; any bytes.
	Key string
	// Payload is the RESP3 array, such as NOTIFY SET VALUE and the value.
	Payload []byte
	// Timestamp and Store are the user properties __ts, the version after the change, and
	// tenure-store, or empty.
	Timestamp, Store string
}
