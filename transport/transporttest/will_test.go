package transporttest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

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

func TestAClosedWillMakesRoomForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn, first := willed(t, store)
		first.Close()
		first.Close() // twice is as good as once
		second, err := client.SetWill(t.Context(), "other", []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		await.Receive(first.Lost()) // its connection was replaced
		conn.Cut()
		await.Receive(second.Lost())
		conn.Restore()
		if entry, err := client.Get(t.Context(), "k"); err != nil || !entry.Exists {
			t.Errorf("the first will was executed: %+v, %v", entry, err)
		}
	})
}

func TestWatchesOutliveAWill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, _ := store.Client(t, "node-a", transport.ClientOptions{})
		other, _ := store.Client(t, "node-b", transport.ClientOptions{})
		watch, err := client.Watch("watched")
		if err != nil {
			t.Fatal(err)
		}
		await.Receive(watch.Changes())
		if _, err := client.SetWill(t.Context(), "k", []byte("mine")); err != nil {
			t.Fatal(err)
		}
		if change := await.Receive(watch.Changes()); !change.Missed {
			t.Errorf("%+v: the gap does not show", change)
		}
		if _, err := other.Set(t.Context(), "watched", []byte("1"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		if change := await.Receive(watch.Changes()); string(change.Value) != "1" {
			t.Errorf("%+v", change)
		}
	})
}

func TestAWillWithoutAConnectionWaitsForItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "node-a", transport.ClientOptions{})
		conn.Cut()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.SetWill(ctx, "k", []byte("mine")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("SetWill: %v, want DeadlineExceeded", err)
		}
		conn.Restore()
		if _, err := client.SetWill(t.Context(), "k", []byte("mine")); err != nil {
			t.Errorf("another: %v", err)
		}
	})
}

// plain is a Conn without Wills.
type plain struct{ transport.Conn }

func (plain) SetWill(context.Context, transport.Request) (<-chan struct{}, time.Duration, error) {
	return nil, 0, transport.ErrNoWill
}

func TestAConnThatKnowsNoWillsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := transport.NewClient(plain{transporttest.Start(t).Connect("node-a")}, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.SetWill(t.Context(), "k", nil); !errors.Is(err, transport.ErrNoWill) {
			t.Errorf("SetWill: %v, want ErrNoWill", err)
		}
	})
}

func TestLostIsAboutThePresentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := transporttest.Start(t).Client(t, "node-a", transport.ClientOptions{})
		isOver := func(lost <-chan struct{}) bool {
			select {
			case <-lost:
				return true
			default:
				return false
			}
		}
		first := client.Lost()
		if isOver(first) {
			t.Error("over at once")
		}
		conn.Cut()
		if !isOver(first) || !isOver(client.Lost()) {
			t.Error("not over when cut")
		}
		conn.Restore()
		if isOver(client.Lost()) || !isOver(first) {
			t.Error("the new connection and the old one are mixed up")
		}
	})
}
