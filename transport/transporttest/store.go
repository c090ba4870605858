package transporttest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Store is a state store in this process. It is safe for concurrent use.
type Store struct {
	life  context.Context // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu      sync.Mutex
	engine  *engine.Engine
	halt    context.CancelFunc // ends what engine runs
	conns   map[string]*Conn   // by client id
	dialect statestore.Dialect
	allow   func(client string, verb statestore.Verb, key string) bool // nil: everything
	tap     func(Applied)
	hidden  bool             // the store shows no identity
	wall    func() time.Time // the clock of the store's machine; nil: time.Now

	tapping sync.Mutex // held while tap runs
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
	// Store is the identity of the store that got the request. It may have been started
	// after the request was sent (see Store.Restart).
	Store string
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
	s := &Store{conns: make(map[string]*Conn)}
	s.life, s.stop = context.WithCancel(context.Background())
	if err := s.start(options); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// start puts an empty store in the place of the present one.
func (s *Store) start(options statestore.Options) error {
	if options.Identity == "" {
		options.Identity = engine.NewIdentity()
	}
	machine, err := statestore.New(options)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.halt != nil {
		s.halt()
	}
	started := engine.New(machine, s.deliver)
	started.SetSystemClock(s.wall)
	ctx, halt := context.WithCancel(s.life)
	s.engine, s.halt = started, halt
	s.tasks.Go(func() { started.Run(ctx) })
	return nil
}

// Restart starts an empty store in the place of the present one, with a new identity unless
// options name one, and cuts all connections until [Conn.Restore], as a server in memory
// does that is started again. Requests that a Fault holds reach the new store if it shows
// its identity, and are lost otherwise, as they are with a broker that ends.
func (s *Store) Restart(options statestore.Options) error {
	if err := s.Replace(options); err != nil {
		return err
	}
	s.mu.Lock()
	conns := slices.Collect(maps.Values(s.conns))
	s.mu.Unlock()
	for _, conn := range conns {
		conn.Cut()
	}
	return nil
}

// Replace is Restart without the cut: all connections stay, as they do when a store that is
// attached to a broker is started again.
func (s *Store) Replace(options statestore.Options) error { return s.start(options) }

// HideIdentity makes the store behave, while on is true, like those deployed today, which
// have no identity: it sends none and ignores the one that a request names.
func (s *Store) HideIdentity(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden = on
}

// present returns the engine, and the identity that it shows.
func (s *Store) present() (running *engine.Engine, identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hidden {
		identity = s.engine.Identity()
	}
	return s.engine, identity
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

// SetWall makes now the wall clock of the store's machine from here on, so that a test can
// step it; nil, like at first, is time.Now. The store's own time of day does not step but
// is slewed: while the machine's clock is behind, it loses half a second each second (an
// hour in two hours); while it is ahead, it gains a tenth of the difference each second, or
// half a second if that is more (an hour in a minute and a half). now is called by several
// goroutines at once and must not block.
func (s *Store) SetWall(now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wall = now
	s.engine.SetSystemClock(now)
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

// apply performs what came from a client as request.
func (s *Store) apply(received statestore.Request, request transport.Request, again bool) transport.Reply {
	running, identity := s.present()
	if identity == "" {
		received.Store = nil
	}
	command := statestore.Parse(received)
	s.mu.Lock()
	dialect, allow := s.dialect, s.allow
	s.mu.Unlock()
	if allow != nil && !allow(command.Client, command.Verb, command.Key) {
		command = command.Deny()
	}
	reply := running.ApplyThen(command, func(reply statestore.Reply) {
		s.mu.Lock()
		tap := s.tap
		s.mu.Unlock()
		if tap != nil {
			s.tapping.Lock() // the store before a restart may still be at work
			defer s.tapping.Unlock()
			tap(Applied{
				At:      time.Now(),
				Client:  command.Client,
				Command: command,
				Request: request,
				Reply:   reply,
				Store:   running.Identity(),
				Again:   again,
			})
		}
	})
	result := transport.Reply{Payload: reply.Append(nil, dialect), Store: identity}
	if !reply.Version.IsZero() {
		result.Timestamp = reply.Version.String()
	}
	return result
}

// encode writes a notification as it goes over the wire.
func (s *Store) encode(notification statestore.Notification) transport.Notification {
	_, identity := s.present()
	s.mu.Lock()
	dialect := s.dialect
	s.mu.Unlock()
	return transport.Notification{
		Store:     identity,
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
