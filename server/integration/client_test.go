package integration_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestInvariant27AfterAReconnectWatchesAreRegisteredAndReadAgain(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	client, other := testsupport.Dial(t, through.Address(), transport.Options{}), testsupport.Dial(t, address, transport.Options{})
	watch, err := client.Watch("k")
	if err != nil {
		t.Fatal(err)
	}
	next := func() transport.Change {
		t.Helper()
		select {
		case change := <-watch.Changes():
			return change
		case <-time.After(testsupport.Patience):
			t.Fatal("no change arrives")
			return transport.Change{}
		}
	}
	set := func(value string) {
		t.Helper()
		if _, err := other.Set(t.Context(), "k", []byte(value), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if change := next(); change.Exists || change.Missed {
		t.Errorf("at first: %+v", change)
	}
	set("1")
	if change := next(); string(change.Value) != "1" || change.Missed || change.Version.IsZero() {
		t.Errorf("after the first Set: %+v", change)
	}
	through.Refuse(true)
	through.Cut()
	set("2") // without a notification
	through.Refuse(false)
	if change := next(); string(change.Value) != "2" || !change.Missed {
		t.Errorf("after the reconnect: %+v, want the value 2 and Missed", change)
	}
	set("3")
	if change := next(); string(change.Value) != "3" || change.Missed {
		t.Errorf("then: %+v", change)
	}
	if _, err := other.Del(t.Context(), "k", transport.DelOptions{}); err != nil {
		t.Fatal(err)
	}
	if change := next(); change.Exists {
		t.Errorf("after Del: %+v", change)
	}
	watch.Close()
	if _, open := await.Next(watch.Changes()); open || watch.Err() != nil {
		t.Errorf("after Close: open %v, %v", open, watch.Err())
	}
}

func TestInvariant46ATakenOverClientGivesUp(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	first := testsupport.Dial(t, through.Address(), transport.Options{ClientID: "twin"})
	second := testsupport.Dial(t, through.Address(), transport.Options{ClientID: "twin"})
	deadline := time.Now().Add(testsupport.Patience)
	for {
		_, err := first.Get(t.Context(), "k")
		if errors.Is(err, transport.ErrSessionTakenOver) && errors.Is(err, transport.ErrNotSent) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the first client: %v, want ErrSessionTakenOver", err)
		}
	}
	for range 20 {
		if _, err := second.Get(t.Context(), "k"); err != nil {
			t.Errorf("the second client: %v", err)
		}
	}
	if got := through.Accepted.Load(); got != 2 {
		t.Errorf("%d connections, want 2: the first client must not come back", got)
	}
}
