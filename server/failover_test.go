package server_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

// The keys that a leader writes: one through its guard, and one without a token, the
// control, which shows what the guard is for.
const (
	leaseKey   = "press-7/active"
	fencedKey  = "press-7/setpoint"
	controlKey = "press-7/control"
	leaseTTL   = time.Second
)

// candidate campaigns over MQTT. Whenever it leads it writes its name to both keys and
// says so.
type candidate struct {
	name   string
	client *transport.Client
	leads  chan *election.Term
}

func campaign(t *testing.T, name, address string, keepAlive time.Duration) *candidate {
	t.Helper()
	c := &candidate{
		name:   name,
		client: dial(t, address, transport.Options{ClientID: name, KeepAlive: keepAlive}),
		leads:  make(chan *election.Term, 1),
	}
	elector, err := election.New(c.client, leaseKey, election.Options{TTL: leaseTTL, Claim: []string{fencedKey}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- elector.Run(ctx, c.lead) }()
	t.Cleanup(func() {
		stop()
		if err := await.Receive(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Run: %v", name, err)
		}
	})
	return c
}

func (c *candidate) lead(ctx context.Context, term *election.Term) error {
	if err := c.write(ctx, term, c.name); err != nil {
		return err
	}
	select {
	case c.leads <- term:
	case <-ctx.Done():
	}
	await.Receive(ctx.Done())
	return nil
}

func (c *candidate) write(ctx context.Context, term *election.Term, value string) error {
	_, fenced := term.Guard().Set(ctx, fencedKey, []byte(value))
	_, control := c.client.Set(ctx, controlKey, []byte(value), transport.SetOptions{})
	return errors.Join(fenced, control)
}

// mustLead waits until the candidate leads.
func (c *candidate) mustLead(t *testing.T) *election.Term {
	t.Helper()
	select {
	case term := <-c.leads:
		return term
	case <-time.After(patience):
		t.Fatalf("%s never leads", c.name)
		return nil
	}
}

func mustHold(t *testing.T, client *transport.Client, key, want string) {
	t.Helper()
	entry, err := client.Get(t.Context(), key)
	if err != nil || string(entry.Value) != want {
		t.Errorf("%s holds %q, want %q (%v)", key, entry.Value, want, err)
	}
}

func tokenOf(t *testing.T, term *election.Term) hlc.Token {
	t.Helper()
	token, err := term.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// The network keeps two writes of a leader for longer than its tenure lasts.
func TestInvariant13OverMQTTALateWriteOverwritesTheControlAndNotTheFencedKey(t *testing.T) {
	const keepAlive = time.Minute // the link is slow, not dead
	address := start(t, server.Options{})
	through := newProxy(t, address)
	observer := dial(t, address, transport.Options{})
	old := campaign(t, "node-a", through.address(), keepAlive)
	former := old.mustLead(t)
	tokenOf(t, former)
	through.hold(requests)
	// The client gives the silent connection up. Another one would end it at the server, and
	// with it what is still on its way.
	through.refuses(true)
	late := make(chan error, 2)
	go func() {
		_, err := former.Guard().Set(context.Background(), fencedKey, []byte("late"))
		late <- err
	}()
	go func() {
		_, err := old.client.Set(context.Background(), controlKey, []byte("late"), transport.SetOptions{})
		late <- err
	}()
	successor := campaign(t, "node-b", address, keepAlive)
	if term := successor.mustLead(t); former.Tenure().Remaining() > 0 {
		t.Errorf("%s leads with token %v while the tenure of %s lasts", successor.name, tokenOf(t, term), old.name)
	}
	mustHold(t, observer, fencedKey, "node-b")
	mustHold(t, observer, controlKey, "node-b")

	through.release(requests)
	eventually(t, "the control shows the lost update", func() bool {
		entry, err := observer.Get(t.Context(), controlKey)
		return err == nil && string(entry.Value) == "late"
	})
	through.refuses(false)
	if _, err := old.client.Get(t.Context(), fencedKey); err != nil && !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Error(err) // its answer comes after those to the late writes
	}
	mustHold(t, observer, fencedKey, "node-b")
	for range cap(late) {
		if err := await.Receive(late); err == nil {
			continue // the control was in time for its caller
		} else if !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent) {
			t.Errorf("a late write: %v", err)
		}
	}
}

// A link that is half-open tells nobody: packets vanish, and both ends stay connected.
func TestInvariant8OverAHalfOpenLinkALeaderGivesUpBeforeAnotherLeads(t *testing.T) {
	address := start(t, server.Options{})
	through := newProxy(t, address)
	old := campaign(t, "node-a", through.address(), time.Second)
	former := old.mustLead(t)
	first := tokenOf(t, former)
	successor := campaign(t, "node-b", address, time.Second)
	through.refuses(true) // else the former leader may come back in time to be the next
	through.swallow()
	term := successor.mustLead(t)
	if _, err := former.Token(); err == nil {
		t.Error("the former leader still has a token")
	}
	if second := tokenOf(t, term); second.Compare(first) <= 0 {
		t.Errorf("token %v follows %v", second, first)
	}
	// The link comes to life again by a new connection, and the node is a candidate.
	through.refuses(false)
	term.Resign()
	if third := tokenOf(t, old.mustLead(t)); third.Compare(first) <= 0 {
		t.Errorf("token %v follows %v", third, first)
	}
}

// The store keeps its keys in memory: when it stops, the lease is gone with all else.
func TestInvariant11OverABrokerThatStopsAndStartsSomebodyLeadsWithANewerToken(t *testing.T) {
	first, stop := stoppable(t)
	through := newProxy(t, first)
	nodes := []*candidate{
		campaign(t, "node-a", through.address(), time.Second),
		campaign(t, "node-b", through.address(), time.Second),
	}
	leads := func() *election.Term {
		select {
		case term := <-nodes[0].leads:
			return term
		case term := <-nodes[1].leads:
			return term
		case <-time.After(patience):
			t.Fatal("nobody leads")
			return nil
		}
	}
	var last hlc.Token
	for range 3 {
		term := leads()
		token := tokenOf(t, term)
		if token.Compare(last) <= 0 {
			t.Errorf("after a restart token %v follows %v", token, last)
		}
		last = token
		through.refuses(true)
		stop()
		through.cut()
		next, stopNext := stoppable(t)
		through.target.Store(&next)
		through.refuses(false)
		stop = stopNext
		await.Receive(term.Tenure().Done())
	}
	leads()
}

// stoppable starts a server which can be stopped before the test ends.
func stoppable(t *testing.T) (address string, stop func()) {
	t.Helper()
	s, err := server.New(server.Options{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	stop = func() {
		if cancel(); served != nil {
			if err := await.Receive(served); err != nil {
				t.Errorf("Serve: %v", err)
			}
			served = nil
		}
	}
	t.Cleanup(stop)
	return s.Addr().String(), stop
}
