package events

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

var silent = slog.New(slog.DiscardHandler)

func request(payload ...string) *statestore.Command {
	command := statestore.Parse(statestore.Request{Client: "c", Payload: resp3.AppendCommand(nil, payload...)})
	return &command
}

func TestTheQueueIsBoundedAndCountsWhatItLeavesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []activity.Event
		log := new(logbuffer.Buffer)
		q := New(func(e activity.Event) { got = append(got, e) }, false, log.Logger())
		for i := range maxQueued + 100 {
			q.Push(activity.Event{Kind: activity.Expired, Key: fmt.Sprint(i)})
		}
		for range maxRare + 7 { // there is room for what each log and observer should have
			q.Push(activity.Event{Kind: activity.TakenOver, Client: "c"})
		}
		if len(q.observed.waiting) != maxQueued+maxRare || len(q.logged.waiting) != maxRare+7 {
			t.Errorf("%d events wait for the observer, and %d for the log", len(q.observed.waiting), len(q.logged.waiting))
		}
		stop := q.Start()
		synctest.Wait()
		q.Push(activity.Event{Kind: activity.Expired, Key: "later"})
		synctest.Wait()
		if kept := max(cap(q.observed.waiting), cap(q.logged.waiting)); kept > keptRoom {
			t.Errorf("after the burst the queue keeps memory for %d events", kept)
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
		if !strings.Contains(log.String(), "they came faster than the observer took them") || strings.Contains(log.String(), "not logged") {
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
		q.runObserver(ctx)
		if got != 100 {
			t.Errorf("%d of 100 events were observed", got)
		}
	})
}

func TestAPanicOfTheObserverCostsItOneEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, got := new(logbuffer.Buffer), 0
		q := New(func(e activity.Event) {
			if e.Key == "bad" {
				panic("wrong")
			}
			got++
		}, false, log.Logger())
		stop := q.Start()
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
		log := new(logbuffer.Buffer)
		q := New(nil, false, log.Logger())
		if q.Wanted() {
			t.Error("events are wanted though nothing takes them")
		}
		for _, outcome := range []statestore.Outcome{statestore.Deleted, statestore.NothingThere} {
			e := q.Request(request("VDEL", "k", "a:1"), time.Now())
			e.Forced = outcome.String()
			q.Answered(e, statestore.Reply{Outcome: outcome})
		}
		q.Answered(q.Request(request("GET", "k"), time.Now()), statestore.Reply{Outcome: statestore.Found})
		if len(q.logged.waiting) != 1 || len(q.observed.waiting) != 0 {
			t.Errorf("%d events wait for the log, and %d for an observer", len(q.logged.waiting), len(q.observed.waiting))
		}
		q.Start()()
		if got := log.String(); strings.Count(got, "level=") != 1 || !strings.Contains(got, "reason=deleted") {
			t.Errorf("the log is %q", got)
		}
	})
}

func TestARequestThatIsNotAnsweredIsNoEvent(t *testing.T) {
	q := New(func(activity.Event) {}, false, silent)
	q.Answered(q.Request(request("GET", "k"), time.Now()), statestore.Reply{Outcome: statestore.Expired})
	if len(q.observed.waiting) != 0 {
		t.Errorf("%+v", q.observed.waiting)
	}
}

// Any request can say that it takes a lease by force. Those that take none must not keep the event of one that
// does out of the queue.
func TestRequestsThatTakeNothingByForceAreOrdinary(t *testing.T) {
	answered := func(q *Queue, outcome statestore.Outcome, words ...string) *activity.Event {
		e := q.Request(request(words...), time.Now())
		e.Forced = "x"
		q.Answered(e, statestore.Reply{Outcome: outcome})
		return e
	}
	q := New(func(activity.Event) {}, false, silent)
	for range maxQueued + 10 {
		if e := answered(q, statestore.Found, "GET", "k"); e.Forced != "" {
			t.Fatalf("a GET takes a lease by force: %+v", e)
		}
	}
	answered(q, statestore.Deleted, "VDEL", "k", "a:1")
	if waiting := q.observed.waiting; len(waiting) != maxQueued+1 || waiting[maxQueued].Forced == "" || len(q.logged.waiting) != 1 {
		t.Errorf("%d events wait for the observer, and %d for the log", len(waiting), len(q.logged.waiting))
	}
	q = New(func(activity.Event) {}, false, silent)
	for range maxRare + 10 { // while others leave room, they need no room of their own
		answered(q, statestore.Deleted, "VDEL", "k", "a:1")
	}
	if len(q.observed.waiting) != maxRare+10 || len(q.logged.waiting) != maxRare+10 {
		t.Errorf("%d events wait for the observer, and %d for the log", len(q.observed.waiting), len(q.logged.waiting))
	}
}

