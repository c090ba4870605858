package integration_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// debugLogger returns a logger that writes all lines to log.
func debugLogger(log *logbuffer.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// nonce is what package lease writes after the name of a holder.
const nonce = "0123456789abcdef0123456789abcdef"

// lines describes the changes of leases that a store shows, the first one first.
func lines(state activity.State) []string {
	all := []string{}
	for _, h := range slices.Backward(state.Timeline) {
		text := fmt.Sprintf("%s: %s %s->%s", h.Name, h.Cause, h.From, h.To)
		if h.By != "" {
			text += " by " + h.By
		}
		if h.Forced != "" {
			text += ": " + h.Forced
		}
		all = append(all, text)
	}
	return all
}

// What happens to a lease is shown in its order, whatever the store is.
func TestAStoreShowsWhatHappensToALease(t *testing.T) {
	t.Parallel()
	ofServer := func(t *testing.T, journal statestore.Journal) (string, func() activity.State) {
		address, s := testsupport.StartServer(t, server.Options{Journal: journal})
		return address, s.State
	}
	attached := func(t *testing.T, journal statestore.Journal) (string, func() activity.State) {
		address := mosquitto.Start(t, "").Address
		return address, testsupport.Attach(t, address, attach.Options{Journal: journal}).State
	}
	for _, test := range []struct {
		name    string
		start   func(*testing.T, statestore.Journal) (string, func() activity.State)
		journal statestore.Journal
	}{
		{"in memory", ofServer, nil},
		{"attached with a journal", attached, new(transporttest.Journal).Open()},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, state := test.start(t, test.journal)
			a := testsupport.Dial(t, address, transport.Options{ClientID: "a"})
			b := testsupport.Dial(t, address, transport.Options{ClientID: "b"})
			set := func(client *transport.Client, key, value string, ttl time.Duration) error {
				_, err := client.Set(t.Context(), key, []byte(value), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: ttl})
				return err
			}
			err := errors.Join(set(a, "k", "a:1", time.Minute), set(a, "k", "a:1", time.Minute))
			if err := set(b, "k", "b:1", time.Minute); !errors.Is(err, transport.ErrConditionFailed) {
				t.Fatal(err)
			}
			asked, _ := b.Watch("k")
			await.Receive(asked.Changes())
			observed, _ := testsupport.Dial(t, address, transport.Options{ClientID: "o"}).Watch("k")
			awaited, _ := testsupport.Dial(t, address, transport.Options{ClientID: "w"}).WatchWaiting("k")
			await.Receive(observed.Changes())
			await.Receive(awaited.Changes())
			if l := state().Leases[0]; !l.Held || l.Holder != "a" || l.Client != "a" || l.Renewals != 1 || l.TTLMillis != 60_000 || l.LeftMillis < 1000 ||
				len(l.Waiting) != 2 || l.Waiting[0].Client != "b" || l.Waiting[1].Client != "w" {
				t.Errorf("while a holds it, b has asked for it, w waits and o looks on: %+v", l)
			}
			_, released := a.VDel(t.Context(), "k", []byte("a:1"), transport.DelOptions{})
			err = errors.Join(err, released, set(b, "k", "b:2", 50*time.Millisecond))
			await.Until(func() bool { return !state().Leases[0].Held })
			err = errors.Join(err, set(a, "k", "a:"+nonce, time.Minute))
			_, forced := b.VDel(t.Context(), "k", []byte("a:"+nonce), transport.DelOptions{Forced: "ana@ops"})
			if err = errors.Join(err, forced); err != nil {
				t.Fatal(err)
			}
			version, err := a.Set(t.Context(), "file", nil, transport.SetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.Set(t.Context(), "file", nil, transport.SetOptions{FencingToken: hlc.Token(version)}); err != nil {
				t.Fatal(err)
			}
			stale := hlc.Token(version)
			stale.Wall--
			if _, err := b.Set(t.Context(), "file", nil, transport.SetOptions{FencingToken: stale}); !errors.Is(err, transport.ErrFencingTokenLower) {
				t.Error(err)
			}
			shows := state()
			want := []string{"k: acquired ->a", "k: released a->b by a", "k: expired b->a", "k: forced a-> by b: ana@ops"}
			if got := lines(shows); !slices.Equal(got, want) {
				t.Errorf("the changes are\n%q; want\n%q", got, want)
			}
			if !shows.Timeline[1].Disconnected.IsZero() {
				t.Error("b expired, and its connection is there")
			}
			if len(shows.StaleWrites) != 1 || shows.StaleWrites[0].Client != "b" || shows.StaleWrites[0].Key != "file" {
				t.Errorf("stale writes: %+v", shows.StaleWrites)
			}
			totals := shows.Totals
			if totals.Acquired != 3 || totals.Renewed != 1 || totals.EndsBy[statestore.CauseExpired] != 1 || totals.StaleWrites != 1 || totals.Free != 1 || totals.Held != 0 {
				t.Errorf("%+v", totals)
			}
			counted := uint64(0)
			for _, d := range totals.Durations {
				counted += d.Count
			}
			if counted != totals.Requests || totals.Requests < 9 {
				t.Errorf("%d requests, and %d durations of them", totals.Requests, counted)
			}
		})
	}
}

