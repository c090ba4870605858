package transporttest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
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
	halt    context.CancelFunc // ends engine.Run
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
	// At is the time at which the store applied the request; virtual time in a bubble.
	At time.Time
	// Client is the MQTT client id of the sender.
	Client string
	// Command is the decoded request, and Request the one that was sent. Their bytes are
	// valid during the call only.
	Command statestore.Command
	Request transport.Request
	// Reply is the answer, which may be a refusal. A Fault may keep it from arriving.
	Reply statestore.Reply
	// Store is the identity of the store that got the request. That store may have started
	// after the request was sent (see Store.Restart).
	Store string
	// Again says that the request was delivered before: the store remembers the reply of a
	// command that changes something, and does not apply it again.
	Again bool
}

// Tap makes the store call tap after each request from now on, in the store's order; nil ends
// that. A test can compare it with what the clients believe. The expiry of a key is not
// reported: the SET has its TTL.
//
// Calls do not overlap, and the store applies no other request meanwhile. So tap must not
// block, send a request or wait for a goroutine that does; it may call Tenure.Token.
func (s *Store) Tap(tap func(Applied)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tap = tap
}

// NewStore starts a store. Close it when done.
func NewStore(options statestore.Options) (*Store, error) {
	s := &Store{conns: make(map[string]*Conn)}
	s.life, s.stop = context.WithCancel(context.Background())
	if err := s.Replace(options); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// Start returns a store with default options that ends with the test.
func Start(t testing.TB) *Store {
	t.Helper()
	store, err := NewStore(statestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// Replace is Restart without the cut: all connections stay, like those to a broker whose
// attached store restarts.
func (s *Store) Replace(options statestore.Options) error {
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
	s.tasks.Go(func() { _ = started.Run(ctx) }) // no error without a journal
	return nil
}

// Restart replaces the present store by an empty one, with a new identity unless options
// contain one, and cuts all connections until [Conn.Restore], like the restart of a server
// in memory. Requests that a Fault holds reach the new store if it shows its identity, and
// are lost otherwise. The error says which option makes no sense.
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

// HideIdentity makes the store behave, while on is true, like those deployed today, which
// have no identity: it sends none and ignores those in requests.
func (s *Store) HideIdentity(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hidden = on
}

// present returns the present engine and the identity that the store shows, which may be empty.
func (s *Store) present() (running *engine.Engine, identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hidden {
		identity = s.engine.Identity()
	}
	return s.engine, identity
}

// Close stops the store and waits until all held messages have arrived.
func (s *Store) Close() {
	s.stop()
	s.tasks.Wait()
}

// Connect returns a connection for a client. As over MQTT, an earlier connection with this
// client id ends with ErrSessionTakenOver.
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

// Client returns a client of the store, and its connection, for the faults. Both end with
// the test.
func (s *Store) Client(t testing.TB, clientID string, options transport.ClientOptions) (*transport.Client, *Conn) {
	t.Helper()
	conn := s.Connect(clientID)
	client, err := transport.NewClient(conn, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close client %q: %v", clientID, err)
		}
	})
	return client, conn
}

// SetWall makes now the wall clock of the store's machine from now on, so that a test can step
// it; nil, the default, is time.Now. The store's own time of day is slewed: while the machine's
// clock is behind, it loses half a second each second; while that is ahead, it gains a tenth of
// the difference each second, or half a second if that is more (an hour in a minute and a half).
// Several goroutines call now at the same time. It must not block.
func (s *Store) SetWall(now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wall = now
	s.engine.SetSystemClock(now)
}

// Speak makes the store write its replies in this dialect from now on.
func (s *Store) Speak(dialect statestore.Dialect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dialect = dialect
}

// Authorize makes allow decide which requests are authorized from now on; nil allows all.
// Several goroutines call it at the same time.
func (s *Store) Authorize(allow func(client string, verb statestore.Verb, key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allow = allow
}

// apply applies a request. received is its decoded form.
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
	reply, _ := running.ApplyThen(command, func(reply statestore.Reply) {
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

// encode returns a notification in its wire format.
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

// deliver queues a notification. It is called with the engine's lock held, so it must not block.
func (s *Store) deliver(notification statestore.Notification) {
	s.mu.Lock()
	c := s.conns[notification.Client]
	s.mu.Unlock()
	if c != nil {
		c.enqueue(notification)
	}
}