// A value may be secret. An event tells the name of a holder only where package lease has put it, or where
// it is the client id.
func TestWhatAnEventSaysOfAValue(t *testing.T) {
	long, nonce := strings.Repeat("h", 1000), "0123456789abcdef0123456789abcdef"
	for _, test := range []struct {
		key, value, holder string
		rank               int
	}{
		{"k", "holder:" + nonce, "holder", -1},
		{"k", "host:8080:" + nonce, "host:8080", -1},
		{"k", "c:8080:" + nonce, "c:8080", -1},
		{"k", long + ":" + nonce, long[:activity.MaxText], -1},
		{"k", "c:anything", "c", -1},
		{"k", "c", "c", -1},
		{"k", "cat:anything", "", -1},
		{"k", "postgres://admin:hunter2@db:5432", "", -1},
		{"k", "secret:" + nonce[1:], "", -1},
		{"k", "secret:" + nonce + "0", "", -1},
		{"k", "secret:" + strings.ToUpper(nonce), "", -1},
		{"k", nonce, "", -1},
		{"k", "no colon", "", -1},
		{"k", "", "", -1},
		{"k", ":", "", -1},
		{"k/bid", "client:3", "", 3},
		{"k/bid", "client:-3", "", -1},
		{"k/bid", "client:x", "", -1},
		{"k/bid", "client:99999999999999999999", "", -1},
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
	command := statestore.Parse(statestore.Request{Client: "holder", Payload: payload})
	e := New(nil, true, silent).Request(&command, time.Now())
	clear(payload)
	if e.Key != "key" || e.Holder != "holder" || e.Value != "holder:value" {
		t.Errorf("%+v", e)
	}
}

// A program that embeds a store must be able to end it, whatever its observer does.
func TestAnObserverThatHangsDoesNotKeepAStoreFromEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, release, got := new(logbuffer.Buffer), make(chan struct{}), 0
		q := New(func(activity.Event) {
			got++
			await.Receive(release)
		}, false, log.Logger())
		stop := q.Start()
		for range 3 {
			q.Push(activity.Event{Kind: activity.Expired})
		}
		q.Push(activity.Event{Kind: activity.Request, Client: "ops", Key: "k", Forced: "it hangs", Outcome: statestore.Deleted})
		synctest.Wait()
		if !strings.Contains(log.String(), `reason="it hangs"`) {
			t.Errorf("a lease was taken by force while the observer hangs; the log is %q", log.String())
		}
		began := time.Now()
		stop()
		if waited := time.Since(began); waited != patience || !strings.Contains(log.String(), "hangs, or is slower") {
			t.Errorf("it ended after %v; the log is %q", waited, log.String())
		}
		close(release)
		synctest.Wait()
		if got != 1 {
			t.Errorf("the observer got %d events after it was given up", got-1)
		}
	})
}

