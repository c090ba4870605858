package await_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

func TestWhatComesIsReturned(t *testing.T) {
	values := make(chan int, 1)
	values <- 7
	if got := await.Receive(values); got != 7 {
		t.Errorf("Receive: %d, want 7", got)
	}
	close(values)
	if _, open := await.Next(values); open {
		t.Error("Next: a closed channel is open")
	}
	var tasks sync.WaitGroup
	tasks.Go(func() { time.Sleep(time.Millisecond) })
	await.Done(tasks.Wait)
	if got := await.Result(func() string { return "done" }); got != "done" {
		t.Errorf("Result: %q", got)
	}
}

// Invariant 61: no test waits without a bound.
func TestAWaitInVainPanicsAtItsBound(t *testing.T) {
	for name, wait := range map[string]func(){
		"Receive": func() { await.Receive(make(chan struct{})) },
		"Next":    func() { await.Next(make(chan struct{})) },
		"Done":    func() { await.Done(func() { time.Sleep(2 * await.VirtualPatience) }) },
		"Result":  func() { await.Result(func() int { time.Sleep(2 * await.VirtualPatience); return 0 }) },
		"Until":   func() { await.Until(func() bool { return false }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				func() {
					defer func() {
						if text, _ := recover().(string); !strings.Contains(text, "await: ") {
							t.Errorf("it panicked with %q", text)
						}
					}()
					wait()
				}()
				if after := time.Since(began); after != await.VirtualPatience {
					t.Errorf("it gave up after %v, want %v", after, await.VirtualPatience)
				}
				time.Sleep(2 * await.VirtualPatience)
			})
		})
	}
}
