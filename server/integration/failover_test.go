package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// The network keeps two writes of a leader for longer than its tenure lasts.
func TestInvariant13OverMQTTALateWriteOverwritesTheControlAndNotTheFencedKey(t *testing.T) {
	t.Parallel()
	const keepAlive = time.Minute // the link is slow, not dead
	address := testsupport.Start(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	observer := testsupport.Dial(t, address, transport.Options{})
	old := testsupport.Campaign(t, "node-a", through.Address(), keepAlive)
	former := old.MustLead(t)
	testsupport.TokenOf(t, former)
	through.Hold(testsupport.ToServer)
	// The client abandons the silent connection. A new connection would end it at the server too,
	// with the requests that are under way.
	through.Refuse(true)
	late := make(chan error, 2)
	go func() {
		_, err := former.Guard().Set(context.Background(), testsupport.FencedKey, []byte("late"))
		late <- err
	}()
	go func() {
		_, err := old.Client.Set(context.Background(), testsupport.ControlKey, []byte("late"), transport.SetOptions{})
		late <- err
	}()
	successor := testsupport.Campaign(t, "node-b", address, keepAlive)
	if term := successor.MustLead(t); former.Tenure().Remaining() > 0 {
		t.Errorf("%s leads with token %v while the tenure of %s lasts", successor.Name, testsupport.TokenOf(t, term), old.Name)
	}
	testsupport.MustHold(t, observer, testsupport.FencedKey, "node-b")
	testsupport.MustHold(t, observer, testsupport.ControlKey, "node-b")

	through.Release(testsupport.ToServer)
	testsupport.Eventually(t, "the control shows the lost update", func() bool {
		entry, err := observer.Get(t.Context(), testsupport.ControlKey)
		return err == nil && string(entry.Value) == "late"
	})
	through.Refuse(false)
	if _, err := old.Client.Get(t.Context(), testsupport.FencedKey); err != nil && !errors.Is(err, transport.ErrOutcomeUnknown) {
		t.Error(err) // its answer comes after those to the late writes
	}
	testsupport.MustHold(t, observer, testsupport.FencedKey, "node-b")
	for range cap(late) {
		if err := await.Receive(late); err == nil {
			continue // the control was in time for its caller
		} else if !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent) {
			t.Errorf("a late write: %v", err)
		}
	}
}

// A half-open link gives no sign: packets vanish, and both ends stay connected.
func TestInvariant8OverAHalfOpenLinkALeaderGivesUpBeforeAnotherLeads(t *testing.T) {
	t.Parallel()
	address := testsupport.Start(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	old := testsupport.Campaign(t, "node-a", through.Address(), time.Second)
	former := old.MustLead(t)
	first := testsupport.TokenOf(t, former)
	successor := testsupport.Campaign(t, "node-b", address, time.Second)
	through.Refuse(true) // else the former leader may come back in time to be the next
	through.Swallow()
	term := successor.MustLead(t)
	if _, err := former.Token(); err == nil {
		t.Error("the former leader still has a token")
	}
	if second := testsupport.TokenOf(t, term); second.Compare(first) <= 0 {
		t.Errorf("token %v follows %v", second, first)
	}
	// The link comes to life again by a new connection, and the node is a candidate.
	through.Refuse(false)
	successor.Withdraw()
	if third := testsupport.TokenOf(t, old.MustLead(t)); third.Compare(first) <= 0 {
		t.Errorf("token %v follows %v", third, first)
	}
}

// The store keeps its keys in memory, so the lease is gone when it stops.
func TestInvariant11AfterABrokerRestartANodeLeadsWithANewerToken(t *testing.T) {
	t.Parallel()
	first, _, stop := testsupport.StartStoppable(t, server.Options{})
	through := testsupport.NewProxy(t, first)
	nodes := []*testsupport.Candidate{
		testsupport.Campaign(t, "node-a", through.Address(), time.Second),
		testsupport.Campaign(t, "node-b", through.Address(), time.Second),
	}
	leads := func() *election.Term {
		select {
		case term := <-nodes[0].Leads:
			return term
		case term := <-nodes[1].Leads:
			return term
		case <-time.After(testsupport.Patience):
			t.Fatal("no node leads")
			return nil
		}
	}
	var last hlc.Token
	for range 3 {
		term := leads()
		token := testsupport.TokenOf(t, term)
		if token.Compare(last) <= 0 {
			t.Errorf("after a restart token %v follows %v", token, last)
		}
		last = token
		through.Refuse(true)
		stop()
		through.Cut()
		next, _, stopNext := testsupport.StartStoppable(t, server.Options{})
		through.Target.Store(&next)
		through.Refuse(false)
		stop = stopNext
		await.Receive(term.Tenure().Context().Done())
	}
	leads()
}
