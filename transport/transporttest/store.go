package transporttest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Store is a state store in this process. It is safe for concurrent use, but Restart, Replace,
// Crash and Recover are called one at a time.
type Store struct {
	life    context.Context // ends with Close
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	journal *Journal // nil: the store is in memory only

	mu      sync.Mutex
	engine  *engine.Engine     // while the store is down, the engine before the crash
	halt    context.CancelFunc // ends engine.Run
	down    bool               // after a crash
	options statestore.Options // of the present engine
	mount   *mount             // of the present engine; nil without a journal
	halted  chan struct{}      // closed when engine.Run has returned
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
	Request Request
	// Reply is the answer, which may be a refusal. A Fault may keep it from arriving.
	Reply statestore.Reply
	// Store is the identity of the store that got the request. That store may have started
	// after the request was sent (see Store.Restart).
	Store string
	// Again says that the request was delivered before: the store remembers the reply of a
	// command that changes something, and does not apply it again.
	Again bool
}

func (s *Store) locked(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
}

// Tap makes the store call tap after each request from now on, in the store's order; nil ends
// that. A test can compare it with what the clients believe. The expiry of a key is not
// reported: the SET has its TTL.
//
// A durable store calls tap when the reply may leave, after the commit. So requests that a
// crash undid are not reported, and neither are those that it kept and did not answer:
// Journal.Records has them. The order is the store's for each key.
//
// Calls do not overlap, and the store applies no other request meanwhile. So tap must not
// block, send a request or wait for a goroutine that does; it may call Tenure.Token.
func (s *Store) Tap(tap func(Applied)) { s.locked(func() { s.tap = tap }) }

// NewStore starts a store. Close it when done.
func NewStore(options statestore.Options) (*Store, error) { return NewDurableStore(options, nil) }

