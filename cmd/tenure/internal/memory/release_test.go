package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestUnusedMemoryGoesBackToTheSystem(t *testing.T) {
	const mebibyte = 1 << 20
	debug.SetGCPercent(1000) // otherwise the collector may free it first
	defer debug.SetGCPercent(100)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var task sync.WaitGroup
		task.Go(func() { Release(ctx) })
		synctest.Wait()
		before := read().resident
		values := make([][]byte, 64)
		for i := range values {
			values[i] = make([]byte, mebibyte)
			for at := 0; at < mebibyte; at += 4096 {
				values[i][at] = 1
			}
		}
		if grown := read().resident - before; grown < 60*mebibyte {
			t.Errorf("64 MiB in use, and the process has grown by %d", grown)
		}
		time.Sleep(10 * time.Second) // a release while they are in use returns nothing
		runtime.KeepAlive(values)
		values = nil
		time.Sleep(30 * time.Second)
		if left := read().resident - before; left > 8*mebibyte {
			t.Errorf("after 30s it has %d bytes more than before", left)
		}
		cancel()
		await.Done(task.Wait)
	})
}
