package standby_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/standby"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// shared is data that several replicas share, and the election of the active one.
type shared struct {
	data transporttest.Journal

	mu      sync.Mutex
	present *term
	active  string
	free    chan struct{} // has an item when no replica is active
	terms   int
}

func newShared() *shared {
	s := &shared{free: make(chan struct{}, 1)}
	s.free <- struct{}{}
	return s
}

var errDeposed = errors.New("deposed by the test")

// term is the journal of one time of being active.
type term struct {
	statestore.Journal
	of   *shared
	ctx  context.Context
	end  context.CancelCauseFunc
	once sync.Once
	// closing is called before it resigns, unless it is nil.
	closing func()
}

func (m *term) Done() <-chan struct{} { return m.ctx.Done() }
func (m *term) Err() error            { return context.Cause(m.ctx) }
func (m *term) Standing() error       { return m.Err() }

func (m *term) Commit(ctx context.Context, batch []statestore.Group) error {
	if err := m.Err(); err != nil {
		return err
	}
	return m.Journal.Commit(ctx, batch)
}

// Close resigns.
func (m *term) Close() error {
	m.once.Do(func() {
		if m.closing != nil {
			m.closing()
		}
		m.end(errors.New("closed"))
		m.of.mu.Lock()
		m.of.active = ""
		m.of.mu.Unlock()
		m.of.free <- struct{}{}
	})
	return nil
}

func (s *shared) campaign(ctx context.Context, address string) (standby.Journal, error) {
	select {
	case <-s.free:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &term{Journal: s.data.Open(), of: s}
	m.ctx, m.end = context.WithCancelCause(context.Background())
	s.present, s.active = m, address
	s.terms++
	return m, nil
}

func (s *shared) where() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

// depose ends the present term.
func (s *shared) depose(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present.end(why)
}

// replicate runs a replica until the test ends or stop is called.
func replicate(t *testing.T, s *shared, log *logbuffer.Buffer, open func(context.Context, statestore.Journal, net.Listener) (standby.Store, error)) (address string, stop func(), ended <-chan error) {
	t.Helper()
	socket, err := standby.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = socket.Addr().String()
	r := &standby.Replica{
		Listener: socket,
		Options:  server.Options{Logger: log.Logger()},
		Active:   s.where,
		Campaign: func(ctx context.Context) (standby.Journal, error) { return s.campaign(ctx, address) },
		Open: func(ctx context.Context, journal standby.Journal, socket net.Listener) (standby.Store, error) {
			return open(ctx, journal, socket)
		},
		StandByAfter: func(err error) bool { return errors.Is(err, errDeposed) },
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		result <- r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		await.Receive(finished)
		_ = socket.Close()
	})
	return address, cancel, result
}

func openServer(ctx context.Context, journal statestore.Journal, socket net.Listener) (standby.Store, error) {
	return server.Open(ctx, server.Options{Journal: journal, Listener: socket})
}

