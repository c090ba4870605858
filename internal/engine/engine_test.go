package engine

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// A delivery is a notification and its time.
type delivery struct {
	after time.Duration // since the bench was made
	statestore.Notification
}

func (d delivery) String() string {
	what := "SET " + d.Value
	if d.Deleted {
		what = "DELETE"
	}
	return fmt.Sprint(d.after, " ", d.Client, " ", d.Key, " ", what)
}

// A bench is an engine in a bubble of virtual time, and its deliveries.
type bench struct {
	t       *testing.T
	engine  *Engine
	started time.Time
	stop    context.CancelFunc
	ended   chan struct{}

	mu        sync.Mutex
	delivered []delivery
}

// newBench returns a bench whose engine does not run yet.
func newBench(t *testing.T) *bench { return newBenchOn(t, nil) }

// newBenchOn is newBench for a store with a journal.
func newBenchOn(t *testing.T, journal statestore.Journal) *bench {
	t.Helper()
	b := &bench{t: t, started: time.Now(), ended: make(chan struct{})}
	var err error
	b.engine, err = Open(t.Context(), statestore.Options{}, journal, func(n statestore.Notification) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.delivered = append(b.delivered, delivery{time.Since(b.started), n})
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// run starts the engine. It must end with the test at the latest.
func (b *bench) run() {
	ctx, stop := context.WithCancel(b.t.Context())
	b.stop = stop
	go func() {
		defer close(b.ended)
		if err := b.engine.Run(ctx); err != nil {
			b.t.Errorf("Run: %v", err)
		}
	}()
}

// end stops the engine and waits for it.
func (b *bench) end() {
	b.stop()
	await.Receive(b.ended)
}

// apply sends words as one client; they must be accepted.
func (b *bench) apply(client string, words ...string) statestore.Reply {
	b.t.Helper()
	ts := hlc.Timestamp{Wall: time.Now().UnixMilli(), Node: client}.String()
	reply, err := b.engine.Apply(statestore.Parse(statestore.Request{
		Client: client, Payload: resp3.AppendCommand(nil, words...), Timestamp: &ts,
	}))
	if err != nil {
		b.t.Errorf("%q: %v", words, err)
	}
	if reply.Outcome == statestore.Refused {
		b.t.Errorf("%q: %v", words, reply.Err)
	}
	return reply
}

// wait lets virtual time pass, and all goroutines run.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want compares the deliveries since the last call.
func (b *bench) want(want ...string) {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	var got []string
	for _, d := range b.delivered {
		got = append(got, d.String())
	}
	b.delivered = nil
	if !slices.Equal(got, want) {
		b.t.Errorf("got deliveries %q; want %q", got, want)
	}
}

func TestExpiryIsNotifiedAtItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		defer b.end()
		b.apply("w", "KEYNOTIFY", "k")
		wait(3 * time.Second) // nothing to wait for
		b.apply("c", "SET", "k", "v", "PX", "1500")
		b.want("3s w k SET v")
		wait(1500*time.Millisecond - time.Nanosecond)
		b.want()
		wait(time.Nanosecond)
		b.want("4.5s w k DELETE")
		if reply := b.apply("c", "GET", "k"); reply.Outcome != statestore.Missing {
			t.Errorf("GET: got %v", reply.Outcome)
		}
		wait(time.Hour)
		b.want()
	})
}

// The engine sleeps until the first expiry; a SET with an earlier one wakes it.
func TestEarlierExpiryWakesTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		defer b.end()
		b.apply("w", "KEYNOTIFY", "soon")
		b.apply("w", "KEYNOTIFY", "late")
		b.apply("c", "SET", "late", "v", "PX", "3600000")
		wait(time.Second)
		b.apply("c", "SET", "soon", "v", "PX", "500")
		wait(time.Second)
		b.apply("c", "SET", "late", "v", "PX", "250") // the same key, shorter
		wait(time.Second)
		b.want("0s w late SET v", "1s w soon SET v", "1.5s w soon DELETE", "2s w late SET v", "2.25s w late DELETE")
	})
}

