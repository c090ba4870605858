package browsertest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// store is a page of a store that a test makes up.
type store struct {
	node *admin.Node
	url  string
	at   time.Time // when the test began

	mu    sync.Mutex
	shows activity.State
}

// serveStore serves a page until the test ends.
func serveStore(t *testing.T) *store {
	t.Helper()
	s := &store{node: admin.NewNode(), at: time.Now(), shows: activity.NewState()}
	listening, err := admin.Listen(admin.Options{Addr: "127.0.0.1:0", Node: s.node, Logger: slog.New(slog.DiscardHandler),
		About: admin.About{Mode: "serve", Version: "v1.2.3", Commit: "0123456789abcdef0123456789abcdef01234567"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- listening.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := await.Receive(done); err != nil {
			t.Error(err)
		}
	})
	s.url = listening.URL()
	s.node.Describe("mqtts://10.1.4.20:8883", "/var/lib/tenure")
	s.node.Serve(admin.Store{
		Identity: "553876ccbf9d66189e9f31ec97b9166d",
		State:    s.state,
		Server:   func() server.Stats { return server.Stats{} },
		Usage:    func() server.Usage { return server.Usage{} },
	})
	return s
}

// state returns what the page shows.
func (s *store) state() activity.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.shows
	state.Leases, state.Clients = slices.Clone(s.shows.Leases), slices.Clone(s.shows.Clients)
	state.Timeline, state.StaleWrites = slices.Clone(s.shows.Timeline), slices.Clone(s.shows.StaleWrites)
	for i := range state.Leases {
		if last := state.Leases[i].LastChange; last != nil {
			change := *last
			state.Leases[i].LastChange = &change
		}
		if state.Leases[i].Held {
			state.Totals.Held++
		} else {
			state.Totals.Free++
		}
	}
	state.Bound()
	return state
}

func (s *store) ago(ago time.Duration) time.Time { return s.at.Add(-ago) }

// connect makes a client connected.
func (s *store) connect(ago time.Duration, client, user, remote string, also func(*activity.Client)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	row := activity.Client{Client: client, User: user, Remote: remote, Connected: true, Since: s.ago(ago), LastSeen: s.at, Requests: 7}
	also(&row)
	s.shows.Clients = append(s.shows.Clients, row)
}

// change adds a change of holders, and makes it the last one of its lease.
func (s *store) change(h statestore.HolderChange) *statestore.HolderChange {
	s.shows.Timeline = append(s.shows.Timeline, h)
	return &h
}

// hold adds a lease that a client has, and has renewed a minute ago.
func (s *store) hold(since time.Duration, name, client string, ttl time.Duration, from statestore.HolderChange, waiting ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from.Name, from.To, from.Began = name, client, s.ago(since)
	l := statestore.Lease{
		Name: name, Held: true, Holder: client, Client: client, Since: s.ago(since), TTLMillis: ttl.Milliseconds(), Renewals: 55,
		LastRenewal: s.ago(time.Minute), Deadline: s.ago(time.Minute - ttl), Token: "1767225600000:1:store", LastChange: s.change(from), Waiting: []statestore.Waiter{},
	}
	for _, client := range waiting {
		l.Waiting = append(l.Waiting, statestore.Waiter{Client: client})
	}
	s.shows.Leases = append(s.shows.Leases, l)
}

// free adds a lease that no client has since it ended.
func (s *store) free(ended statestore.HolderChange, waiting ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := statestore.Lease{
		Name: ended.Name, Holder: ended.From, NoHolderSince: ended.Ended, LastChange: s.change(ended), Waiting: []statestore.Waiter{},
		Down: ended.Cause != statestore.CauseReleased || len(waiting) > 0,
	}
	for _, client := range waiting {
		l.Waiting = append(l.Waiting, statestore.Waiter{Client: client})
	}
	s.shows.Leases = append(s.shows.Leases, l)
}

