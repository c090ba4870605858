package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/storeconn"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// watching is a bubble with a store, a client that watches, and one that writes.
type watching struct {
	t              *testing.T
	store          *transporttest.Store
	client, writer *transport.Client
	conn           *transporttest.Conn
}

func inBubble(t *testing.T, test func(t *testing.T, w *watching)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		w := &watching{t: t, store: store}
		w.client, w.conn = store.Client(t, "watcher", transport.ClientOptions{})
		w.writer, _ = store.Client(t, "writer", transport.ClientOptions{})
		test(t, w)
	})
}

func (w *watching) set(value string) {
	w.t.Helper()
	if _, err := w.writer.Set(w.t.Context(), "k", []byte(value), transport.SetOptions{}); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *watching) watch() *transport.Watch {
	w.t.Helper()
	watch, err := w.client.Watch("k")
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	return watch
}

// mustSee fails unless exactly this change is there to be read.
func (w *watching) mustSee(watch *transport.Watch, value string, missed bool) {
	w.t.Helper()
	select {
	case change := <-watch.Changes():
		if string(change.Value) != value || change.Exists != (value != "") || change.Missed != missed {
			w.t.Errorf("saw %+v (%q), want %q, missed %v", change, change.Value, value, missed)
		}
	default:
		w.t.Errorf("saw nothing, want %q", value)
	}
	select {
	case change := <-watch.Changes():
		w.t.Errorf("saw %+v (%q) as well", change, change.Value)
	default:
	}
}

// holdNextGet holds the reply to the next GET for a second: what it read is old by then.
func (w *watching) holdNextGet() {
	var reads atomic.Int64
	w.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
		if strings.Contains(string(request.Payload), "GET") && reads.Add(1) == 1 {
			return transporttest.Fault{HoldReply: time.Second}
		}
		return transporttest.Fault{}
	})
}

func TestAWatchBeginsWithThePresentState(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		missing := w.watch()
		w.mustSee(missing, "", false)
		w.set("1")
		w.mustSee(missing, "1", false)
		w.mustSee(w.watch(), "1", false) // one that comes later, to the same key
	})
}

func TestASlowReaderStillSeesAGap(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		slow, quick := w.watch(), w.watch()
		w.mustSee(quick, "", false)
		w.conn.Cut()
		w.set("1")
		w.conn.Restore()
		synctest.Wait()
		w.mustSee(quick, "1", true)
		w.set("2")
		w.mustSee(quick, "2", false)
		w.mustSee(slow, "2", true) // the change that showed the gap was replaced
	})
}

func TestANotificationDuringTheReadWins(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		w.holdNextGet()
		watch := w.watch()
		w.set("new")
		w.mustSee(watch, "new", false)
		time.Sleep(2 * time.Second)
		select {
		case change := <-watch.Changes():
			t.Errorf("the older state came after: %+v", change)
		default:
		}
	})
}

// docs/protocol.md §5.2: VALUE is optional.
func TestAValueThatANotificationLeavesOutIsAskedFor(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		watch := w.watch()
		w.mustSee(watch, "", false)
		w.conn.SetNotificationFault(func(transporttest.Notification) transporttest.NotificationFault {
			return transporttest.NotificationFault{Lose: true}
		})
		changed := func() {
			w.conn.Forge(transporttest.Notification{Key: "k", Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n")})
			synctest.Wait()
		}
		w.set("1")
		changed()
		w.mustSee(watch, "1", false)

		// One that comes during the GET is not forgotten.
		w.holdNextGet()
		w.set("2")
		changed()
		w.set("3")
		changed()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.mustSee(watch, "3", false)
	})
}

// Notifications that come faster than an answer must not keep each answer from the watch.
func TestAWatchSeesAKeyThatChangesFasterThanItCanBeRead(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		watch := w.watch()
		w.mustSee(watch, "", false)
		w.conn.SetNotificationFault(func(transporttest.Notification) transporttest.NotificationFault {
			return transporttest.NotificationFault{Lose: true}
		})
		w.conn.SetFault(func(transporttest.Request) transporttest.Fault {
			return transporttest.Fault{HoldReply: 100 * time.Millisecond}
		})
		seen := 0
		for i := range 100 {
			w.set(strconv.Itoa(i))
			w.conn.Forge(transporttest.Notification{Key: "k", Payload: []byte("*2\r\n$6\r\nNOTIFY\r\n$3\r\nSET\r\n")})
			time.Sleep(50 * time.Millisecond)
			select {
			case <-watch.Changes():
				seen++
			default:
			}
		}
		if seen < 40 {
			t.Errorf("the watch saw %d states in 5 s", seen)
		}
	})
}

func TestTheLastWatchToCloseStopsTheNotifications(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		stops := w.counted("STOP", nil)
		first, second := w.watch(), w.watch()
		first.Close()
		first.Close() // again does nothing
		synctest.Wait()
		w.set("1")
		if stops.Load() != 0 {
			t.Error("STOP was sent while there was a watch")
		}
		w.mustSee(second, "1", false)
		second.Close()
		synctest.Wait()
		if got := stops.Load(); got != 1 {
			t.Errorf("STOP was sent %d times", got)
		}
		w.mustSee(w.watch(), "1", false) // and a watch can begin again
	})
}

