package statestoretest

import (
	"errors"
	"testing"
	"time"
)

// Store is a store under test. Its methods are called by one goroutine.
type Store interface {
	// Connect connects a client. It fails the test if it cannot.
	Connect(t testing.TB, clientID string) Client
	// Pass lets d pass, on all clocks.
	Pass(d time.Duration)
	// WallMillis returns the store's time of day in milliseconds since the Unix epoch.
	WallMillis() int64
}

// Client is a client's connection to a store under test.
type Client interface {
	// Do sends a request and returns its reply. It returns ErrUnsupported if this client
	// cannot send such a request; the row is skipped then.
	Do(Request) (Reply, error)
	// Notifications returns the notifications since the last call, in order. The store
	// has sent at least wanted of them. An implementation with a network between waits
	// for that many, and must not wait for more.
	Notifications(wanted int) []Notification
	// Drop ends the connection, as a network failure does, and returns when the store
	// has processed that.
	Drop()
}

// ErrUnsupported is the error of a Client that cannot send a request as the row has it.
var ErrUnsupported = errors.New("statestoretest: this client cannot send such a request")

// Request is a request of a client.
type Request struct {
	Payload []byte
	// Timestamp and FencingToken are the user properties __ts and __ft; nil means absent.
	Timestamp, FencingToken *string
	// Correlation is the correlation data; empty means any.
	Correlation string
	// Again says that the request is the one before with this correlation data, delivered again.
	Again bool
	// Published says that the client speaks the published dialect: the request has no __protVer.
	Published bool
	// Store is the user property tenure-store; empty means absent.
	Store string
	// Denied says that the store must not authorize this request.
	Denied bool
}

// Reply is the store's reply to a request.
type Reply struct {
	Payload []byte
	// Version is the user property __ts; empty means absent.
	Version string
}

// Notification is a notification of the store about a key.
type Notification struct {
	Key     string
	Payload []byte
	Version string
}
