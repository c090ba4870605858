package transport

import "context"

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

// Events is what a Conn reports. The functions must not block: they run where
// the connection reads.
type Events struct {
	// Up: requests and notifications can travel. The store remembers no
	// watches from before.
	Up func()
	// Down: the connection is lost; it will be tried again.
	Down func()
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
}

// Reply is the store's answer as it came in.
type Reply struct {
	Payload []byte
	// Timestamp is the user property __ts, empty when the reply has none.
	Timestamp string
}

// Notification is a change that the store told of, as it came in.
type Notification struct {
	Key       string
	Payload   []byte
	Timestamp string
}
