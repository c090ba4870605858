package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// The notifications that were delivered under the lock are passed on once more without it, both
// of a SET and of an expiry.
func TestEachDeliveryIsFollowedByAWakeUpWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log []string
		note := func(what string, n statestore.Notification) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, fmt.Sprint(what, " ", n.Client, " ", n.Deleted))
		}
		e, err := Open(t.Context(), statestore.Options{}, nil, func(n statestore.Notification) { note("deliver", n) })
		if err != nil {
			t.Fatal(err)
		}
		e.AfterDelivery(func(all []statestore.Notification) {
			e.Usage() // takes the lock
			for _, n := range all {
				note("wake", n)
			}
		})
		ctx, stop := context.WithCancel(t.Context())
		var task sync.WaitGroup
		task.Go(func() { e.Run(ctx) })
		watch(e, "a", "k")
		watch(e, "b", "k")
		ts := "0:0:c"
		set := resp3.AppendCommand(nil, "SET", "k", "v", "PX", "1000")
		e.Apply(statestore.Parse(statestore.Request{Client: "c", Payload: set, Timestamp: &ts}))
		time.Sleep(2 * time.Second)
		stop()
		await.Done(task.Wait)
		want := []string{
			"deliver a false", "deliver b false", "wake a false", "wake b false",
			"deliver a true", "deliver b true", "wake a true", "wake b true",
		}
		if !slices.Equal(log, want) {
			t.Errorf("got %q; want %q", log, want)
		}
	})
}
