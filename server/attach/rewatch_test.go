package attach_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// The client stays connected to the broker, while the store is stopped and started again: without
// its data, as another store, or with it, as another instance of the same store.
func TestInvariant51AWatchOutlivesARestartOfAnAttachedStore(t *testing.T) {
	t.Parallel()
	t.Run("in memory", func(t *testing.T) { outlivesARestart(t, func() statestore.Journal { return nil }) })
	t.Run("with a journal", func(t *testing.T) { outlivesARestart(t, new(testsupport.Journal).Open) })
}

func outlivesARestart(t *testing.T, journal func() statestore.Journal) {
	for name, meanwhile := range map[string]func(*testing.T, *transport.Client){
		"which nothing noticed": func(*testing.T, *transport.Client) {},
		"which a request noticed": func(t *testing.T, client *transport.Client) {
			if _, err := client.Get(t.Context(), "another"); !errors.Is(err, transport.ErrNoStore) {
				t.Errorf("%v, want ErrNoStore", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			broker := mosquitto.Start(t, "")
			first := testsupport.Attach(t, broker.Address, attach.Options{Journal: journal()})
			client := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "watcher"})
			writer := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "writer"})
			key := "k/" + name
			watch, err := client.Watch(key)
			if err != nil {
				t.Fatal(err)
			}
			mustChange := func(value string) {
				t.Helper()
				for deadline := time.After(testsupport.Patience); ; {
					select {
					case change, open := <-watch.Changes():
						if !open {
							t.Fatalf("the watch ended: %v", watch.Err())
						}
						if string(change.Value) == value {
							return
						}
					case <-deadline:
						t.Fatalf("it never sees %q", value)
					}
				}
			}
			mustChange("")
			first.Stop()
			if err := first.Result(); err != nil {
				t.Fatal(err)
			}
			meanwhile(t, client)
			testsupport.Attach(t, broker.Address, attach.Options{Journal: journal()})
			if _, err := writer.Set(t.Context(), key, []byte("1"), transport.SetOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Get(t.Context(), "another"); err != nil {
				t.Fatal(err)
			}
			mustChange("1")
			if _, err := writer.Set(t.Context(), key, []byte("2"), transport.SetOptions{}); err != nil {
				t.Fatal(err)
			}
			mustChange("2")
			if status := client.Connection(); status.Connections != 1 {
				t.Errorf("the connection was lost: %+v", status)
			}
		})
	}
}
