package engine

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// A clean stop commits what was applied; the next store goes on with the same identity, and with
// versions that are just above the last ones.
func TestAStoppedStoreGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "kept", "1")
		d.hold()
		d.submit("first", "SET", "first", "1", "correlation~1")
		d.submit("second", "SET", "second", "1")
		d.stop()
		synctest.Wait()
		d.submit("too late", "SET", "third", "1")
		d.release()
		d.want("first: ok", "second: ok")
		if err := d.close(); err != nil {
			t.Fatalf("Run: %v", err)
		}
		d.submit("after the end", "GET", "kept")
		d.engine.EndSession("c") // whose reply is remembered
		if d.engine.waiting.Load() != 0 {
			t.Error("its records wait for a commit that never comes")
		}
		d.want()
		if _, err := d.engine.Apply(parse("c", []string{"GET", "kept"})); !errors.Is(err, ErrStopped) {
			t.Errorf("Apply: %v", err)
		}

		bound, err := statestore.Record{ID: []byte("b"), Value: d.disk.records["b"]}.Decode()
		if err != nil {
			t.Fatal(err)
		}
		again := open(t, d.disk, statestore.Options{})
		defer again.close()
		if got, want := again.engine.Identity(), d.engine.Identity(); got != want {
			t.Errorf("the identity is %q; want %q", got, want)
		}
		next := again.apply("c", "SET", "kept", "2").Version
		if next.Compare(bound.Version) <= 0 || next.Wall > time.Now().UnixMilli() {
			t.Errorf("the first version is %v; the last bound is %v, and it is %d", next, bound.Version, time.Now().UnixMilli())
		}
		for key, want := range map[string]statestore.Outcome{"first": statestore.Found, "second": statestore.Found, "third": statestore.Missing} {
			if got := again.apply("c", "GET", key); got.Outcome != want {
				t.Errorf("%s: %v", key, got.Outcome)
			}
		}
	})
}

// A commit that hangs does not keep Run for longer than stopTimeout.
func TestRunReturnsWhileACommitHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.hold()
		d.submit("first", "SET", "first", "1")
		d.submit("second", "SET", "second", "1")
		began := time.Now()
		err := d.close()
		if took := time.Since(began); took != stopTimeout {
			t.Errorf("it took %v", took)
		}
		if err == nil || !strings.Contains(err.Error(), "took longer") {
			t.Errorf("Run: %v", err)
		}
		d.want()
	})
}

// At whatever moment the store stops or fails, what was answered is there afterwards, in its
// order, and no caller and no goroutine is left: the bubble would not end.
func TestWhateverTheMomentOfTheEndWhatWasAnsweredIsKept(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 33))
			kept := newDisk()
			kept.latency = 3 * time.Millisecond
			d := open(t, kept, statestore.Options{})
			const callers = 5
			var tasks sync.WaitGroup
			var answered [callers]int // the last value that was acknowledged, of each caller's key
			for caller := range callers {
				pace := time.Duration(random.IntN(4)) * time.Millisecond
				tasks.Go(func() {
					for i := 1; ; i++ {
						reply, err := d.engine.Apply(parse("c", []string{"SET", strconv.Itoa(caller), strconv.Itoa(i)}))
						if err != nil {
							return
						}
						if reply.Outcome != statestore.OK {
							t.Errorf("SET: %v", reply)
						}
						answered[caller] = i
						time.Sleep(pace)
						if d.engine.Room(t.Context()) != nil {
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(random.IntN(40_000)) * time.Microsecond)
			if seed%2 == 0 {
				if err := d.close(); err != nil {
					t.Errorf("Run: %v", err)
				}
			} else {
				kept.set(func(k *disk) { k.held = true })
				d.fail(random.IntN(2))
				if err := d.close(); !errors.Is(err, errDisk) {
					t.Errorf("Run: %v", err)
				}
			}
			await.Done(tasks.Wait)
			kept.failed, kept.held = false, false
			again := open(t, kept, statestore.Options{})
			defer again.close()
			for caller, last := range answered {
				there, _ := strconv.Atoi(again.apply("c", "GET", strconv.Itoa(caller)).Value)
				if there != last && there != last+1 {
					t.Errorf("seed %d: caller %d had %d acknowledged, and %d is there", seed, caller, last, there)
				}
			}
		})
	}
}