// The store may have taken a STOP without an answer.
func TestInvariant51AWatchThatBeginsDuringAnUnansweredStopIsRegistered(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		first := w.watch()
		w.mustSee(first, "", false)
		w.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
			return transporttest.Fault{LoseReply: strings.Contains(string(request.Payload), "STOP")}
		})
		first.Close()
		synctest.Wait()
		second := w.watch()
		time.Sleep(20 * time.Second) // the client has given the STOP up
		synctest.Wait()
		w.mustSee(second, "", false)
		w.set("1")
		w.mustSee(second, "1", false)
	})
}

// The store of another maker may take a key that is too long for the topic of its notifications, and can never notify.
func TestAWatchThatIsRefusedEndsWithTheReason(t *testing.T) {
	for key, test := range map[string]struct {
		want error
		sent int64
	}{"": {transport.ErrKeyLengthZero, 2 /* with STOP */}, strings.Repeat("k", 40_000): {transport.ErrKeyTooLong, 0}} {
		inBubble(t, func(t *testing.T, w *watching) {
			sent := w.counted("KEYNOTIFY", nil)
			watch, err := w.client.Watch(key)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if _, open := await.Next(watch.Changes()); open || !errors.Is(watch.Err(), test.want) || sent.Load() != test.sent {
				t.Errorf("open is %v, after %d requests: %v", open, sent.Load(), watch.Err())
			}
		})
	}
}

func TestCloseEndsWatchesAndTasks(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		watch := w.watch()
		var ended atomic.Value
		if !w.client.Go(func(ctx context.Context) {
			await.Receive(ctx.Done())
			time.Sleep(time.Second)
			ended.Store(context.Cause(ctx))
		}) {
			t.Error("Go before Close refused")
		}
		if err := w.client.Close(); err != nil {
			t.Error(err)
		}
		if err, _ := ended.Load().(error); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("when Close returned the task had ended with %v, want ErrClosed", err)
		}
		await.Receive(watch.Changes()) // the first state
		if _, open := await.Next(watch.Changes()); open || !errors.Is(watch.Err(), transport.ErrClosed) {
			t.Errorf("open %v, %v; want ErrClosed", open, watch.Err())
		}
		if w.client.Go(func(context.Context) {}) {
			t.Error("Go after Close started something")
		}
		if _, err := w.client.Watch("k"); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Watch after Close: %v", err)
		}
		if _, err := w.client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("Get after Close: %v", err)
		}
	})
}

// counted counts the requests of the watcher with a verb, from now on.
func (w *watching) counted(verb string, fate func() transporttest.Fault) *atomic.Int64 {
	count := new(atomic.Int64)
	w.conn.SetFault(func(request transporttest.Request) transporttest.Fault {
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

func TestARepeatedRegistrationReportsNoChangeIfThereIsNone(t *testing.T) {
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
		// Each is repeated now and then nevertheless: a store that restarts with its data has
		// the same identity, and no watches.
		time.Sleep(time.Hour)
		if got := repeated.Load(); got < 5000 || got > 10_000 {
			t.Errorf("%d registrations are repeated in an hour of silence, want each of 1,000 every ten minutes or sooner", got)
		}
	})
}

// Two stores answer in turn.
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

func TestWatchesWithoutAStoreRetryLessAndLessOften(t *testing.T) {
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

// A store with the same identity forgets its watches in a restart with its data, or when an
// attached store loses its broker for a moment, while the client sends nothing.
func TestInvariant51AWatchRecoversWhenAStoreWithTheSameIdentityForgotIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		same := statestore.Options{Identity: "same"}
		if err := w.store.Replace(same); err != nil {
			t.Fatal(err)
		}
		watch := w.watch()
		w.mustSee(watch, "", false)
		if err := w.store.Replace(same); err != nil {
			t.Fatal(err)
		}
		w.set("1")
		for range 3600 { // any traffic: a lease, a heartbeat
			if err := w.get(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		w.mustSee(watch, "1", true)
	})
}

func TestInvariant51WhatHappensDuringARegistrationIsNotForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		stops := w.counted("STOP", func() transporttest.Fault { return transporttest.Fault{HoldReply: 100 * time.Millisecond} })
		watch, err := w.client.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		watch.Close()
		time.Sleep(time.Second)
		if got := stops.Load(); got != 1 {
			t.Errorf("%d requests to stop a watch that ended while it was registered, want 1", got)
		}
	})
}

func TestAWatchOfAClientThatHasEndedEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &endingConn{Conn: transporttest.Start(t).Connect("a")}
		client, err := transport.NewClient(conn, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		before, err := client.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		await.Next(before.Changes())
		conn.ended(transport.ErrSessionTakenOver)
		after, err := client.Watch("k")
		if err != nil {
			t.Fatal(err)
		}
		for _, watch := range []*transport.Watch{before, after} {
			if _, open := await.Next(watch.Changes()); open || !errors.Is(watch.Err(), transport.ErrSessionTakenOver) {
				t.Errorf("a watch is open: %t, error %v", open, watch.Err())
			}
			watch.Close()
		}
	})
}

// endingConn is a connection whose end a test can report.
type endingConn struct {
	*transporttest.Conn
	ended func(error)
}

func (c *endingConn) Start(events storeconn.Events) {
	c.ended = events.Ended
	c.Conn.Start(events)
}
