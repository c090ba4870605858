package top

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/adminclient"
	"github.com/tenurelock/tenure/cmd/tenure/internal/output"
	"github.com/tenurelock/tenure/cmd/tenure/internal/terminal"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestAWatchedLeaseIsFollowedFromHolderToHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		holder, _ := store.Client(t, "gateway-a", transport.ClientOptions{})
		watcher, conn := store.Client(t, "watcher", transport.ClientOptions{})
		source := NewWatching(watcher, []string{"press-7/active", "free"}, 0)
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- source.Run(ctx) }()
		await.Receive(source.Ready())
		look := func() Lease { return source.Snapshot(time.Now()).Leases[0] }

		if got := look(); got.Held || got.Name != "press-7/active" {
			t.Errorf("a free lease: %+v", got)
		}
		l, err := lease.New(holder, "press-7/active", lease.Options{TTL: 9 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		if got := look(); !got.Held || got.Holder != "gateway-a" || got.AtLeast || got.HeldFor.Duration != 500*time.Millisecond || got.TTL.Duration != 0 {
			t.Errorf("before the first renewal: %+v", got)
		}
		time.Sleep(19500 * time.Millisecond)
		if got := look(); got.HeldFor.Duration != 20*time.Second || !got.Estimated || got.TTL.Duration < 8*time.Second || got.TTL.Duration > 9*time.Second || got.Left.Duration <= 5*time.Second {
			t.Errorf("after some renewals: %+v", got)
		}
		// What was missed may have been anything: the estimate ends until the next renewals.
		conn.Cut()
		if snapshot := source.Snapshot(time.Now()); !strings.HasPrefix(snapshot.Problem, "no connection") {
			t.Errorf("without a connection: %q", snapshot.Problem)
		}
		time.Sleep(time.Second)
		conn.Restore()
		time.Sleep(time.Second)
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		got := look()
		if got.Held || got.NoHolder.Duration != 5*time.Second || got.AtLeast || got.Holder != "gateway-a" {
			t.Errorf("released: %+v", got)
		}
		if other := source.Snapshot(time.Now()).Leases[1]; other.Held || !other.AtLeast {
			t.Errorf("a lease that was never held: %+v", other)
		}
		cancel()
		if err := await.Receive(ran); err != context.Canceled {
			t.Error(err)
		}
	})
}

func TestTheTimeLeftOfAWatchedLeaseIsByItsTTL(t *testing.T) {
	now := time.Unix(1000, 0)
	entry := transport.Entry{Exists: true, Value: []byte("a:b:nonce")}
	var w watched
	if got := w.at(now, 0); got.Problem == "" {
		t.Errorf("before anything is known: %+v", got)
	}
	w.change(transport.Change{Entry: entry}, now)
	if got := w.at(now.Add(time.Second), 3*time.Second); got.TTL.Duration != 0 || !got.AtLeast || got.Holder != "a:b" {
		t.Errorf("when it was renewed is not known: %+v", got)
	}
	w.change(transport.Change{Entry: entry}, now.Add(time.Second))
	if got := w.at(now.Add(2*time.Second), 3*time.Second); got.TTL.Duration != 3*time.Second || got.Left.Duration != 2*time.Second || got.Estimated {
		t.Errorf("a second after a renewal: %+v", got)
	}
	w.change(transport.Change{Entry: entry, Missed: true}, now.Add(3*time.Second))
	if got := w.at(now.Add(3*time.Second), 3*time.Second); got.TTL.Duration != 0 {
		t.Errorf("a value that was read is no renewal: %+v", got)
	}
}

func TestAStatusPageIsFollowedAndItsFailuresAreShown(t *testing.T) {
	at := time.Now()
	var broken atomic.Bool
	var asked atomic.Int32
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer asked.Add(1)
		if broken.Load() {
			http.Error(w, "it stops", http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path != "/api/state" || r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		_ = json.NewEncoder(w).Encode(activity.State{At: at, Info: activity.Info{Mode: "serve"}, LeasesHidden: 3, Leases: []statestore.Lease{
			{Name: "free", NoHolderMillis: 7000, Holder: "b"},
			{Name: "held", Held: true, Holder: "a", Since: at.Add(-time.Minute), TTLMillis: 9000, LeftMillis: 6000, Waiting: make([]statestore.Waiter, 2), WaitingHidden: 1},
		}})
	}))
	defer page.Close()
	client, err := adminclient.New(page.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	status := NewStatus(client)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- status.Run(ctx) }()
	await.Receive(status.Ready())
	status.mu.Lock()
	fetched := status.fetched
	status.mu.Unlock()
	s := status.Snapshot(fetched.Add(2 * time.Second))
	held := s.Leases[1]
	if s.Leases[0].NoHolder.Duration < 9*time.Second || held.Left.Duration != 4*time.Second || held.TTL.Duration != 9*time.Second || held.HeldFor.Duration < 62*time.Second || *held.Waiting != 3 || s.Hidden != 3 {
		t.Errorf("%+v", s)
	}
	only := s.Only([]string{"held", "other"})
	if len(only.Leases) != 2 || only.Leases[0].Holder != "a" || only.Leases[1].Problem == "" || only.Hidden != 0 || len(s.Only(nil).Leases) != 2 {
		t.Errorf("some names only: %+v", only)
	}
	broken.Store(true)
	await.Until(func() bool { return status.Snapshot(time.Now()).Problem != "" })
	if s = status.Snapshot(time.Now()); !strings.Contains(s.Problem, "it stops") || len(s.Leases) != 2 {
		t.Errorf("%+v", s)
	}
	cancel()
	if err := await.Receive(ran); err != context.Canceled {
		t.Error(err)
	}
}

