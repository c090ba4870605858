package transport_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant47AClientSeesThatAnotherStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "c", transport.ClientOptions{})
		if identity, replaced := client.Store(); identity != "" || replaced != nil {
			t.Errorf("before the first answer: %q, %v", identity, replaced)
		}
		mustGet(t, client, "k")
		before, replaced := client.Store()
		if before == "" {
			t.Fatal("the store sends no identity")
		}
		conn.Cut()
		conn.Restore()
		mustGet(t, client, "k")
		if now, _ := client.Store(); now != before || isOver(replaced) {
			t.Errorf("a new connection to the same store: %q after %q", now, before)
		}
		restart(t, store, conn)
		mustGet(t, client, "k")
		if now, _ := client.Store(); now == before || !isOver(replaced) {
			t.Errorf("after a restart: %q after %q, replaced %v", now, before, isOver(replaced))
		}
		store.HideIdentity(true)
		_, replaced = client.Store()
		mustGet(t, client, "k")
		if now, _ := client.Store(); now != "" || !isOver(replaced) {
			t.Errorf("a store without identity takes its place: %q, replaced %v", now, isOver(replaced))
		}
	})
}

func TestInvariant47ARequestThatIsBoundToAStoreIsRefusedByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "c", transport.ClientOptions{})
		mustGet(t, client, "k")
		identity, _ := client.Store()
		bound := transport.Binding{Store: identity}
		if _, err := client.Set(t.Context(), "k", nil, transport.SetOptions{Binding: bound}); err != nil {
			t.Fatal(err)
		}
		restart(t, store, conn)
		_, set := client.Set(t.Context(), "k", nil, transport.SetOptions{Binding: bound})
		_, del := client.Del(t.Context(), "k", transport.DelOptions{Binding: bound})
		_, vdel := client.VDel(t.Context(), "k", nil, transport.DelOptions{Binding: bound})
		for name, err := range map[string]error{"Set": set, "Del": del, "VDel": vdel} {
			if !errors.Is(err, transport.ErrOtherStore) || errors.Is(err, transport.ErrOutcomeUnknown) {
				t.Errorf("%s: %v, want ErrOtherStore", name, err)
			}
		}
		if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Exists {
			t.Errorf("the other store holds %+v, %v", entry, err)
		}
	})
}

// A notification is a hint: a forged identity changes nothing.
func TestInvariant26AForgedIdentityReplacesNoStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "c", transport.ClientOptions{})
		mustGet(t, client, "k")
		before, replaced := client.Store()
		for range 100 {
			conn.Forge(transporttest.Notification{Key: "k", Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$6\r\nDELETE\r\n"), Store: "forged"})
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if now, _ := client.Store(); now != before || isOver(replaced) {
			t.Errorf("forged notifications made it %q", now)
		}
	})
}

func mustGet(t *testing.T, client *transport.Client, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Get(ctx, key); err != nil {
		t.Fatal(err)
	}
}

// restart makes a store forget everything, and restores a connection.
func restart(t *testing.T, store *transporttest.Store, conn *transporttest.Conn) {
	t.Helper()
	if err := store.Restart(statestore.Options{}); err != nil {
		t.Fatal(err)
	}
	conn.Restore()
}

func isOver(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}
