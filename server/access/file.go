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

// File has users and rules from a YAML file. It is a QuickAuthenticator and a TopicAuthorizer. Its methods are safe for concurrent use; each call follows one version of
// the file. The zero File admits no client and allows nothing.
type File struct {
	path   string
	policy atomic.Pointer[policy]

	// reading is held by Reload while it reads the file. Otherwise, of two calls the one that
	// read an older version could be the last to store it.
	reading sync.Mutex
}

var (
	_ QuickAuthenticator = (*File)(nil)
	_ Authorizer         = (*File)(nil)
	_ TopicAuthorizer    = (*File)(nil)
)

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
	return explainRefusal(c, f.inForce().authenticate(c))
}

// AuthenticateQuickly is Authenticate for credentials that need no comparison: certificates,
// remembered passwords, and passwords that cannot be correct.
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

// Authorize reports whether a rule allows a user to read a key (GET, KEYNOTIFY) or to write it
// (SET, DEL, VDEL). A name that is not, or no longer, a user of the file may do nothing. It does
// not allocate.
func (f *File) Authorize(identity Identity, verb statestore.Verb, key string) bool {
	return f.inForce().authorize(identity.User, verb, key)
}

// AuthorizeTopic reports whether a rule allows a user to publish to a topic (write), or to
// subscribe to a filter or receive messages on a topic. If no rule of the file is about topics, all topics are allowed. It does not
// allocate.
func (f *File) AuthorizeTopic(identity Identity, topic string, write bool) bool {
	return f.inForce().authorizeTopic(identity.User, topic, write)
}

func (f *File) inForce() *policy {
	if p := f.policy.Load(); p != nil {
		return p
	}
	return noPolicy
}
