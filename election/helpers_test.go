package election_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const (
	name = "press-7/active"
	key  = "press-7/setpoint"
	ttl  = 2 * time.Second

	// every is a schedule of checks that is short beside the TTL.
	every = ttl / 20

	requestsKey   = name + "/bid"
	failBackAfter = 5 * ttl
)

// candidate is one process that campaigns.
type candidate struct {
	*election.Elector
	client *transport.Client
	conn   *transporttest.Conn

	cancel context.CancelFunc
	result chan error // of Run

	mu          sync.Mutex
	transitions []election.Status
}

func newCandidate(t *testing.T, store *transporttest.Store, id string, options election.Options) *candidate {
	t.Helper()
	conn := store.Connect(id)
	return candidateOn(t, conn, conn, options)
}

// candidateOn returns a candidate with a connection that is, or goes over, one of a store.
func candidateOn(t *testing.T, conn storeconn.Conn, over *transporttest.Conn, options election.Options) *candidate {
	t.Helper()
	client, err := transport.NewClient(conn, transport.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	c := &candidate{client: client, conn: over}
	if options.TTL == 0 {
		options.TTL = ttl
	}
	next := options.Observer
	options.Observer = func(transition election.Status) {
		c.mu.Lock()
		c.transitions = append(c.transitions, transition)
		c.mu.Unlock()
		if next != nil {
			next(transition)
		}
	}
	if c.Elector, err = election.New(client, name, options); err != nil {
		t.Fatal(err)
	}
	return c
}

// run campaigns until stop is called, at the latest at the end of the test: a release that is tried
// again would outlast the bubble of the test.
func (c *candidate) run(t *testing.T, lead func(context.Context, *election.Term) error) {
	ctx, cancel := context.WithCancel(t.Context())
	c.cancel = cancel
	result := make(chan error, 1)
	c.result = result
	go func() {
		defer close(result)
		result <- c.Run(ctx, lead)
	}()
	t.Cleanup(func() { _ = c.stop() })
}

// stop ends the campaign and returns what Run returned; nil if that was read before.
func (c *candidate) stop() error {
	c.cancel()
	return await.Receive(c.result)
}

// ended returns what Run returned, and whether it has.
func (c *candidate) ended() (error, bool) {
	synctest.Wait()
	select {
	case err := <-c.result:
		return err, true
	default:
		return nil, false
	}
}

// history returns all transitions so far.
func (c *candidate) history() []election.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.transitions)
}

// last returns the latest transition to a phase, and how many there were.
func (c *candidate) last(phase election.Phase) (latest election.Status, count int) {
	for _, transition := range c.history() {
		if transition.Phase == phase {
			latest, count = transition, count+1
		}
	}
	return latest, count
}

func (c *candidate) phases() (phases []election.Phase) {
	for _, transition := range c.history() {
		phases = append(phases, transition.Phase)
	}
	return phases
}

// requests counts the requests of a candidate from now on that contain a word.
func (c *candidate) requests(word string) (count func() int64) {
	var number atomic.Int64
	c.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
		// KEYNOTIFY is not counted: the transport sends it, not the election.
		if payload := string(request.Payload); strings.Contains(payload, word) && !strings.Contains(payload, "KEYNOTIFY") {
			number.Add(1)
		}
		return transporttest.Fault{}
	})
	return number.Load
}

// leader asks the store which node leads.
func (c *candidate) leader(t *testing.T) lease.Holder {
	t.Helper()
	l, err := lease.New(c.client, name, lease.Options{})
	if err != nil {
		t.Fatal(err)
	}
	holder, err := l.Holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return holder
}

func (c *candidate) mustLead(t *testing.T) {
	t.Helper()
	if holder := c.leader(t); holder.Name != c.client.ClientID() {
		t.Fatalf("%+v leads; want %s", holder, c.client.ClientID())
	}
}

// mustBeFree fails the test unless no node holds the lease.
func (c *candidate) mustBeFree(t *testing.T) {
	t.Helper()
	if holder := c.leader(t); holder.Held {
		t.Errorf("%+v leads; want no leader", holder)
	}
}

// serve is a leader function that returns when its context ends.
func serve(ctx context.Context, _ *election.Term) error {
	await.Receive(ctx.Done())
	return nil
}

// withStore runs a test in virtual time, with a store.
func withStore(t *testing.T, test func(t *testing.T, store *transporttest.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, transporttest.Start(t)) })
}

// pair makes two candidates in a bubble, each with options of its own.
func pair(t *testing.T, a, b election.Options, test func(t *testing.T, first, second *candidate)) {
	t.Helper()
	withStore(t, func(t *testing.T, store *transporttest.Store) {
		test(t, newCandidate(t, store, "node-a", a), newCandidate(t, store, "node-b", b))
	})
}

// runBoth makes first lead and second stand by.
func runBoth(t *testing.T, first, second *candidate) {
	t.Helper()
	first.run(t, serve)
	synctest.Wait()
	second.run(t, serve)
	synctest.Wait()
	first.mustLead(t)
}

var errJammed = errors.New("the press is jammed")

// fitness is a health check that a test sets. The zero fitness is healthy.
type fitness struct{ reason atomic.Pointer[error] }

func (f *fitness) set(reason error) { f.reason.Store(&reason) }

func (f *fitness) check(context.Context) error {
	if reason := f.reason.Load(); reason != nil {
		return *reason
	}
	return nil
}

// stubborn is a candidate for which a test can refuse SETs of the lease's key, with any error.
type stubborn struct {
	*candidate
	refusal atomic.Pointer[error]
	asked   atomic.Int64
}

type stubbornConn struct {
	*transporttest.Conn
	*stubborn
}

func (c stubbornConn) RoundTrip(ctx context.Context, request transporttest.Request) (transporttest.Reply, error) {
	payload := string(request.Payload)
	if strings.Contains(payload, "\r\nSET\r\n") && strings.Contains(payload, "\r\n"+name+"\r\n") {
		c.asked.Add(1)
		if refusal := c.refusal.Load(); refusal != nil && *refusal != nil {
			return transporttest.Reply{}, *refusal
		}
	}
	return c.Conn.RoundTrip(ctx, request)
}

// refuse lets the store refuse with an error from now on; nil ends that.
func (s *stubborn) refuse(refusal error) {
	if refusal != nil {
		refusal = &transport.RefusedError{Text: refusal.Error()}
	}
	s.refusal.Store(&refusal)
}

func newStubborn(t *testing.T, store *transporttest.Store, id string, options election.Options) *stubborn {
	t.Helper()
	s := &stubborn{}
	conn := store.Connect(id)
	s.candidate = candidateOn(t, stubbornConn{conn, s}, conn, options)
	return s
}
