package access

import (
	"errors"
	"sync/atomic"

	"github.com/tenurelock/tenure/statestore"
)

// policy is the content of a file in the form in which decisions need it. It is constant, except for
// the passwords that it remembers: a new policy remembers none.
type policy struct {
	users  map[string]*user
	key    []byte // of marks
	dummy  []byte // compared if a user has no hash or does not exist
	topics bool   // a rule is about topics; otherwise all topics are allowed
}

// user is one user, with everything that the rules allow it.
type user struct {
	hash    []byte // nil: the user needs a certificate
	clients globs  // nil: any

	read, write, publish, subscribe globs

	// good is the mark of the latest correct password.
	good atomic.Pointer[mark]
}

// noPolicy is the policy of a zero File.
var noPolicy = &policy{dummy: dummyHash(4), key: newMarkKey(), topics: true}

// authenticateQuickly decides about everything but a password that must be compared.
func (p *policy) authenticateQuickly(c Credentials) (known bool, err error) {
	if c.User == "" {
		return true, errors.New("anonymous: give the client a user name or a client certificate")
	}
	u := p.users[c.User]
	if !c.Certified {
		if err := checkForm(c.Password); err != nil {
			return true, err
		}
		m := markOf(p.key, c.User, c.Password) // for an unknown user too
		// A correct password with a wrong client id takes as long as a wrong password.
		// Otherwise the duration would reveal that the password is correct.
		if !u.remembers(m) || p.admit(u, c) != nil {
			return false, nil
		}
	}
	return true, p.admit(u, c)
}

func (p *policy) authenticate(c Credentials) error {
	if known, err := p.authenticateQuickly(c); known {
		return err
	}
	u := p.users[c.User]
	if err := checkPassword(u, c.Password, p.dummy); err != nil {
		return err
	}
	m := markOf(p.key, c.User, c.Password)
	u.good.Store(&m)
	return p.admit(u, c)
}

// admit checks the client id, after the password or the certificate. It is faster
// than the check of a password: called first, it would reveal which users exist.
func (p *policy) admit(u *user, c Credentials) error {
	switch {
	case u == nil:
		return errors.New("the client certificate is good, but its subject is not among the users")
	case u.clients != nil && !u.clients.match(c.Client):
		return errors.New("the user may not use this client id: it is not among the user's clients")
	}
	return nil
}

func (p *policy) authorize(name string, verb statestore.Verb, key string) bool {
	u := p.users[name]
	if u == nil {
		return false
	}
	switch verb {
	case statestore.VerbGet, statestore.VerbKeyNotify:
		return u.read.match(key)
	case statestore.VerbSet, statestore.VerbDel, statestore.VerbVDel:
		return u.write.match(key)
	default:
		return false
	}
}

func (p *policy) authorizeTopic(name, topic string, write bool) bool {
	if !p.topics {
		return true
	}
	u := p.users[name]
	switch {
	case u == nil:
		return false
	case write:
		return u.publish.match(topic)
	default:
		return u.subscribe.match(topic)
	}
}