// The page says what the server knows of a client, and of its clock, also when it has left.
func TestTheStateNamesTheClients(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{Authenticator: testsupport.Rules{}})
	client := testsupport.Dial(t, address, transport.Options{ClientID: "node-a", Username: "ana"})
	if _, err := client.Set(t.Context(), "k", []byte("node-a:1"), transport.SetOptions{Condition: transport.IfMissing, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	c := s.State().Clients[0]
	if c.Client != "node-a" || c.User != "ana" || c.Remote == "" || !c.Connected || c.Requests == 0 || c.ClockOffsetMillis == nil || c.ClockImplausible {
		t.Errorf("while it is connected: %+v", c)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	await.Until(func() bool { return !s.State().Clients[0].Connected })
	if c := s.State().Clients[0]; c.Reason != activity.ReasonLeft {
		t.Errorf("after it has left: %+v", c)
	}
}

// The Will of a holder that is lost shows as one.
func TestAWillIsShown(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	c := testsupport.RequestWill("a", "VDEL", "k", "a:1").Connect(t, address, "a")
	c.MustDo(t, 1, "+OK\r\n", "SET", "k", "a:1", "NEX", "PX", "60000")
	c.Reset()
	await.Until(func() bool { return len(s.State().Timeline) == 2 })
	if got, want := lines(s.State()), []string{"k: acquired ->a", "k: will a-> by a"}; !slices.Equal(got, want) {
		t.Errorf("the changes are %q; want %q", got, want)
	}
	await.Until(func() bool { return s.State().Clients[0].Reason == activity.ReasonLost })
}

// An operator asks first whether a holder that did not renew was there at all.
func TestAnExpiredLeaseSaysWhetherItsHolderWasConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true})
		set := func(id, key string) *transport.Client {
			client := s.Client(t, id)
			if _, err := client.Set(t.Context(), key, []byte(id), transport.SetOptions{Condition: transport.IfMissing, TTL: 10 * time.Second}); err != nil {
				t.Fatal(err)
			}
			return client
		}
		set("stays", "x")
		time.Sleep(time.Second)
		leaves := set("leaves", "y")
		time.Sleep(time.Second)
		if err := leaves.Close(); err != nil {
			t.Fatal(err)
		}
		left := time.Now()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		timeline := s.Server().State().Timeline
		if len(timeline) != 4 || timeline[0].Name != "y" || timeline[0].Cause != statestore.CauseExpired || timeline[0].Disconnected.Sub(left).Abs() > time.Second/2 {
			t.Errorf("the holder had left at %v: %+v", left, timeline[0])
		}
		if timeline[1].Name != "x" || timeline[1].Cause != statestore.CauseExpired || !timeline[1].Disconnected.IsZero() {
			t.Errorf("the holder was connected: %+v", timeline[1])
		}
	})
}

