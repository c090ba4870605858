package testsupport

import (
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// Rules is an Authorizer made of two functions; a nil function allows everything. As an
// Authenticator it admits every user name.
type Rules struct {
	Key   func(identity access.Identity, verb statestore.Verb, key string) bool
	Topic func(identity access.Identity, topic string, write bool) bool
}

// Authenticate implements access.Authenticator.
func (Rules) Authenticate(access.Credentials) error { return nil }

// Authorize implements access.Authorizer.
func (r Rules) Authorize(identity access.Identity, verb statestore.Verb, key string) bool {
	return r.Key == nil || r.Key(identity, verb, key)
}

// AuthorizeTopic implements access.TopicAuthorizer.
func (r Rules) AuthorizeTopic(identity access.Identity, topic string, write bool) bool {
	return r.Topic == nil || r.Topic(identity, topic, write)
}

// Credentials is an Authenticator that passes on what it is given, and then admits the client
// or refuses it with an error.
type Credentials struct {
	Came   chan access.Credentials
	Refuse error
}

// Authenticate implements access.Authenticator.
func (c Credentials) Authenticate(got access.Credentials) error {
	c.Came <- got
	return c.Refuse
}
