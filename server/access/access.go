package access

import (
	"log/slog"

	"github.com/tenurelock/tenure/statestore"
)

// Credentials is what a client sends at CONNECT to authenticate.
type Credentials struct {
	// Client is the MQTT client id.
	Client string
	// User is the user name of CONNECT; where Certified, it is the subject of the
	// client certificate.
	User string
	// Password is the password of CONNECT. An Authenticator must not retain it.
	Password []byte
	// Certified: TLS has verified a client certificate, and User is its subject.
	Certified bool
}

// LogValue returns the credentials without the password. It has no effect on Credentials
// inside another struct: log the Credentials themselves.
func (c Credentials) LogValue() slog.Value {
	return slog.GroupValue(slog.String("client", c.Client), slog.String("user", c.User),
		slog.Bool("certified", c.Certified))
}

// Identity is a client that has authenticated.
type Identity struct {
	// Client is the MQTT client id, and User the user name of Credentials.
	Client, User string
}

// Authenticator decides which clients may connect. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns nil if the client is admitted. Otherwise the error says why, for
	// the log only: the client could learn from it which users exist. Authenticate may be
	// slow, as checking a password is by intention. A server calls it for a few clients at a
	// time and lets others wait, so it should bound how long it waits, for example for
	// another service.
	Authenticate(Credentials) error
}

// QuickAuthenticator is an Authenticator that can often decide without a slow comparison. A
// server that bounds how many comparisons run at once calls AuthenticateQuickly first, and
// Authenticate only if the result is not known.
type QuickAuthenticator interface {
	Authenticator
	// AuthenticateQuickly returns what Authenticate would return if that is known at once;
	// otherwise known is false. Neither its duration nor known may reveal, to a client that
	// does not know the password, which users exist.
	AuthenticateQuickly(Credentials) (known bool, err error)
}

// Authorizer decides which client may use which key. It is safe for concurrent use, and must be
// fast: it is called for each request.
type Authorizer interface {
	// Authorize reports whether a client may apply a command to a key. A key is any bytes, not
	// always valid UTF-8.
	Authorize(identity Identity, verb statestore.Verb, key string) bool
}

// TopicAuthorizer is an optional interface of an Authorizer. It decides about ordinary topics,
// about response topics outside of clients/, and about publishing to another client's topics
// below clients/, where applications answer each other. The server itself decides about a
// client's own topics and the store's. A TopicAuthorizer is safe for concurrent use, and must
// be fast: it is called for each message.
type TopicAuthorizer interface {
	// AuthorizeTopic reports whether a client may publish to a topic (write), or subscribe to
	// a topic and receive messages on it. For a filter with a wildcard it is not called at
	// SUBSCRIBE but for the topic of each message.
	AuthorizeTopic(identity Identity, topic string, write bool) bool
}

// AllowKeys is the default Authorizer: every client may use every key.
var AllowKeys Authorizer = allowKeys{}

type allowKeys struct{}

func (allowKeys) Authorize(Identity, statestore.Verb, string) bool { return true }