// Invariant 33, for all that a store can say: whatever part of the last commit a crash keeps, the
// next store does not contradict what a reply or a notification has shown. Each write of a key
// has a higher number than the one before.
func TestInvariant33ACrashUndoesNothingThatWasSeen(t *testing.T) {
	const keys, requests, seeds = 4, 60, 300
	type sight struct {
		number int  // the last number that was seen
		gone   bool // it was seen to be gone after that
	}
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 59))
			store := newDisk()
			store.latency = time.Duration(random.IntN(3)) * time.Millisecond
			var mu sync.Mutex
			seen := make(map[string]sight)
			see := func(key string, number int, gone bool) {
				mu.Lock()
				defer mu.Unlock()
				seen[key] = sight{number, gone} // the replies about a key leave in the store's order
			}
			engine, err := Open(t.Context(), statestore.Options{}, store, func(n statestore.Notification) {
				number, _ := strconv.Atoi(n.Value)
				if !n.Deleted {
					see(n.Key, number, false)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			engine.Begin()
			ended := make(chan error, 1)
			go func() { ended <- engine.Run(t.Context()) }()
			written := make(map[string]int)  // the number of the last write of a key
			mortal := make(map[string]int)   // the last write that had a lifetime, or was followed by a DEL
			renewed := make(map[string]bool) // the writes that were renewed, or set again
			for i := range requests {
				key := strconv.Itoa(random.IntN(keys))
				before := written[key]
				words, reads := []string{"SET", key, strconv.Itoa(before + 1)}, false
				switch random.IntN(8) {
				case 0:
					words = []string{"DEL", key}
				case 1, 2:
					words, reads = []string{"GET", key}, true
				case 3:
					words = []string{"KEYNOTIFY", key}
				case 4: // a renewal, if the key is there
					words[2] = strconv.Itoa(before)
					words = append(words, "NEX", "PX", "5")
					renewed[key+" "+strconv.Itoa(before)] = true
				case 5:
					words = append(words, "PX", strconv.Itoa(1+random.IntN(9)))
				}
				if words[0] == "SET" {
					number, _ := strconv.Atoi(words[2])
					written[key] = number
				}
				if words[0] == "DEL" || len(words) > 3 {
					mortal[key] = written[key]
				}
				if i == requests*3/4 {
					store.set(func(d *disk) { d.held = true })
				}
				answered := func(reply statestore.Reply) {
					switch {
					case reads && reply.Outcome == statestore.Found:
						number, _ := strconv.Atoi(reply.Value)
						see(key, number, false)
					case reply.Outcome == statestore.Missing, reply.Outcome == statestore.Deleted, words[0] == "DEL" && reply.Outcome == statestore.NothingThere:
						see(key, before, true)
					case words[0] == "SET" && reply.Outcome == statestore.OK:
						number, _ := strconv.Atoi(words[2])
						see(key, number, false)
					}
				}
				engine.Submit(parse("c", words), answered)
				time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond / 2)
			}
			for range 2 { // the commit that is under way passes, and the next one is torn
				engine.Submit(parse("c", []string{"SET", "other", "v"}), nil)
				synctest.Wait()
				if random.IntN(2) == 0 {
					store.verdicts <- verdict{}
					synctest.Wait()
				}
			}
			engine.Submit(parse("c", []string{"SET", "other", "v"}), nil)
			synctest.Wait()
			store.verdicts <- verdict{random.IntN(6), errDisk}
			if err := await.Receive(ended); !errors.Is(err, errDisk) {
				t.Fatalf("Run: %v", err)
			}
			store.failed, store.held = false, false
			again := open(t, store, statestore.Options{})
			defer again.close()
			for key, last := range seen {
				reply := again.apply("c", "GET", key)
				number, _ := strconv.Atoi(reply.Value)
				found := reply.Outcome == statestore.Found
				switch {
				case found && number < last.number, found && last.gone && number == last.number && !renewed[key+" "+reply.Value]:
					t.Errorf("seed %d: key %s has write %d; write %d was seen (gone after that: %v)", seed, key, number, last.number, last.gone)
				case !found && !last.gone && mortal[key] < last.number:
					t.Errorf("seed %d: key %s is gone; write %d was seen, and nothing removed it", seed, key, last.number)
				}
			}
		})
	}
}

// A panic while the store is changed ends an engine with a journal: nothing that is in doubt is
// committed.
func TestAPanicEndsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, newDisk(), statestore.Options{})
		d.apply("c", "SET", "held", "h", "PX", "60000")
		before := d.disk.commits()
		func() {
			defer func() {
				if _, ok := recover().(*InDoubt); !ok {
					t.Error("it is no panic with an InDoubt")
				}
			}()
			d.engine.Submit(parse("c", []string{"GET", "held"}), func(statestore.Reply) { panic("a bug") })
		}()
		d.submit("later", "GET", "held")
		var doubt *InDoubt
		if err := d.close(); !errors.As(err, &doubt) || doubt.Value != "a bug" {
			t.Errorf("Run: %v", err)
		}
		if got := d.disk.commits(); got != before {
			t.Errorf("%d batches were committed after the panic", got-before)
		}
		d.want()
	})
}