// Redundancy is shown: the clients that would take over, also after lost connections and a restart of the store, and
// not those that look on; and when the last one is gone.
func TestTheClientsThatWouldTakeOverAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.NewWithOptions(t, servertest.Options{InMemory: true, Journal: new(transporttest.Journal)})
		of := func(id string, delay time.Duration) *lease.Lease {
			l, err := lease.New(s.Client(t, id), "k", lease.Options{TTL: 10 * time.Second, AcquireDelay: delay})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		ctx, stop := context.WithCancel(t.Context())
		if _, err := of("a", 0).Acquire(ctx); err != nil {
			t.Fatal(err)
		}
		b, giveUp := context.WithCancel(ctx)
		var tasks sync.WaitGroup
		wait := func(ctx context.Context, l *lease.Lease) { tasks.Go(func() { _, _ = l.Acquire(ctx) }) }
		wait(b, of("b", 0))
		wait(ctx, of("ranked", 5*time.Second))
		tasks.Go(func() {
			for range of("observer", 0).Observe(ctx) {
				continue
			}
		})
		shown := func(event string, want ...string) {
			t.Helper()
			time.Sleep(8 * time.Second)
			synctest.Wait()
			var got []string
			l := s.Server().State().Leases[0]
			for _, w := range l.Waiting {
				got = append(got, w.Client)
			}
			if slices.Sort(got); !slices.Equal(got, want) || l.Holder != "a" || l.Gone != "" {
				t.Errorf("%s: %q wait for %s; want %q; %s is gone", event, got, l.Holder, want, l.Gone)
			}
		}
		shown("at first", "b", "ranked")
		s.Cut()
		shown("after a lost connection", "b", "ranked")
		s.Restart()
		shown("after a restart", "b", "ranked")
		time.Sleep(10 * time.Minute)
		shown("later", "b", "ranked")
		giveUp()
		shown("b has given up", "ranked")
		stop()
		await.Done(tasks.Wait)
	})
}

// A lease of the data is shown at once, with what happened before: the page has to explain a restart.
func TestAfterARestartLeasesAndTheirHistoryAreShownAtOnce(t *testing.T) {
	journal := new(transporttest.Journal)
	run := func(do func(s *server.Server, client *transport.Client)) {
		address, s, stop := testsupport.StartStoppable(t, server.Options{Journal: journal.Open()})
		client := testsupport.Dial(t, address, transport.Options{ClientID: "a"})
		do(s, client)
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	set := func(client *transport.Client, key string) {
		if _, err := client.Set(t.Context(), key, []byte("a:1"), transport.SetOptions{Condition: transport.IfMissingOrEqual, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	var since time.Time
	run(func(s *server.Server, client *transport.Client) {
		set(client, "held")
		set(client, "free")
		if _, err := client.VDel(t.Context(), "free", []byte("a:1"), transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		since = s.State().Leases[1].Since
	})
	run(func(s *server.Server, client *transport.Client) {
		state := s.State()
		if got, want := lines(state), []string{"held: acquired ->a", "free: acquired ->a", "free: released a-> by a"}; !slices.Equal(got, want) {
			t.Errorf("the changes are %q; want %q", got, want)
		}
		if len(state.Leases) != 2 {
			t.Fatalf("%+v", state.Leases)
		}
		if l := state.Leases[0]; l.Name != "free" || l.Held || l.LastChange.Cause != statestore.CauseReleased {
			t.Errorf("%+v", l)
		}
		if l := state.Leases[1]; l.Name != "held" || !l.Held || l.Client != "a" || !l.Since.Equal(since) || l.LastChange == nil {
			t.Errorf("%+v; it was acquired at %v", l, since)
		}
		set(client, "held")
		if state := s.State(); state.Totals.Acquired != 0 || state.Totals.Renewed != 1 || len(state.Timeline) != 3 {
			t.Errorf("a renewal after the restart: %+v", state.Totals)
		}
	})
}

func TestEachRequestHasALineInTheDebugLog(t *testing.T) {
	log := new(logbuffer.Buffer)
	address, _, stop := testsupport.StartStoppable(t, server.Options{Logger: debugLogger(log)})
	client := testsupport.Dial(t, address, transport.Options{ClientID: "node-a"})
	long := strings.Repeat("k", 1000)
	_, err := client.Set(t.Context(), long+"\n", []byte("secret:1"), transport.SetOptions{})
	_, get := client.Get(t.Context(), "other")
	if err := errors.Join(err, get, client.Close()); err != nil {
		t.Fatal(err)
	}
	stop()
	var lines []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "msg=request ") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "verb=SET key=\"kkkk") || !strings.Contains(lines[0], "outcome=ok client=node-a remote=127.0.0.1:") ||
		!strings.Contains(lines[1], "verb=GET key=other outcome=missing client=node-a remote=127.0.0.1:") {
		t.Errorf("the log is %q", lines)
	}
	if strings.Contains(log.String(), "secret") || len(lines) > 0 && len(lines[0]) > 400 {
		t.Errorf("the log has a value, or a whole key: %q", lines)
	}
}
