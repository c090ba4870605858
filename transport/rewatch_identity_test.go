package transport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A store with the same identity that forgot its watches: a durable restart, or an attached
// store that lost its broker for a moment, while the client asked nothing.
func TestInvariant51AWatchHearsAgainAfterAStoreKeptItsIdentityAndForgotTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		if err := store.Replace(statestore.Options{Identity: "same"}); err != nil {
			t.Fatal(err)
		}
		client, _ := store.Client(t, "c", transport.ClientOptions{})
		writer, _ := store.Client(t, "w", transport.ClientOptions{})
		watch, err := client.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		await.Receive(watch.Changes())
		if err := store.Replace(statestore.Options{Identity: "same"}); err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Set(t.Context(), "k", []byte("1"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 3600 * 24 {
			time.Sleep(time.Second)
			if _, err := client.Get(t.Context(), "other"); err != nil { // any traffic: a lease, a heartbeat
				t.Fatal(err)
			}
			select {
			case c := <-watch.Changes():
				t.Log(c)
				return
			default:
			}
		}
		t.Error("after a day the watch has still not heard of the change")
	})
}
