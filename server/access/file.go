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

// File is users and rules from a YAML file. It is an Authenticator, an Authorizer,
// a TopicAuthorizer and a FilterAuthorizer. Its methods are safe for concurrent use; each call is
// decided by one version of the file. The zero File admits nobody and allows
// nothing.
type File struct {
	path   string
	policy atomic.Pointer[policy]

	// reading guards no field. It puts one Reload behind the other, file and all:
	// otherwise one that read an older version could be the last to store it.
	reading sync.Mutex
}

var (
	_ QuickAuthenticator = (*File)(nil)
	_ Authorizer         = (*File)(nil)
	_ TopicAuthorizer    = (*File)(nil)
	_ FilterAuthorizer   = (*File)(nil)
)

// Open reads a file. The error names the file, the user or rule that is wrong, and
// what to do about it.
func Open(path string) (*File, error) {
	f := &File{path: path}
	if err := f.Reload(); err != nil {
		return nil, err
	}
	return f, nil
}

// Parse returns the users and rules of a text that has the form of a file. Such a
// File cannot be reloaded. Errors are those of Open, without a file name.
func Parse(text []byte) (*File, error) {
	p, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("access: %w", err)
	}
	f := new(File)
	f.policy.Store(p)
	return f, nil
}

// Reload reads the file again. From its return on, every decision follows the new
// users and rules; if it fails, those in force stay in force. It does not end
// connections: see the package comment for what a removed user can still do.
// Replace the file by renaming a new one over it, so that half a file is never
// read.
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

// Authenticate admits a client that comes with a user's password or certificate,
// under one of the client ids that the user may have. It does not say which users
// there are by how long it takes, as long as all hashes in the file have one cost.
// The error has the names of client and user, cut to what a log shows of names, and the
// reason, never the password.
//
// The latest good password of each user is remembered until the file is read again, as
// an HMAC under a key that is in memory only: a client that comes back costs no comparison.
func (f *File) Authenticate(c Credentials) error {
	return explainRefusal(c, f.inForce().authenticate(c))
}

// AuthenticateQuickly is Authenticate for what needs no comparison: certificates,
// passwords that are remembered, and those that cannot be right.
func (f *File) AuthenticateQuickly(c Credentials) (known bool, err error) {
	known, err = f.inForce().authenticateQuickly(c)
	return known, explainRefusal(c, err)
}

func explainRefusal(c Credentials, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("access: client %q, user %q: %w", logs.Name(c.Client), logs.Name(c.User), err)
}

// Authorize reports whether a rule allows a user to read a key (GET, KEYNOTIFY) or
// to write it (SET, DEL, VDEL). What no rule allows is refused, as is everything
// to somebody who is not, or no longer, a user of the file. It does not allocate.
func (f *File) Authorize(who Identity, verb statestore.Verb, key string) bool {
	return f.inForce().authorize(who.User, verb, key)
}

// AuthorizeTopic reports whether a rule allows a user to publish to a topic (write),
// or to subscribe to a filter and be sent what comes on a topic. A shared
// subscription counts as one to its filter. If no rule of the file is about
// topics, all of them are allowed to everybody. It does not allocate.
func (f *File) AuthorizeTopic(who Identity, topic string, write bool) bool {
	return f.inForce().authorizeTopic(who.User, topic, write)
}

// AuthorizeFilter reports whether the rules allow a user to be sent what comes on every
// topic that a filter matches. A single glob must allow all of them: factory/* allows
// factory/+/state and factory/a/#, and allows factory/# only together with factory, which
// that filter matches too. If no rule of the file is about topics, all filters are allowed
// to everybody.
func (f *File) AuthorizeFilter(who Identity, filter string) bool {
	return f.inForce().authorizeFilter(who.User, filter)
}

func (f *File) inForce() *policy {
	if p := f.policy.Load(); p != nil {
		return p
	}
	return nobody
}
