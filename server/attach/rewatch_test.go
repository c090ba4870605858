package attach_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// The client stays connected to the broker, while the store is stopped and started again: without
// its data, as another store, or with it, as another instance of the same store.
func TestInvariant51AWatchOutlivesARestartOfAnAttachedStore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		journal func() statestore.Journal
		noticed bool
	}{
		"in memory, and nothing notices it":        {func() statestore.Journal { return nil }, false},
		"with a journal, and nothing notices it":   {new(transporttest.Journal).Open, false},
		"with a journal, and a request notices it": {new(transporttest.Journal).Open, true},
	} {
		t.Run(name, func(t *testing.T) {
			broker, first := begin(t, "", attach.Options{Journal: test.journal()})
			client := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "watcher"})
			writer := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "writer"})
			key := "k/" + name
			watch, err := client.Watch(key)
			if err != nil {
				t.Fatal(err)
			}
			mustChange := func(value string) {
				t.Helper()
				testsupport.Eventually(t, "it sees "+value, func() bool { return string(await.Receive(watch.Changes()).Value) == value })
			}
			mustChange("")
			stop(t, first)
			if test.noticed {
				if _, err := client.Get(t.Context(), "another"); !errors.Is(err, transport.ErrNoStore) {
					t.Errorf("%v, want ErrNoStore", err)
				}
			}
			testsupport.Attach(t, broker.Address, attach.Options{Journal: test.journal()})
			for _, value := range []string{"1", "2"} {
				mustSet(t, writer, key, value)
				if _, err := client.Get(t.Context(), "another"); err != nil {
					t.Fatal(err)
				}
				mustChange(value)
			}
			if status := client.Connection(); status.Connections != 1 {
				t.Errorf("the connection was lost: %+v", status)
			}
		})
	}
}

// The clients stay connected, and the store runs on: only its replies can say that the watches are gone.
func TestInvariant51AClientWatchesAgainAfterAnAttachedStoreHasEndedItsWatches(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *mosquitto.Broker, *testsupport.Proxy, *testsupport.Attachment){
		"because it seemed that the broker was restarted": loseTheWill,
		"because there were too many clients":             claimManyNames,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broker := mosquitto.Start(t, "")
			through := testsupport.NewProxy(t, broker.Address)
			a := testsupport.Attach(t, through.Address(), attach.Options{MaxClients: 4})
			client := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "watcher"})
			watch, err := client.Watch("k")
			if err != nil {
				t.Fatal(err)
			}
			await.Receive(watch.Changes())
			end(t, broker, through, a)
			if _, err := client.Get(t.Context(), "another"); err != nil {
				t.Fatal(err)
			}
			writer := testsupport.Connect(t, broker.Address, "writer", nil)
			n := 0
			testsupport.Eventually(t, "the client sees a change", func() bool {
				n++
				writer.Do("SET", "k", fmt.Sprint(n)) // the client may not have watched again yet
				select {
				case change := <-watch.Changes():
					return change.Exists // or it was read before the first SET
				case <-time.After(100 * time.Millisecond):
					return false
				}
			})
		})
	}
}

// loseTheWill cuts the store off for a while. Then the broker has what the store had said before, as if it
// did not publish the Will, or had lost it in a crash.
func loseTheWill(t *testing.T, broker *mosquitto.Broker, through *testsupport.Proxy, a *testsupport.Attachment) {
	other := testsupport.Connect(t, broker.Address, "other", nil)
	other.Subscribe(presenceTopic)
	answers := other.Next().Payload // retained
	through.Refuse(true)
	through.Cut()
	if said := string(other.Next().Payload); !strings.HasPrefix(said, "gone ") {
		t.Fatalf("the Will says %q", said)
	}
	other.SendMessage(&paho.Publish{QoS: 1, Retain: true, Topic: presenceTopic, Payload: answers})
	through.Refuse(false)
	testsupport.Eventually(t, "the store is back", func() bool { return a.Stats().Attachments == 2 })
}

// claimManyNames makes the store forget the clients that it has not known for long.
func claimManyNames(t *testing.T, broker *mosquitto.Broker, _ *testsupport.Proxy, _ *testsupport.Attachment) {
	for n := range 4 {
		testsupport.Connect(t, broker.Address, fmt.Sprint("other-", n), nil).Do("GET", "k")
	}
}
