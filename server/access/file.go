package access

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// File has users and rules from a YAML file. It is a QuickAuthenticator and a TopicAuthorizer. Its
// methods are safe for concurrent use; each call follows one version of the file.
type File struct {
	path   string
	policy atomic.Pointer[policy]

	// reading is held by Reload while it reads the file. Otherwise, of two calls the one that
	// read an older version could be the last to store it.
	reading sync.Mutex
}

var (
	_ QuickAuthenticator = (*File)(nil)
	_ TopicAuthorizer    = (*File)(nil)
)

// policy is the content of a file. It is constant, except for the passwords that it remembers: a new policy
// remembers none.
type policy struct {
	users  map[string]*user
	key    []byte // of marks
	dummy  []byte // compared if a user has no hash or does not exist
	topics bool   // a rule is about topics; otherwise all topics are allowed
}

// user is one user, with everything that the rules allow it.
type user struct {
	hash    []byte           // nil: the user needs a certificate
	clients globs            // nil: any
	allowed map[string]globs // by field of the rules
	good    atomic.Pointer[mark]
}

// Open reads a file. The error names the file, the wrong user or rule, and what to do about it.
func Open(path string) (*File, error) {
	f := &File{path: path}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// Parse returns the users and rules in a text with the form of a file. Such a File cannot be
// reloaded. It returns the same errors as Open, without a file name.
func Parse(text []byte) (*File, error) {
	p, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("access: %w", err)
	}
	f := new(File)
	f.policy.Store(p)
	return f, nil
}

// Reload reads the file again. When it has returned nil, every decision follows the new users and
// rules; if it fails, the old ones stay in force. It does not end connections: the package
// comment says what a removed user can still do. To change the file, rename a new one over it,
// so that Reload never reads half a file.
func (f *File) Reload() error {
	f.reading.Lock()
	defer f.reading.Unlock()
	if f.path == "" {
		return errors.New("access: reload: there is no file to read again; use Open")
	}
	text, err := os.ReadFile(f.path)
	if err != nil {
		return fmt.Errorf("access: %w", err) // which names the file
	}
	p, err := parse(text)
	if err != nil {
		return fmt.Errorf("access: %s: %w", f.path, err)
	}
	f.policy.Store(p)
	return nil
}

// Authenticate admits a client with a user's password or certificate and one of the client ids
// that the user may have. Its duration does not reveal which users exist, provided that all
// hashes in the file have the same cost. The error has the names of client and user, cut to the
// length that logs show, and the reason, never the password.
//
// The latest correct password of each user is remembered until the file is read again, as an HMAC
// under a key that is in memory only, so that a client that comes back needs no comparison.
func (f *File) Authenticate(c Credentials) error {
	p := f.policy.Load()
	known, err := p.authenticateQuickly(c)
	if !known {
		u := p.users[c.User]
		if err = checkPassword(u, c.Password, p.dummy); err == nil {
			m := markOf(p.key, c.Password)
			u.good.Store(&m)
			err = u.admit(c)
		}
	}
	return explainRefusal(c, err)
}

// AuthenticateQuickly is Authenticate for credentials that need no comparison: certificates,
// remembered passwords, and passwords that cannot be correct.
func (f *File) AuthenticateQuickly(c Credentials) (known bool, err error) {
	known, err = f.policy.Load().authenticateQuickly(c)
	return known, explainRefusal(c, err)
}

func (p *policy) authenticateQuickly(c Credentials) (known bool, err error) {
	if c.User == "" {
		return true, errors.New("anonymous: give the client a user name or a client certificate")
	}
	u := p.users[c.User]
	if !c.Certified {
		if err := checkForm(c.Password); err != nil {
			return true, err
		}
		m := markOf(p.key, c.Password) // for an unknown user too
		// A correct password with a wrong client id takes as long as a wrong password.
		// Otherwise the duration would reveal that the password is correct.
		if !u.remembers(m) || u.admit(c) != nil {
			return false, nil
		}
	}
	return true, u.admit(c)
}

// admit checks the client id, after the password or the certificate. It is faster
// than the check of a password: called first, it would reveal which users exist.
func (u *user) admit(c Credentials) error {
	switch {
	case u == nil:
		return errors.New("the client certificate is good, but its subject is not among the users")
	case u.clients != nil && !u.clients.match(c.Client):
		return errors.New("the user may not use this client id: it is not among the user's clients")
	}
	return nil
}

func explainRefusal(c Credentials, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("access: client %q, user %q: %w", logs.Name(c.Client), logs.Name(c.User), err)
}

// Authorize reports whether a rule allows a user to read a key (GET, KEYNOTIFY) or to write it
// (SET, DEL, VDEL). A name that is not, or no longer, a user of the file may do nothing. It does
// not allocate.
func (f *File) Authorize(identity Identity, verb statestore.Verb, key string) bool {
	u := f.policy.Load().users[identity.User]
	switch verb {
	case statestore.VerbGet, statestore.VerbKeyNotify:
		return u.may("read", key)
	case statestore.VerbSet, statestore.VerbDel, statestore.VerbVDel:
		return u.may("write", key)
	}
	return false
}

// AuthorizeTopic reports whether a rule allows a user to publish to a topic (write), or to
// subscribe to a filter or receive messages on a topic. If no rule of the file is about topics, all
// topics are allowed. It does not allocate.
func (f *File) AuthorizeTopic(identity Identity, topic string, write bool) bool {
	p := f.policy.Load()
	field := "subscribe"
	if write {
		field = "publish"
	}
	return !p.topics || p.users[identity.User].may(field, topic)
}

// may reports whether a field of the rules allows the user something.
func (u *user) may(field, text string) bool { return u != nil && u.allowed[field].match(text) }
