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
	// subscribe to a topic and be sent what is published there. A filter with a wildcard
	// is not asked about, but each topic of what it would deliver; for shared
	// subscriptions see FilterAuthorizer.
	AuthorizeTopic(who Identity, topic string, write bool) bool
}

// FilterAuthorizer may be implemented in addition by a TopicAuthorizer. It is asked about
// shared subscriptions with a wildcard: a message that the server gives to one member of
// such a group is lost for the others, so a member must be allowed to read every message
// that could come. Without a FilterAuthorizer they are refused. It is safe for concurrent
// use; it is asked once for each subscription.
type FilterAuthorizer interface {
	// AuthorizeFilter reports whether AuthorizeTopic allows a client to be sent what is
	// published on every topic that a filter matches. The filter has + or #, and no
	// $share. Where that cannot be decided the answer is false.
	AuthorizeFilter(who Identity, filter string) bool
}

// AllowKeys is the default Authorizer: every client that could connect may use
// every key.
var AllowKeys Authorizer = allowKeys{}

type allowKeys struct{}

func (allowKeys) Authorize(Identity, statestore.Verb, string) bool { return true }