// One client can have any number of client ids, and take its own connections over as fast as it can.
func TestAFloodOfTakeOversIsABoundedNumberOfLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, user := range map[string]func(i int) string{
			"one user":            func(int) string { return "mallory" },
			"no user":             func(int) string { return "" },
			"a user for each one": func(i int) string { return fmt.Sprint("user-", i) },
		} {
			log := new(logbuffer.Buffer)
			q := New(nil, false, log.Logger())
			stop := q.Start()
			for i := range 10_000 {
				for range 3 {
					q.Push(activity.Event{Kind: activity.TakenOver, At: time.Now(), Client: fmt.Sprint("c", i), User: user(i)})
				}
				if i%100 == 0 {
					time.Sleep(100 * time.Millisecond)
				}
			}
			for range 3 {
				q.Push(activity.Event{Kind: activity.TakenOver, At: time.Now(), Client: "honest", User: "operator"})
			}
			synctest.Wait()
			stop()
			lines := strings.Count(log.String(), "\n")
			omitted := strings.Count(log.String(), "omitted=")
			if lines > 2*(maxSources+2)*logs.Burst || omitted == 0 {
				t.Errorf("%s: %d lines, %d counts", name, lines, omitted)
			}
			if name == "one user" && !strings.Contains(log.String(), "client=honest") {
				t.Errorf("%s: the client id of another user is not in the log", name)
			}
		}
	})
}

// A client that deletes its own keys by force does not hide which client has taken the lease of another one.
func TestEachSourceHasLinesOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		q := New(nil, false, log.Logger())
		stop := q.Start()
		force := func(user, client, reason string) {
			q.Push(activity.Event{Kind: activity.Request, At: time.Now(), Client: client, User: user, Key: "k", Forced: reason, Outcome: statestore.Deleted})
			synctest.Wait()
		}
		for i := range 5000 {
			force("mallory", fmt.Sprint("c", i), "nothing")
		}
		force("ana", "c", "the node hangs")
		if got := log.String(); !strings.Contains(got, `reason="the node hangs"`) || strings.Count(got, "\n") != logs.Burst+1 {
			t.Errorf("the log has %d lines", strings.Count(got, "\n"))
		}
		for i := range maxSources + 5 {
			force(fmt.Sprint("user-", i), "c", "nothing")
		}
		if len(q.forced.sources) != maxSources {
			t.Errorf("%d sources have a limiter", len(q.forced.sources))
		}
		time.Sleep(quietFor + time.Second)
		force("later", "c", "nothing")
		if len(q.forced.sources) != 1 || q.forced.sources["user later"] == nil {
			t.Errorf("after a quiet time %d sources have a limiter", len(q.forced.sources))
		}
		stop()
	})
}

// Where clients do not authenticate, those that go on do not hide one that comes once.
func TestClientsThatGoOnDoNotHideALineOfANewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		q := New(nil, false, log.Logger())
		stop := q.Start()
		force := func(client, reason string) {
			q.Push(activity.Event{Kind: activity.Request, At: time.Now(), Client: client, Key: "k", Forced: reason, Outcome: statestore.Deleted})
		}
		for i := range 600 { // a minute
			if i%400 == 0 {
				for k := range maxSources {
					force(fmt.Sprint("m", k), "x")
				}
			}
			force("flood-1", "x")
			force("flood-2", "x")
			if i == 305 {
				force("laptop-of-the-operator", "the node hangs")
			}
			time.Sleep(97 * time.Millisecond)
		}
		for i := range 2 * maxSeen {
			force(fmt.Sprint("n", i), "x")
		}
		synctest.Wait()
		if len(q.forced.seen) > maxSeen {
			t.Errorf("%d sources are counted", len(q.forced.seen))
		}
		stop()
		if strings.Count(log.String(), "the node hangs") != 1 || strings.Count(log.String(), "\n") > 2*maxSources+2*logs.Burst+2*70 {
			t.Errorf("the log has %d lines", strings.Count(log.String(), "\n"))
		}
	})
}

// A client that ends its own lease and says that it takes it by force is no warning.
func TestAClientThatForcesItsOwnLeaseIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(logbuffer.Buffer)
		q := New(nil, false, log.Logger())
		stop := q.Start()
		for _, holder := range []string{"c", "gateway-a"} {
			e := q.Request(request("VDEL", "k", holder+":0123456789abcdef0123456789abcdef"), time.Now())
			e.Forced = "x"
			q.Answered(e, statestore.Reply{Outcome: statestore.Deleted})
		}
		synctest.Wait()
		stop()
		if got := log.String(); strings.Count(got, "level=INFO") != 1 || strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "holder=gateway-a") {
			t.Errorf("the log is %q", got)
		}
	})
}
