package transporttest

import (
	"context"
	"sync"

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

func (s *Store) rules() (statestore.Dialect, func(string, statestore.Verb, string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dialect, s.allow
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
