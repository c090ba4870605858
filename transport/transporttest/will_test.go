package transporttest_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// willed returns a client that has set a key and a Will that deletes it.
func willed(t *testing.T, store *transporttest.Store) (*transport.Client, *transporttest.Conn, *transport.Will) {
	t.Helper()
	client, conn := store.Client(t, "node-a", transport.ClientOptions{})
	if _, err := client.Set(t.Context(), "k", []byte("mine"), transport.SetOptions{}); err != nil {
		t.Fatal(err)
	}
	will, err := client.SetWill(t.Context(), "k", []byte("mine"))
	if err != nil {
		t.Fatal(err)
	}
	return client, conn, will
}

func TestAWillIsExecutedWhenTheConnectionIsLostAndNotWhenItIsClosed(t *testing.T) {
	for _, test := range []struct {
		name    string
		end     func(*testing.T, *transport.Client, *transporttest.Conn, *transporttest.Store)
		deleted bool
	}{
		{"cut", func(_ *testing.T, _ *transport.Client, conn *transporttest.Conn, _ *transporttest.Store) { conn.Cut() }, true},
		{"taken over", func(t *testing.T, _ *transport.Client, _ *transporttest.Conn, store *transporttest.Store) {
			store.Client(t, "node-a", transport.ClientOptions{})
		}, true},
		{"cut, where wills are not honoured", func(_ *testing.T, _ *transport.Client, conn *transporttest.Conn, _ *transporttest.Store) {
			conn.IgnoreWills(true)
			conn.Cut()
		}, false},
		{"closed", func(t *testing.T, client *transport.Client, _ *transporttest.Conn, _ *transporttest.Store) {
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		}, false},
		{"cut when the value has changed", func(t *testing.T, client *transport.Client, conn *transporttest.Conn, _ *transporttest.Store) {
			if _, err := client.Set(t.Context(), "k", []byte("another's"), transport.SetOptions{}); err != nil {
				t.Error(err)
			}
			conn.Cut()
		}, false},
		{"replaced, and cut then", func(t *testing.T, client *transport.Client, conn *transporttest.Conn, _ *transporttest.Store) {
			if _, err := client.SetWill(t.Context(), "other", []byte("x")); !errors.Is(err, transport.ErrWillInUse) {
				t.Errorf("a second will: %v, want ErrWillInUse", err)
			}
			conn.Cut()
			conn.Restore()
			if _, err := client.Set(t.Context(), "k", []byte("mine"), transport.SetOptions{}); err != nil {
				t.Error(err)
			}
			conn.Cut() // this connection has none
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				observer, _ := store.Client(t, "observer", transport.ClientOptions{})
				client, conn, will := willed(t, store)
				test.end(t, client, conn, store)
				await.Receive(will.Lost())
				entry, err := observer.Get(t.Context(), "k")
				if err != nil || entry.Exists == test.deleted {
					t.Errorf("%+v, %v; is it to be deleted: %t", entry, err, test.deleted)
				}
			})
		})
	}
}