func TestTwoReplicasTakeTurnsAndOneStoreGoesOn(t *testing.T) {
	t.Parallel()
	s := newShared()
	var log logbuffer.Buffer
	a, stopA, endedA := replicate(t, s, &log, openServer)
	b, _, _ := replicate(t, s, &log, openServer)
	client := testsupport.Dial(t, a+",mqtt://"+b, transport.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	defer cancel()
	store := ""
	for round := range 6 {
		key := fmt.Sprint("key-", round)
		testsupport.Eventually(t, "the client is served", func() bool {
			timely, giveUp := context.WithTimeout(ctx, 5*time.Second)
			defer giveUp()
			_, err := client.Set(timely, key, []byte(key), transport.SetOptions{})
			return err == nil
		})
		for earlier := range round + 1 {
			testsupport.MustHold(t, client, fmt.Sprint("key-", earlier), fmt.Sprint("key-", earlier))
		}
		if got, _ := client.Store(); store != "" && got != store {
			t.Errorf("round %d: another store answers", round)
		}
		store, _ = client.Store()
		s.depose(fmt.Errorf("round %d: %w", round, errDeposed))
	}
	stopA()
	if err := await.Receive(endedA); err != nil {
		t.Errorf("Run: %v", err)
	}
	testsupport.Eventually(t, "the other one is active", func() bool { return s.where() == b })
	if store == "" || !strings.Contains(log.String(), "stands by") {
		t.Errorf("store %q, the log: %s", store, &log)
	}
}

func TestAReplicaThatStandsByRefersClientsToTheActiveOne(t *testing.T) {
	s := newShared()
	var log logbuffer.Buffer
	a, _, _ := replicate(t, s, &log, openServer)
	testsupport.Eventually(t, "the first one is active", func() bool { return s.where() == a })
	b, _, _ := replicate(t, s, &log, openServer)
	p, err := testsupport.TryConnect(t, b, "c", nil)
	if err == nil || p.Connack == nil || p.Connack.Properties.ServerReference != a {
		t.Errorf("%v, %+v", err, p.Connack)
	}
}

// A client that comes while the process is elected and its store loads is served by it: it is not sent
// away, to come back after a pause.
func TestAClientThatComesWhileAStoreLoadsIsServedByIt(t *testing.T) {
	t.Parallel()
	s := newShared()
	var log logbuffer.Buffer
	loading, loaded := make(chan struct{}), make(chan struct{})
	a, _, _ := replicate(t, s, &log, func(ctx context.Context, journal statestore.Journal, socket net.Listener) (standby.Store, error) {
		close(loading)
		await.Receive(loaded)
		return openServer(ctx, journal, socket)
	})
	await.Receive(loading)
	connected := make(chan error, 1)
	client := testsupport.StartLogin(t, a, "c", "") // its CONNECT waits
	go func() {
		connack, err := client.TryRead()
		if err == nil && (connack[0] != 0x20 || connack[3] != 0) {
			err = fmt.Errorf("CONNACK %x", connack)
		}
		connected <- err
	}()
	close(loaded)
	if err := await.Receive(connected); err != nil {
		t.Error(err)
	}
}

// A process that ends may wait for etcd then. A connection that it does not serve must not look open.
func TestAReplicaThatEndsClosesItsPortBeforeItsJournal(t *testing.T) {
	for _, active := range []bool{true, false} {
		t.Run(fmt.Sprint("active: ", active), func(t *testing.T) {
			t.Parallel()
			s := newShared()
			var log logbuffer.Buffer
			first, stop, ended := replicate(t, s, &log, openServer)
			address := first
			testsupport.Eventually(t, "the first one is active", func() bool { return s.where() == first })
			if active {
				s.mu.Lock()
				s.present.closing = func() {
					if conn, err := net.Dial("tcp", address); err == nil {
						_ = conn.Close()
						t.Error("the port is open while the journal closes")
					}
				}
				s.mu.Unlock()
			} else {
				address, stop, ended = replicate(t, s, &log, openServer)
			}
			stop()
			if err := await.Receive(ended); err != nil {
				t.Errorf("Run: %v", err)
			}
			if conn, err := net.Dial("tcp", address); err == nil {
				_ = conn.Close()
				t.Error("the port is open after Run")
			}
		})
	}
}

func TestAReplicaGivesUpALoadThatCameTooLate(t *testing.T) {
	t.Parallel()
	s := newShared()
	var log logbuffer.Buffer
	loading := make(chan struct{}, 10)
	_, stop, ended := replicate(t, s, &log, func(ctx context.Context, _ statestore.Journal, _ net.Listener) (standby.Store, error) {
		loading <- struct{}{}
		await.Receive(ctx.Done())
		return nil, context.Cause(ctx)
	})
	for range 2 {
		await.Receive(loading)
		s.depose(errDeposed)
	}
	await.Receive(loading)
	stop()
	if err := await.Receive(ended); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestAReplicaEndsAfterAnErrorThatTheNextJournalWouldMeet(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name string
		open func(context.Context, statestore.Journal, net.Listener) (standby.Store, error)
		fail func(*shared)
	}{
		{"the data cannot be loaded", func(context.Context, statestore.Journal, net.Listener) (standby.Store, error) { return nil, broken }, nil},
		{"the journal refuses", openServer, func(s *shared) { s.depose(broken) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newShared()
			var log logbuffer.Buffer
			a, _, ended := replicate(t, s, &log, test.open)
			if test.fail != nil {
				testsupport.Eventually(t, "it is active", func() bool { return s.where() == a })
				test.fail(s)
			}
			if err := await.Receive(ended); !errors.Is(err, broken) {
				t.Errorf("Run: %v, want %v", err, broken)
			}
			if s.where() != "" {
				t.Error("it has not resigned")
			}
		})
	}
}
