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

const mebibyte = 1 << 20

func TestUnusedMemoryGoesBackToTheSystem(t *testing.T) {
	debug.SetGCPercent(1000) // otherwise the collector may free it first
	defer debug.SetGCPercent(100)
	for name, hold := range map[string]bool{"it grew": false, "it holds less": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var held int64
				set := func(bytes int64) {
					mu.Lock()
					defer mu.Unlock()
					if hold {
						held = bytes
					}
				}
				ctx, cancel := context.WithCancel(t.Context())
				var task sync.WaitGroup
				task.Go(func() {
					Release(ctx, func() int64 {
						mu.Lock()
						defer mu.Unlock()
						return held
					})
				})
				synctest.Wait()
				before := resident()
				values := make([][]byte, 64)
				for i := range values {
					values[i] = make([]byte, mebibyte)
					for at := 0; at < mebibyte; at += 4096 {
						values[i][at] = 1
					}
				}
				set(64 * mebibyte)
				if hold { // it is released once while all of it is in use
					time.Sleep(10 * time.Second)
				}
				if grown := resident() - before; grown < 60*mebibyte {
					t.Errorf("64 MiB in use, and the process has grown by %d", grown)
				}
				runtime.KeepAlive(values)
				values = nil
				set(0)
				time.Sleep(30 * time.Second)
				if left := resident() - before; left > 8*mebibyte {
					t.Errorf("after 30s it has %d bytes more than before", left)
				}
				cancel()
				await.Done(task.Wait)
			})
		})
	}
}

func resident() int64 { return read(func() int64 { return 0 }).resident }

func TestAReleaseIsDueWhenItIsWorthwhile(t *testing.T) {
	start := time.Now()
	const steady = 300 * mebibyte
	for name, test := range map[string]struct {
		resident, held, allocated, room int64
		after                           time.Duration
		took                            time.Duration
		want                            bool
	}{
		"nothing has changed":                       {resident: steady, held: steady},
		"it has grown by a little":                  {resident: steady + 90*mebibyte, held: steady, room: steady},
		"it has grown by much":                      {resident: steady + 101*mebibyte, held: steady, room: steady, want: true},
		"it has grown, and allocates a little":      {resident: steady + 101*mebibyte, held: steady, allocated: 10 * mebibyte, room: steady, want: true},
		"it has grown, and will collect":            {resident: steady + 101*mebibyte, held: steady, allocated: 40 * mebibyte, room: steady},
		"it has grown, and collects now":            {resident: steady + 101*mebibyte, held: steady, allocated: 40 * mebibyte, room: -1},
		"it holds a little less":                    {resident: steady, held: steady - 90*mebibyte},
		"it holds much less":                        {resident: steady, held: steady - 101*mebibyte, want: true},
		"it holds much less, and will collect":      {resident: steady, held: 0, allocated: 40 * mebibyte, room: steady, want: true},
		"the last time took long":                   {resident: 2 * steady, held: 0, room: steady, took: time.Second},
		"the last time took long, a long time ago":  {resident: 2 * steady, held: 0, room: steady, took: time.Second, after: 101 * time.Second, want: true},
		"the last time took long, and it had more":  {resident: steady / 2, held: 0, room: steady, took: time.Second, after: 51 * time.Second, want: true},
		"it had more, a moment ago":                 {resident: steady / 2, held: 0, room: steady, took: time.Second, after: 49 * time.Second},
		"a heap that shrinks need not be collected": {resident: steady / 2, held: steady, room: steady},
	} {
		k := keeper{last: reading{resident: steady}}
		k.note(reading{at: start, resident: steady, held: steady}, test.took)
		now := reading{at: start.Add(max(test.after, 2*time.Second)), resident: test.resident, held: test.held, allocated: test.allocated, room: test.room}
		if got := k.due(now); got != test.want {
			t.Errorf("%s: due %v", name, got)
		}
	}
}

func TestThePeakBetweenTwoReleasesCounts(t *testing.T) {
	at := time.Now()
	var k keeper
	k.note(reading{at: at}, 0)
	for _, step := range []struct {
		held int64
		want bool
	}{{64 * mebibyte, false}, {60 * mebibyte, false}, {0, true}} {
		at = at.Add(interval)
		if got := k.due(reading{at: at, held: step.held}); got != step.want {
			t.Errorf("it holds %d: due %v", step.held, got)
		}
	}
	k.note(reading{at: at}, 0)
	if k.due(reading{at: at.Add(interval)}) {
		t.Error("what was held before the last release counts again")
	}
}
