package engine

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// Without a turn for others between two batches, a request waits until all keys are removed, or until the
// runtime takes the processor away.
func TestRequestsTakeTurnsWithExpiry(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		e, err := Open(t.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
		if err != nil {
			t.Fatal(err)
		}
		const batches = 4
		for i := range batches * expireBatch {
			if reply, _ := e.Submit(parse("c", []string{"SET", strconv.Itoa(i), "v", "PX", "1000"}), nil); reply.Outcome != statestore.OK {
				t.Fatalf("%v %v", reply.Outcome, reply.Err)
			}
		}
		time.Sleep(2 * time.Second)
		var left int
		var request sync.WaitGroup
		request.Go(func() { left = e.Usage().Keys })
		e.expire(t.Context())
		await.Done(request.Wait)
		if left == 0 {
			t.Errorf("a request got its turn after %d expired keys", batches*expireBatch)
		}
		if keys := e.Usage().Keys; keys != 0 {
			t.Errorf("%d keys are left", keys)
		}
	})
}
