package access

import "github.com/tenurelock/tenure/statestore"

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