// plant makes a busy morning in a plant: one of each thing that the page shows. The leases live
// so long that nothing changes while a test looks.
func (s *store) plant() {
	const ttl = 10 * time.Minute
	offset := func(millis int64) func(*activity.Client) {
		return func(c *activity.Client) { c.ClockOffsetMillis = &millis }
	}
	s.connect(3*time.Hour, "gateway-a", "press", "10.1.4.7:50122", offset(4))
	s.connect(3*time.Hour, "gateway-b", "press", "10.1.4.8:50122", offset(4))
	s.connect(3*time.Hour, "gateway-c", "press", "10.1.4.9:50122", func(c *activity.Client) {
		offset(-2500)(c)
		c.TakeOvers, c.Flapping, c.Refused, c.StaleWrites = 6, true, 1, 1 // two programs have one client id
	})
	s.connect(3*time.Hour, "archiver-1", "press", "10.1.4.10:50122", func(c *activity.Client) { c.ClockImplausible = true })
	s.connect(3*time.Hour, "gateway-d", "press", "10.1.4.11:50122", offset(90_000))
	s.change(statestore.HolderChange{
		Name: "press-7/active", Cause: statestore.CauseReleased, From: "gateway-c", To: "gateway-b", By: "gateway-c",
		Ended: s.ago(2 * time.Hour), Began: s.ago(2 * time.Hour), HeldMillis: time.Hour.Milliseconds(),
	})
	s.hold(94*time.Minute, "press-7/active", "gateway-a", ttl, statestore.HolderChange{
		Cause: statestore.CauseExpired, From: "gateway-b", Ended: s.ago(95 * time.Minute), GapMillis: time.Minute.Milliseconds(),
		Disconnected: s.ago(100 * time.Minute), HeldMillis: 25 * time.Minute.Milliseconds(),
	}, "gateway-b", "gateway-c")
	s.hold(40*time.Minute, "press-8/active", "gateway-b", ttl, statestore.HolderChange{Cause: statestore.CauseAcquired})
	s.free(statestore.HolderChange{
		Name: "backup/nightly", Cause: statestore.CauseReleased, From: "archiver-1", By: "archiver-1", Ended: s.ago(28 * time.Minute), HeldMillis: 120_000,
	})
	// A lease that expired while a client waits.
	s.free(statestore.HolderChange{
		Name: "packing-line/2/controller", Cause: statestore.CauseExpired, From: "gateway-c", Ended: s.ago(11 * time.Minute), HeldMillis: 600_000,
	}, "gateway-b")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shows.Leases[1].Gone, s.shows.Leases[1].GoneSince = "gateway-d", s.ago(20*time.Minute) // the standby of press-8
	s.shows.StaleWrites = append(s.shows.StaleWrites, activity.StaleWrite{                   // a former holder writes
		At: s.ago(time.Minute), Key: "packing-line/2/setpoint", Client: "gateway-c", User: "press", Remote: "10.1.4.9:50122", Verb: "SET",
		Refusal: string(protocol.FencingTokenLower),
	})
}

const shown = `document.querySelectorAll("#lease-table tbody tr").length`

