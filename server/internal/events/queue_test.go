package events

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

var silent = slog.New(slog.DiscardHandler)

// text collects a log.
type text struct {
	mu sync.Mutex
	strings.Builder
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

// run runs a queue until the function that it returns is called.
func run(t *testing.T, q *Queue) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var task sync.WaitGroup
	task.Go(func() { q.Run(ctx) })
	return func() {
		cancel()
		await.Done(task.Wait)
	}
}

func request(payload ...string) *statestore.Command {
	command := statestore.Parse(statestore.Request{Client: "c", Payload: resp3.AppendCommand(nil, payload...)})
	return &command
}

func TestTheQueueIsBoundedAndCountsWhatItLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []activity.Event
		log := new(text)
		q := New(func(e activity.Event) { got = append(got, e) }, false, slog.New(slog.NewTextHandler(log, nil)))
		for i := range maxQueued + 100 {
			q.Push(activity.Event{Kind: activity.Expired, Key: fmt.Sprint(i)})
		}
		for range maxRare + 7 { // there is room for what each log should have
			q.Push(activity.Event{Kind: activity.TakenOver, Client: "c"})
		}
		if len(q.waiting) != maxQueued+maxRare {
			t.Errorf("%d events wait", len(q.waiting))
		}
		stop := run(t, q)
		synctest.Wait()
		q.Push(activity.Event{Kind: activity.Expired, Key: "later"})
		synctest.Wait()
		if cap(q.waiting) > keptRoom {
			t.Errorf("after the burst the queue keeps memory for %d events", cap(q.waiting))
		}
		stop()
		lost := uint64(0)
		for i, e := range got {
			lost += e.Lost
			if i < maxQueued && e.Key != fmt.Sprint(i) {
				t.Fatalf("event %d is about %s", i, e.Key)
			}
		}
		if lost != 107 || len(got) != maxQueued+maxRare+1 || got[len(got)-1].Key != "later" {
			t.Errorf("%d events, %d counted as left out", len(got), lost)
		}
		if !strings.Contains(log.String(), "they came faster than they were taken") {
			t.Errorf("the log is %q", log.String())
		}
	})
}

func TestWhatIsQueuedAtTheEndIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := 0
		q := New(func(activity.Event) { got++ }, false, silent)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			q.Push(activity.Event{Kind: activity.Expired})
		}
		q.Run(ctx)
		if got != 100 {
			t.Errorf("%d of 100 events were observed", got)
		}
	})
}

func TestAPanicOfTheObserverCostsItOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, got := new(text), 0
		q := New(func(e activity.Event) {
			if e.Key == "bad" {
				panic("wrong")
			}
			got++
		}, false, slog.New(slog.NewTextHandler(log, nil)))
		stop := run(t, q)
		for _, key := range []string{"a", "bad", "b"} {
			q.Push(activity.Event{Kind: activity.Expired, Key: key})
		}
		synctest.Wait()
		stop()
		if got != 2 || strings.Count(log.String(), "level=ERROR") != 1 || !strings.Contains(log.String(), "error=wrong") {
			t.Errorf("%d events; the log is %q", got, log.String())
		}
	})
}

// A forced release is logged without an observer, and without the debug log.
func TestARareEventIsLoggedThoughNothingTakesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(text)
		q := New(nil, false, slog.New(slog.NewTextHandler(log, nil)))
		if q.Wanted() {
			t.Error("events are wanted though nothing takes them")
		}
		for _, outcome := range []statestore.Outcome{statestore.Deleted, statestore.NothingThere} {
			e := q.Request(request("VDEL", "k", "a:1"), time.Now())
			e.Forced = outcome.String()
			q.Answered(e, statestore.Reply{Outcome: outcome})
		}
		q.Answered(q.Request(request("GET", "k"), time.Now()), statestore.Reply{Outcome: statestore.Found})
		if len(q.waiting) != 1 {
			t.Errorf("%d events wait", len(q.waiting))
		}
		run(t, q)()
		if got := log.String(); strings.Count(got, "level=") != 1 || !strings.Contains(got, "says=deleted") {
			t.Errorf("the log is %q", got)
		}
	})
}

func TestARequestThatIsNotAnsweredIsNoEvent(t *testing.T) {
	q := New(func(activity.Event) {}, false, silent)
	q.Answered(q.Request(request("GET", "k"), time.Now()), statestore.Reply{Outcome: statestore.Expired})
	if len(q.waiting) != 0 {
		t.Errorf("%+v", q.waiting)
	}
}

func TestWhatAnEventSaysOfAValue(t *testing.T) {
	long := strings.Repeat("h", 1000)
	for _, test := range []struct {
		key, value, holder string
		rank               int
	}{
		{"k", "client:nonce", "client", -1},
		{"k", "host:8080:nonce", "host:8080", -1},
		{"k", "no colon", "", -1},
		{"k", "", "", -1},
		{"k", ":", "", -1},
		{"k", long + ":1", long[:activity.MaxText], -1},
		{"k/bid", "client:3", "client", 3},
		{"k/bid", "client:-3", "client", -1},
		{"k/bid", "client:x", "client", -1},
		{"k/bid", "client:99999999999999999999", "client", -1},
	} {
		for _, values := range []bool{false, true} {
			q := New(nil, values, silent)
			e := q.Request(request("SET", test.key, test.value), time.Now())
			value := ""
			if values {
				value = test.value[:min(len(test.value), activity.MaxText)]
			}
			if e.Holder != test.holder || e.Rank != test.rank || e.Value != value {
				t.Errorf("%s=%.20s: holder %.20q, rank %d, value %.20q", test.key, test.value, e.Holder, e.Rank, e.Value)
			}
		}
	}
}

// Nothing in an event may keep a large request in memory, or change with its bytes.
func TestAnEventSharesNothingWithItsRequest(t *testing.T) {
	payload := resp3.AppendCommand(nil, "SET", "key", "holder:value")
	command := statestore.Parse(statestore.Request{Client: "c", Payload: payload})
	e := New(nil, true, silent).Request(&command, time.Now())
	clear(payload)
	if e.Key != "key" || e.Holder != "holder" || e.Value != "holder:value" {
		t.Errorf("%+v", e)
	}
}
