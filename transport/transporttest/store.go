package transporttest

import (
	"context"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Store is a state store in this process. It is safe for concurrent use.
type Store struct {
	engine *engine.Engine
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu      sync.Mutex
	conns   map[string]*Conn // by client id
	dialect statestore.Dialect
	allow   func(client string, verb statestore.Verb, key string) bool // nil: everything
	tap     func(Applied)
}

// Applied is one request that reached the store, and what the store did with it.
type Applied struct {
	// At is when. It is the store's own clock, and virtual time in a bubble.
	At time.Time
	// Client is the MQTT client id of the sender.
	Client string
	// Command is the request as the store read it, and Request as it was sent. Their
	// bytes are valid during the call only.
	Command statestore.Command
	Request transport.Request
	// Reply is the answer, which may be a refusal. Whether it reaches the sender is
	// another matter.
	Reply statestore.Reply
	// Again says that the request had been delivered before: the store remembers the
	// reply of a command that changes something, and does not apply it again.
	Again bool
}

// Tap lets tap see all that the store does from now on, in the store's order: the
// truth, against which to judge what clients believe. A key whose time passes is no
// command and not reported; the SET tells when that will be. Nil ends it.
//
// It is called one at a time while the store stands still for everybody. So it must
// not block, nor send a request or wait for somebody who does; it may ask a
// tenure for its token.
func (s *Store) Tap(tap func(Applied)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tap = tap
}

// NewStore starts a store. Close it when done.
func NewStore(options statestore.Options) (*Store, error) {
	machine, err := statestore.New(options)
	if err != nil {
		return nil, err
	}
	s := &Store{conns: make(map[string]*Conn)}
	s.engine = engine.New(machine, s.deliver)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.tasks.Go(func() { s.engine.Run(ctx) })
	return s, nil
}

// Close stops the store and waits for messages still on their way.
func (s *Store) Close() {
	s.stop()
	s.tasks.Wait()
}

// Connect returns a connection for a client. As over MQTT, a connection that
// already has this client id ends with ErrSessionTakenOver.
func (s *Store) Connect(clientID string) *Conn {
	c := newConn(s, clientID)
	s.mu.Lock()
	old := s.conns[clientID]
	s.conns[clientID] = c
	s.mu.Unlock()
	if old != nil {
		old.end(transport.ErrSessionTakenOver)
	}
	return c
}

// Speak makes the store write what differs between dialects in this one from now on.
func (s *Store) Speak(dialect statestore.Dialect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialect = dialect
}

// Authorize lets allow decide which requests are authorized from now on; nil allows
// all. It is called by several goroutines at once.
func (s *Store) Authorize(allow func(client string, verb statestore.Verb, key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allow = allow
}

// apply performs a command that came from a client as request.
func (s *Store) apply(command statestore.Command, request transport.Request, again bool) transport.Reply {
	s.mu.Lock()
	dialect, allow := s.dialect, s.allow
	s.mu.Unlock()
	if allow != nil && !allow(command.Client, command.Verb, command.Key) {
		command = command.Deny()
	}
	reply := s.engine.ApplyThen(command, func(reply statestore.Reply) {
		s.mu.Lock()
		tap := s.tap
		s.mu.Unlock()
		if tap != nil {
			tap(Applied{
				At:      time.Now(),
				Client:  command.Client,
				Command: command,
				Request: request,
				Reply:   reply,
				Again:   again,
			})
		}
	})
	result := transport.Reply{Payload: reply.Append(nil, dialect)}
	if !reply.Version.IsZero() {
		result.Timestamp = reply.Version.String()
	}
	return result
}

// encode writes a notification as it goes over the wire.
func (s *Store) encode(notification statestore.Notification) transport.Notification {
	s.mu.Lock()
	dialect := s.dialect
	s.mu.Unlock()
	return transport.Notification{
		Key:       notification.Key,
		Payload:   notification.Append(nil, dialect),
		Timestamp: notification.Version.String(),
	}
}

// deliver is called with the engine's lock held: it only hands over.
func (s *Store) deliver(notification statestore.Notification) {
	s.mu.Lock()
	c := s.conns[notification.Client]
	s.mu.Unlock()
	if c != nil {
		c.enqueue(notification)
	}
}
