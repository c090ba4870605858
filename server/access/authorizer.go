package access

import "github.com/tenurelock/tenure/statestore"

// Authorizer decides about keys. It is safe for concurrent use, and fast: it is
// asked for each request.
type Authorizer interface {
	// Authorize reports whether a client may do this to a key. A key is any bytes,
	// not always valid UTF-8.
	Authorize(who Identity, verb statestore.Verb, key string) bool
}

// TopicAuthorizer may be implemented in addition by an Authorizer. It decides
// about the broker's ordinary topics, about response topics outside of clients/, and
// about publishing to another client's topics below clients/, where applications answer
// each other. The server itself decides about a client's own topics and the store's. A
// TopicAuthorizer is safe for concurrent use, and fast: it is asked for each message.
type TopicAuthorizer interface {
	// AuthorizeTopic reports whether a client may publish to a topic (write), or
	// subscribe to a filter and be sent what is published on a topic.
	AuthorizeTopic(who Identity, topic string, write bool) bool
}

// AllowKeys is the default Authorizer: every client that could connect may use
// every key.
var AllowKeys Authorizer = allowKeys{}

type allowKeys struct{}

func (allowKeys) Authorize(Identity, statestore.Verb, string) bool { return true }
