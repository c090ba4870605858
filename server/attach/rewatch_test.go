package attach_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/internal/testsupport/mosquitto"
	"github.com/tenurelock/tenure/transport"
)

// The client stays connected to the broker, while the store is stopped and started again
// without its data.
func TestInvariant51AWatchOutlivesARestartOfAnAttachedStore(t *testing.T) {
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
			first := testsupport.Attach(t, broker.Address, attach.Options{})
			client := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "watcher"})
			writer := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "writer"})
			watch, err := client.Watch("k")
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
			testsupport.Attach(t, broker.Address, attach.Options{})
			if _, err := writer.Set(t.Context(), "k", []byte("1"), transport.SetOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Get(t.Context(), "another"); err != nil {
				t.Fatal(err)
			}
			mustChange("1")
			if _, err := writer.Set(t.Context(), "k", []byte("2"), transport.SetOptions{}); err != nil {
				t.Fatal(err)
			}
			mustChange("2")
			if status := client.Connection(); status.Connections != 1 {
				t.Errorf("the connection was lost: %+v", status)
			}
		})
	}
}
