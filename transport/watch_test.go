package transport_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
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

func TestAWatchBeginsWithThePresentState(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		missing := w.watch()
		w.mustSee(missing, "", false)
		w.set("1")
		w.mustSee(missing, "1", false)
		w.mustSee(w.watch(), "1", false) // one that comes later, to the same key
	})
}

func TestAReaderThatIsSlowSeesTheLatestChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		slow, quick := w.watch(), w.watch()
		w.mustSee(quick, "", false)
		for _, value := range []string{"1", "2", "3"} {
			w.set(value)
			w.mustSee(quick, value, false)
		}
		w.mustSee(slow, "3", false)
	})
}

func TestAGapIsToldEvenToAReaderThatIsSlow(t *testing.T) {
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
		w.mustSee(slow, "2", true) // the change that told of the gap was replaced
	})
}

func TestANotificationDuringTheReadWins(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		var reads atomic.Int64
		w.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if strings.Contains(string(request.Payload), "GET") && reads.Add(1) == 1 {
				return transporttest.Fault{HoldReply: time.Second} // what it read is old by then
			}
			return transporttest.Fault{}
		})
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

func TestTheLastWatchToCloseStopsTheNotifications(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		var stops atomic.Int64
		w.conn.SetFault(func(request transport.Request) transporttest.Fault {
			if strings.Contains(string(request.Payload), "STOP") {
				stops.Add(1)
			}
			return transporttest.Fault{}
		})
		first, second := w.watch(), w.watch()
		first.Close()
		first.Close() // again does nothing
		synctest.Wait()
		w.set("1")
		if stops.Load() != 0 {
			t.Error("STOP was sent while somebody watched")
		}
		w.mustSee(second, "1", false)
		second.Close()
		synctest.Wait()
		if got := stops.Load(); got != 1 {
			t.Errorf("STOP was sent %d times", got)
		}
		w.mustSee(w.watch(), "1", false) // and it can begin anew
	})
}

func TestARegistrationWhoseOutcomeIsUnknownIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		var lost atomic.Int64
		w.conn.SetFault(func(request transport.Request) transporttest.Fault {
			return transporttest.Fault{LoseReply: lost.Add(1) <= 3}
		})
		watch := w.watch()
		time.Sleep(4*transport.DefaultRequestTimeout + 4*time.Second)
		synctest.Wait()
		w.mustSee(watch, "", false)
		w.set("1")
		w.mustSee(watch, "1", false)
	})
}

func TestAWatchThatTheStoreRefusesEndsWithTheReason(t *testing.T) {
	inBubble(t, func(t *testing.T, w *watching) {
		watch, err := w.client.Watch("") // no key may be empty
		if err != nil {
			t.Fatal(err)
		}
		if _, open := await.Next(watch.Changes()); open {
			t.Error("a change arrived")
		}
		if err := watch.Err(); !errors.Is(err, transport.ErrKeyLengthZero) {
			t.Errorf("%v, want ErrKeyLengthZero", err)
		}
	})
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
