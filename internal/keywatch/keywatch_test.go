package keywatch_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAWatchThatWasRefusedIsAskedForAgainAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, _ := store.Client(t, "node-a", transport.ClientOptions{})
		key := keywatch.New(client, "press-7", time.Minute)
		defer key.Close()
		refuse := func(_ string, verb statestore.Verb, _ string) bool { return verb != statestore.VerbKeyNotify }
		store.Authorize(refuse)
		if key.Changes() != nil {
			t.Error("it watches before Start")
		}
		start := func() {
			t.Helper()
			if err := key.Start(); err != nil {
				t.Fatal(err)
			}
		}
		start()
		if _, open := await.Next(key.Changes()); open {
			t.Fatal("the store refused the watch, and a change came")
		}
		if err := key.Ended(); !errors.Is(err, transport.ErrNotAuthorized) || key.Changes() != nil {
			t.Errorf("it ended with %v, want ErrNotAuthorized and no channel", err)
		}
		store.Authorize(nil)
		start()
		if key.Changes() != nil {
			t.Error("it asked the store again at once")
		}
		time.Sleep(time.Minute)
		start()
		if _, open := await.Next(key.Changes()); !open {
			t.Error("it does not watch again")
		}
		changes := key.Changes()
		time.Sleep(time.Hour)
		start()
		if key.Changes() != changes {
			t.Error("Start replaced a watch that works")
		}
	})
}

func TestStartSaysThatTheClientIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		key := keywatch.New(client, "press-7", 0)
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		if err := key.Start(); !errors.Is(err, transport.ErrClosed) || key.Changes() != nil {
			t.Errorf("Start: %v, want ErrClosed", err)
		}
		key.Close()
	})
}
