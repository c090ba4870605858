package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

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
	listening, err := admin.Listen(admin.Options{Addr: "127.0.0.1:0", Node: s.node,
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
		l.Waiting = append(l.Waiting, statestore.Waiter{Client: client, Watching: true})
	}
	s.shows.Leases = append(s.shows.Leases, l)
}

// free adds a lease that no client has since it ended.
func (s *store) free(ended statestore.HolderChange, waiting ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := statestore.Lease{Name: ended.Name, Holder: ended.From, NoHolderSince: ended.Ended, LastChange: s.change(ended), Waiting: []statestore.Waiter{}}
	for _, client := range waiting {
		l.Waiting = append(l.Waiting, statestore.Waiter{Client: client, Watching: true})
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
	s.shows.StaleWrites = append(s.shows.StaleWrites, activity.StaleWrite{ // a former holder writes
		At: s.ago(time.Minute), Key: "packing-line/2/setpoint", Client: "gateway-c", User: "press", Remote: "10.1.4.9:50122", Verb: "SET",
		Refusal: string(protocol.FencingTokenLower),
	})
}

const shown = `document.querySelectorAll("#lease-table tbody tr").length`

func TestThePageIsReadableInEachWidthAndColour(t *testing.T) {
	s, b := serveStore(t), open(t)
	s.plant()
	b.do(chromedp.Navigate(s.url))
	b.until(shown + " === 4")
	for _, colours := range []string{"light", "dark"} {
		for _, width := range []int64{400, 1400} {
			name := fmt.Sprintf("%s-%d", colours, width)
			t.Run(name, func(t *testing.T) {
				b.show(width, colours)
				b.until(fmt.Sprintf("innerWidth === %d && matchMedia('(prefers-color-scheme: %s)').matches", width, colours))
				if got := eval[int64](b, "document.documentElement.scrollWidth"); got > width {
					t.Errorf("the page is %d wide", got)
				}
				for _, cut := range eval[[]string](b, cutTexts) {
					t.Errorf("cut off: %s", cut)
				}
				low := eval[[]string](b, lowContrasts)
				for _, text := range low {
					t.Errorf("too little contrast: %s", text)
				}
				if ratio := eval[float64](b, leastContrast); ratio < 4.5 {
					t.Errorf("the least contrast is %.2f", ratio)
				} else {
					t.Logf("the least contrast is %.2f", ratio)
				}
				b.picture(name)
			})
		}
	}
	b.mustBeQuiet()
}

func TestThePageShowsEachThingThatNeedsAttention(t *testing.T) {
	s, b := serveStore(t), open(t)
	b.do(chromedp.Navigate(s.url))
	b.until(`document.querySelector("#trouble").innerText.includes("Serving.")`)
	s.plant()
	b.until(shown + " === 4")
	page := eval[string](b, "document.body.innerText")
	for _, want := range []string{
		"active", "mqtts://10.1.4.20:8883", "/var/lib/tenure", "553876ccbf9d66189e9f31ec97b9166d", "v1.2.3 (0123456789ab)",
		"packing-line/2/controller has no holder for 11 min", "was not renewed in time", "its connection had ended 5 min before", // a lease that is lost
		"Client id gateway-c flaps.", "Two programs use the same client id", "The clock of gateway-c is 2.5 s behind", "The clock of archiver-1 is not plausible", "1 stale write was refused",
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
	if calm := eval[bool](b, "!"+rowOf("backup/nightly")+`.querySelector(".bad")`); !calm {
		t.Error("a lease that was released, and for which no client waits, is shown as a fault")
	}
	if t.Failed() {
		t.Log(page)
	}
	if title := eval[string](b, "document.title"); title != "● tenure active" {
		t.Errorf("the title is %q", title)
	}
	b.mustBeQuiet()
}

func TestThePageCanBeUsedWithTheKeyboard(t *testing.T) {
	s, b := serveStore(t), open(t)
	s.plant()
	b.show(1400, "light")
	b.do(chromedp.Navigate(s.url))
	b.until(shown + " === 4")
	focus := `(document.activeElement.id || document.activeElement.getAttribute("href"))`
	var order []string
	for range 4 {
		b.do(chromedp.KeyEvent(kb.Tab))
		order = append(order, eval[string](b, focus))
		if !eval[bool](b, `(o => o.outlineStyle !== "none" && parseFloat(o.outlineWidth) >= 2)(getComputedStyle(document.activeElement))`) {
			t.Errorf("the focus at %s is not visible", order[len(order)-1])
		}
	}
	if got := strings.Join(order, " "); got != "#leases filter api/state metrics" {
		t.Errorf("Tab goes to %s", got)
	}
	// As a keyboard does it: the key makes the character unless the page prevents that.
	b.do(input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithCode("Slash").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/").WithCode("Slash"))
	if got := eval[string](b, focus); got != "filter" {
		t.Errorf("/ goes to %s", got)
	}
	b.do(chromedp.KeyEvent("press-8"))
	b.until(shown + " === 1")
	// A change elsewhere leaves the focus and the filter as they are.
	s.hold(0, "press-9/active", "gateway-z", 10*time.Minute, statestore.HolderChange{Cause: statestore.CauseAcquired})
	b.until(`document.querySelector("#lease-count").innerText.startsWith("3 held")`)
	if got := eval[string](b, focus+` + " " + document.activeElement.value`); got != "filter press-8" || !eval[bool](b, shown+" === 1") {
		t.Errorf("after a change: %s", got)
	}
	b.do(chromedp.KeyEvent("nothing has this name"))
	b.until(`!document.querySelector("#lease-table").parentNode.querySelector(".empty").hidden`)
	b.do(chromedp.KeyEvent(kb.Escape))
	b.until(shown + " === 5")
	b.mustBeQuiet()
}

// A name that looks like HTML is text, and one that is very long does not widen the page.
// A proxy may have the page below a path of its own.
func TestThePageWorksBelowAPathOfAProxy(t *testing.T) {
	s, b := serveStore(t), open(t)
	s.plant()
	target, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(http.StripPrefix("/plant/tenure", httputil.NewSingleHostReverseProxy(target)))
	t.Cleanup(func() {
		proxy.CloseClientConnections() // the browser reads events
		proxy.Close()
	})
	b.do(chromedp.Navigate(proxy.URL + "/plant/tenure/"))
	b.until(shown + " === 4")
	for _, href := range eval[[]string](b, `[...document.querySelectorAll("a")].map(a => a.href)`) {
		if !strings.HasPrefix(href, proxy.URL+"/plant/tenure/") {
			t.Errorf("a link leads to %s", href)
		}
	}
	b.mustBeQuiet()
}

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

func TestAPageOfAStandbyNamesTheActiveProcess(t *testing.T) {
	s, b := serveStore(t), open(t)
	s.node.StandBy(func() string { return "10.1.4.21:8883" })
	b.show(1400, "dark")
	b.do(chromedp.Navigate(s.url))
	b.until(`document.querySelector("#role").innerText === "standby"`)
	b.until(`document.body.innerText.includes("This process stands by; 10.1.4.21:8883 is active.")`)
	b.picture("standby")
	s.node.Serve(admin.Store{Identity: "553876ccbf9d66189e9f31ec97b9166d"})
	b.until(`document.querySelector("#role").innerText === "active"`)
	b.mustBeQuiet()
}

// colours is JavaScript that returns [contrast, text] for each text that the page shows, by the
// formula of WCAG 2.
const colours = `(() => {
	const rgb = css => { const n = css.match(/[\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
	const light = ([r, g, b]) => {
		const [x, y, z] = [r, g, b].map(c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
		return .2126 * x + .7152 * y + .0722 * z;
	};
	const behind = node => {
		for (; node; node = node.parentElement) {
			const c = rgb(getComputedStyle(node).backgroundColor);
			if (c[3] === 1) return c;
			if (c[3] !== 0) throw new Error("half transparent: " + node.outerHTML.slice(0, 80));
		}
		return [255, 255, 255, 1];
	};
	const found = [];
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let text; text = texts.nextNode();) {
		const node = text.parentElement, style = getComputedStyle(node);
		if (!text.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName) || !node.checkVisibility() || node.closest(".unseen, .fresh")) continue;
		const [a, b] = [light(rgb(style.color)), light(behind(node))].sort((a, b) => b - a);
		found.push([(a + .05) / (b + .05), text.data.trim().slice(0, 60) + " " + style.color + " on " + behind(node)]);
	}
	return found;
})()`

const (
	leastContrast = "Math.min(..." + colours + ".map(c => c[0]))"
	lowContrasts  = colours + ".filter(c => c[0] < 4.5).map(c => c[0].toFixed(2) + ' ' + c[1])"
	// cutTexts is JavaScript that returns the texts of cells and headings that are wider than
	// their place.
	cutTexts = `[...document.querySelectorAll("td, th, h1, h2, li, dd, .head, .live")].filter(n => n.checkVisibility() && n.clientWidth > 1 && n.scrollWidth > n.clientWidth + 1).map(n => n.innerText.slice(0, 60))`
)