// The convention of package output: what is not UTF-8 is in base64, and what is not known is left out.
func TestNamesOfAnyBytesAreWholeInJSON(t *testing.T) {
	s := Snapshot{Leases: []Lease{{Name: "a\xff", Held: true, Holder: "b\xfe"}, {Name: "größe"}}}
	text, err := json.Marshal(s.Report().Leases)
	want := `[{"nameBase64":"Yf8=","held":true,"holderBase64":"Yv4="},` +
		`{"name":"größe","held":false}]`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	if s.Leases[0].Name != "a\xff" {
		t.Error("the snapshot has changed")
	}
}

func known(n int) *int { return &n }

func TestAFrameFitsTheScreenAndShowsWhatIsWrong(t *testing.T) {
	s := Snapshot{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Title: "serve", Leases: []Lease{
		{Name: "press-8/active", NoHolder: output.Millis{Duration: 7 * time.Second}, Waiting: known(1)},
		{Name: "press-7/active", Held: true, Holder: "gateway-a\x1b[2J", HeldFor: output.Millis{Duration: 61 * time.Second}, TTL: output.Millis{Duration: 10 * time.Second}, Left: output.Millis{Duration: 5 * time.Second}, Estimated: true},
		{Name: "late", Held: true, Holder: "b", HeldFor: output.Millis{Duration: time.Second}, AtLeast: true, TTL: output.Millis{Duration: 10 * time.Second}, Left: output.Millis{Duration: -time.Second}, Waiting: known(0)},
	}}
	want := []string{
		`03:04:05  2 of 3 leases held  serve`,
		`NAME            HOLDER            HELD FOR  LEFT                        WAITING`,
		`press-8/active  no holder for 7s         -     -                              1`,
		`press-7/active  gateway-a\x1b[2J      1m1s   ~5s  ##########..........        -`,
		`late            b                      >1s    0s  ....................        0`,
	}
	if got := s.Lines(100, 0, terminal.Style{}); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for columns, head := range map[int]string{52: "NAME HOLDER HELD FOR LEFT WAITING", 51: "NAME HOLDER HELD FOR LEFT", 42: "NAME HOLDER LEFT", 24: "NAME HOLDER", 23: "NAME"} {
		if got := strings.Join(strings.Fields(s.Lines(columns, 0, terminal.Style{})[1]), " "); got != head {
			t.Errorf("%d columns show %q, want %q", columns, got, head)
		}
	}
	s.Problem = "no connection: refused"
	for columns := 1; columns < 100; columns += 3 {
		for rows := 4; rows < 9; rows++ {
			lines := s.Lines(columns, rows, terminal.Style{})
			if len(lines) > rows {
				t.Errorf("%d rows of %d", len(lines), rows)
			}
			for _, line := range lines {
				if terminal.Width(line) > columns {
					t.Errorf("%d columns of %d: %q", terminal.Width(line), columns, line)
				}
			}
			if hidden := lines[len(lines)-1]; columns > 6 && rows < 7 && !strings.HasSuffix(hidden, " more") {
				t.Errorf("%d rows do not say that some are hidden:\n%s", rows, strings.Join(lines, "\n"))
			}
		}
	}
}

// What a job has released is no fault, unless a client waits for it.
func TestALeaseThatWasReleasedIsNotRed(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, test := range []struct {
		name  string
		lease statestore.Lease
		red   bool
	}{
		{"released", statestore.Lease{LastChange: &statestore.HolderChange{Cause: statestore.CauseReleased}}, false},
		{"deleted by its holder", statestore.Lease{LastChange: &statestore.HolderChange{Cause: statestore.CauseDeleted}}, false},
		{"released, and a client waits", statestore.Lease{LastChange: &statestore.HolderChange{Cause: statestore.CauseReleased}, Waiting: []statestore.Waiter{{}}}, true},
		{"expired", statestore.Lease{LastChange: &statestore.HolderChange{Cause: statestore.CauseExpired}}, true},
		{"unknown", statestore.Lease{}, true},
	} {
		cells := fromState(test.lease, now, 0).cells(terminal.Style{})
		if got := cells[1].Color == terminal.Red; got != test.red {
			t.Errorf("%s: red: %t", test.name, got)
		}
	}
}
