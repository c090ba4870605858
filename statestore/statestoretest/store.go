package statestoretest

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// Options is how a row wants its store to be.
type Options struct {
	Store   statestore.Options
	Dialect statestore.Dialect
}

// Store is a store under test. Its methods are called by one goroutine.
type Store interface {
	// Connect connects a client. It fails the test if it cannot.
	Connect(t testing.TB, clientID string) Client
	// Pass lets time go by, on the store's clocks and everybody's.
	Pass(d time.Duration)
	// WallMillis reads the store's time of day, in milliseconds since the Unix
	// epoch.
	WallMillis() int64
}

// Client is a client's connection to a store under test.
type Client interface {
	// Do sends a request and returns its reply. ErrUnsupported says that this way
	// to the store cannot carry such a request; its row is skipped then.
	Do(Request) (Reply, error)
	// Notifications returns what has arrived since the last call, in order. The
	// store has made at least wanted of them; an implementation whose
	// notifications travel waits for as many, and must not wait for more.
	Notifications(wanted int) []Notification
	// Drop ends the connection, as a broken network does, and returns when the
	// store knows.
	Drop()
}

// ErrUnsupported is returned by a Client that cannot send a request as it is.
var ErrUnsupported = errors.New("statestoretest: this request cannot be sent this way")

// Request is a request as it is sent.
type Request struct {
	Payload []byte
	// Timestamp and FencingToken are the user properties __ts and __ft; nil
	// means absent.
	Timestamp, FencingToken *string
	// Correlation is the correlation data, or empty where any will do.
	Correlation string
	// Store is the user property tenure-store; empty means absent.
	Store string
	// Denied asks for a store at which this client is not authorized.
	Denied bool
}

// Texts returns timestamp and token as the library's clients send them, to whom an empty
// text means none. ErrUnsupported says that the request cannot be sent so: it has an empty
// one, or chooses its correlation data.
func (r Request) Texts() (timestamp, fencingToken string, err error) {
	for _, property := range []struct {
		from *string
		to   *string
	}{{r.Timestamp, &timestamp}, {r.FencingToken, &fencingToken}} {
		if property.from == nil {
			continue
		}
		if *property.to = *property.from; *property.from == "" {
			return "", "", ErrUnsupported
		}
	}
	if r.Correlation != "" {
		return "", "", ErrUnsupported
	}
	return timestamp, fencingToken, nil
}

// Reply is what came back.
type Reply struct {
	Payload []byte
	// Version is the user property __ts, empty when there is none.
	Version string
}

// Notification is what came without being asked for.
type Notification struct {
	Key     string
	Payload []byte
	Version string
}