// Invariant 31, with a timer: a renewal just before the expiry moves it.
func TestInvariant31RenewalMovesTheExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run()
		defer b.end()
		for range 100 {
			b.apply("c", "SET", "lock", "c", "NEX", "PX", "1000")
			wait(time.Second - time.Nanosecond)
		}
		b.apply("w", "KEYNOTIFY", "lock")
		wait(time.Millisecond)
		// 100 times a nanosecond less than a second, and on to the next whole millisecond
		b.want("1m40s w lock DELETE")
	})
}

func TestRunReturnsOnCancel(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(*bench)
	}{
		{"with nothing to expire", func(*bench) {}},
		{"while it sleeps", func(b *bench) { b.apply("c", "SET", "k", "v", "PX", "3600000") }},
		{"just after a wake-up", func(b *bench) {
			b.apply("c", "SET", "k", "v", "PX", "3600000")
			synctest.Wait()
			b.apply("c", "SET", "k", "v", "PX", "1000")
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			// A leaked goroutine would make the bubble panic.
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.run()
				test.prepare(b)
				began := time.Now()
				b.end()
				if took := time.Since(began); took != 0 {
					t.Errorf("Run returned after %v", took)
				}
				b.apply("w", "KEYNOTIFY", "k") // the engine still applies commands
				wait(2 * time.Hour)
				b.want()
			})
		})
	}
}

// Each watcher sees the changes of a key in the order in which the store made them,
// also if many clients and the expiry make them at once.
func TestNotificationsComeInOrderUnderConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, rounds = 8, 200
		b := newBench(t)
		b.run()
		watched := []string{"k0", "k1", "k2"}
		for _, key := range watched {
			b.apply("w1", "KEYNOTIFY", key)
			b.apply("w2", "KEYNOTIFY", key)
		}
		var tasks sync.WaitGroup
		for i := range clients {
			client := fmt.Sprint("c", i)
			tasks.Go(func() {
				for round := range rounds {
					key := watched[round%len(watched)]
					b.apply(client, "SET", key, client, "PX", strconv.Itoa(1+round%5))
					switch round % 7 {
					case 3:
						b.apply(client, "DEL", key)
					case 5:
						time.Sleep(time.Duration(i+1) * time.Millisecond)
					case 6:
						b.apply(client, "KEYNOTIFY", "other")
						b.engine.Disconnect(client)
					}
				}
			})
		}
		await.Done(tasks.Wait)
		wait(time.Second)
		b.end()
		b.mu.Lock()
		defer b.mu.Unlock()
		var streams [2][]delivery
		latest := make(map[string]hlc.Timestamp)   // by watcher
		standing := make(map[string]hlc.Timestamp) // by watcher and key: the version that was set and not deleted
		sets := 0
		for _, d := range b.delivered {
			switch d.Client {
			case "w1":
				streams[0] = append(streams[0], d)
			case "w2":
				streams[1] = append(streams[1], d)
			default:
				t.Fatalf("%s was notified", d.Client)
			}
			at := d.Client + " " + d.Key
			if d.Deleted {
				if standing[at] != d.Version {
					t.Fatalf("%s: %v was deleted; %v stood", at, d.Version, standing[at])
				}
				delete(standing, at)
				continue
			}
			sets++
			if d.Version.Compare(latest[d.Client]) <= 0 {
				t.Fatalf("%s: %v came after %v", at, d.Version, latest[d.Client])
			}
			latest[d.Client], standing[at] = d.Version, d.Version
		}
		if sets != 2*clients*rounds || len(standing) != 0 {
			t.Errorf("%d SETs were notified and %d keys stand; want %d and none", sets, len(standing), 2*clients*rounds)
		}
		same := func(x, y delivery) bool { return x.Key == y.Key && x.Deleted == y.Deleted && x.Version == y.Version }
		if !slices.EqualFunc(streams[0], streams[1], same) {
			t.Error("two watchers saw different histories")
		}
	})
}

// Invariant 43: no lock is held while the system's clock is read. This clock calls the engine,
// and would deadlock.
func TestInvariant43NoLockIsHeldWhileTheSystemsClockIsRead(t *testing.T) {
	b := newBench(t)
	b.engine.SetSystemClock(func() time.Time { b.engine.Disconnect("c"); return time.Now() })
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.apply("c", "SET", "k", "v", "PX", "1")
		b.engine.expire(t.Context())
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("the engine waits for the clock, and the clock for the engine")
	}
}