// NewDurableStore starts a store that keeps its data in journal, and has the data that is
// there. Its replies and notifications wait for commits. Another store on the same journal is
// deposed. A nil journal means none. Close the store when done.
func NewDurableStore(options statestore.Options, journal *Journal) (*Store, error) {
	s := &Store{conns: make(map[string]*Conn), journal: journal}
	s.life, s.stop = context.WithCancel(context.Background())
	if err := s.start(options); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

// Start returns a store with default options that ends with the test.
func Start(t testing.TB) *Store {
	t.Helper()
	return StartDurable(t, nil)
}

// StartDurable returns a store with default options on journal that ends with the test.
func StartDurable(t testing.TB, journal *Journal) *Store {
	t.Helper()
	store, err := NewDurableStore(statestore.Options{}, journal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// start makes a new engine the present one. The former one, if any, was halted, or will be.
func (s *Store) start(options statestore.Options) error {
	if options.Identity == "" && s.journal == nil {
		options.Identity = engine.NewIdentity()
	}
	var (
		mounted *mount
		journal statestore.Journal
	)
	if s.journal != nil {
		mounted = s.journal.open()
		journal = mounted
	}
	var machine func() time.Time // of a store in memory; its clock is slewed to this one, see SetWall
	if journal != nil {
		s.mu.Lock()
		machine = s.wall
		s.mu.Unlock()
	}
	started, err := engine.OpenWithClock(s.life, options, journal, s.deliver, machine)
	if err != nil {
		return err
	}
	if journal != nil {
		started.Begin()
	}
	ctx, halt := context.WithCancel(s.life)
	halted := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.halt != nil {
		s.halt()
	}
	started.SetSystemClock(s.wall)
	s.engine, s.halt, s.options, s.mount, s.halted, s.down = started, halt, options, mounted, halted, false
	s.tasks.Go(func() {
		err := started.Run(ctx)
		close(halted)
		if err != nil {
			s.fail(started)
		}
	})
	return nil
}

// Replace is Restart without the cut: all connections stay, like those to a broker when its
// attached store restarts.
func (s *Store) Replace(options statestore.Options) error {
	if s.journal != nil {
		if _, err := statestore.New(options); err != nil {
			return err
		}
		s.kill(0)
		s.journal.Erase()
	}
	return s.start(options)
}

// Restart replaces the present store by an empty one, with a new identity unless options
// contain one, and cuts all connections until [Conn.Restore], like the restart of a server
// in memory, or of one whose journal was lost: a durable store erases its Journal. Requests
// that a Fault holds reach the new store if it shows its identity, and are lost otherwise. The
// error says which option makes no sense.
func (s *Store) Restart(options statestore.Options) error {
	if err := s.Replace(options); err != nil {
		return err
	}
	s.cutAll(false)
	return nil
}

// Crash ends a durable store at once, like SIGKILL of its process: what was not committed is
// lost, except for the first keep groups of what the last commit would have made durable. It
// cuts all connections, and no Will is applied: a Will waits at the server, which is dead.
// Requests are not answered until Recover. Without a journal, Crash panics: use Restart.
func (s *Store) Crash(keep int) {
	if s.journal == nil {
		panic("transporttest: Crash of a store without a Journal")
	}
	s.mu.Lock()
	s.down = true
	s.mu.Unlock()
	s.kill(keep)
	s.cutAll(true)
}

// kill ends a durable store without its last commit, apart from keep groups.
func (s *Store) kill(keep int) {
	s.mu.Lock()
	mounted, halt, halted := s.mount, s.halt, s.halted
	s.mu.Unlock()
	mounted.crash(keep)
	halt()
	<-halted
}

// fail cuts the connections to a store that has ended because its journal failed.
func (s *Store) fail(failed *engine.Engine) {
	s.mu.Lock()
	present := s.engine == failed && !s.down
	s.down = s.down || present
	s.mu.Unlock()
	if present {
		s.cutAll(true)
	}
}

// Recover starts a durable store again after a crash, with the data of its journal and the same
// options: the identity, the fences and the leases are there, and each lease has its whole
// lifetime again, except for one that a Will would have released: it is free. Connections that were
// restored meanwhile come up, the others with [Conn.Restore]. Requests that a Fault holds reach the
// store. The error says why the journal cannot be loaded.
func (s *Store) Recover() error {
	s.mu.Lock()
	options := s.options
	s.mu.Unlock()
	if err := s.start(options); err != nil {
		return err
	}
	s.mu.Lock()
	conns := s.connsLocked()
	s.mu.Unlock()
	for _, conn := range conns {
		conn.recover()
	}
	return nil
}

// cutAll cuts all connections. A dead server applies no Wills.
func (s *Store) cutAll(dead bool) {
	s.mu.Lock()
	conns := s.connsLocked()
	s.mu.Unlock()
	for _, conn := range conns {
		conn.leave(nil, dead)
		if dead {
			// Each client learns of it at a moment of its own, so that a simulation replays.
			time.Sleep(time.Microsecond)
		}
	}
}

// connsLocked returns the connections in the order of their client ids, so that a simulation
// replays.
func (s *Store) connsLocked() []*Conn {
	conns := slices.Collect(maps.Values(s.conns))
	slices.SortFunc(conns, func(a, b *Conn) int { return strings.Compare(a.clientID, b.clientID) })
	return conns
}

// isDown reports whether the store has crashed and was not recovered.
func (s *Store) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// HideIdentity makes the store behave, while on is true, like those deployed today, which
// have no identity: it sends none and ignores those in requests.
func (s *Store) HideIdentity(on bool) { s.locked(func() { s.hidden = on }) }

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
	down := s.down
	s.mu.Unlock()
	if old != nil {
		old.end(transport.ErrSessionTakenOver)
	}
	if down {
		c.Cut()
		c.Restore() // once the store is up
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
// A durable store that recovers begins with this clock, like one that starts on another machine.
// Several goroutines call now at the same time. It must not block.
func (s *Store) SetWall(now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wall = now
	s.engine.SetSystemClock(now)
}

// Speak makes all clients speak this dialect from now on; statestore.Deployed by default.
func (s *Store) Speak(dialect statestore.Dialect) { s.locked(func() { s.dialect = dialect }) }

// Authorize makes allow decide which requests are authorized from now on; nil allows all.
// Several goroutines call it at the same time.
func (s *Store) Authorize(allow func(client string, verb statestore.Verb, key string) bool) {
	s.locked(func() { s.allow = allow })
}

// apply applies a request. received is its decoded form. It calls done with the reply: before it
// returns, or in a goroutine after the commit on which the reply rests. If the store crashes
// before, there is no reply. will is the Will of the connection; nil: none.
func (s *Store) apply(received statestore.Request, request Request, will []byte, again bool, done func(Reply)) {
	running, identity := s.present()
	if identity == "" {
		received.Store = nil
	}
	s.mu.Lock()
	received.Dialect = cmp.Or(s.dialect, statestore.Deployed)
	allow := s.allow
	s.mu.Unlock()
	command := statestore.Parse(received)
	if will != nil {
		ends := statestore.Parse(statestore.Request{Payload: will})
		command.Willed = command.ReleasedBy(&ends)
	}
	if allow != nil && !allow(command.Client, command.Verb, command.Key) {
		command = command.Deny()
	}
	answer := func(reply statestore.Reply) {
		result := Reply{Payload: reply.Append(nil), Store: identity}
		if !reply.Version.IsZero() {
			result.Timestamp = reply.Version.String()
		}
		done(result)
	}
	applied := Applied{
		At:      time.Now(),
		Client:  command.Client,
		Command: command,
		Request: request,
		Store:   running.Identity(),
		Again:   again,
	}
	var mu sync.Mutex
	submitted, left := false, false
	reply, _ := running.Submit(command, func(reply statestore.Reply) {
		applied.Reply = reply
		s.tapped(applied)
		mu.Lock()
		defer mu.Unlock()
		if left = true; submitted {
			s.tasks.Go(func() { answer(reply) }) // a fault may make it wait, and commits must not
		}
	})
	mu.Lock()
	submitted = true
	here := left
	mu.Unlock()
	if here {
		answer(reply)
	}
}

// tapped calls the tap, if there is one.
func (s *Store) tapped(applied Applied) {
	s.mu.Lock()
	tap := s.tap
	s.mu.Unlock()
	if tap != nil {
		s.tapping.Lock() // the store before a restart may still be at work
		defer s.tapping.Unlock()
		tap(applied)
	}
}

// encode returns a notification in its wire format.
func (s *Store) encode(notification statestore.Notification) Notification {
	_, identity := s.present()
	return Notification{
		Store:     identity,
		Key:       notification.Key,
		Payload:   notification.Append(nil),
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
