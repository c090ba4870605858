package integration_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestInvariant21ARequestThatWaitsForAConnectionIsSentInTimeOrNever(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	through := testsupport.NewProxy(t, address)
	client, other := testsupport.Dial(t, through.Address(), transport.Options{}), testsupport.Dial(t, address, transport.Options{})
	through.Refuse(true)
	through.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for { // until the loss was noticed
		_, err := client.Set(ctx, "never", nil, transport.SetOptions{})
		if errors.Is(err, transport.ErrNotSent) && errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent) {
			t.Fatalf("Set without a connection: %v, want ErrNotSent", err)
		}
	}
	_, _ = other.Del(t.Context(), "never", transport.DelOptions{}) // in case the first try got through
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), "later", nil, transport.SetOptions{})
		waiting <- err
	}()
	through.Refuse(false)
	if err := await.Receive(waiting); err != nil {
		t.Errorf("a Set that could wait: %v", err)
	}
	if entry, err := other.Get(t.Context(), "never"); err != nil || entry.Exists {
		t.Errorf("the request that was given up was sent later: %+v, %v", entry, err)
	}
}

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

func TestInvariant42ClosingAClientAtAnyMomentLeavesNothing(t *testing.T) {
	through := testsupport.NewProxy(t, testsupport.Start(t, server.Options{}))
	for name, disturb := range map[string]func(){
		"connected":    func() {},
		"disconnected": through.Cut,
		"connecting":   func() { through.Refuse(true); through.Cut() },
		"deaf":         func() { through.Hold(testsupport.ToClient) },
	} {
		t.Run(name, func(t *testing.T) {
			testsupport.SettleGoroutines(t)
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
			defer cancel()
			client, err := transport.Dial(ctx, "mqtt://"+through.Address(), transport.Options{})
			if err != nil {
				t.Fatal(err)
			}
			watch, err := client.Watch("k")
			if err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			disturb()
			go func() {
				var err error
				for err == nil || !errors.Is(err, transport.ErrClosed) {
					_, err = client.Get(t.Context(), "k")
				}
				failed <- err
			}()
			if err := client.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := await.Receive(failed); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("a request: %v, want ErrClosed", err)
			}
			for range watch.Changes() {
			}
			if err := watch.Err(); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("the watch: %v, want ErrClosed", err)
			}
			if _, err := client.Watch("k"); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("Watch after Close: %v", err)
			}
			through.Release(testsupport.ToClient)
			through.Refuse(false)
			through.Cut()
			testsupport.MustEndGoroutines(t, before)
		})
	}
}
