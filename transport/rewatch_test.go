package transport_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// counted counts the requests of the watcher with a verb, from now on.
func (w *watching) counted(verb string, fate func() transporttest.Fault) *atomic.Int64 {
	count := new(atomic.Int64)
	w.conn.SetFault(func(request transport.Request) transporttest.Fault {
		if bytes.Contains(request.Payload, []byte(verb)) {
			count.Add(1)
		}
		if fate != nil {
			return fate()
		}
		return transporttest.Fault{}
	})
	return count
}

func (w *watching) replace() {
	w.t.Helper()
	if err := w.store.Replace(statestore.Options{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watching) get() error {
	w.t.Helper()
	_, err := w.client.Get(w.t.Context(), "another")
	synctest.Wait()
	return err
}

func TestInvariant51AWatchIsRegisteredAtTheStoreThatTookThePlaceOfAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		w.set("1")
		watch := w.watch()
		w.mustSee(watch, "1", false)
		for _, value := range []string{"2", "3"} {
			time.Sleep(10 * time.Second)
			w.replace()
			w.set(value) // of which nothing is told
			if err := w.get(); err != nil {
				t.Fatal(err)
			}
			w.mustSee(watch, value, true)
			w.set(value + "'")
			w.mustSee(watch, value+"'", false)
		}
	})
}

func TestInvariant51AWatchIsRegisteredAgainWhenAStoreAnswersAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		w.store.HideIdentity(true)
		watch := w.watch()
		w.mustSee(watch, "", false)
		time.Sleep(10 * time.Second)
		w.counted("", func() transporttest.Fault { return transporttest.Fault{NoStore: true} })
		if err := w.get(); !errors.Is(err, transport.ErrNoStore) {
			t.Fatal(err)
		}
		w.replace()
		w.set("1")
		w.conn.SetFault(nil)
		if err := w.get(); err != nil {
			t.Fatal(err)
		}
		w.mustSee(watch, "1", true)
		w.set("2")
		w.mustSee(watch, "2", false)
	})
}

func TestInvariant51AWatchOfAClientThatAsksNothingIsSilentForAMinuteAtMost(t *testing.T) {
	for name, hidden := range map[string]bool{"a store with an identity": false, "a store without": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *watching) {
				w.store.HideIdentity(hidden)
				watch := w.watch()
				w.mustSee(watch, "", false)
				for _, value := range []string{"1", "2"} {
					w.replace()
					w.set(value)
					time.Sleep(2 * time.Minute)
					w.mustSee(watch, value, true)
				}
				w.set("3")
				w.mustSee(watch, "3", false)
			})
		})
	}
}

func TestARegistrationThatIsRepeatedTellsOfNoChangeWhereThereIsNone(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		w.store.HideIdentity(true)
		missing, err := w.client.Watch("missing")
		if err != nil {
			t.Fatal(err)
		}
		await.Receive(missing.Changes())
		w.set("1")
		watch := w.watch()
		w.mustSee(watch, "1", false)
		repeated := w.counted("KEYNOTIFY", nil)
		time.Sleep(10 * time.Minute)
		if got := repeated.Load(); got < 2*10 || got > 2*13 {
			t.Errorf("two watches are registered %d times in ten minutes", got)
		}
		if len(watch.Changes()) > 0 || len(missing.Changes()) > 0 {
			t.Error("there is a change")
		}
		w.set("2")
		w.mustSee(watch, "2", false)
	})
}

func TestWatchesCostNoTrafficWhereAnotherStoreWouldBeNoticed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		for i := range 1000 {
			if _, err := w.client.Watch(fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		repeated := w.counted("KEYNOTIFY", nil)
		for range 16 {
			time.Sleep(30 * time.Second)
			if err := w.get(); err != nil {
				t.Fatal(err)
			}
		}
		if got := repeated.Load(); got > 0 {
			t.Errorf("%d registrations are repeated, though the store answers twice a minute", got)
		}
		// Each of them now and then all the same: a store that was restarted with its data
		// has the same identity, and knows no watches.
		time.Sleep(time.Hour)
		if got := repeated.Load(); got < 5000 || got > 10_000 {
			t.Errorf("%d registrations are repeated in an hour of silence, want each of 1,000 every ten minutes or sooner", got)
		}
	})
}

// Two stores answer in turn, and no request knows which.
func TestStoresThatTakeTurnsCauseNoHotLoop(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		w.watch()
		repeated := w.counted("KEYNOTIFY", nil)
		for range 1000 {
			w.replace()
			if err := w.get(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if got := repeated.Load(); got < 5 || got > 25 {
			t.Errorf("the watch is registered %d times in ten seconds", got)
		}
	})
}

func TestWatchesThatFindNoStoreAskEverMoreSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		away := true
		asked := w.counted("KEYNOTIFY", func() transporttest.Fault { return transporttest.Fault{NoStore: away} })
		watch := w.watch()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := asked.Load(); got < 20 || got > 120 {
			t.Errorf("it asks %d times in ten minutes", got)
		}
		away = false
		if err := w.get(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.mustSee(watch, "", false)
	})
}

func TestAWatchThatMayNotBeRegisteredAgainEndsWithTheReason(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		watch := w.watch()
		w.mustSee(watch, "", false)
		w.store.Authorize(func(string, statestore.Verb, string) bool { return false })
		w.replace()
		_ = w.get()
		time.Sleep(2 * time.Second)
		select {
		case _, open := <-watch.Changes():
			if open || !errors.Is(watch.Err(), transport.ErrNotAuthorized) {
				t.Errorf("open: %t, %v", open, watch.Err())
			}
		default:
			t.Error("it is silent")
		}
	})
}
