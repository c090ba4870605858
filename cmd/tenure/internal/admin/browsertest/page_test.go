package browsertest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// store is a page over events that a test makes up.
type store struct {
	*admin.Recorder
	node *admin.Node
	url  string
	at   time.Time // of the next event
	n    uint64
	keys map[string]bool // that have a value
}

// serveEvents serves a page until the test ends.
func serveEvents(t *testing.T) *store {
	t.Helper()
	s := &store{Recorder: admin.NewRecorder(), node: admin.NewNode(), at: time.Now(), keys: make(map[string]bool)}
	listening, err := admin.Listen(admin.Options{Addr: "127.0.0.1:0", Node: s.node, Recorder: s.Recorder,
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
		Server:   func() server.Stats { return server.Stats{} },
		Usage:    func() server.Usage { return server.Usage{} },
	})
	return s
}

// event reports an event, ago before now.
func (s *store) event(ago time.Duration, event activity.Event) {
	event.At = s.at.Add(-ago)
	if event.Rank == 0 {
		event.Rank = -1
	}
	switch {
	case event.Kind == activity.Expired || event.Outcome == statestore.Deleted:
		delete(s.keys, event.Key)
	case event.Verb == statestore.VerbSet && event.Outcome == statestore.OK:
		event.Created = !s.keys[event.Key]
		s.keys[event.Key] = true
	}
	s.Observe(event)
}

// connect reports that a client has connected.
func (s *store) connect(ago time.Duration, client, user, remote string) {
	s.event(ago, activity.Event{Kind: activity.Connected, Client: client, User: user, Remote: remote})
}

// set reports a SET of a lease, which acquires or renews it.
func (s *store) set(ago time.Duration, name, client string, ttl time.Duration, condition statestore.Condition, offset time.Duration) {
	s.n++
	s.event(ago, activity.Event{
		Kind: activity.Request, Client: client, User: "press", Remote: "10.1.4.7:50122", Verb: statestore.VerbSet, Key: name,
		Condition: condition, Lifetime: ttl, Holder: client, Outcome: statestore.OK, HasClock: true, ClockOffset: offset,
		Version: hlc.Timestamp{Wall: s.at.Add(-ago).UnixMilli(), Counter: s.n, Node: "store"}, Took: 300 * time.Microsecond,
	})
}

// hold reports that a client has acquired a lease and renewed it since.
func (s *store) hold(since time.Duration, name, client string, ttl time.Duration) {
	s.set(since, name, client, ttl, statestore.IfMissingOrEqual, 4*time.Millisecond)
	for ago := since - ttl/6; ago > 0; ago -= ttl / 6 {
		s.set(ago, name, client, ttl, statestore.IfMissingOrEqual, 4*time.Millisecond)
	}
}

// request reports another request.
func (s *store) request(ago time.Duration, client string, verb statestore.Verb, name, holder string, outcome statestore.Outcome) {
	s.n++
	s.event(ago, activity.Event{
		Kind: activity.Request, Client: client, User: "press", Remote: "10.1.4.7:50122", Verb: verb, Key: name, Holder: holder, Outcome: outcome,
		Version: hlc.Timestamp{Wall: s.at.Add(-ago).UnixMilli(), Counter: s.n, Node: "store"}, Took: 200 * time.Microsecond,
	})
}

