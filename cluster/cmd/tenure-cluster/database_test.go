//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport"
)

// startAlone starts a store with a cluster of one member.
func startAlone(t *testing.T, dir string, more ...string) (store *process, client *transport.Client) {
	t.Helper()
	free := etcdtest.Addresses(t, 2)
	store = launch(t, append([]string{"serve", "--member", "a", "--cluster", "a=http://" + free[0], "--data", dir, "--addr", free[1]}, append(more, patient...)...)...)
	store.mustSay("standing by on ")
	store.mustSay("listening on ")
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, "mqtt://"+free[1], transport.Options{ClientID: "client", ReconnectMax: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return store, client
}

// A full database must have a way back: etcd's own quota ends every store until an operator compacts,
// defragments and disarms an alarm.
func TestAFullDatabaseRefusesWhatNeedsSpaceAndTakesItAgainAfterDeletions(t *testing.T) {
	store, client := startAlone(t, etcdtest.Dir(t, t.Cleanup), "--max-database", "64MiB")
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	defer cancel()
	value := make([]byte, 128<<10)
	kept := 0
	for ; ; kept++ {
		_, err := client.Set(ctx, fmt.Sprint("k", kept), value, transport.SetOptions{})
		if errors.Is(err, transport.ErrQuotaExceeded) {
			break
		}
		if err != nil || kept > 1000 {
			t.Fatalf("after %d values: %v", kept, err)
		}
		if kept > 300 { // etcd notes its size ten times a second, and the store looks at it each second
			time.Sleep(25 * time.Millisecond)
		}
	}
	store.mustLog("nearly full")
	store.mustLog("the store refuses what needs more space: delete keys, or allow a larger one")
	// What needs no more space goes on.
	for range 700 {
		if _, err := client.Set(ctx, "k0", value, transport.SetOptions{}); err != nil {
			t.Fatalf("a value that is as long as before: %v", err)
		}
		value[0]++
	}
	for i := range kept / 2 {
		if _, err := client.Del(ctx, fmt.Sprint("k", i), transport.DelOptions{}); err != nil {
			t.Fatalf("a deletion: %v", err)
		}
	}
	for {
		_, err := client.Set(ctx, "later", value, transport.SetOptions{})
		if err == nil {
			break
		}
		if !errors.Is(err, transport.ErrQuotaExceeded) {
			t.Fatalf("after the deletions: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	store.mustLog("has space again")
	store.mustStop()
}
