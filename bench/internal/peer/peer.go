package peer

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// Operation is what is measured of each peer.
type Operation string

// The operations, in the order of the tables.
const (
	Pair     Operation = "obtain and release"
	Renewal  Operation = "renewal"
	Write    Operation = "guarded write"
	HandOver Operation = "wait and hand over"
)

// Operations returns all operations, in order.
func Operations() []Operation { return []Operation{Pair, Renewal, Write, HandOver} }

var (
	// ErrHeld is the error of TryObtain if another client has the name.
	ErrHeld = errors.New("another client has the name")
	// ErrStale is the error of a guarded write by a client that no longer has the name.
	ErrStale = errors.New("the write was refused: the lock is gone")
)

// TTL is how long a name stays with a client that is gone.
const TTL = 10 * time.Second

// Held is what a Locker has obtained: a pointer of the peer's library, which costs no allocation of
// ours.
type Held any

// Locker is one client of a peer. It is safe for concurrent use. No method waits longer than its context.
type Locker interface {
	// TryObtain obtains a name, or returns ErrHeld.
	TryObtain(ctx context.Context, name string) (Held, error)
	// Obtain waits until the name is free, and obtains it.
	Obtain(ctx context.Context, name string) (Held, error)
	// Release frees the name.
	Release(ctx context.Context, held Held) error
	// Renewal returns what renews held once, unless the peer lacks Renewal. held may no longer be
	// used in other ways than Release afterwards.
	Renewal(ctx context.Context, held Held) (func(context.Context) error, error)
	// Writer returns what sets key to a value, unless the peer lacks Write. It returns an
	// error once a later holder of the same name has written to key: ErrStale, or an error of the
	// library that the lock is gone.
	Writer(ctx context.Context, held Held, key string) (func(context.Context, []byte) error, error)
	// Close ends the client.
	Close()
}

// Peer is a way to lock names, with a server in a process of its own.
type Peer struct {
	// Name names the peer in the tables. It begins with "tenure" for ours.
	Name string
	// About says in a sentence how it is configured.
	About string
	// Lacks says why an operation is not measured.
	Lacks map[Operation]string

	// Serve starts the server of the peer, and returns when it accepts clients.
	Serve func(ctx context.Context, host *Host) (*Server, error)
	// Lock connects a client with an id that no other client of the server has.
	Lock func(ctx context.Context, server *Server, id string) (Locker, error)

	needs string // a program that must be installed
}

// Reference is the name of the peer with which all are compared.
const Reference = "tenure"

// All returns the peers, in the order of the tables.
func All() []*Peer {
	return append(ours(), redislockPeer(), rueidislockPeer(), natsPeer(), etcdPeer())
}

// Installed returns an error if a program is missing that the peer needs.
func (p *Peer) Installed() error {
	if p.needs == "" {
		return nil
	}
	if _, err := exec.LookPath(p.needs); err != nil {
		return fmt.Errorf("%s needs %s, which is not installed: apt-get install %s", p.Name, p.needs, p.needs)
	}
	return nil
}