func TestThePageShowsEachThingThatNeedsAttention(t *testing.T) {
	s, b := serveStore(t), open(t)
	target, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	// A proxy may have the page below a path of its own.
	proxy := httptest.NewServer(http.StripPrefix("/plant/tenure", httputil.NewSingleHostReverseProxy(target)))
	t.Cleanup(func() {
		proxy.CloseClientConnections()
		proxy.Close()
	})
	b.do(chromedp.Navigate(proxy.URL + "/plant/tenure/"))
	b.until(`document.querySelector("#trouble").innerText.includes("Serving.")`)
	s.plant()
	b.until(shown + " === 4")
	page := eval[string](b, "document.body.innerText")
	for _, want := range []string{
		"active", "mqtts://10.1.4.20:8883", "/var/lib/tenure", "553876ccbf9d66189e9f31ec97b9166d", "v1.2.3 (0123456789ab)",
		"packing-line/2/controller has no holder for 11 min", "was not renewed in time", "its connection had ended 5 min before", // a lease that is lost
		"Client id gateway-c flaps.", "Two programs use the same client id", "The clock of gateway-c is 2.5 s behind", "The clock of archiver-1 is more than a day off",
		"The clock of gateway-d is 1 min 30 s ahead of the store's, which refuses its requests", "press-8/active has no standby (gateway-d gone since ",
		"1 stale write was refused",
		"gateway-a", "of 10 min", "1 h 34 min", // a lease that is held
		"no holder for 28 min", "last: archiver-1", // one that was released
		"expired", "released", "held for 1 h", "packing-line/2/setpoint", "flaps",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page", want)
		}
	}
	if red := eval[string](b, rowOf("packing-line/2/controller")+`.querySelector(".bad").innerText`); !strings.HasPrefix(red, "no holder for 11 min") {
		t.Errorf("in red: %q", red)
	}
	if amber := eval[string](b, rowOf("press-8/active")+`.querySelector(".tag.warn").innerText`); !strings.HasPrefix(amber, "no standby (gateway-d gone") {
		t.Errorf("in amber: %q", amber)
	}
	if calm := eval[bool](b, "!"+rowOf("backup/nightly")+`.querySelector(".bad")`); !calm {
		t.Error("a lease that was released, and for which no client waits, is shown as a fault")
	}
	if t.Failed() {
		t.Log(page)
	}
	for _, href := range eval[[]string](b, `[...document.querySelectorAll("a")].map(a => a.href)`) {
		if !strings.HasPrefix(href, proxy.URL+"/plant/tenure/") {
			t.Errorf("a link leads to %s", href)
		}
	}
	if title := eval[string](b, "document.title"); title != "● tenure active" {
		t.Errorf("the title is %q", title)
	}
	for _, width := range []int64{400, 1400} { // it is readable in each
		b.show(width, "dark")
		b.until(fmt.Sprintf("innerWidth === %d", width))
		if got := eval[int64](b, "document.documentElement.scrollWidth"); got > width {
			t.Errorf("the page is %d wide", got)
		}
		for _, cut := range eval[[]string](b, cutTexts) {
			t.Errorf("cut off: %s", cut)
		}
	}
	b.mustBeQuiet()
}

// A name that looks like HTML is text, and one that is very long does not widen the page.
func TestNamesThatClientsChooseAreText(t *testing.T) {
	s, b := serveStore(t), open(t)
	const markup = `<img src=x onerror="document.title='hacked'"><b>x`
	s.hold(0, markup, markup, 10*time.Minute, statestore.HolderChange{Cause: statestore.CauseAcquired})
	s.hold(0, strings.Repeat("long", 60), strings.Repeat("id", 60), 10*time.Minute, statestore.HolderChange{Cause: statestore.CauseAcquired})
	s.hold(0, "a\x00\xff\u202eb\n", "\x1b[31m", 10*time.Minute, statestore.HolderChange{Cause: statestore.CauseAcquired})
	b.show(400, "light")
	b.do(chromedp.Navigate(s.url))
	b.until(shown + " === 3")
	if got := eval[int64](b, "document.documentElement.scrollWidth"); got > 400 {
		t.Errorf("the page is %d wide", got)
	}
	if got := eval[int](b, `document.querySelectorAll("img, tbody b").length`); got != 0 {
		t.Errorf("%d elements of a name", got)
	}
	if got := eval[string](b, "document.title"); !strings.HasPrefix(got, "tenure") {
		t.Errorf("the title is %q", got)
	}
	b.mustBeQuiet()
}

// cutTexts is JavaScript that returns the texts of cells and headings that are wider than
// their place.
const cutTexts = `[...document.querySelectorAll("td, th, h1, h2, li, dd, .head, .live")].filter(n => n.checkVisibility() && n.clientWidth > 1 && n.scrollWidth > n.clientWidth + 1).map(n => n.innerText.slice(0, 60))`
