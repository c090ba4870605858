package access

import (
	"errors"
	"sync/atomic"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// policy is what a file says, put in the order in which it is asked. It does not
// change, but for the passwords that it remembers: a new policy knows none.
type policy struct {
	users  map[string]*user
	key    []byte // of marks
	dummy  []byte // compared where a user has no hash, or is none
	topics bool   // some rule is about topics; if none is, the file leaves them alone
}

// user is one user with what all rules that match it allow together.
type user struct {
	hash    []byte // nil: comes with a certificate or not at all
	clients globs  // nil: any

	read, write, publish, subscribe globs

	// good is the mark of the password that was last found to be right. One for each
	// user of the file is all that can be remembered.
	good atomic.Pointer[mark]
}

// nobody is the policy of a File that was never read.
var nobody = &policy{dummy: dummyHash(4), key: newMarkKey(), topics: true}

// authenticateQuickly decides about all but a password that must be compared.
func (p *policy) authenticateQuickly(c Credentials) (known bool, err error) {
	if c.User == "" {
		return true, errors.New("anonymous: give the client a user name or a client certificate")
	}
	u := p.users[c.User]
	if !c.Certified {
		if err := checkForm(c.Password); err != nil {
			return true, err
		}
		m := markOf(p.key, c.User, c.Password) // for a stranger too
		// A good password with a client id that is not good takes as long as a wrong one:
		// the time would otherwise tell that the password is right.
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

// admit decides about a client whose password or certificate is good. It is quicker than
// a password: asked first, it would tell users from strangers.
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
		return u.subscribe.match(filterOfShare(topic))
	}
}

func (p *policy) authorizeFilter(name, filter string) bool {
	if !p.topics {
		return true
	}
	u := p.users[name]
	return u != nil && u.subscribe.cover(filter)
}

// filterOfShare returns the filter of a shared subscription, and everything else as it is.
func filterOfShare(filter string) string {
	if _, shared, ok := wire.Share(filter); ok && shared != "" {
		return shared
	}
	return filter
}