// plant reports a busy morning in a plant: one of each thing that the page shows. The leases live
// so long that nothing changes while a test looks.
func (s *store) plant() {
	const ttl = 10 * time.Minute
	for i, client := range []string{"gateway-a", "gateway-b", "gateway-c", "archiver-1"} {
		s.connect(3*time.Hour, client, "press", fmt.Sprintf("10.1.4.%d:50122", 7+i))
	}
	s.set(3*time.Hour, "press-7/active", "gateway-c", ttl, statestore.IfMissingOrEqual, 0)
	s.request(2*time.Hour, "gateway-c", statestore.VerbVDel, "press-7/active", "gateway-c", statestore.Deleted)
	s.set(2*time.Hour, "press-7/active", "gateway-b", ttl, statestore.IfMissingOrEqual, 0)
	s.event(95*time.Minute, activity.Event{Kind: activity.Expired, Key: "press-7/active"})
	s.hold(94*time.Minute, "press-7/active", "gateway-a", ttl)
	s.request(90*time.Minute, "gateway-b", statestore.VerbKeyNotify, "press-7/active", "", statestore.OK)
	s.request(89*time.Minute, "gateway-c", statestore.VerbKeyNotify, "press-7/active", "", statestore.OK)
	s.hold(40*time.Minute, "press-8/active", "gateway-b", ttl)
	s.set(30*time.Minute, "backup/nightly", "archiver-1", ttl, statestore.IfMissingOrEqual, 0)
	s.request(28*time.Minute, "archiver-1", statestore.VerbVDel, "backup/nightly", "archiver-1", statestore.Deleted)
	// A lease that expired while a client waits.
	s.set(21*time.Minute, "packing-line/2/controller", "gateway-c", ttl, statestore.IfMissingOrEqual, -2500*time.Millisecond)
	s.request(20*time.Minute, "gateway-b", statestore.VerbKeyNotify, "packing-line/2/controller", "", statestore.OK)
	s.event(11*time.Minute, activity.Event{Kind: activity.Expired, Key: "packing-line/2/controller"})
	// A former holder writes, and two programs have one client id.
	s.event(time.Minute, activity.Event{Kind: activity.Request, Client: "gateway-c", User: "press", Remote: "10.1.4.9:50122", Verb: statestore.VerbSet,
		Key: "packing-line/2/setpoint", Outcome: statestore.Refused, Refusal: string(protocol.FencingTokenLower), Token: true,
		HasClock: true, ClockOffset: -2500 * time.Millisecond})
	// The clock of a client is refused.
	s.event(time.Minute, activity.Event{Kind: activity.Request, Client: "archiver-1", User: "press", Remote: "10.1.4.10:50122", Verb: statestore.VerbGet,
		Key: "backup/nightly", Outcome: statestore.Refused, Refusal: string(protocol.TimestampTooFarAhead), HasClock: true, ClockOffset: time.Hour})
	for i := range 6 {
		s.event(time.Duration(30-i)*time.Second, activity.Event{Kind: activity.TakenOver, Client: "gateway-c", Remote: "10.1.4.9:50200", Reason: "10.1.4.23:40000"})
	}
}

const shown = `document.querySelectorAll("#lease-table tbody tr").length`

func TestThePageIsReadableInEachWidthAndColour(t *testing.T) {
	s, b := serveEvents(t), open(t)
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
	s, b := serveEvents(t), open(t)
	b.do(chromedp.Navigate(s.url))
	b.until(`document.querySelector("#trouble").innerText.includes("Serving.")`)
	s.plant()
	b.until(shown + " === 4")
	page := eval[string](b, "document.body.innerText")
	for _, want := range []string{
		"active", "mqtts://10.1.4.20:8883", "/var/lib/tenure", "553876ccbf9d66189e9f31ec97b9166d", "v1.2.3 (0123456789ab)",
		"packing-line/2/controller has no holder for 11 min", "was not renewed in time", // a lease that is lost
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
	s, b := serveEvents(t), open(t)
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
	s.connect(0, "gateway-z", "", "10.1.4.99:1")
	s.set(0, "press-9/active", "gateway-z", time.Minute, statestore.IfMissingOrEqual, 0)
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
	s, b := serveEvents(t), open(t)
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
	s, b := serveEvents(t), open(t)
	const markup = `<img src=x onerror="document.title='hacked'"><b>x`
	s.set(0, markup, markup, time.Minute, statestore.IfMissingOrEqual, 0)
	s.set(0, strings.Repeat("long", 60), strings.Repeat("id", 60), time.Minute, statestore.IfMissingOrEqual, 0)
	s.set(0, "a\x00\xff\u202eb\n", "\x1b[31m", time.Minute, statestore.IfMissingOrEqual, 0)
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
	s, b := serveEvents(t), open(t)
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
