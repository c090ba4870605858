package transporttest_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// patient requests wait for a store that is down.
var patient = transport.ClientOptions{RequestTimeout: 2 * time.Hour}

// set starts a SET of a key that is waited for in the background.
func set(t *testing.T, client *transport.Client, key string) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		_, err := client.Set(t.Context(), key, []byte("v"), transport.SetOptions{})
		result <- err
	}()
	synctest.Wait()
	return result
}

// mustSet sets a key.
func mustSet(t *testing.T, client *transport.Client, key string) {
	t.Helper()
	if err := await.Receive(set(t, client, key)); err != nil {
		t.Fatal(err)
	}
}

// goOn recovers a store that is down, and connects a client again.
func goOn(t *testing.T, store *transporttest.Store, conn *transporttest.Conn) {
	t.Helper()
	if err := store.Recover(); err != nil {
		t.Fatal(err)
	}
	conn.Restore()
}

// What was acknowledged is there after a crash. What was under way is lost, but for the groups
// that the torn commit kept; no caller gets an answer to it.
func TestACrashKeepsWhatWasAcknowledged(t *testing.T) {
	for keep := range 2 {
		t.Run(fmt.Sprint(keep, " groups of the last commit"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var journal transporttest.Journal
				store := transporttest.StartDurable(t, &journal)
				client, conn := store.Client(t, "a", patient)
				var tapped []string
				store.Tap(func(a transporttest.Applied) {
					if a.Command.Verb == statestore.VerbSet {
						tapped = append(tapped, a.Command.Key)
					}
				})
				mustSet(t, client, "acknowledged")
				identity, _ := client.Store()
				journal.SetLatency(time.Second)
				underWay := set(t, client, "under way")
				time.Sleep(time.Second - time.Nanosecond)
				store.Crash(keep)
				if err := await.Receive(underWay); !errors.Is(err, transport.ErrOutcomeUnknown) {
					t.Errorf("a request under way: %v", err)
				}
				conn.Restore() // nothing answers yet
				waiting := set(t, client, "waiting")
				time.Sleep(time.Minute)
				if len(waiting) > 0 {
					t.Fatal("a store that is down has answered")
				}
				if err := store.Recover(); err != nil {
					t.Fatal(err)
				}
				if err := await.Receive(waiting); err != nil {
					t.Errorf("the request that waited: %v", err)
				}
				for key, want := range map[string]bool{"acknowledged": true, "under way": keep > 0, "waiting": true} {
					if entry, err := client.Get(t.Context(), key); err != nil || entry.Exists != want {
						t.Errorf("%s is there: %v, %v; want %v", key, entry.Exists, err, want)
					}
				}
				if present, _ := client.Store(); present != identity {
					t.Errorf("the identity is %q; it was %q", present, identity)
				}
				if want := []string{"acknowledged", "waiting"}; !slices.Equal(tapped, want) {
					t.Errorf("the tap saw %q; want %q", tapped, want)
				}
			})
		})
	}
}

// A dead server applies no Will. What the Will would have released is released as soon as the store is back.
func TestACrashAppliesNoWillAndTheNextStoreReleasesWhatItWouldHaveReleased(t *testing.T) {
	for _, honoured := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var journal transporttest.Journal
			store := transporttest.StartDurable(t, &journal)
			client, conn, _ := willed(t, store)
			conn.IgnoreWills(!honoured)
			for _, key := range []string{"k", "other"} {
				if _, err := client.Set(t.Context(), key, []byte("mine"), transport.SetOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			store.Crash(0)
			goOn(t, store, conn)
			if entry, err := client.Get(t.Context(), "k"); err != nil || entry.Exists == honoured {
				t.Errorf("Wills are honoured: %t, the key exists: %t, %v", honoured, entry.Exists, err)
			}
			if entry, err := client.Get(t.Context(), "other"); err != nil || !entry.Exists {
				t.Errorf("the other key: %v, %v", entry, err)
			}
		})
	}
}
